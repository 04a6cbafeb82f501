"""One ping to each of several entities, on request. A paired client pings by itself.

Invariant: an entity that does not accept a ping is a result, not an exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sbpair.errors import AccessError, ExitCode, SbpairError, TimedOut
from sbpair.failover.pinger import send_ping
from sbpair.model.pair import Endpoint

MAX_CONCURRENT_PINGS = 32


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


PingFunction = Callable[[Endpoint, str, float], Awaitable[None]]


async def ping_all(
    primary: Endpoint,
    entities: Sequence[str],
    *,
    seconds: float,
    ping: PingFunction = send_ping,
    on_event: Callable[[PingResult], object] = lambda _result: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[PingResult, ...]:
    """Ping every entity once, for at most `seconds` each. Returns the results in the order of `entities`."""
    slots = asyncio.Semaphore(MAX_CONCURRENT_PINGS)

    async def one(entity: str) -> PingResult:
        async with slots:
            result = await _one(primary, entity, seconds, ping, clock)
        on_event(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(entity), name=f"ping {entity}") for entity in entities]
    return tuple(task.result() for task in tasks)


async def _one(
    primary: Endpoint, entity: str, seconds: float, ping: PingFunction, clock: Callable[[], float]
) -> PingResult:
    started, error = clock(), None
    try:
        async with asyncio.timeout(seconds):
            await ping(primary, entity, seconds)
    except TimeoutError:
        error = TimedOut(f"no answer within {seconds:g} s", hint="try again later")
    except SbpairError as caught:
        return PingResult(entity, Health.DOWN if caught.retriable else Health.BROKEN, clock() - started, caught)
    return PingResult(entity, Health.DOWN if error else Health.UP, clock() - started, error)


def ping_exit_code(results: Sequence[PingResult]) -> int:
    """Return 0 if all are up, 6 if any is down, 5 if the broken ones only lack access, else 3."""
    if any(each.health is Health.DOWN for each in results):
        return ExitCode.UNAVAILABLE
    broken = [each.error for each in results if each.health is Health.BROKEN]
    if broken and all(isinstance(error, AccessError) for error in broken):
        return ExitCode.ACCESS
    return ExitCode.PARTIAL_OR_FINDINGS if broken else 0
