"""Management calls of one run to one namespace: concurrent, rate-limited, retried and stoppable; and their events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from sbpair.errors import AccessError, SbpairError, first_error
from sbpair.model.retries import Retrying, attempt

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Listed:
    """Event: the backlog queues of a namespace were read."""

    namespace: str
    queues: int


@dataclass(frozen=True, slots=True)
class QueueProvisioned:
    """Event: one queue of `total` is done. `outcome` is a value of `report.Outcome`."""

    path: str
    outcome: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SecondSample:
    """Event: all messages are peeked, and the queues are counted again in `seconds`."""

    seconds: float


ControlEvent = Listed | Retrying | QueueProvisioned | SecondSample
OnEvent = Callable[[ControlEvent], object]

CONCURRENCY = 16
"""More calls at once are no faster: the client is the bottleneck."""

# A call costs 10 of the 1 000 credits that a Standard namespace has a second.
FIRST_SECOND_CALLS = 100
CALLS_A_SECOND = 50
"""After its first second a run leaves half of the namespace to other clients."""

GRACE_SECONDS = 5.0
"""How long calls in progress may still take once a run is stopped."""


def start_seconds(number: int, at_once: int) -> float:
    """Return when call `number`, counted from 0, may begin, in seconds after the first one."""
    return 0.0 if number < at_once else 1.0 + (number - at_once) / CALLS_A_SECOND


async def shielded(action: Awaitable[Result], *, always: bool = False) -> Result:
    """Run `action` to its end through a cancellation, which is raised afterwards.

    A second cancellation ends it, unless `always`.
    """
    task = asyncio.ensure_future(action)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if cancelled is not None and not always:
                task.cancel()
            cancelled = error
        except SbpairError:
            break
    if cancelled is not None:
        raise cancelled
    return task.result()


async def gather_all(coroutines: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run coroutines concurrently. The first that fails cancels the others."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            for each in coroutines:
                group.create_task(each)


STOPPED = "the run was stopped before it came to this"


class NotTried(Exception):
    """The run was stopped before this call. Never leaves the package."""


class Halt:
    """The reason why a run begins no more calls: a requested stop, or refused access."""

    def __init__(self, stop: asyncio.Event) -> None:
        self.stop = stop
        self.refusal: AccessError | None = None

    def refuse(self, error: AccessError) -> None:
        """Stop the run: an identity that may not create one entity may create none."""
        self.refusal = self.refusal or error

    def check(self) -> None:
        """Raise NotTried where no more calls may begin."""
        if self.refusal:
            raise NotTried("the run was stopped: the namespace refuses access")
        if self.stop.is_set():
            raise NotTried(STOPPED)


class Calls:
    """A rate-limited caller. Once `counted` is set, calls cost credits, and `at_once` may begin in the first second."""

    def __init__(self, halt: Halt, at_once: int, on_event: OnEvent, sleep: Sleep) -> None:
        self.halt = halt
        self.counted = False
        self._at_once = at_once
        self._on_event = on_event
        self._sleep = sleep
        self._slots = asyncio.Semaphore(CONCURRENCY)
        self._limits: set[asyncio.Timeout] = set()
        self._number = 0
        self._first: float | None = None

    def expect(self, calls: int) -> None:
        """Announce the number of calls: more than fit into the first second begin without a burst."""
        if calls > self._at_once:
            self._at_once = CALLS_A_SECOND

    async def read(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        """Run `action`, retried where that may help."""
        async with self._slots:
            return await attempt(what, lambda: self._paced(action), sleep=self._sleep, on_event=self._on_event)

    async def change(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        """Run an `action` that changes an entity. Raises NotTried, and TimeoutError for no answer before a stop."""
        async with self._slots, asyncio.timeout(None) as limit:
            self.halt.check()
            self._limits.add(limit)
            try:
                return await attempt(what, lambda: self._paced(action), sleep=self._sleep, on_event=self._on_event)
            finally:
                self._limits.discard(limit)

    def end_soon(self, seconds: float) -> None:
        """Give calls in progress so many seconds."""
        soon = asyncio.get_running_loop().time() + seconds
        for limit in self._limits:
            limit.reschedule(soon)

    async def _paced(self, action: Callable[[], Awaitable[Result]]) -> Result:
        if self.counted:
            now = asyncio.get_running_loop().time()
            self._first = now if self._first is None else self._first
            wait = self._first + start_seconds(self._number, self._at_once) - now
            if wait < 0 and self._number >= self._at_once:
                # Time that a slow service left unused is not caught up.
                self._first -= wait
            self._number += 1
            if wait > 0:
                await self._sleep(wait)
        return await action()
