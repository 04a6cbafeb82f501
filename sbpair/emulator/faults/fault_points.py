"""The points of a namespace at which faults and limits act. While none is active, they are empty and cost nothing.

Operations and deliveries are limited by faults, by credits, which are counted on the emulator's clock, and while the
data file cannot be written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Protocol, TypeVar

from sbpair.amqp_server.refusals import ServerBusy, ServiceError
from sbpair.amqp_server.shared_access import expired_token, is_within, scope_of
from sbpair.emulator.clock import NEVER, Clock, Deadline, Timers
from sbpair.emulator.service_errors import (
    CONFLICT,
    MANAGEMENT_HELP,
    AccessRefused,
    EntityUnavailable,
    RequestThrottled,
    partition_unavailable,
    unwritable,
)

MAX_CONNECTIONS: Final = 5_000
PERIOD_MS: Final = 1_000
ENTITY_DOWN: Final = "entity-down"
PARTITION_DOWN: Final = "partition-down"
LATENCY: Final = "latency"
THROTTLE: Final = "throttle"
REFUSE_BINARY: Final = "refuse-binary-properties"
EXPIRE_TOKENS: Final = "expire-tokens"
IDENTITY_DOWN: Final = "identity-down"
FIREWALL: Final = "firewall"
LOCAL_AUTH_DISABLED: Final = "local-auth-disabled"
IDENTITY_MODES: Final = ("refuse", "hang", "500", "throttle")
BREAKS: Final = ("drop", "stall", "reset")
MANAGEMENT_CREDITS: Final = 10
"""Credits of a management request. A message sent or received costs 1, and so does each filter evaluated."""

_PREVENTED: Final = "Ip has been prevented to connect to the endpoint."
PREVENTED: Final = f"""{_PREVENTED}
           For more information see:
           Virtual Network service endpoints:
              Event Hubs: https://go.microsoft.com/fwlink/?linkid=2044192
              Service Bus: https://go.microsoft.com/fwlink/?linkid=2044235
           IP Filters:
              Event Hubs:  https://go.microsoft.com/fwlink/?linkid=2044428
              Service Bus: https://go.microsoft.com/fwlink/?linkid=2044183
    """
NO_LOCAL_AUTH: Final = (
    "LocalAuthDisabled: Authorization failed because SAS authentication has been disabled for the namespace."
)

METHODS: Final = ("DELETE", "GET", "PUT")

REFUSALS: Final[dict[int, tuple[int, str]]] = {
    401: (0, "Unauthorized access: claim is empty or token is invalid."),
    403: (0, _PREVENTED),
    409: (40901, f"Another conflicting operation is in progress. {MANAGEMENT_HELP}"),
    429: (50004, "The request was terminated because the namespace is being throttled. Please wait and try again."),
    500: (50000, f"Internal Server Error. {MANAGEMENT_HELP}"),
    503: (50300, "The service is temporarily unavailable. Please retry the operation."),
}
"""Status -> SubCode (0 for none) and text."""

_SUB_CODES: Final[dict[int, str]] = {
    40300: "Forbidden. The limit of this namespace is reached.",
    40900: CONFLICT,
    40901: REFUSALS[409][1],
}
"""Texts of SubCodes that differ from the text of their status."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """A requested fault. `fault_kinds.KINDS` lists the optional fields that each kind needs or takes."""

    kind: str
    namespace: str
    entity: str | None = None
    partition: int | None = None
    after_frames: int | None = None
    count: int | None = None
    ms: int | None = None
    status: int | None = None
    sub_code: int | None = None
    method: str | None = None
    retry_after_seconds: int | None = None
    mode: str | None = None

    @property
    def path(self) -> str:
        """The entity's path in lower case; "" for all entities."""
        return scope_of(self.entity or "")


class ServedConnection(Protocol):
    """An AMQP connection to the namespace. The frontend has the class: entities and faults know no frontend."""

    def take_down(self, entity: str, error: ServiceError) -> None:
        """Fail the transactions that have used an entity, and close the links to it."""

    def detach(self, entity: str, error: ServiceError) -> None:
        """Close the links to an entity."""

    def expire_tokens(self) -> None:
        """Expire the tokens of the client, and close the links that they allowed."""

    def on_faults_changed(self) -> None:
        """Apply the faults and the latency of connections as they are now."""

    def resume(self) -> None:
        """Continue deliveries that were held back."""

    def abort(self) -> None:
        """Break the connection."""


class ActingFault:
    """A fault that acts, and the hits that it has left: `count` of them, or any number."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.path = fault.path
        self.after_frames = fault.after_frames or 0
        self.ended = asyncio.Event()
        self._hits = repeat(True) if fault.count is None else repeat(True, fault.count)

    def acts_on(self, kind: str, path: str, method: str | None = None) -> bool:
        return self.fault.kind == kind and is_within(path, self.path) and self.fault.method in (None, method)

    def hit(self) -> bool:
        """Return whether the fault acts now, and count it."""
        return next(self._hits, False)


class RequestRefused(ServiceError):
    """A refusal by a fault, regardless of the request."""

    def __init__(self, status: int, sub_code: int | None = None, retry_after_seconds: int | None = None) -> None:
        default_code, text = REFUSALS[status]
        super().__init__(text if sub_code is None else _SUB_CODES.get(sub_code, text))
        self.status = status
        self.sub_code = default_code if sub_code is None else sub_code
        self.retry_after_seconds = retry_after_seconds


def server_busy() -> ServerBusy:
    return ServerBusy(
        "The request was terminated because the namespace is being throttled. Error code : 50009. "
        "Please wait 2 seconds and try again."
    )


class CreditBudget:
    """A limit of `per_second` credits, in periods of a whole second.

    An operation that begins with a credit left is completed, and its excess reduces the credits of the next seconds:
    a batch larger than one second's credits passes, once. `resume` is called when deliveries that waited may continue.
    """

    def __init__(self, per_second: int, clock: Clock, timers: Timers, resume: Callable[[], None]) -> None:
        self._per_second = self._left = per_second
        self._clock = clock
        self._resumption = Deadline(clock, timers, NEVER, resume)
        self._period = clock.now_ms() // PERIOD_MS

    def _credits(self) -> int:
        period = self._clock.now_ms() // PERIOD_MS
        if period != self._period:
            self._left = min(self._per_second, self._left + self._per_second * (period - self._period))
            self._period = period
        return self._left

    def spend(self, operations: int) -> None:
        if self._credits() <= 0:
            raise server_busy()
        self._left -= operations

    def allowed(self, wanted: int) -> int:
        allowed = max(0, min(wanted, self._credits()))
        if allowed < wanted and self._resumption.due_ms == NEVER:
            self._resumption.wait_until((self._period + 1) * PERIOD_MS)
        return allowed

    def record(self, deliveries: int) -> None:
        self._left -= deliveries


class FaultPoints:
    """The fault points of one namespace. Paths are in lower case; "" means every entity."""

    def __init__(self) -> None:
        self.connections: set[ServedConnection] = set()
        self.budget: CreditBudget | None = None
        self.is_unwritable = False
        self.is_limiting = False
        """Whether messages sent or received have to be counted, or looked at one by one."""

        self.acting: list[ActingFault] = []
        self.connection_faults: list[ActingFault] = []
        """Those among the acting ones that break connections."""

        self.latency_seconds = 0.0
        self.max_connections = MAX_CONNECTIONS

    def begin(self, fault: Fault) -> ActingFault:
        """Let a fault act where the points of its kind ask for it: `count` times, or always."""
        acting = ActingFault(fault)
        self.acting.append(acting)
        self._acting_changed()
        return acting

    def end(self, acting: ActingFault) -> None:
        self.acting.remove(acting)
        acting.ended.set()
        self._acting_changed()

    def _acting_changed(self) -> None:
        self.connection_faults = [each for each in self.acting if each.fault.kind in BREAKS]
        selective = any(each.fault.kind in (THROTTLE, REFUSE_BINARY) for each in self.acting)
        self.is_limiting = selective or self.is_unwritable or self.budget is not None
        self.latency_seconds = sum([each.fault.ms or 0 for each in self.acting if each.fault.kind == LATENCY]) / 1000
        for connection in list(self.connections):
            connection.on_faults_changed()

    # Entities

    def check(self, path: str) -> None:
        """Raise EntityUnavailable if this entity is down."""
        for each in self.acting:
            if each.acts_on(ENTITY_DOWN, path):
                raise unavailable(each.path)

    def check_partitions(self) -> None:
        """Raise OperationTimedOut if a partition of the whole namespace is down."""
        for each in self.acting:
            if each.fault.kind == PARTITION_DOWN and not each.path:
                raise partition_unavailable(each.fault.partition or 0)

    # Requests, sends and limits

    def hit(self, kind: str, path: str, method: str | None = None) -> Fault | None:
        """Return the fault of this kind that acts on a path now, and count the hit."""
        acting = self.hit_by(kind, path, method)
        return None if acting is None else acting.fault

    def hit_by(self, kind: str, path: str = "", method: str | None = None) -> ActingFault | None:
        """Return the fault of this kind that acts on a path now, with its end, and count the hit."""
        return next((each for each in self.acting if each.acts_on(kind, path, method) and each.hit()), None)

    def check_request(self, method: str, path: str) -> None:
        """Raise RequestRefused if a fault refuses this management request."""
        fault = self.hit("refuse-requests", path.lower(), method)
        if fault is not None:
            raise RequestRefused(fault.status or 500, fault.sub_code, fault.retry_after_seconds)

    def check_token(self, now_ms: int) -> None:
        """Raise Unauthenticated if a fault takes a valid token for one that expires now."""
        for each in self.acting:
            if each.fault.kind == EXPIRE_TOKENS and each.fault.count is not None and each.hit():
                raise expired_token(now_ms)

    def check_access(self, *, by_key: bool) -> None:
        """Raise AccessRefused while a network rule refuses all clients, or a namespace without local keys this one."""
        if self.hit(FIREWALL, ""):
            raise AccessRefused(PREVENTED)
        if by_key and self.hit(LOCAL_AUTH_DISABLED, ""):
            raise AccessRefused(NO_LOCAL_AUTH)

    def acknowledged(self, path: str, accepted: list[T]) -> list[T]:
        """Return the accepted deliveries that may be acknowledged."""
        return [each for each in accepted if self.hit("swallow-acks", path) is None] if self.acting else accepted

    def takes_bytes(self, path: str) -> bool:
        """Return whether messages sent to a path may have properties of bytes."""
        return not any(each.acts_on(REFUSE_BINARY, path) for each in self.acting)

    def spend(self, operations: int, path: str) -> None:
        """Raise ServerBusy if so many operations are too many."""
        if self.budget is not None:
            self.budget.spend(operations)
        if operations and self.hit(THROTTLE, path):
            raise server_busy()
        if operations and self.is_unwritable:
            raise unwritable()

    def charge_management(self, path: str) -> None:
        """Charge a management request. Raises RequestThrottled."""
        try:
            self.spend(MANAGEMENT_CREDITS, path)
        except ServerBusy as error:
            raise RequestThrottled(error.message) from error

    def allowed(self, wanted: int, path: str) -> int:
        """Return how many of `wanted` deliveries may be sent now: none while all operations are refused."""
        throttled = any(each.fault.count is None and each.acts_on(THROTTLE, path) for each in self.acting)
        if throttled or self.is_unwritable:
            return 0
        return wanted if self.budget is None else self.budget.allowed(wanted)

    def record(self, deliveries: int) -> None:
        if self.budget is not None:
            self.budget.record(deliveries)

    def limit_to(self, per_second: int, clock: Clock, timers: Timers) -> None:
        """Limit the namespace to so many credits a second."""
        self.budget = CreditBudget(per_second, clock, timers, self.resume)
        self._acting_changed()

    def set_unwritable(self, is_unwritable: bool) -> None:
        """Refuse operations while the data file cannot be written."""
        self.is_unwritable = is_unwritable
        self._acting_changed()
        if not is_unwritable:
            self.resume()

    def resume(self) -> None:
        """Let deliveries continue that were held back."""
        for connection in list(self.connections):
            connection.resume()


def unavailable(entity: str) -> EntityUnavailable:
    return EntityUnavailable(f"The messaging entity '{entity}' is not available. Please retry the operation.")
