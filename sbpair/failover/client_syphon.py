"""A syphon that runs while its paired client is open: in a thread, or in a task.

Invariant: a failure of the syphon is an event and is retried. It never reaches the application.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from sbpair.errors import LeaseHeld, SbpairError
from sbpair.failover.events import SyphonFaulted
from sbpair.model.retries import Backoff
from sbpair.sync_async import LoopThread

if TYPE_CHECKING:
    from sbpair.syphon.run_result import SyphonResult

RESTART_BACKOFF = Backoff(first_seconds=1.0, max_seconds=300.0)
LEASE_WAIT_SECONDS = 30.0
"""How often the syphon checks whether another mover has ended."""

CLOSE_SECONDS = 5.0
"""How long `stop` waits for messages in flight. Afterwards they are left in doubt, and held messages are released."""

HURRY_SECONDS = 10.0

RunSyphon: TypeAlias = Callable[..., Awaitable["SyphonResult"]]

log = logging.getLogger(__name__)


class SyphonSupervisor:
    """Runs a syphon again and again until it is stopped. `run(stop=event, hurry=event)` is one run."""

    result: SyphonResult | None = None
    """Result of the last run that has ended: its receipt and why it ended."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        self._run_syphon = run
        self._publish = publish
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def _end_at_once(self) -> None:
        self._stop.set()
        self._hurry.set()

    async def _run(self) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            fault = await self._run_once()
            if self._stop.is_set():
                return
            failures += 1
            if time.monotonic() - started > RESTART_BACKOFF.seconds(failures):
                failures = 1
            seconds = LEASE_WAIT_SECONDS if isinstance(fault, LeaseHeld) else RESTART_BACKOFF.seconds(failures)
            reason = fault.message if isinstance(fault, SbpairError) else f"unexpected {type(fault).__name__}"
            self._publish(SyphonFaulted(reason, seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._stop.wait()
                    return

    async def _run_once(self) -> Exception:
        """Run the syphon and return why it has ended."""
        try:
            self.result = await self._run_syphon(stop=self._stop, hurry=self._hurry)
        except SbpairError as error:
            return error
        except Exception as error:
            log.exception("the syphon failed unexpectedly")
            return error
        failures = self.result.failures
        return failures[0][1] if failures else SbpairError("it has ended")


class BackgroundSyphon(SyphonSupervisor):
    """A syphon running in a thread. Returned by `PairedClient.syphon`."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        super().__init__(run, publish)
        self._thread = LoopThread("sbpair syphon", self._run())

    @property
    def running(self) -> bool:
        return self._thread.running

    def end_at_once(self) -> None:
        """End without a wait: messages in flight are left in doubt, and the rest is released."""
        self._thread.call(self._end_at_once)

    def stop(self) -> None:
        """Finish messages in flight, for five seconds at most, and release the rest."""
        self._thread.call(self._stop.set)
        if not self._thread.join(CLOSE_SECONDS):
            self._thread.call(self._hurry.set)
            self._thread.join(HURRY_SECONDS)


class AsyncBackgroundSyphon(SyphonSupervisor):
    """A syphon running in a task. Returned by `AsyncPairedClient.syphon`."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        super().__init__(run, publish)
        self._task = asyncio.create_task(self._run(), name="sbpair syphon")

    @property
    def running(self) -> bool:
        return not self._task.done()

    def end_at_once(self) -> None:
        """End without a wait: messages in flight are left in doubt, and the rest is released."""
        self._end_at_once()

    async def stop(self) -> None:
        """Finish messages in flight, for five seconds at most, and release the rest."""
        self._stop.set()
        _, unfinished = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        if unfinished:
            self._hurry.set()
            _, unfinished = await asyncio.wait((self._task,), timeout=HURRY_SECONDS)
        for task in unfinished:
            task.cancel()
