"""The paired client for programs that await, with a syphon in a task of its own beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.failover import client_aio
from sbpair.failover.syphon_supervisor import CLOSE_SECONDS, HURRY_SECONDS, SyphonMixin, SyphonOptions, SyphonSupervisor

if TYPE_CHECKING:
    from sbpair.failover.events import SyphonFaulted
    from sbpair.model.pair import Pair
    from sbpair.syphon.runner import SyphonResult


class AsyncBackgroundSyphon:
    """A syphon at work. To be had from `AsyncPairedClient.syphon`."""

    def __init__(self, pair: Pair, options: SyphonOptions, tell: Callable[[SyphonFaulted], object]) -> None:
        self._watch = SyphonSupervisor(pair, options, tell)
        self._task = asyncio.create_task(self._watch.run(), name="sbpair syphon")

    @property
    def running(self) -> bool:
        return not self._task.done()

    @property
    def result(self) -> SyphonResult | None:
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


class AsyncPairedClient(client_aio.AsyncFailoverClient, SyphonMixin[AsyncBackgroundSyphon]):
    __doc__ = client_aio.AsyncFailoverClient.__doc__

    def _begun(self, options: SyphonOptions) -> AsyncBackgroundSyphon:
        return AsyncBackgroundSyphon(self.pair, options, self.known.tell)

    async def close(self) -> None:
        """Stop its syphon, close its senders, and ping no more."""
        if self._syphon is not None:
            await self._syphon.stop()
        await super().close()
