"""Meters: limits on the operations and deliveries of a namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sbpair.emulator.faults.entity_scope import is_within
from sbpair.emulator.service_errors import ServerBusy

if TYPE_CHECKING:
    from collections.abc import Sequence


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


def server_busy() -> ServerBusy:
    return ServerBusy(
        "The request was terminated because the namespace is being throttled. Error code : 50009. "
        "Please wait 2 seconds and try again."
    )
