"""The gate in front of a run's intakes, and the requests of other processes that close it: pause, resume and cancel.

While it is closed, no worker receives, sends or holds a message. Connections and leases stay. Invariant: once the gate
is quiet, each message that was received is settled or unlocked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import SbpairError
from sbpair.move.events import RunCancelled, RunPaused, RunPausing, RunResumed, SyphonEvent
from sbpair.move.failure_latch import set_within
from sbpair.runs.control import RunControl, Wanted

if TYPE_CHECKING:
    from sbpair.syphon.run_store import RunStore

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
REQUEST = "request"
"""The name by which the gate is closed."""


class IntakeGate:
    """Closed for as long as someone keeps it closed, by name; `end` opens it for good."""

    def __init__(self) -> None:
        self._closed_by: set[str] = set()
        self._inside: list[Callable[[], None]] = []
        self._ended = False
        self._opened, self._quiet = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._quiet.set()

    @property
    def closed(self) -> bool:
        return not self._opened.is_set()

    @property
    def quiet(self) -> bool:
        """Whether no worker is inside."""
        return self._quiet.is_set()

    def close(self, by: str) -> None:
        """Close it, and ask all workers inside to leave. Pending sends finish, and held messages are released."""
        if self._ended:
            return
        self._closed_by.add(by)
        self._opened.clear()
        for leave in self._inside:
            leave()

    def open(self, by: str) -> None:
        """Open it, unless another name keeps it closed."""
        self._closed_by.discard(by)
        if not self._closed_by:
            self._opened.set()

    def end(self) -> None:
        """Open it for good: the run ends."""
        self._ended = True
        self._opened.set()

    @contextmanager
    def passed(self, leave: Callable[[], None]) -> Iterator[None]:
        """Move messages within the block. `leave` is called when the gate closes."""
        self._inside.append(leave)
        self._quiet.clear()
        try:
            yield
        finally:
            self._inside.remove(leave)
            if not self._inside:
                self._quiet.set()

    async def wait_open(self) -> None:
        while self.closed:
            await self._opened.wait()

    async def wait_quiet(self) -> None:
        """Wait until no worker is inside."""
        await self._quiet.wait()


@asynccontextmanager
async def obeying(
    store: RunStore, gate: IntakeGate, stop: asyncio.Event, on_event: Callable[[SyphonEvent], None]
) -> AsyncIterator[None]:
    """Follow requests within the block: close and open the gate, and set `stop` for a run that is cancelled."""
    if store.control is None:
        yield
        return
    obedience = _Obedience(store, store.control, gate, stop, on_event)
    task = asyncio.create_task(obedience.run(), name="obey requests")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()  # a mistake in `on_event`


@dataclass
class _Obedience:
    """`wanted` is the last request, `confirmed` the last state that the requester knows of."""

    store: RunStore
    control: RunControl
    gate: IntakeGate
    stop: asyncio.Event
    on_event: Callable[[SyphonEvent], None]
    wanted: Wanted = Wanted.RUNNING
    confirmed: Wanted = Wanted.RUNNING
    failed: bool = False

    async def run(self) -> None:
        while not self.stop.is_set():
            try:
                await self._step()
            except SbpairError as error:
                if not self.failed:
                    log.warning("run %s does not know of requests: %s", self.store.run, error.message)
                self.failed = True
            await set_within(self.stop, POLL_SECONDS)

    async def _step(self) -> None:
        wanted = self.control.wanted()
        if wanted is not self.wanted:
            self.wanted = wanted
            self._change()
        if wanted is Wanted.CANCELLED:
            return
        if wanted is Wanted.PAUSED and self.confirmed is not wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self.gate.wait_quiet()
        if wanted is not self.confirmed and (wanted is Wanted.RUNNING or self.gate.quiet):
            self.store.record()
            self.control.confirm(wanted)
            self.confirmed = wanted
            if wanted is Wanted.PAUSED:
                self.on_event(RunPaused(self.store.run))

    def _change(self) -> None:
        run = self.store.run
        if self.wanted is Wanted.CANCELLED:
            self.on_event(RunCancelled(run))
            self.stop.set()
        elif self.wanted is Wanted.PAUSED:
            self.gate.close(REQUEST)
            self.on_event(RunPausing(run))
        else:
            self.gate.open(REQUEST)
            self.on_event(RunResumed(run))
