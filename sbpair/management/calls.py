"""Management calls of one run to one namespace: so many at once, no faster than it can bear, repeated, and stoppable.

What may be asked when is a pure function; whoever waits, waits here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.azure.retry import attempt
from sbpair.model.queues import ControlEvent

if TYPE_CHECKING:
    from sbpair.errors import AccessError

Result = TypeVar("Result")
Sleep = Callable[[float], Awaitable[object]]
OnEvent = Callable[[ControlEvent], object]

CONCURRENCY = 16
"""Beyond that the client is what takes the time."""

# A call costs 10 of the 1 000 credits that a Standard namespace has in a second.
SECOND_OF_CALLS = 100
CALLS_A_SECOND = 50
"""Half of the namespace is left to those who work there, once a run takes longer than its first second."""

GRACE_SECONDS = 5.0
"""How long what is on its way may still take, once a run is to end."""


def due(number: int, at_once: int) -> float:
    """When call `number`, counted from 0, may begin, in seconds after the first one."""
    return 0.0 if number < at_once else 1.0 + (number - at_once) / CALLS_A_SECOND


@contextmanager
def first_error() -> Iterator[None]:
    """Raise what ended a TaskGroup first, instead of the group."""
    try:
        yield
    except ExceptionGroup as group:
        raise group.exceptions[0] from group


async def together(coroutines: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Run all of them at the same time. The first that fails ends the others."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            for each in coroutines:
                group.create_task(each)


class NotTried(Exception):
    """The run was broken off before this call. Never leaves the package."""


class Halt:
    """Why a run begins nothing more: somebody asked it to stop, or the service does not let it in."""

    def __init__(self, stop: asyncio.Event) -> None:
        self._stop = stop
        self.refusal: AccessError | None = None

    def refused(self, error: AccessError) -> None:
        """Whoever may not make one entity may make none."""
        self.refusal = self.refusal or error

    async def asked(self) -> None:
        await self._stop.wait()

    def check(self) -> None:
        """Raise NotTried where nothing more is to begin."""
        if self.refusal:
            raise NotTried("the run was broken off: the namespace does not let it in")
        if self._stop.is_set():
            raise NotTried("the run was broken off before it came to this")


class Calls:
    """`at_once` calls may go in the first second, without waiting, once `counted` says that they cost credits."""

    def __init__(self, halt: Halt, at_once: int, on_event: OnEvent, sleep: Sleep) -> None:
        self.halt = halt
        self.counted = False
        self._at_once = at_once
        self._on_event = on_event
        self._sleep = sleep
        self._places = asyncio.Semaphore(CONCURRENCY)
        self._limits: set[asyncio.Timeout] = set()
        self._number = 0
        self._first: float | None = None

    def expect(self, calls: int) -> None:
        """Tell how many calls are to come: what does not fit into the first second need not begin with a rush."""
        if calls > self._at_once:
            self._at_once = CALLS_A_SECOND

    async def read(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        """`action()`, repeated where that may help."""
        async with self._places:
            return await attempt(what, lambda: self._paced(action), sleep=self._sleep, on_event=self._on_event)

    async def make(self, what: str, action: Callable[[], Awaitable[Result]]) -> Result:
        """The same for what changes something. Raises NotTried, and TimeoutError where a stop overtook the answer."""
        async with self._places, asyncio.timeout(None) as limit:
            self.halt.check()
            self._limits.add(limit)
            try:
                return await attempt(what, lambda: self._paced(action), sleep=self._sleep, on_event=self._on_event)
            finally:
                self._limits.discard(limit)

    def end_soon(self) -> None:
        """Give what is on its way a few seconds."""
        soon = asyncio.get_running_loop().time() + GRACE_SECONDS
        for limit in self._limits:
            limit.reschedule(soon)

    async def _paced(self, action: Callable[[], Awaitable[Result]]) -> Result:
        if self.counted:
            now = asyncio.get_running_loop().time()
            self._first = now if self._first is None else self._first
            wait = self._first + due(self._number, self._at_once) - now
            if wait < 0 and self._number >= self._at_once:
                # What a slow service left unused is not made up for.
                self._first -= wait
            self._number += 1
            if wait > 0:
                await self._sleep(wait)
        return await action()
