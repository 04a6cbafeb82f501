"""Pings on request: whether entities take messages, how long each took, and the exit code of all together."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from sbpair.errors import EntityMissing, ExitCode, MachineLacks, SbpairError, TimedOut
from sbpair.model.document import Failing

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

PING_TIMEOUT_SECONDS = 120.0
MAX_CONCURRENT_PINGS = 32


async def send_ping(primary: Endpoint, entity: str, seconds: float = PING_TIMEOUT_SECONDS) -> None:
    """Send a ping over a connection of its own. Raises SbpairError if the entity does not accept it."""
    # Here and below: the SDK takes a fifth of a second to load, and `status` may have nothing to ping.
    from sbpair.azure.data_plane import open_sender
    from sbpair.failover import sdk_messages

    async with open_sender(primary, entity) as sender:
        # Entities that require sessions accept it: no receiver holds a new session.
        await sender.send(sdk_messages.ping_message(uuid.uuid4().hex), seconds)


class Health(StrEnum):
    """`down` is perhaps temporary; `broken` is permanent, such as a missing entity; `unknown` after a refused link."""

    UP = "up"
    DOWN = "down"
    BROKEN = "broken"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PingResult(Failing):
    """The result of one ping, `seconds` after it started. `error` is why the entity is not up."""

    name: Annotated[str, "Its path"]
    health: Annotated[Health, "Whether a link could be opened, or it accepted the ping"]
    seconds: Annotated[float, "Time to the answer"]
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
    return Health.UP if error is None else Health.DOWN if _is_temporary(error) else Health.BROKEN


def _is_temporary(error: SbpairError) -> bool:
    return error.retriable and not isinstance(error, MachineLacks)


def ping_exit_code(results: Sequence[PingResult]) -> int:
    """Return 0 if all are up, 6 if any is down, 2, 5 or 7 if that is the reason of all broken ones, else 3."""
    return health_exit_code([each.error for each in results if each.error is not None])


def health_exit_code(errors: Collection[SbpairError]) -> int:
    """Return 0 without errors, 6 if one of them is temporary, 2, 5 or 7 if that is the code of all, else 3.

    2 is a wrong configuration, such as that of a proxy; a missing entity is a finding.
    """
    if any(map(_is_temporary, errors)):
        return ExitCode.UNAVAILABLE
    codes = {ExitCode.PARTIAL_OR_FINDINGS if isinstance(each, EntityMissing) else each.exit_code for each in errors}
    shared = codes.pop() if len(codes) == 1 else ExitCode.PARTIAL_OR_FINDINGS if codes else ExitCode.DONE
    return shared if shared in _SHARED_CODES else ExitCode.PARTIAL_OR_FINDINGS


_SHARED_CODES = (ExitCode.DONE, ExitCode.USAGE, ExitCode.ACCESS, ExitCode.MACHINE)
