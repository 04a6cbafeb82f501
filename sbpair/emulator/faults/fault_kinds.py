"""The kinds of faults, and those that are active: begun and ended by tests or through the control API.

A fault stays listed until it is ended, even if its count is used up.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.entities.description import PARTITIONS
from sbpair.emulator.faults.fault_points import (
    BREAKS,
    ENTITY_DOWN,
    EXPIRE_TOKENS,
    FIREWALL,
    IDENTITY_DOWN,
    IDENTITY_MODES,
    LATENCY,
    LOCAL_AUTH_DISABLED,
    METHODS,
    PARTITION_DOWN,
    REFUSALS,
    REFUSE_BINARY,
    THROTTLE,
    ActingFault,
    Fault,
    FaultPoints,
    unavailable,
)
from sbpair.emulator.service_errors import EntityNotFound, EntityUnavailable

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.partitions import Partitions
    from sbpair.emulator.relay.hybrid_connection import ConnectedListener


class FaultKind(NamedTuple):
    """A kind of fault, and the names of the fields it needs and takes.

    Its faults act where the fault points of their kind ask for them. `begin` has a further effect, and returns what
    ends it.
    """

    begin: Callable[[Namespace, Fault], Callable[[], object] | None] | None = None
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    of_any_entity: bool = False
    """Whether the entity may not exist yet."""

    of_relay: bool = False
    """Whether the entity is a hybrid connection."""


def namespace_down(namespace: Namespace, _: Fault) -> Callable[[], object]:
    """Break every connection and refuse new ones."""
    namespace.take_down()
    return namespace.bring_up


def entity_down(namespace: Namespace, fault: Fault) -> Callable[[], object]:
    """Close the links of one entity and its management node, and refuse new ones. Its description stays readable.

    Forwarding to it and from it waits.
    """
    for connection in list(namespace.fault_points.connections):
        connection.take_down(fault.path, unavailable(fault.path))
    return namespace.resume


def partition_down(namespace: Namespace, fault: Fault) -> Callable[[], object]:
    """Take down one partition of an entity, or of all partitioned entities.

    Sends with a key of this partition fail; others use another one. Forwarding stops at a message with such a key.
    """
    number = fault.partition or 0
    divided = list(partitions_of(namespace, fault.path))
    for partitions in divided:
        partitions.take_down(number)

    def bring_up() -> None:
        for partitions in divided:
            partitions.bring_up(number)
        namespace.resume()

    return bring_up


def partitions_of(namespace: Namespace, path: str) -> Iterator[Partitions]:
    """Yield the partitions of one entity, or of each. A subscription has those of its topic."""
    entities = [namespace.resolve(path).entity] if path else [*namespace.queues(), *namespace.topics()]
    for entity in entities:
        if entity.partitions is not None:
            yield entity.partitions


def detach(namespace: Namespace, fault: Fault) -> None:
    """Close links, as when the service moves an entity. New ones can be attached at once."""
    error = EntityUnavailable("The link was force detached by the broker. Please retry the operation.")
    for connection in list(namespace.fault_points.connections):
        connection.detach(fault.path, error)


def expire_locks(namespace: Namespace, fault: Fault) -> None:
    """Expire the locks of all messages."""
    for entity in [namespace.resolve(fault.path).entity] if fault.path else namespace.all_entities():
        entity.expire_locks()


def expire_tokens(namespace: Namespace, _: Fault) -> None:
    """Expire the tokens of open connections and of listeners once, and those of the next `count` requests."""
    for connection in list(namespace.fault_points.connections):
        connection.expire_tokens()
    for listener in _listeners(namespace, ""):
        listener.expire_token()


def throttle(namespace: Namespace, _: Fault) -> Callable[[], object]:
    """Answer sends and requests server-busy: `count` of them, or all. With all, deliveries wait too."""
    return namespace.fault_points.resume


RESTART_CODE: Final = 1011
RESTART_REASON: Final = "ConnectionLost: InternalServerError: NameRenewalFailed"


def relay_down(namespace: Namespace, fault: Fault) -> None:
    """Drop the listeners, and refuse senders and listeners with `status`, or else end their connections."""
    for listener in _listeners(namespace, fault.path):
        listener.abort()


def relay_drop_listeners(namespace: Namespace, fault: Fault) -> None:
    """Close the control channels once, as the service does each day."""
    for listener in _listeners(namespace, fault.path):
        listener.close(RESTART_CODE, RESTART_REASON)


def _listeners(namespace: Namespace, path: str) -> list[ConnectedListener]:
    entities = [each for each in namespace.hybrid_connections.all() if path in ("", each.key)]
    return [listener for entity in entities for listener in entity.listeners]


CLOCK: Final = "clock"
"""Advances the clock of the whole emulator by `ms`. Ending the fault does not set it back."""

_REQUESTS: Final = ("entity", "method", "count", "sub_code", "retry_after_seconds")

KINDS: Final[dict[str, FaultKind]] = {
    "namespace-down": FaultKind(namespace_down),
    ENTITY_DOWN: FaultKind(entity_down, needs=("entity",)),
    PARTITION_DOWN: FaultKind(partition_down, needs=("partition",), takes=("entity",)),
    LATENCY: FaultKind(needs=("ms",)),
    **dict.fromkeys(BREAKS, FaultKind(takes=("after_frames", "count", "entity"))),
    "swallow-acks": FaultKind(takes=("entity", "count")),
    "detach": FaultKind(detach, takes=("entity",)),
    "expire-locks": FaultKind(expire_locks, takes=("entity",)),
    EXPIRE_TOKENS: FaultKind(expire_tokens, takes=("count",)),
    FIREWALL: FaultKind(),
    LOCAL_AUTH_DISABLED: FaultKind(),
    IDENTITY_DOWN: FaultKind(needs=("mode",), takes=("count",)),
    THROTTLE: FaultKind(throttle, takes=("entity", "count")),
    REFUSE_BINARY: FaultKind(takes=("entity",)),
    "refuse-requests": FaultKind(needs=("status",), takes=_REQUESTS, of_any_entity=True),
    CLOCK: FaultKind(needs=("ms",)),
    "relay-down": FaultKind(relay_down, takes=("entity", "status"), of_relay=True),
    "relay-no-listeners": FaultKind(takes=("entity",), of_relay=True),
    "relay-drop-listeners": FaultKind(relay_drop_listeners, takes=("entity",), of_relay=True),
    "relay-swallow-response": FaultKind(takes=("entity", "count"), of_relay=True),
    "relay-without-via": FaultKind(takes=("entity", "count"), of_relay=True),
}


class BadField(ArgumentInvalid):
    """An invalid field of a control request; `where` names it."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class FaultUnknown(ArgumentInvalid):
    """No active fault has this id."""

    status, sub_code = 404, 40400


class Faults:
    """The active faults by id. `advance` moves the emulator's clock by milliseconds."""

    def __init__(self, namespaces: Mapping[str, Namespace], advance: Callable[[int], None]) -> None:
        self._namespaces = namespaces
        self._advance = advance
        self._active: dict[str, tuple[ActingFault, FaultPoints, Callable[[], object] | None]] = {}
        self._ids = (f"fault-{number}" for number in count(1))

    def begin(self, fault: Fault) -> str:
        """Begin a fault and return the id that ends it. Raises BadField for a missing, superfluous or wrong field."""
        kind = KINDS.get(fault.kind)
        if kind is None:
            raise BadField("kind", f"'{fault.kind[:100]}' is none of {', '.join(sorted(KINDS))}")
        namespace = self._namespaces.get(fault.namespace)
        if namespace is None:
            raise BadField("namespace", f"'{fault.namespace[:100]}' is none of {', '.join(sorted(self._namespaces))}")
        check_fields(fault, kind)
        if kind.of_relay:
            check_hybrid_connection(fault, namespace)
        elif not kind.of_any_entity:
            check_entity(fault, namespace)
        check_request(fault)
        check_partition(fault, namespace)
        if fault.kind == CLOCK:
            self._advance(fault.ms or 0)
        points, identity = namespace.fault_points, next(self._ids)
        acting = points.begin(fault)
        end = None if kind.begin is None else kind.begin(namespace, fault)
        self._active[identity] = (acting, points, end)
        return identity

    def end(self, identity: str) -> None:
        """End a fault. Raises FaultUnknown."""
        if identity not in self._active:
            raise FaultUnknown(f"No fault '{identity[:100]}' is active.")
        acting, points, end = self._active.pop(identity)
        points.end(acting)
        if end is not None:
            end()

    def end_all(self) -> None:
        for identity in list(self._active):
            self.end(identity)

    def active(self) -> dict[str, Fault]:
        return {identity: acting.fault for identity, (acting, *_) in self._active.items()}

    @contextmanager
    def during(self, kind: str, namespace: str, **wanted: int | str) -> Iterator[str]:
        """Begin a fault for the duration of a block: `with faults.during("latency", "contoso", ms=200):`."""
        given = {name: value for name, value in wanted.items() if value is not None}
        identity = self.begin(read_fault({"kind": kind, "namespace": namespace, **given}))
        try:
            yield identity
        finally:
            if identity in self._active:
                self.end(identity)

    # One method for each kind, whose arguments type checkers and editors know

    def namespace_down(self, namespace: str) -> str:
        return self.begin(Fault("namespace-down", namespace))

    def entity_down(self, namespace: str, entity: str) -> str:
        return self.begin(Fault("entity-down", namespace, entity))

    def partition_down(self, namespace: str, partition: int, entity: str | None = None) -> str:
        return self.begin(Fault("partition-down", namespace, entity, partition))

    def latency(self, namespace: str, ms: int) -> str:
        return self.begin(Fault("latency", namespace, ms=ms))

    def drop(self, namespace: str, after_frames: int = 0, *, count: int | None = None) -> str:
        return self.begin(Fault("drop", namespace, after_frames=after_frames, count=count))

    def stall(self, namespace: str, after_frames: int = 0, *, count: int | None = None) -> str:
        return self.begin(Fault("stall", namespace, after_frames=after_frames, count=count))

    def reset(self, namespace: str, after_frames: int = 0, *, count: int | None = None) -> str:
        return self.begin(Fault("reset", namespace, after_frames=after_frames, count=count))

    def swallow_acks(self, namespace: str, entity: str | None = None, *, count: int | None = None) -> str:
        return self.begin(Fault("swallow-acks", namespace, entity, count=count))

    def detach(self, namespace: str, entity: str | None = None) -> str:
        return self.begin(Fault("detach", namespace, entity))

    def expire_locks(self, namespace: str, entity: str | None = None) -> str:
        return self.begin(Fault("expire-locks", namespace, entity))

    def expire_tokens(self, namespace: str, *, count: int | None = None) -> str:
        return self.begin(Fault(EXPIRE_TOKENS, namespace, count=count))

    def firewall(self, namespace: str) -> str:
        return self.begin(Fault(FIREWALL, namespace))

    def local_auth_disabled(self, namespace: str) -> str:
        return self.begin(Fault(LOCAL_AUTH_DISABLED, namespace))

    def identity_down(self, namespace: str, mode: str, *, count: int | None = None) -> str:
        return self.begin(Fault(IDENTITY_DOWN, namespace, mode=mode, count=count))

    def throttle(self, namespace: str, entity: str | None = None, *, count: int | None = None) -> str:
        return self.begin(Fault("throttle", namespace, entity, count=count))

    def refuse_requests(
        self,
        namespace: str,
        status: int,
        entity: str | None = None,
        *,
        method: str | None = None,
        count: int | None = None,
        sub_code: int | None = None,
        retry_after_seconds: int | None = None,
    ) -> str:
        wanted = {"status": status, "sub_code": sub_code, "method": method, "retry_after_seconds": retry_after_seconds}
        return self.begin(Fault("refuse-requests", namespace, entity, count=count, **wanted))  # type: ignore[arg-type]

    def refuse_binary_properties(self, namespace: str, entity: str | None = None) -> str:
        return self.begin(Fault(REFUSE_BINARY, namespace, entity))

    def relay_down(self, namespace: str, entity: str | None = None, *, status: int | None = None) -> str:
        return self.begin(Fault("relay-down", namespace, entity, status=status))

    def relay_no_listeners(self, namespace: str, entity: str | None = None) -> str:
        return self.begin(Fault("relay-no-listeners", namespace, entity))

    def relay_drop_listeners(self, namespace: str, entity: str | None = None) -> str:
        return self.begin(Fault("relay-drop-listeners", namespace, entity))

    def relay_swallow_response(self, namespace: str, entity: str | None = None, *, count: int | None = None) -> str:
        return self.begin(Fault("relay-swallow-response", namespace, entity, count=count))

    def relay_without_via(self, namespace: str, entity: str | None = None, *, count: int | None = None) -> str:
        return self.begin(Fault("relay-without-via", namespace, entity, count=count))

    def advance_clock(self, namespace: str, ms: int) -> str:
        return self.begin(Fault("clock", namespace, ms=ms))


_NUMBERS: Final = frozenset(field.name for field in fields(Fault) if field.type == "int | None")
_NAMES: Final = tuple(field.name for field in fields(Fault))
_ALWAYS: Final = ("kind", "namespace")


def check_fields(fault: Fault, kind: FaultKind) -> None:
    for name in _NAMES:
        given = getattr(fault, name) is not None
        if name in kind.needs and not given:
            raise BadField(name, f"a fault of kind '{fault.kind}' needs it")
        if given and name not in _ALWAYS and name not in kind.needs and name not in kind.takes:
            wanted = ", ".join((*kind.needs, *kind.takes)) or "none besides kind and namespace"
            raise BadField(name, f"a fault of kind '{fault.kind}' does not take it; it takes {wanted}")


def check_entity(fault: Fault, namespace: Namespace) -> None:
    if fault.entity is None:
        return
    try:
        namespace.resolve(fault.entity)
    except EntityNotFound as error:
        raise BadField("entity", f"'{fault.entity[:100]}' is no entity of namespace '{fault.namespace}'") from error


def check_hybrid_connection(fault: Fault, namespace: Namespace) -> None:
    if fault.entity is not None and namespace.hybrid_connections.find(fault.path) is None:
        text = f"'{fault.entity[:100]}' is no hybrid connection of namespace '{fault.namespace}'"
        raise BadField("entity", text)


def check_request(fault: Fault) -> None:
    if fault.status is not None and fault.status not in REFUSALS:
        raise BadField("status", f"{fault.status} is none of {', '.join(map(str, REFUSALS))}")
    if fault.method is not None and fault.method not in METHODS:
        raise BadField("method", f"'{fault.method[:100]}' is none of {', '.join(METHODS)}")
    if fault.mode is not None and fault.mode not in IDENTITY_MODES:
        raise BadField("mode", f"'{fault.mode[:100]}' is none of {', '.join(IDENTITY_MODES)}")


def check_partition(fault: Fault, namespace: Namespace) -> None:
    if fault.partition is None:
        return
    partitioned = list(partitions_of(namespace, fault.path))
    if fault.entity is not None and not partitioned:
        raise BadField("entity", f"'{fault.entity[:100]}' is not partitioned")
    if any(fault.partition >= partitions.count for partitions in partitioned) or fault.partition >= PARTITIONS:
        minimum = min((partitions.count for partitions in partitioned), default=PARTITIONS)
        raise BadField("partition", f"partitions are numbered from 0 to {minimum - 1}")


def read_fault(document: object) -> Fault:
    """Return the fault that a JSON document describes. Raises BadField."""
    if not isinstance(document, dict):
        raise BadField("body", "a JSON object is expected")
    for name, value in document.items():
        if name not in _NAMES:
            near = difflib.get_close_matches(str(name), _NAMES, 1) or [f"one of {', '.join(_NAMES)}"]
            raise BadField(str(name)[:100], f"unknown; expected {near[0]}")
        if name in _NUMBERS:
            read_count(name, value)
        elif not isinstance(value, str):
            raise BadField(name, "a string is expected")
    if missing := [name for name in _ALWAYS if name not in document]:
        raise BadField(missing[0], "missing")
    return Fault(**document)


def read_count(where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise BadField(where, "a whole number from 0 is expected")
    return value
