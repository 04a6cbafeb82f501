"""The points of a namespace at which faults and limits act. While none is active, they are empty and cost nothing.

Meters limit operations and deliveries. Their credits are counted on the emulator's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from sbpair.emulator.access.sas import is_within
from sbpair.emulator.clock import NEVER, Clock, Timers
from sbpair.emulator.faults.faulty_connection import ConnectionFault, FaultyConnection
from sbpair.emulator.faults.relay_faults import RelayFaultPoints
from sbpair.emulator.service_errors import (
    EntityFull,
    EntityUnavailable,
    RequestThrottled,
    ServerBusy,
    ServiceError,
    partition_unavailable,
)

if TYPE_CHECKING:
    from sbpair.emulator.faults.kinds import Fault
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

MAX_CONNECTIONS: Final = 5_000
PERIOD_MS: Final = 1_000
MANAGEMENT_CREDITS: Final = 10
"""Credits of a management request. A message sent or received costs 1, and so does each filter evaluated."""

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


class RequestRefused(ServiceError):
    """A refusal by a fault, regardless of the request."""

    def __init__(self, status: int, sub_code: int | None = None, retry_after_seconds: int | None = None) -> None:
        default_code, text = REFUSALS[status]
        super().__init__(text if sub_code is None else _SUB_CODES.get(sub_code, text))
        self.status = status
        self.sub_code = default_code if sub_code is None else sub_code
        self.retry_after_seconds = retry_after_seconds


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


class Unwritable:
    """A meter that allows nothing: the file that keeps the namespace cannot be written."""

    def spend(self, operations: int, path: str) -> None:
        del path
        if operations:
            raise ServerBusy(
                "The server is busy: its data file cannot be written. Please wait 10 seconds and try again."
            )

    def allowed(self, wanted: int, path: str) -> int:
        del wanted, path
        return 0

    def record(self, deliveries: int, path: str) -> None:
        """Do nothing: deliveries cost nothing here."""


def server_busy() -> ServerBusy:
    return ServerBusy(
        "The request was terminated because the namespace is being throttled. Error code : 50009. "
        "Please wait 2 seconds and try again."
    )


class FaultPoints:
    """The fault points of one namespace. Paths are in lower case; "" means every entity."""

    def __init__(self) -> None:
        self.relay = RelayFaultPoints()
        self.connections: set[AmqpConnection] = set()
        self.faulty: dict[AmqpConnection, FaultyConnection] = {}
        self.meters: list[CreditBudget | Throttle | Unwritable] = []
        self.suppressed_acks: list[tuple[Fault, Iterator[bool]]] = []
        self.request_faults: list[tuple[Fault, Iterator[bool]]] = []
        """Faults with the hits they have left."""

        self.latency_seconds = 0.0
        self.max_connections = MAX_CONNECTIONS
        self._connection_faults: list[ConnectionFault] = []
        self._latencies: list[float] = []
        self._down: list[str] = []
        self.partitions_down: list[int] = []
        """The partitions of the whole namespace that are down: no partitioned entity can be created meanwhile."""

    # Connections

    def register(self, connection: AmqpConnection) -> None:
        """Add a new connection and apply the active faults of connections to it."""
        self.connections.add(connection)
        if self._connection_faults or self._latencies:
            self._wrap(connection)

    def check_connections(self) -> None:
        """Raise EntityFull if the latest connection is one too many."""
        if len(self.connections) > self.max_connections:
            raise EntityFull(f"ConnectionsQuotaExceeded: the namespace has {self.max_connections} connections.")

    def _wrap(self, connection: AmqpConnection) -> None:
        faulty = self.faulty[connection] = FaultyConnection(connection, self)
        for fault in self._connection_faults:
            faulty.add(fault)

    def _wrap_all(self) -> None:
        for connection in self.connections - self.faulty.keys():
            self._wrap(connection)

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
        for connection in self.connections:
            connection.transactions.doom(entity, unavailable(entity).message)
        self.detach(entity, unavailable(entity))

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

    def detach(self, entity: str, error: EntityUnavailable) -> None:
        for connection in list(self.connections):
            connection.detach(entity, error)

    # Requests, sends and limits

    def check_request(self, method: str, path: str) -> None:
        """Raise RequestRefused if a fault refuses this management request."""
        for fault, hits in self.request_faults:
            matches = method == (fault.method or method) and is_within(path.lower(), fault.path)
            if matches and next(hits, False):
                raise RequestRefused(fault.status or 500, fault.sub_code, fault.retry_after_seconds)

    def acknowledged(self, path: str, accepted: list[T]) -> list[T]:
        """Return the accepted deliveries that may be acknowledged."""
        for fault, hits in self.suppressed_acks:
            if is_within(path, fault.path):
                accepted = accepted[sum(islice(hits, len(accepted))) :]
        return accepted

    def spend(self, operations: int, path: str) -> None:
        """Raise ServerBusy if so many operations are too many for a meter."""
        for meter in self.meters:
            meter.spend(operations, path)

    def charge_management(self, path: str) -> None:
        """Charge a management request. Raises RequestThrottled."""
        try:
            self.spend(MANAGEMENT_CREDITS, path)
        except ServerBusy as error:
            raise RequestThrottled(error.message) from error

    def allowed(self, wanted: int, path: str) -> int:
        """Return how many of `wanted` deliveries may be sent now: the strictest meter decides."""
        return min([wanted, *(meter.allowed(wanted, path) for meter in self.meters)])

    def record(self, deliveries: int, path: str) -> None:
        for meter in self.meters:
            meter.record(deliveries, path)

    def resume(self) -> None:
        """Let deliveries continue that a meter held back."""
        for connection in list(self.connections):
            connection.resume()


def unavailable(entity: str) -> EntityUnavailable:
    return EntityUnavailable(f"The messaging entity '{entity}' is not available. Please retry the operation.")
