"""Meters: limits on the operations and deliveries of a namespace. Credits are counted on the emulator's clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.access.sas import is_within
from sbpair.emulator.clock import NEVER, Clock, Timers
from sbpair.emulator.service_errors import RequestThrottled, ServerBusy

if TYPE_CHECKING:
    from sbpair.emulator.faults.fault_points import FaultPoints

PERIOD_MS: Final = 1_000
MANAGEMENT_CREDITS: Final = 10
"""Credits of a management request. A message sent or received costs 1, and so does each filter evaluated."""


class CreditMeter(Protocol):
    """A limit on operations and deliveries."""

    def spend(self, operations: int, path: str) -> None:
        """Raise ServerBusy if so many operations are too many."""

    def allowed(self, wanted: int, path: str) -> int:
        """Return how many of `wanted` deliveries may be sent now. A link that got fewer is resumed later."""

    def record(self, deliveries: int, path: str) -> None:
        """Record deliveries that were sent."""


class CombinedMeters:
    """Several meters, of which the strictest decides."""

    def __init__(self, meters: Sequence[CreditMeter]) -> None:
        self._meters = tuple(meters)

    def spend(self, operations: int, path: str) -> None:
        for meter in self._meters:
            meter.spend(operations, path)

    def allowed(self, wanted: int, path: str) -> int:
        return min(meter.allowed(wanted, path) for meter in self._meters)

    def record(self, deliveries: int, path: str) -> None:
        for meter in self._meters:
            meter.record(deliveries, path)


class Throttle:
    """A meter that refuses `count` operations, or all of them; while it refuses all, it holds deliveries back."""

    def __init__(self, entity: str, count: int | None) -> None:
        self._entity = entity
        self._left = count

    def spend(self, operations: int, path: str) -> None:
        if self._left == 0 or not operations or not is_within(path, self._entity):
            return
        if self._left is not None:
            self._left -= 1
        raise server_busy()

    def allowed(self, wanted: int, path: str) -> int:
        return wanted if self._left is not None or not is_within(path, self._entity) else 0

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


def charge_management(fault_points: FaultPoints, path: str) -> None:
    """Charge a management request. Raises RequestThrottled."""
    if fault_points.meter is not None:
        try:
            fault_points.meter.spend(MANAGEMENT_CREDITS, path)
        except ServerBusy as error:
            raise RequestThrottled(error.message) from error
