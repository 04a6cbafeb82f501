"""Time of the relay's clients: a clock as an argument, waits by it, and limits that activity postpones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Self

RESOLUTION = 0.001
"""Seconds by which a timer may be early, for clocks that round."""


class RelayClock:
    """The clock of this machine, in seconds since 1970. A subclass may tell another time, and make other timers."""

    def now(self) -> float:
        return time.time()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)


async def sleep(clock: RelayClock, seconds: float) -> None:
    """Wait for some seconds of a clock."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    timer = clock.call_later(seconds, partial(_resolve, over))
    try:
        await over
    finally:
        timer.cancel()


def _resolve(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)


class TimeLimit:
    """A limit of the block that it encloses, which raises TimeoutError. `postpone` starts it again."""

    def __init__(self, clock: RelayClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.postpone()
        self._timer = self._clock.call_later(self._seconds, self._on_timer)
        return self

    async def __aexit__(self, *details: object) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*details)  # type: ignore[arg-type]

    def postpone(self) -> None:
        """Let the time begin now."""
        self._due = self._clock.now() + self._seconds

    def _on_timer(self) -> None:
        left = self._due - self._clock.now()
        if left > RESOLUTION:
            self._timer = self._clock.call_later(left, self._on_timer)
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())
