"""Meters: limits on the operations and deliveries of a namespace. Credits are counted on the emulator's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.emulator.access.sas import is_within
from sbpair.emulator.clock import NEVER, Clock, Timers
from sbpair.emulator.service_errors import ServerBusy

if TYPE_CHECKING:
    from sbpair.emulator.faults.kinds import Fault

PERIOD_MS: Final = 1_000


class Throttle:
    """A meter that refuses `count` operations, or all of them; while it refuses all, it holds deliveries back."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._hits = fault.hits()

    def spend(self, operations: int, path: str) -> None:
        if operations and is_within(path, self._fault.path) and next(self._hits, False):
            raise server_busy()

    def allowed(self, wanted: int, path: str) -> int:
        return wanted if self._fault.count is not None or not is_within(path, self._fault.path) else 0

    def record(self, deliveries: int, path: str) -> None:
        """Do nothing: deliveries cost nothing here."""


class CreditBudget:
    """A meter of `per_second` credits, in periods of a whole second.

    An operation that begins with a credit left is completed, and its excess reduces the credits of the next seconds:
    a batch larger than one second's credits passes, once. `resume` is called when deliveries that waited may continue.
    """

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
            raise server_busy()
        self._left -= operations

    def allowed(self, wanted: int, path: str) -> int:
        del path
        allowed = max(0, min(wanted, self._credits()))
        if allowed < wanted and self.due_ms == NEVER:
            self.due_ms = (self._period + 1) * PERIOD_MS
            self._timers.schedule(self.due_ms, self)
        return allowed

    def record(self, deliveries: int, path: str) -> None:
        del path
        self._left -= deliveries

    def advance(self, now_ms: int) -> None:
        """Resume deliveries: a new period has begun."""
        del now_ms
        self.due_ms = NEVER
        self._resume()


def server_busy() -> ServerBusy:
    return ServerBusy(
        "The request was terminated because the namespace is being throttled. Error code : 50009. "
        "Please wait 2 seconds and try again."
    )
