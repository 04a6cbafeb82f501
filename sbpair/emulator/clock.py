"""Clocks, passed as arguments: entities never read the machine's clock.

All times are whole milliseconds since 1970-01-01T00:00:00Z. No clock here ever goes backwards.
"""

from __future__ import annotations

import time
from typing import Final, Protocol

NEVER: Final = 1 << 62
"""Sentinel for "no deadline"."""


class Clock(Protocol):
    def now_ms(self) -> int: ...


class AdjustableClock(Clock, Protocol):
    """A clock that a test or the control API can advance."""

    def advance(self, ms: int) -> None: ...


class SystemClock:
    """UTC at start plus elapsed monotonic time, so that locks expire in the order they were taken."""

    __slots__ = ("_base_ns",)

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()

    def now_ms(self) -> int:
        return (self._base_ns + time.monotonic_ns()) // 1_000_000

    def advance(self, ms: int) -> None:
        self._base_ns += check_forward(ms) * 1_000_000


class ManualClock:
    """A clock that moves only by `advance`."""

    __slots__ = ("_now_ms",)

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += check_forward(ms)


def check_forward(ms: int) -> int:
    if ms < 0:
        raise ValueError(f"cannot set a clock back by {-ms} ms")
    return ms
