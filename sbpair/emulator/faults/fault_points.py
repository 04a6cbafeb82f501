"""The points of a namespace at which faults and limits act. While none is active, they are empty and cost nothing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.emulator.access.sas import is_within
from sbpair.emulator.faults.faulty_connection import ConnectionFault, FaultableConnection, FaultyConnection
from sbpair.emulator.faults.meters import CombinedMeters, CreditMeter
from sbpair.emulator.service_errors import EntityFull, EntityUnavailable, ServiceError, partition_unavailable

if TYPE_CHECKING:
    from sbpair.emulator.faults.kinds import Fault

MAX_CONNECTIONS: Final = 5_000
METHODS: Final = ("DELETE", "GET", "PUT")
_MORE: Final = "To know more visit https://aka.ms/sbResourceMgrExceptions."

REFUSALS: Final[dict[int, tuple[int, str]]] = {
    401: (0, "Unauthorized access: claim is empty or token is invalid."),
    403: (0, "Ip has been prevented to connect to the endpoint."),
    409: (40901, f"Another conflicting operation is in progress. {_MORE}"),
    429: (50004, "The request was terminated because the namespace is being throttled. Please wait and try again."),
    500: (50000, f"Internal Server Error. {_MORE}"),
    503: (50300, "The service is temporarily unavailable. Please retry the operation."),
}
"""Status -> SubCode (0 for none) and text."""

_SUB_CODES: Final[dict[int, str]] = {
    40300: "Forbidden. The limit of this namespace is reached.",
    40900: f"Conflict. You're requesting an operation that isn't allowed in the resource's current state. {_MORE}",
    40901: REFUSALS[409][1],
}
"""Texts of SubCodes that differ from the text of their status."""

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


class RequestRefused(ServiceError):
    """A refusal by a fault, regardless of the request."""

    def __init__(self, status: int, sub_code: int | None = None, retry_after_seconds: int | None = None) -> None:
        default_code, text = REFUSALS[status]
        super().__init__(text if sub_code is None else _SUB_CODES.get(sub_code, text))
        self.status = status
        self.sub_code = default_code if sub_code is None else sub_code
        self.retry_after_seconds = retry_after_seconds


class RequestFault:
    """A fault that refuses `count` requests, or all. An empty entity or method matches every one."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._left = fault.count

    def check(self, method: str, path: str) -> None:
        """Raise RequestRefused if this request is to be refused."""
        fault = self._fault
        if self._left == 0 or method != (fault.method or method) or not is_within(path, fault.path):
            return
        if self._left is not None:
            self._left -= 1
        raise RequestRefused(fault.status or 500, fault.sub_code, fault.retry_after_seconds)


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
        self.partitions_down: list[int] = []
        """The partitions of the whole namespace that are down: no partitioned entity can be created meanwhile."""

    # Connections

    def register(self, connection: FaultableConnection, transport: asyncio.Transport) -> None:
        """Add a new connection and apply the active faults of connections to it."""
        self.connections.add(connection)
        if self._connection_faults or self._latencies:
            self._wrap(connection, transport)

    def unregister(self, connection: FaultableConnection) -> None:
        self.connections.discard(connection)

    def check_connections(self) -> None:
        """Raise EntityFull if the latest connection is one too many."""
        if len(self.connections) > self.max_connections:
            raise EntityFull(f"ConnectionsQuotaExceeded: the namespace has {self.max_connections} connections.")

    def _wrap(self, connection: FaultableConnection, transport: asyncio.Transport) -> None:
        faulty = self.faulty[connection] = FaultyConnection(
            transport, connection, lambda: self.latency_seconds, lambda: self.faulty.pop(connection, None)
        )
        for fault in self._connection_faults:
            faulty.add(fault)

    def _wrap_all(self) -> None:
        for connection in self.connections - self.faulty.keys():
            self._wrap(connection, connection.transport)

    def _unwrap_all(self) -> None:
        if not (self._connection_faults or self._latencies):
            self.faulty = {connection: faulty for connection, faulty in self.faulty.items() if not faulty.unwrap()}

    def add_connection_fault(self, fault: ConnectionFault) -> None:
        for faulty in self.faulty.values():
            faulty.add(fault)
        self._connection_faults.append(fault)
        self._wrap_all()

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

    def check_partitions(self) -> None:
        """Raise OperationTimedOut if a partition of the whole namespace is down."""
        for partition in self.partitions_down:
            raise partition_unavailable(partition)

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
