"""A syphon inside an application, open as long as its paired client.

Invariant: a failure of the syphon is an event and is retried. It never reaches the application.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

from sbpair.errors import LeaseHeld, SbpairError
from sbpair.failover.events import SyphonFaulted
from sbpair.model.backoff import Backoff

if TYPE_CHECKING:
    from sbpair.syphon.runner import SyphonResult

BACKOFF = Backoff(first_seconds=1.0, max_seconds=300.0)
LEASE_WAIT_SECONDS = 30.0
"""How often the syphon checks whether another mover has ended."""

CLOSE_SECONDS = 5.0
"""How long `stop` waits for messages in flight. Afterwards they are left in doubt, and held messages are released."""

HURRY_SECONDS = 10.0

RunSyphon: TypeAlias = Callable[..., Awaitable["SyphonResult"]]

log = logging.getLogger(__name__)


class SyphonSupervisor:
    """Calls `run(stop=event, hurry=event)` again and again until `stop` is set. Create it in the loop that runs it."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        self._run_syphon = run
        self._publish = publish
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        self.result: SyphonResult | None = None

    async def run(self) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            fault = await self._run_once()
            if self.stop.is_set():
                return
            failures += 1
            if time.monotonic() - started > BACKOFF.seconds(failures):
                failures = 1
            seconds = LEASE_WAIT_SECONDS if isinstance(fault, LeaseHeld) else BACKOFF.seconds(failures)
            reason = fault.message if isinstance(fault, SbpairError) else f"unexpected {type(fault).__name__}"
            self._publish(SyphonFaulted(reason, seconds))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.stop.wait()
                    return

    async def _run_once(self) -> Exception:
        """Run the syphon and return why it has ended."""
        try:
            self.result = await self._run_syphon(stop=self.stop, hurry=self.hurry)
        except SbpairError as error:
            return error
        except Exception as error:
            log.exception("the syphon failed unexpectedly")
            return error
        failures = self.result.failures
        return failures[0][1] if failures else SbpairError("it has ended")


class BackgroundSyphon:
    """A syphon running in a thread. Returned by `PairedClient.syphon`."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        self._arguments = run, publish
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="sbpair syphon", daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def result(self) -> SyphonResult | None:
        """Result of the last run that has ended: its receipt and why it ended."""
        return self._supervisor.result

    def stop(self) -> None:
        """Finish messages in flight, for five seconds at most, and release the rest."""
        self._set(self._supervisor.stop)
        if threading.current_thread() is self._thread:
            return
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():
            self._set(self._supervisor.hurry)
            self._thread.join(HURRY_SECONDS)

    def _set(self, event: asyncio.Event) -> None:
        try:
            self._loop.call_soon_threadsafe(event.set)
        except RuntimeError:
            return  # the loop has ended

    async def _main(self) -> None:
        self._loop, self._supervisor = asyncio.get_running_loop(), SyphonSupervisor(*self._arguments)
        self._ready.set()
        await self._supervisor.run()


class AsyncBackgroundSyphon:
    """A syphon running in a task. Returned by `AsyncPairedClient.syphon`."""

    def __init__(self, run: RunSyphon, publish: Callable[[SyphonFaulted], object]) -> None:
        self._supervisor = SyphonSupervisor(run, publish)
        self._task = asyncio.create_task(self._supervisor.run(), name="sbpair syphon")

    @property
    def running(self) -> bool:
        return not self._task.done()

    @property
    def result(self) -> SyphonResult | None:
        """Result of the last run that has ended: its receipt and why it ended."""
        return self._supervisor.result

    async def stop(self) -> None:
        """Finish messages in flight, for five seconds at most, and release the rest."""
        self._supervisor.stop.set()
        if asyncio.current_task() is self._task:
            return
        _, unfinished = await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
        if unfinished:
            self._supervisor.hurry.set()
            _, unfinished = await asyncio.wait((self._task,), timeout=HURRY_SECONDS)
        for task in unfinished:
            task.cancel()
