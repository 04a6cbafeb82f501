"""Pings on request, and the background task of a client: it pings entities, probes backlog queues, delivers the outbox.

Sync clients run it in a thread. Invariant: each timer task has a connection of its own, and a limited number runs at
once; an error of one is reported and ends no other.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

from sbpair.errors import EntityMissing, ExitCode, SbpairError, TimedOut
from sbpair.failover.entity_states import Deliver, Ping, Probe, TimerTask

if TYPE_CHECKING:
    from sbpair.failover.shared_state import FailoverState
    from sbpair.failover.side_connections import SimulatedOutage
    from sbpair.model.pair import Endpoint, Pair

DeliverEntity: TypeAlias = Callable[[str], Awaitable[None]]

PING_TIMEOUT_SECONDS = 120.0
MAX_CONCURRENT_PINGS = MAX_CONCURRENT_TASKS = 32

log = logging.getLogger(__name__)


async def send_ping(primary: Endpoint, entity: str, seconds: float = PING_TIMEOUT_SECONDS) -> None:
    """Send a ping over a connection of its own. Raises SbpairError if the entity does not accept it."""
    # Here and below: the SDK takes a fifth of a second to load, and `status` may have nothing to ping.
    from sbpair.azure.data_plane import open_sender
    from sbpair.failover import sdk_messages

    async with open_sender(primary, entity) as sender:
        # Entities that require sessions accept it: no receiver holds a new session.
        await sender.send(sdk_messages.ping_message(uuid.uuid4().hex), seconds)


class Health(StrEnum):
    """`down` is perhaps temporary; `broken` is permanent, such as a missing entity or a wrong key."""

    UP = "up"
    DOWN = "down"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class PingResult:
    """The result of one ping, `seconds` after it started. `error` is why the entity is not up."""

    entity: str
    health: Health
    seconds: float
    error: SbpairError | None = None


async def ping_all(
    primary: Endpoint,
    entities: Sequence[str],
    *,
    seconds: float,
    ping: Callable[[Endpoint, str, float], Awaitable[None]] = send_ping,
    on_event: Callable[[PingResult], object] = lambda _result: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[PingResult, ...]:
    """Ping every entity once, for at most `seconds` each. Returns the results in the order of `entities`."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_PINGS)

    async def one(entity: str) -> PingResult:
        error: SbpairError | None = None
        async with slots:
            started = clock()
            try:
                async with asyncio.timeout(seconds):
                    await ping(primary, entity, seconds)
            except TimeoutError:
                error = _timed_out(primary, seconds)
            except SbpairError as caught:
                error = caught
        result = PingResult(entity, health_of(error), clock() - started, error)
        on_event(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(entity), name=f"ping {entity}") for entity in entities]
    return tuple(task.result() for task in tasks)


def _timed_out(primary: Endpoint, seconds: float) -> TimedOut:
    proxy = primary.amqp_proxy()
    if proxy is None:
        return TimedOut(f"no answer within {seconds:g} s", hint="try again later")
    hint = f"check the proxy, which {proxy.source or 'the configuration'} names, or allow more time with --timeout"
    return TimedOut(f"no answer within {seconds:g} s through the proxy {proxy.address}", hint=hint)


def health_of(error: SbpairError | None) -> Health:
    return Health.UP if error is None else Health.DOWN if error.retriable else Health.BROKEN


def ping_exit_code(results: Sequence[PingResult]) -> int:
    """Return 0 if all are up, 6 if any is down, 2, 5 or 7 if that is the reason of all broken ones, else 3."""
    return health_exit_code([each.error for each in results if each.error is not None])


def health_exit_code(errors: Collection[SbpairError]) -> int:
    """Return 0 without errors, 6 if one of them is temporary, 2, 5 or 7 if that is the code of all, else 3.

    2 is a wrong configuration, such as that of a proxy; a missing entity is a finding.
    """
    if any(each.retriable for each in errors):
        return ExitCode.UNAVAILABLE
    codes = {ExitCode.PARTIAL_OR_FINDINGS if isinstance(each, EntityMissing) else each.exit_code for each in errors}
    shared = codes.pop() if len(codes) == 1 else ExitCode.PARTIAL_OR_FINDINGS if codes else ExitCode.DONE
    return shared if shared in _SHARED_CODES else ExitCode.PARTIAL_OR_FINDINGS


_SHARED_CODES = (ExitCode.DONE, ExitCode.USAGE, ExitCode.ACCESS, ExitCode.MACHINE)


@dataclass(eq=False, repr=False)
class Pinger:
    """Runs the timers of a FailoverState until `run` is cancelled."""

    pair: Pair
    state: FailoverState
    now: Callable[[], float]
    deliver: DeliverEntity | None = None
    outage: SimulatedOutage | None = None

    def __post_init__(self) -> None:
        self._woken = asyncio.Event()
        self._slots = asyncio.Semaphore(MAX_CONCURRENT_TASKS)

    def wake(self) -> None:
        """Check the timers again, because one is due earlier."""
        self._woken.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait_until_due()
                await self._slots.acquire()
                task = self.state.pop_due(self.now())
                if task is None:
                    self._slots.release()
                else:
                    group.create_task(self._run_task(task), name=str(task))

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
        finally:
            self._slots.release()
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
        finally:
            self._slots.release()

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
