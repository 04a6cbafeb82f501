"""The paired client for programs that await, with a syphon in a task of its own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.errors import UsageError
from sbpair.paired.watch import CLOSE_SECONDS, HURRY_SECONDS, Options, Watch
from sbpair.sender import aio

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.move.events import SyphonEvent
    from sbpair.sender.events import SyphonFaulted
    from sbpair.syphon import Result
    from sbpair.syphon.terms import Terms


class Syphon:
    """A syphon at work. To be had from `PairedClient.syphon`."""

    def __init__(self, pair: Pair, options: Options, tell: Callable[[SyphonFaulted], object]) -> None:
        self._watch = Watch(pair, options, tell)
        self._task = asyncio.create_task(self._watch.run(), name="sbpair syphon")

    @property
    def running(self) -> bool:
        return not self._task.done()

    @property
    def result(self) -> Result | None:
        """What became of the last run of it that has ended: a receipt, and why it ended."""
        return self._watch.result

    async def stop(self) -> None:
        """Finish what is in flight, for five seconds at most, and give back the rest."""
        self._watch.stop.set()
        if asyncio.current_task() is self._task:
            return
        _, left = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        if left:
            self._watch.hurry.set()
            _, left = await asyncio.wait((self._task,), timeout=HURRY_SECONDS)
        for task in left:
            task.cancel()


class PairedClient(aio.PairedClient):
    __doc__ = aio.PairedClient.__doc__
    _syphon: Syphon | None = None

    def syphon(
        self,
        *,
        state: Path | None = None,
        lease_queue: str | None = None,
        terms: Terms | None = None,
        hold: int = 1_000,
        ordered: bool = True,
        allow_missing: bool = False,
        on_event: Callable[[SyphonEvent], None] = lambda _event: None,
    ) -> Syphon:
        """Bring the backlog back, in a task, until the client is closed or `stop` is awaited.

        As `sbpair.PairedClient.syphon`. To be called in the loop. Raises UsageError where there is one.
        """
        if self._closed:
            raise ValueError("the client has been closed: make another one")
        if self._syphon is not None and self._syphon.running:
            raise UsageError("this client has a syphon already", hint="one brings all of the backlog back")
        options = Options(state, lease_queue, terms, hold, ordered, allow_missing, on_event)
        self._syphon = Syphon(self.pair, options, self.known.tell)
        return self._syphon

    async def close(self) -> None:
        """Stop its syphon, close its senders, and ping no more."""
        if self._syphon is not None:
            await self._syphon.stop()
        await super().close()
