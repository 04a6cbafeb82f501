"""Where faults and limits take hold of a namespace: its doors, what is down, what goes unacknowledged, what is metered.

While nothing is in force all of this is empty, and costs a door a look at an attribute, or not even that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sbpair.emulator.faults.faulty_connection import FaultyConnection
from sbpair.emulator.service_errors import EntityFull, EntityUnavailable, OperationTimedOut

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from sbpair.emulator.faults.faulty_connection import ConnectionFault, Frontend
    from sbpair.emulator.faults.http_refusals import RequestFault

MAX_CONNECTIONS: Final = 5_000
T = TypeVar("T")


class CreditMeter(Protocol):
    """Something that limits how much may be done."""

    def spend(self, operations: int, path: str) -> None:
        """Raises ServerBusy where that many more are too many."""

    def allowed(self, wanted: int, path: str) -> int:
        """How many of `wanted` deliveries may leave now. Whoever is told fewer is resumed when there may be more."""

    def took(self, deliveries: int, path: str) -> None:
        """So many have left."""


class CombinedMeters:
    """Several meters at once: the strictest one counts."""

    def __init__(self, meters: Sequence[CreditMeter]) -> None:
        self._meters = tuple(meters)

    def spend(self, operations: int, path: str) -> None:
        for meter in self._meters:
            meter.spend(operations, path)

    def allowed(self, wanted: int, path: str) -> int:
        return min(meter.allowed(wanted, path) for meter in self._meters)

    def took(self, deliveries: int, path: str) -> None:
        for meter in self._meters:
            meter.took(deliveries, path)


class Swallow:
    """Keeps quiet about sends to an entity that were accepted: about `count` of them, or about all."""

    def __init__(self, entity: str = "", count: int | None = None) -> None:
        self._entity = entity
        self._left = count

    def hush(self, path: str, accepted: list[T]) -> list[T]:
        """Those that may be acknowledged."""
        if not belongs(path, self._entity):
            return accepted
        if self._left is None:
            return []
        hushed = min(self._left, len(accepted))
        self._left -= hushed
        return accepted[hushed:]


class FaultPoints:
    """The points of one namespace. Paths are in lower case; an empty one means every entity."""

    def __init__(self) -> None:
        self.doors: set[Frontend] = set()
        self.lines: dict[Frontend, FaultyConnection] = {}
        self.swallows: list[Swallow] = []
        self.meter: CreditMeter | None = None
        self.request_faults: list[RequestFault] = []
        self.latency_seconds = 0.0
        self.max_connections = MAX_CONNECTIONS
        self._meters: list[CreditMeter] = []
        self._line_faults: list[ConnectionFault] = []
        self._latencies: list[float] = []
        self._down: list[str] = []
        self._partitions_down: list[int] = []

    # Doors

    def admit(self, door: Frontend, transport: asyncio.Transport) -> None:
        """A connection has come; the faults that are meant for connections are put on it."""
        self.doors.add(door)
        if self._wants_lines:
            self._line(door, transport)

    def check_connections(self) -> None:
        """QuotaExceeded with one connection too many, the latest included."""
        if len(self.doors) > self.max_connections:
            raise EntityFull(f"ConnectionsQuotaExceeded: the namespace has {self.max_connections} connections.")

    def part(self, door: Frontend) -> None:
        self.doors.discard(door)

    @property
    def _wants_lines(self) -> bool:
        return bool(self._line_faults or self._latencies)

    def _line(self, door: Frontend, transport: asyncio.Transport) -> None:
        line = self.lines[door] = FaultyConnection(transport, door, self)
        for fault in self._line_faults:
            line.put(fault)

    def _draw_lines(self) -> None:
        for door in self.doors - self.lines.keys():
            self._line(door, door.transport)

    def _take_lines_out(self) -> None:
        if not self._wants_lines:
            self.lines = {door: line for door, line in self.lines.items() if not line.leave()}

    def add_connection_fault(self, fault: ConnectionFault) -> None:
        known = set(self.lines)
        self._line_faults.append(fault)
        self._draw_lines()
        for door in known:
            self.lines[door].put(fault)

    def remove_connection_fault(self, fault: ConnectionFault) -> None:
        self._line_faults.remove(fault)
        for line in list(self.lines.values()):
            line.lift(fault)
        self._take_lines_out()

    def add_latency(self, seconds: float) -> None:
        self._latencies.append(seconds)
        self.latency_seconds = sum(self._latencies)
        self._draw_lines()

    def remove_latency(self, seconds: float) -> None:
        self._latencies.remove(seconds)
        self.latency_seconds = sum(self._latencies)
        self._take_lines_out()

    # Entities

    def take_down(self, entity: str) -> None:
        self._down.append(entity)
        refusal = unavailable(entity)
        self.detach(entity, refusal.condition, refusal.message)

    def bring_up(self, entity: str) -> None:
        self._down.remove(entity)

    def check(self, path: str) -> None:
        """EntityUnavailable where this entity is down."""
        for entity in self._down:
            if belongs(path, entity):
                raise unavailable(entity)

    def take_partition_down(self, partition: int) -> None:
        """Of the whole namespace: nothing that is partitioned can be created meanwhile."""
        self._partitions_down.append(partition)

    def bring_partition_up(self, partition: int) -> None:
        self._partitions_down.remove(partition)

    def check_partitions(self) -> None:
        for partition in self._partitions_down:
            raise OperationTimedOut(
                f"The operation did not complete within the allotted time: partition {partition} is not available."
            )

    def detach(self, entity: str, condition: str, text: str) -> None:
        for door in list(self.doors):
            door.detach(entity, condition, text)

    # Requests, sends and limits

    def check_request(self, method: str, path: str) -> None:
        """RequestRefused where a management request is to be answered so."""
        for fault in self.request_faults:
            fault.check(method, path.lower())

    def acknowledged(self, path: str, accepted: list[T]) -> list[T]:
        for swallow in self.swallows:
            accepted = swallow.hush(path, accepted)
        return accepted

    def add_meter(self, meter: CreditMeter) -> None:
        self._change_meters([*self._meters, meter])

    def remove_meter(self, meter: CreditMeter) -> None:
        self._change_meters([each for each in self._meters if each is not meter])
        self.resume()

    def _change_meters(self, meters: list[CreditMeter]) -> None:
        self._meters = meters
        self.meter = meters[0] if len(meters) == 1 else CombinedMeters(meters) if meters else None

    def resume(self) -> None:
        for door in list(self.doors):
            door.resume()


def belongs(path: str, entity: str) -> bool:
    """Whether `path` is that entity, or a node, a sub-queue or a subscription of it. An entity `a/b` is none of `a`."""
    if not entity or path == entity:
        return True
    return path.startswith((f"{entity}/$", f"{entity}/subscriptions/"))


def unavailable(entity: str) -> EntityUnavailable:
    return EntityUnavailable(f"The messaging entity '{entity}' is not available. Please retry the operation.")
