"""Pings entities that are failed over, probes backlog queues that are out, delivers the outbox: one task for them all.

Async for sync senders too, in a thread of its own. The law: each errand has a connection of its own, and so many go at
once at most; what goes wrong with one is told, and ends nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from azure.core.exceptions import AzureError

from sbpair.azure.data_plane import open_sender
from sbpair.errors import SbpairError, TimedOut
from sbpair.failover import sdk_messages
from sbpair.failover.failover_state import Deliver, Errand, FailoverState, Ping

if TYPE_CHECKING:
    from sbpair.failover.simulated_outage import SimulatedOutage
    from sbpair.model.pair import Endpoint, Pair

DeliverEntity: TypeAlias = Callable[[str], Awaitable[None]]

PING_SECONDS = 120.0
ERRANDS_AT_ONCE = 32
STOP_SECONDS = 15.0

log = logging.getLogger(__name__)


async def ping(primary: Endpoint, entity: str, seconds: float = PING_SECONDS) -> None:
    """Send a ping, over a connection of its own. Raises what its entity, or the way there, lacks."""
    async with open_sender(primary, entity) as sender:
        # A fresh session, which no receiver holds: entities that require sessions accept it.
        await sender.send(sdk_messages.ping(uuid.uuid4().hex), seconds)


async def link(side: Endpoint, entity: str, _seconds: float = PING_SECONDS) -> None:
    """Open a link to the entity and close it again: what may be asked without a message."""
    async with open_sender(side, entity):
        pass


class Pinger:
    """Runs the agenda of an Availability for as long as `run` is not cancelled."""

    def __init__(
        self,
        pair: Pair,
        known: FailoverState,
        now: Callable[[], float],
        deliver: DeliverEntity | None = None,
        outage: SimulatedOutage | None = None,
    ) -> None:
        self._pair = pair
        self._known = known
        self._now = now
        self._deliver = deliver
        self._outage = outage
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(ERRANDS_AT_ONCE)

    def wake(self) -> None:
        """Something is due sooner than it was."""
        self._woken.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._until_due()
                await self._room.acquire()
                errand = self._known.due(self._now())
                if errand is None:
                    self._room.release()
                else:
                    group.create_task(self._run_errand(errand), name=str(errand))

    async def _until_due(self) -> None:
        while True:
            self._woken.clear()
            when = self._known.next_due()
            if when is not None and when <= self._now():
                return
            try:
                async with asyncio.timeout(None if when is None else when - self._now()):
                    await self._woken.wait()
            except TimeoutError:
                return

    async def _run_errand(self, errand: Errand) -> None:
        if isinstance(errand, Deliver):
            await self._run_delivery(errand.entity)
            return
        error: Exception | None = None
        try:
            async with asyncio.timeout(PING_SECONDS):
                await (self._ping(errand.entity) if isinstance(errand, Ping) else self._probe(errand.queue))
        except TimeoutError:
            error = TimedOut(f"no answer came within {PING_SECONDS:g} s")
        except Exception as caught:  # noqa: BLE001  whatever it is, the next one is due all the same
            error = caught
        finally:
            self._room.release()
        if isinstance(errand, Ping):
            for_good = isinstance(error, SbpairError) and not error.retriable
            self._known.pinged(errand.entity, _sdk_error(error), for_good, self._now())
        else:
            self._known.probed(errand.queue, error, self._now())

    async def _run_delivery(self, entity: str) -> None:
        try:
            if self._outage is not None and self._outage.active:
                self._known.held(entity, None, None, self._now())
            elif self._deliver is not None:
                await self._deliver(entity)
        except Exception as error:
            log.exception("a delivery out of the outbox failed")
            self._known.held(entity, error, None, self._now())
        finally:
            self._room.release()

    async def _ping(self, entity: str) -> None:
        if self._outage is not None:
            self._outage.check_errand("primary", entity)
        await ping(self._pair.primary, entity)

    async def _probe(self, queue: str) -> None:
        """A link that opens is enough: a message would stay, as a dead one at last."""
        if self._outage is not None:
            self._outage.check_errand("backlog", queue)
        await link(self._pair.secondary, queue)


class PingerThread:
    """A Pinger for those who have no event loop. Its thread begins when there is something to wait for."""

    def __init__(
        self,
        pair: Pair,
        known: FailoverState,
        now: Callable[[], float],
        deliver: DeliverEntity | None = None,
        outage: SimulatedOutage | None = None,
    ) -> None:
        self._parts = pair, known, now, deliver, outage
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: Callable[[], object] | None = None
        self._wake: Callable[[], None] | None = None
        self._stopped = False

    def wake(self) -> None:
        with self._starting:
            if self._stopped:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._main, name="sbpair pinger", daemon=True)
                self._thread.start()
            elif self._loop is not None and self._wake is not None:
                self._loop.call_soon_threadsafe(self._wake)

    def stop(self) -> None:
        with self._starting:
            self._stopped = True
            if self._loop is not None and self._stop is not None:
                self._loop.call_soon_threadsafe(self._stop)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_SECONDS)

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except asyncio.CancelledError:
            log.debug("the pinger has stopped")

    async def _run(self) -> None:
        pinger, task = Pinger(*self._parts), asyncio.current_task()
        with self._starting:
            if self._stopped or task is None:
                return
            self._loop, self._stop, self._wake = asyncio.get_running_loop(), task.cancel, pinger.wake
        try:
            await pinger.run()
        finally:
            with self._starting:
                self._loop = None


def _sdk_error(error: Exception | None) -> Exception | None:
    """What callers know the errors of a sender as."""
    cause = error.__cause__ if isinstance(error, SbpairError) else None
    return cause if isinstance(cause, AzureError) else error
