"""One ping to each of several entities, for somebody who wants to know. A paired client pings by itself.

The law: what keeps an entity from accepting one is an answer, and no exception.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from sbpair.errors import AccessError, ExitCode, SbpairError, TimedOut
from sbpair.failover.pinger import ping
from sbpair.model.pair import Endpoint

AT_ONCE = 32


class Health(StrEnum):
    """`down` may pass by itself; `broken` will not: there is no such entity, say, or the key is wrong."""

    UP = "up"
    DOWN = "down"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Pinged:
    """How one entity answered, `seconds` after the first attempt to connect. `error` is why it is not up."""

    entity: str
    health: Health
    seconds: float
    error: SbpairError | None = None


Ask = Callable[[Endpoint, str, float], Awaitable[None]]


async def run(
    primary: Endpoint,
    entities: Sequence[str],
    *,
    seconds: float,
    ask: Ask = ping,
    on_event: Callable[[Pinged], object] = lambda _pinged: None,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Pinged, ...]:
    """Ask every entity once, in no more than so many seconds each; in their order."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(entity: str) -> Pinged:
        async with room:
            pinged = await _one(primary, entity, seconds, ask, clock)
        on_event(pinged)
        return pinged

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(entity), name=f"ping {entity}") for entity in entities]
    return tuple(task.result() for task in tasks)


async def _one(primary: Endpoint, entity: str, seconds: float, ask: Ask, clock: Callable[[], float]) -> Pinged:
    started, error = clock(), None
    try:
        async with asyncio.timeout(seconds):
            await ask(primary, entity, seconds)
    except TimeoutError:
        error = TimedOut(f"no answer came within {seconds:g} s", hint="a retry may help")
    except SbpairError as caught:
        return Pinged(
            entity,
            Health.DOWN if caught.retriable else Health.BROKEN,
            clock() - started,
            caught,
        )
    return Pinged(entity, Health.DOWN if error else Health.UP, clock() - started, error)


def exit_code_of(pinged: Sequence[Pinged]) -> int:
    """0 for all of them up, 6 with any that is down, else 3; 5 where access alone is what they lack."""
    if any(each.health is Health.DOWN for each in pinged):
        return ExitCode.UNAVAILABLE
    broken = [each.error for each in pinged if each.health is Health.BROKEN]
    if broken and all(isinstance(error, AccessError) for error in broken):
        return ExitCode.ACCESS
    return ExitCode.PARTIAL_OR_FINDINGS if broken else 0
