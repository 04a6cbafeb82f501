"""Obedience of a run to the requests of other processes: pause, resume and cancel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.errors import SbpairError
from sbpair.move.events import RunCancelled, RunPaused, RunPausing, RunResumed
from sbpair.move.failure_latch import set_within
from sbpair.runs.control import Wanted

if TYPE_CHECKING:
    from sbpair.move.events import SyphonEvent
    from sbpair.move.run_store import RunStore
    from sbpair.runs.control import RunControl
    from sbpair.syphon.intake_gate import IntakeGate

log = logging.getLogger(__name__)

POLL_SECONDS = 0.5
REQUEST = "request"
"""The name by which the gate is closed."""


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
