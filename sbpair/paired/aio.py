"""The paired client for programs that await, with a syphon in a task of its own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.paired.watch import CLOSE_SECONDS, HURRY_SECONDS, Beside, Options, Watch
from sbpair.sender import aio

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.sender.events import SyphonFaulted
    from sbpair.syphon import Result


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


class PairedClient(aio.PairedClient, Beside[Syphon]):
    __doc__ = aio.PairedClient.__doc__

    def _begun(self, options: Options) -> Syphon:
        return Syphon(self.pair, options, self.known.tell)

    async def close(self) -> None:
        """Stop its syphon, close its senders, and ping no more."""
        if self._syphon is not None:
            await self._syphon.stop()
        await super().close()
