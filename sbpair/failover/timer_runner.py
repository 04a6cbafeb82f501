"""The background task of a client: it pings entities, probes backlog queues and delivers the outbox, each when due.

Sync clients run it in a thread. Invariant: each timer task has a connection of its own, and a limited number runs at
once; an error of one is reported and ends no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sbpair.errors import SbpairError, TimedOut
from sbpair.failover.entity_states import Deliver, Ping, Probe, TimerTask
from sbpair.failover.ping_on_request import PING_TIMEOUT_SECONDS, send_ping

if TYPE_CHECKING:
    from sbpair.failover.shared_state import FailoverState
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Pair

DeliverEntity: TypeAlias = Callable[[str], Awaitable[None]]

MAX_CONCURRENT_TASKS = 32

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class TimerRunner:
    """Runs the timers of a FailoverState until `run` is cancelled."""

    pair: Pair
    state: FailoverState
    now: Callable[[], float]
    deliver: DeliverEntity | None = None
    outage: SimulatedOutage | None = None

    def __post_init__(self) -> None:
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_TASKS)
        self._pings: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Check the timers again, because one is due earlier. End the pings of a primary that is lost."""
        self._woken.set()
        for ping in self._pings if self.state.lost else ():
            ping.cancel()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait_until_due()
                await self._slots.acquire()
                task = self.state.pop_due(self.now())
                if task is None:
                    self._slots.release()
                else:
                    running = group.create_task(self._run_task(task), name=str(task))
                    running.add_done_callback(self._release)
                    if isinstance(task, Ping):
                        self._pings.add(running)
                        running.add_done_callback(self._pings.discard)

    async def _wait_until_due(self) -> None:
        while True:
            self._woken.clear()
            when = self.state.next_due()
            if when is not None and when <= self.now():
                return
            try:
                async with asyncio.timeout(None if when is None else when - self.now()):
                    await self._woken.wait()
            except TimeoutError:
                return

    def _release(self, _task: asyncio.Task[None]) -> None:
        # A task that is cancelled before its first step runs no `finally`.
        self._slots.release()

    async def _run_task(self, task: TimerTask) -> None:
        if isinstance(task, Deliver):
            await self._run_delivery(task.entity)
            return
        error: Exception | None = None
        try:
            async with asyncio.timeout(PING_TIMEOUT_SECONDS):
                await self._contact(task)
        except TimeoutError:
            error = TimedOut(f"no answer within {PING_TIMEOUT_SECONDS:g} s")
        except Exception as caught:  # noqa: BLE001  the next one is due whatever happened
            error = caught
        if isinstance(task, Ping):
            permanent = isinstance(error, SbpairError) and not error.retriable
            self.state.pinged(task.entity, _sdk_error(error), permanent, self.now())
        else:
            self.state.probed(task.queue, error, self.now())

    async def _run_delivery(self, entity: str) -> None:
        try:
            if self.outage is not None and self.outage.active:
                self.state.outbox_remains(entity, None, None, self.now())
            elif self.deliver is not None:
                await self.deliver(entity)
        except Exception as error:
            log.exception("a delivery out of the outbox failed")
            self.state.outbox_remains(entity, error, None, self.now())

    async def _contact(self, task: Ping | Probe) -> None:
        """Ping an entity, or open a link to a backlog queue, where a message would stay and end as a dead letter."""
        from sbpair.azure.data_plane import open_sender

        if self.outage is not None:
            self.outage.check_ping(*(("primary", task.entity) if isinstance(task, Ping) else ("backlog", task.queue)))
        if isinstance(task, Ping):
            await send_ping(self.pair.primary, task.entity)
            return
        async with open_sender(self.pair.secondary, task.queue):
            pass


def _sdk_error(error: Exception | None) -> Exception | None:
    """Return the SDK error that caused it, as callers of a sender expect."""
    from azure.core.exceptions import AzureError

    cause = error.__cause__ if isinstance(error, SbpairError) else None
    return cause if isinstance(cause, AzureError) else error
