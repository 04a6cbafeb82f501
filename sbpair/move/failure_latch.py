"""Why a mover stops, and the signals that its stages share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import TypeVar

from sbpair.errors import SbpairError, first_error

Value = TypeVar("Value")


class Waits:
    """Waits that end together, as many as there are at that moment."""

    def __init__(self) -> None:
        self._waits: set[asyncio.Timeout] = set()

    async def unless_ended(self, awaitable: Awaitable[Value], seconds: float | None = None) -> Value | None:
        """Await a value; None if `end` comes first, or the time is over."""
        wait = asyncio.timeout(seconds)
        self._waits.add(wait)
        try:
            async with wait:
                return await awaitable
        except TimeoutError:
            return None
        finally:
            self._waits.discard(wait)

    def end(self) -> None:
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)


class FailureLatch:
    """Stopping, once set, stays set. `fatal` is the first error that keeps every message from being sent.

    `changed` is set when a delivery has ended, or a destination begins to back off. `interrupt` ends a receive.
    `links` are waits for a link that accepts a message, `backoffs` those of destinations that back off.
    """

    def __init__(self, interrupt: Callable[[], None]) -> None:
        self.fatal: SbpairError | None = None
        self.stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self.links = Waits()
        self.backoffs = Waits()
        self._interrupt = interrupt

    def fail(self, error: SbpairError) -> None:
        """Stop because of an error that every message would meet."""
        self.fatal = self.fatal or error
        self.halt()

    def halt(self) -> None:
        """Start no more sends, and end waits."""
        self.stopping.set()
        self._interrupt()
        self.changed.set()

    async def wait_changed(self, seconds: float) -> None:
        """Wait until a delivery ends or a destination backs off, at most `seconds`."""
        self.changed.clear()
        await set_within(self.changed, seconds)


def start_task(tasks: asyncio.TaskGroup, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None] | None:
    """Start a task; None in a group that is being cancelled, whose messages stay held until the mover releases them.

    Only a callback of the loop gets there, such as that of the end of a delivery.
    """
    try:
        return tasks.create_task(work, name=name)
    except RuntimeError:
        work.close()
        return None


async def unless_set(event: asyncio.Event, awaitable: Awaitable[Value]) -> Value | None:
    """Await a value; None if the event is set first, which cancels the wait. Raises the first error of a TaskGroup."""

    async def end(wait: asyncio.Timeout) -> None:
        await event.wait()
        wait.reschedule(0.0)

    with first_error():
        try:
            async with asyncio.timeout(None) as wait, asyncio.TaskGroup() as tasks:
                ending = tasks.create_task(end(wait), name="watch for an early end")
                value = await awaitable
                ending.cancel()
        except TimeoutError:
            return None
    return value


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds` for an event; return whether it is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()
