"""The paired client for programs that block, with a syphon in a thread of its own beside it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.errors import UsageError
from sbpair.paired.watch import CLOSE_SECONDS, HURRY_SECONDS, Options, Watch
from sbpair.sender import sync

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.move.events import SyphonEvent
    from sbpair.sender.events import SyphonFaulted
    from sbpair.syphon import Result
    from sbpair.syphon.terms import Terms


class Syphon:
    """A syphon at work. To be had from `PairedClient.syphon`."""

    def __init__(self, pair: Pair, options: Options, tell: Callable[[SyphonFaulted], object]) -> None:
        self._parts = pair, options, tell
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="sbpair syphon", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def result(self) -> Result | None:
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
        self._loop, self._watch = asyncio.get_running_loop(), Watch(*self._parts)
        self._ready.set()
        await self._watch.run()


class PairedClient(sync.PairedClient):
    __doc__ = sync.PairedClient.__doc__
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
        """Bring the backlog back, in a thread, until the client is closed or `stop` is called.

        With `state`, a directory, what it moves is written down, and it waits while another process of this machine
        moves the pair with the same directory; with `lease_queue` while one of any machine does. It is tried again
        whatever ends it, and the client's `on_event` is told (SyphonFaulted). Raises UsageError where there is one.
        """
        if self._closed:
            raise ValueError("the client has been closed: make another one")
        if self._syphon is not None and self._syphon.running:
            raise UsageError("this client has a syphon already", hint="one brings all of the backlog back")
        options = Options(state, lease_queue, terms, hold, ordered, allow_missing, on_event)
        self._syphon = Syphon(self.pair, options, self.known.tell)
        return self._syphon

    def close(self) -> None:
        """Stop its syphon, close its senders, and ping no more."""
        if self._syphon is not None:
            self._syphon.stop()
        super().close()
