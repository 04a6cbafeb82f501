"""The route of management requests, and their time limit: short, with a warning, until the first answer.

Emulators speak plain HTTP on their AMQP port; proxies and private links listen elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from sbpair.model.pair import Endpoint, authority_of, is_loopback
from sbpair.model.reachability import CONNECT_SECONDS, FIRST_ANSWER_SECONDS, REPORT_SECONDS, FirstAnswerTimeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """The scheme and address to connect to, and the host of the certificate and the Host header."""

    scheme: str
    netloc: str
    authority: str

    @property
    def server_hostname(self) -> str | None:
        return urlsplit(f"//{self.authority}").hostname if self.scheme == "https" else None

    def apply(self, url: str) -> str:
        """Return `url` with this route's scheme and address; the path keeps its escapes."""
        return urlunsplit(urlsplit(url)._replace(scheme=self.scheme, netloc=self.netloc))


def http_route(endpoint: Endpoint) -> HttpRoute:
    """Return the route to a namespace: the HTTPS port beside AMQPS, else the one port that serves both."""
    port = endpoint.port if endpoint.shares_port else None
    scheme = "https" if endpoint.tls else "http"
    return HttpRoute(scheme, authority_of(endpoint.host, port), endpoint.authority)


def is_local(endpoint: Endpoint) -> bool:
    """Return whether the endpoint is an emulator, which is its own Resource Manager, too."""
    return endpoint.emulator or is_loopback(endpoint.host)


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
