"""Obedience of a run to the requests of other processes: pause, resume and cancel."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
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


class _Obedience:
    """`_wanted` is the last request, `_confirmed` the last state that the requester knows of."""

    def __init__(
        self,
        store: RunStore,
        control: RunControl,
        gate: IntakeGate,
        stop: asyncio.Event,
        on_event: Callable[[SyphonEvent], None],
    ) -> None:
        self._store, self._control, self._gate, self._stop, self._on_event = store, control, gate, stop, on_event
        self._wanted = self._confirmed = Wanted.RUNNING
        self._failed = False

    async def run(self) -> None:
        while not self._stop.is_set():
            try:
                await self._step()
            except SbpairError as error:
                if not self._failed:
                    log.warning("run %s does not know of requests: %s", self._store.run, error.message)
                self._failed = True
            await set_within(self._stop, POLL_SECONDS)

    async def _step(self) -> None:
        wanted = self._control.wanted()
        if wanted is not self._wanted:
            self._wanted = wanted
            self._change()
        if wanted is Wanted.CANCELLED:
            return
        if wanted is Wanted.PAUSED and self._confirmed is not wanted:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._gate.wait_quiet()
        if wanted is not self._confirmed and (wanted is Wanted.RUNNING or self._gate.quiet):
            self._store.record()
            self._control.confirm(wanted)
            self._confirmed = wanted
            if wanted is Wanted.PAUSED:
                self._on_event(RunPaused(self._store.run))

    def _change(self) -> None:
        run = self._store.run
        if self._wanted is Wanted.CANCELLED:
            self._on_event(RunCancelled(run))
            self._stop.set()
        elif self._wanted is Wanted.PAUSED:
            self._gate.close(REQUEST)
            self._on_event(RunPausing(run))
        else:
            self._gate.open(REQUEST)
            self._on_event(RunResumed(run))
