"""The paired client for programs that block, with a syphon in a thread of its own beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.failover import client_sync
from sbpair.failover.syphon_supervisor import CLOSE_SECONDS, HURRY_SECONDS, SyphonMixin, SyphonOptions, SyphonSupervisor

if TYPE_CHECKING:
    from sbpair.failover.events import SyphonFaulted
    from sbpair.model.pair import Pair
    from sbpair.syphon.runner import SyphonResult


class BackgroundSyphon:
    """A syphon at work. To be had from `PairedClient.syphon`."""

    def __init__(self, pair: Pair, options: SyphonOptions, tell: Callable[[SyphonFaulted], object]) -> None:
        self._parts = pair, options, tell
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="sbpair syphon", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def result(self) -> SyphonResult | None:
        """What became of the last run of it that has ended: a receipt, and why it ended."""
        return self._watch.result

    def stop(self) -> None:
        """Finish what is in flight, for five seconds at most, and give back the rest."""
        self._set(self._watch.stop)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._set(self._watch.hurry)
            self._thread.join(HURRY_SECONDS)

    def _set(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            return  # it has ended

    async def _main(self) -> None:
        self._loop, self._watch = asyncio.get_running_loop(), SyphonSupervisor(*self._parts)
        self._ready.set()
        await self._watch.run()


class PairedClient(client_sync.FailoverClient, SyphonMixin[BackgroundSyphon]):
    __doc__ = client_sync.FailoverClient.__doc__

    def _begun(self, options: SyphonOptions) -> BackgroundSyphon:
        return BackgroundSyphon(self.pair, options, self.known.tell)

    def close(self) -> None:
        """Stop its syphon, close its senders, and ping no more."""
        if self._syphon is not None:
            self._syphon.stop()
        super().close()
