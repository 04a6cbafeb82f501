"""The credits by which a namespace is throttled: so many a second, spent by what is done in it.

On the emulator's clock, in periods of a whole second. What begins with a credit left is done to its end, and what it
costs beyond is owed by the next seconds; so a batch larger than a second's credits gets through, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.faults.kinds import busy
from sbpair.emulator.service_errors import RequestThrottled, ServerBusy

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.emulator.clock import Clock
    from sbpair.emulator.faults.fault_points import FaultPoints
    from sbpair.emulator.timers import Timers

PERIOD_MS: Final = 1_000
MANAGEMENT: Final = 10
"""What a request to the management door costs; a message in or out costs 1, and so does the evaluation of a filter."""


def charge_management(points: FaultPoints, path: str) -> None:
    """Throttled where a request to the management door is too much."""
    if points.meter is not None:
        try:
            points.meter.spend(MANAGEMENT, path)
        except ServerBusy as busy:
            raise RequestThrottled(busy.message) from busy


class CreditBudget:
    """A Meter of `per_second` credits. `resume` is called when deliveries that had to wait may go on."""

    def __init__(self, per_second: int, clock: Clock, timers: Timers, resume: Callable[[], None]) -> None:
        self.due_ms = NEVER
        self._per_second = self._left = per_second
        self._clock = clock
        self._timers = timers
        self._resume = resume
        self._period = clock.now_ms() // PERIOD_MS

    def _credits(self) -> int:
        period = self._clock.now_ms() // PERIOD_MS
        if period != self._period:
            self._left = min(self._per_second, self._left + self._per_second * (period - self._period))
            self._period = period
        return self._left

    def spend(self, operations: int, path: str) -> None:
        del path
        if self._credits() <= 0:
            raise busy()
        self._left -= operations

    def allowed(self, wanted: int, path: str) -> int:
        del path
        allowed = max(0, min(wanted, self._credits()))
        if allowed < wanted and self.due_ms == NEVER:
            self.due_ms = (self._period + 1) * PERIOD_MS
            self._timers.schedule(self.due_ms, self)
        return allowed

    def took(self, deliveries: int, path: str) -> None:
        del path
        self._left -= deliveries

    def advance(self, now_ms: int) -> None:
        """An item of the timers: there are credits again."""
        del now_ms
        self.due_ms = NEVER
        self._resume()
