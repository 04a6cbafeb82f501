"""Clocks and deadlines, passed as arguments: entities never read the machine's clock.

All times are whole milliseconds since 1970-01-01T00:00:00Z. No clock here ever goes backwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from heapq import heappop, heappush
from typing import Final, Protocol

NEVER: Final = 1 << 62
"""Sentinel for "no deadline"."""


CallSoon = Callable[[Callable[[], None]], object]


class Clock(Protocol):
    """A clock that a test or the control API can advance.

    `advanced_ms` is by how much it is ahead of the machine's clock.
    """

    advanced_ms: int

    def now_ms(self) -> int: ...
    def advance(self, ms: int) -> None: ...


def token_ms(clock: Clock) -> int:
    """Return the time by which tokens are judged: clients sign them by the machine's clock, which is not advanced."""
    return clock.now_ms() - clock.advanced_ms


class SystemClock:
    """UTC at start plus elapsed monotonic time, so that locks expire in the order they were taken."""

    __slots__ = ("_base_ns", "advanced_ms")

    def __init__(self) -> None:
        self._base_ns = time.time_ns() - time.monotonic_ns()
        self.advanced_ms = 0

    def now_ms(self) -> int:
        return (self._base_ns + time.monotonic_ns()) // 1_000_000

    def advance(self, ms: int) -> None:
        self._base_ns += check_forward(ms) * 1_000_000
        self.advanced_ms += ms


class ManualClock:
    """A clock that moves only by `advance`. It takes the place of the machine's clock, so tokens expire by it."""

    __slots__ = ("_now_ms", "advanced_ms")

    def __init__(self, now_ms: int = 1_767_225_600_000) -> None:
        self._now_ms = now_ms
        self.advanced_ms = 0

    def now_ms(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> None:
        self._now_ms += check_forward(ms)


def milliseconds(duration: int | timedelta) -> int:
    """Return whole milliseconds, rounded up. Raises TypeError."""
    if isinstance(duration, timedelta):
        return -(-duration // timedelta(milliseconds=1))
    if isinstance(duration, int):
        return duration
    raise TypeError(f"expected whole milliseconds or a timedelta, got {type(duration).__name__}")


def check_forward(ms: int) -> int:
    if ms < 0:
        raise ValueError(f"cannot set a clock back by {-ms} ms")
    return ms


class Timed(Protocol):
    """An item with a deadline. NEVER as `due_ms` voids its entries."""

    due_ms: int

    def advance(self, now_ms: int) -> None:
        """Do everything due by `now_ms` and schedule the next deadline."""


class Runtime:
    """The clock of entities, their timers, and a loop's `call_soon`, if there is one.

    A burst of sends wakes a receiver once, by way of `call_soon`. Tests call it at once.
    """

    def __init__(
        self, clock: Clock, timers: Timers | None = None, call_soon: CallSoon = lambda callback: callback()
    ) -> None:
        self.clock = clock
        self.timers = timers or Timers()
        self.call_soon = call_soon

    def deadline(self, ms: int, on_due: Callable[[], None]) -> Deadline:
        """Call `on_due` in `ms` milliseconds of this clock, unless it is postponed or cancelled; NEVER for none."""
        return Deadline(self.clock, self.timers, ms, on_due)


class Timers:
    """The deadlines of all entities and links of an emulator, so that one timer serves them all.

    An entry is valid only while its item's `due_ms` equals it. An item with an earlier deadline adds another entry,
    which makes the old one void. `on_earlier` is called when the next deadline moves forward.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._entries = 0
        self.on_earlier: Callable[[], None] | None = None

    def schedule(self, at_ms: int, item: Timed) -> None:
        earlier = not self._heap or at_ms < self._heap[0][0]
        # The running number keeps the heap from comparing items.
        self._entries += 1
        heappush(self._heap, (at_ms, self._entries, item))
        if earlier and self.on_earlier is not None:
            self.on_earlier()

    def next_deadline_ms(self) -> int | None:
        while self._heap and self._heap[0][2].due_ms != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int) -> None:
        """Run everything due by `now_ms`, in order of time."""
        while (due := self.next_deadline_ms()) is not None and due <= now_ms:
            item = heappop(self._heap)[2]
            item.advance(now_ms)


class Deadline:
    """A call of `on_due` in `ms` milliseconds, counted again from each `postpone`; NEVER for none.

    A later time costs nothing: the timer is set again only when the time before would be over.
    """

    __slots__ = ("_at_ms", "_clock", "_ms", "_on_due", "_timers", "due_ms")

    def __init__(self, clock: Clock, timers: Timers, ms: int, on_due: Callable[[], None]) -> None:
        self._clock, self._timers = clock, timers
        self._ms = ms
        self._on_due = on_due
        self.due_ms = NEVER
        self.wait_until(clock.now_ms() + ms)

    def wait_until(self, at_ms: int) -> None:
        """Call `on_due` at this time instead, once; NEVER or later for not at all."""
        self._at_ms = at_ms
        if at_ms >= NEVER:
            self.due_ms = NEVER
        elif at_ms < self.due_ms:
            self.due_ms = at_ms
            self._timers.schedule(at_ms, self)

    def postpone(self) -> None:
        self._at_ms = self._clock.now_ms() + self._ms

    def cancel(self) -> None:
        self.due_ms = NEVER
        # The timers keep this entry until it would have been due, and nothing else may live so long.
        self._on_due = _nothing

    def advance(self, now_ms: int) -> None:
        """Call `on_due`, or wait on if the deadline was postponed."""
        if now_ms < self._at_ms:
            self.due_ms = self._at_ms
            self._timers.schedule(self.due_ms, self)
        else:
            self.due_ms = NEVER
            self._on_due()


def _nothing() -> None:
    """Replace the call of a deadline that was cancelled."""
