"""The points of a namespace at which faults and limits act. While none is active, they are empty and cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.emulator.faults.entity_scope import is_within
from sbpair.emulator.faults.faulty_connection import FaultyConnection
from sbpair.emulator.faults.meters import CombinedMeters
from sbpair.emulator.service_errors import EntityFull, EntityUnavailable, OperationTimedOut

if TYPE_CHECKING:
    import asyncio

    from sbpair.emulator.faults.faulty_connection import ConnectionFault, FaultableConnection
    from sbpair.emulator.faults.http_refusals import RequestFault
    from sbpair.emulator.faults.meters import CreditMeter

MAX_CONNECTIONS: Final = 5_000
T = TypeVar("T")


class AckSuppression:
    """A filter that drops the acknowledgements of about `count` accepted sends to an entity, or of all."""

    def __init__(self, entity: str = "", count: int | None = None) -> None:
        self._entity = entity
        self._left = count

    def acknowledged(self, path: str, accepted: list[T]) -> list[T]:
        if not is_within(path, self._entity):
            return accepted
        if self._left is None:
            return []
        suppressed = min(self._left, len(accepted))
        self._left -= suppressed
        return accepted[suppressed:]


class FaultPoints:
    """The fault points of one namespace. Paths are in lower case; "" means every entity."""

    def __init__(self) -> None:
        self.connections: set[FaultableConnection] = set()
        self.faulty: dict[FaultableConnection, FaultyConnection] = {}
        self.suppressed_acks: list[AckSuppression] = []
        self.meter: CreditMeter | None = None
        self.request_faults: list[RequestFault] = []
        self.latency_seconds = 0.0
        self.max_connections = MAX_CONNECTIONS
        self._meters: list[CreditMeter] = []
        self._connection_faults: list[ConnectionFault] = []
        self._latencies: list[float] = []
        self._down: list[str] = []
        self._partitions_down: list[int] = []

    # Connections

    def register(self, connection: FaultableConnection, transport: asyncio.Transport) -> None:
        """Add a new connection and apply the active faults of connections to it."""
        self.connections.add(connection)
        if self._acts_on_connections:
            self._wrap(connection, transport)

    def unregister(self, connection: FaultableConnection) -> None:
        self.connections.discard(connection)

    def check_connections(self) -> None:
        """Raise EntityFull if the latest connection is one too many."""
        if len(self.connections) > self.max_connections:
            raise EntityFull(f"ConnectionsQuotaExceeded: the namespace has {self.max_connections} connections.")

    @property
    def _acts_on_connections(self) -> bool:
        return bool(self._connection_faults or self._latencies)

    def _wrap(self, connection: FaultableConnection, transport: asyncio.Transport) -> None:
        def on_lost() -> None:
            self.faulty.pop(connection, None)

        faulty = FaultyConnection(transport, connection, lambda: self.latency_seconds, on_lost)
        self.faulty[connection] = faulty
        for fault in self._connection_faults:
            faulty.add(fault)

    def _wrap_all(self) -> None:
        for connection in self.connections - self.faulty.keys():
            self._wrap(connection, connection.transport)

    def _unwrap_all(self) -> None:
        if not self._acts_on_connections:
            self.faulty = {connection: faulty for connection, faulty in self.faulty.items() if not faulty.unwrap()}

    def add_connection_fault(self, fault: ConnectionFault) -> None:
        known = set(self.faulty)
        self._connection_faults.append(fault)
        self._wrap_all()
        for connection in known:
            self.faulty[connection].add(fault)

    def remove_connection_fault(self, fault: ConnectionFault) -> None:
        self._connection_faults.remove(fault)
        for faulty in list(self.faulty.values()):
            faulty.remove(fault)
        self._unwrap_all()

    def add_latency(self, seconds: float) -> None:
        self._latencies.append(seconds)
        self.latency_seconds = sum(self._latencies)
        self._wrap_all()

    def remove_latency(self, seconds: float) -> None:
        self._latencies.remove(seconds)
        self.latency_seconds = sum(self._latencies)
        self._unwrap_all()

    # Entities

    def take_down(self, entity: str) -> None:
        self._down.append(entity)
        error = unavailable(entity)
        self.detach(entity, error.condition, error.message)

    def bring_up(self, entity: str) -> None:
        self._down.remove(entity)

    def check(self, path: str) -> None:
        """Raise EntityUnavailable if this entity is down."""
        for entity in self._down:
            if is_within(path, entity):
                raise unavailable(entity)

    def take_partition_down(self, partition: int) -> None:
        """Take a partition of the whole namespace down: no partitioned entity can be created meanwhile."""
        self._partitions_down.append(partition)

    def bring_partition_up(self, partition: int) -> None:
        self._partitions_down.remove(partition)

    def check_partitions(self) -> None:
        """Raise OperationTimedOut if a partition of the whole namespace is down."""
        for partition in self._partitions_down:
            raise OperationTimedOut(
                f"The operation did not complete within the allotted time: partition {partition} is not available."
            )

    def detach(self, entity: str, condition: str, text: str) -> None:
        for connection in list(self.connections):
            connection.detach(entity, condition, text)

    # Requests, sends and limits

    def check_request(self, method: str, path: str) -> None:
        """Raise RequestRefused if a fault refuses this management request."""
        for fault in self.request_faults:
            fault.check(method, path.lower())

    def acknowledged(self, path: str, accepted: list[T]) -> list[T]:
        """Return the accepted deliveries that may be acknowledged."""
        for suppression in self.suppressed_acks:
            accepted = suppression.acknowledged(path, accepted)
        return accepted

    def add_meter(self, meter: CreditMeter) -> None:
        self._set_meters([*self._meters, meter])

    def remove_meter(self, meter: CreditMeter) -> None:
        self._set_meters([each for each in self._meters if each is not meter])
        self.resume()

    def _set_meters(self, meters: list[CreditMeter]) -> None:
        self._meters = meters
        self.meter = meters[0] if len(meters) == 1 else CombinedMeters(meters) if meters else None

    def resume(self) -> None:
        """Let deliveries continue that a meter held back."""
        for connection in list(self.connections):
            connection.resume()


def unavailable(entity: str) -> EntityUnavailable:
    return EntityUnavailable(f"The messaging entity '{entity}' is not available. Please retry the operation.")
