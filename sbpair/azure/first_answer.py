"""The time limit of requests to one address: short, and with a warning, until it has answered for the first time."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING

from sbpair.model.reachability import CONNECT_SECONDS, FIRST_ANSWER_SECONDS, REPORT_SECONDS, FirstAnswerTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

log = logging.getLogger(__name__)


class AnswerLimit:
    """The limit of each request to `address`: `call_seconds` after the first answer, FIRST_ANSWER_SECONDS before."""

    def __init__(self, address: str, call_seconds: float) -> None:
        self._address = address
        self._call_seconds = call_seconds
        self._asked = self._answered = False

    @asynccontextmanager
    async def one_request(self) -> AsyncIterator[None]:
        """Limit the block. Raises FirstAnswerTimeout before the first answer, TimeoutError after it."""
        if self._answered:
            async with asyncio.timeout(self._call_seconds):
                yield
            return
        seconds = min(self._call_seconds, FIRST_ANSWER_SECONDS)
        first, self._asked = not self._asked, True
        limit = asyncio.timeout(seconds)
        try:
            with silence_reported(self._address, seconds) if first else nullcontext():
                async with limit:
                    yield
        except TimeoutError as error:
            raise FirstAnswerTimeout(self._address, seconds if limit.expired() else CONNECT_SECONDS) from error
        self._answered = True


@contextmanager
def silence_reported(address: str, seconds: float) -> Iterator[None]:
    """Log a warning if the block still waits for an answer after REPORT_SECONDS. `seconds` is its time limit."""
    warning = "no answer from %s for %g s; waiting %g s at most"
    timer = asyncio.get_running_loop().call_later(
        REPORT_SECONDS, log.warning, warning, address, REPORT_SECONDS, seconds
    )
    try:
        yield
    finally:
        timer.cancel()
