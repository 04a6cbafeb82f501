"""The kinds of faults: a generator each, which begins a fault, yields, and then ends it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from sbpair.emulator.faults.fault_points import Fault, Throttle
from sbpair.emulator.service_errors import EntityUnavailable

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.partitions import Partitions
    from sbpair.emulator.entities.subqueue import SubQueue
    from sbpair.emulator.relay.hybrid_connection import ConnectedListener


class FaultContext(NamedTuple):
    """The namespace of a fault, and `advance` for the emulator's clock, in ms."""

    namespace: Namespace
    advance: Callable[[int], None]


class FaultKind(NamedTuple):
    """A kind of fault, and the names of the fields it needs and takes."""

    act: Callable[[FaultContext, Fault], Iterator[None]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    of_any_entity: bool = False
    """Whether the entity may not exist yet."""

    of_relay: bool = False
    """Whether the entity is a hybrid connection."""


def namespace_down(context: FaultContext, _: Fault) -> Iterator[None]:
    """Break every connection and refuse new ones."""
    context.namespace.take_down()
    yield
    context.namespace.bring_up()


def entity_down(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Close the links of one entity and its management node, and refuse new ones. Its description stays readable.

    Forwarding to it and from it waits.
    """
    context.namespace.fault_points.take_down(fault.path)
    yield
    context.namespace.fault_points.bring_up(fault.path)
    context.namespace.resume_forwarding()


def partition_down(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Take down one partition of an entity, or of all partitioned entities.

    Sends with a key of this partition fail; others use another one. Forwarding stops at a message with such a key.
    """
    number = fault.partition or 0
    divided = list(partitions_of(context.namespace, fault.path))
    for partitions in divided:
        partitions.take_down(number)
    if not fault.path:
        context.namespace.fault_points.partitions_down.append(number)
    yield
    for partitions in divided:
        partitions.bring_up(number)
    if not fault.path:
        context.namespace.fault_points.partitions_down.remove(number)
    context.namespace.resume_forwarding()


def partitions_of(namespace: Namespace, path: str) -> Iterator[Partitions]:
    """Yield the partitions of one entity, or of each. A subscription has those of its topic."""
    entities = [namespace.resolve(path).entity] if path else [*namespace.queues(), *namespace.topics()]
    for entity in entities:
        if entity.partitions is not None:
            yield entity.partitions


def latency(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Delay every answer, over AMQP or HTTP, by `ms`, in order."""
    with context.namespace.fault_points.delaying((fault.ms or 0) / 1000):
        yield


def break_connections(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Close AMQP connections without a close frame (drop), reset them, or stall them until the fault ends.

    The first `after_frames` frames of the client are processed and answered; the next one is not.
    """
    with context.namespace.fault_points.breaking(fault):
        yield


def act_at_points(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Answer the points that ask for this kind: `count` times, or always; for one entity, or for all."""
    with context.namespace.fault_points.acting_on(fault):
        yield


def detach(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Close links, as when the service moves an entity. New ones can be attached at once."""
    error = EntityUnavailable("The link was force detached by the broker. Please retry the operation.")
    context.namespace.fault_points.detach(fault.path, error)
    yield


def expire_locks(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Expire the locks of all messages."""
    for messages in _sub_queues(context.namespace, fault.path):
        messages.expire_locks()
    yield


def _sub_queues(namespace: Namespace, path: str) -> list[SubQueue]:
    subscriptions = [each for topic in namespace.topics() for each in topic.subscriptions]
    entities = [namespace.resolve(path).entity] if path else [*namespace.queues(), *subscriptions]
    return [messages for entity in entities for messages in (entity.messages, entity.dead_letters)]


def throttle(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Answer sends and requests server-busy: `count` of them, or all. With all, deliveries wait too."""
    points, meter = context.namespace.fault_points, Throttle(fault)
    points.meters.append(meter)
    yield
    points.meters.remove(meter)
    points.resume()


RESTART_CODE: Final = 1011
RESTART_REASON: Final = "ConnectionLost: InternalServerError: NameRenewalFailed"


def relay_down(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Drop the listeners, and refuse senders and listeners with `status`, or else end their connections."""
    with context.namespace.fault_points.acting_on(fault):
        for listener in _listeners(context.namespace, fault.path):
            listener.abort()
        yield


def relay_drop_listeners(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Close the control channels once, as the service does each day."""
    for listener in _listeners(context.namespace, fault.path):
        listener.close(RESTART_CODE, RESTART_REASON)
    yield


def _listeners(namespace: Namespace, path: str) -> list[ConnectedListener]:
    entities = [each for each in namespace.hybrid_connections.all() if path in ("", each.key)]
    return [listener for entity in entities for listener in entity.listeners]


def clock(context: FaultContext, fault: Fault) -> Iterator[None]:
    """Advance the clock of the whole emulator by `ms`. Ending the fault does not set it back."""
    context.advance(fault.ms or 0)
    yield


_REQUESTS: Final = ("entity", "method", "count", "sub_code", "retry_after_seconds")
_CONNECTION: Final = ("after_frames", "count", "entity")

KINDS: Final[dict[str, FaultKind]] = {
    "namespace-down": FaultKind(namespace_down),
    "entity-down": FaultKind(entity_down, needs=("entity",)),
    "partition-down": FaultKind(partition_down, needs=("partition",), takes=("entity",)),
    "latency": FaultKind(latency, needs=("ms",)),
    "drop": FaultKind(break_connections, takes=_CONNECTION),
    "stall": FaultKind(break_connections, takes=_CONNECTION),
    "reset": FaultKind(break_connections, takes=_CONNECTION),
    "swallow-acks": FaultKind(act_at_points, takes=("entity", "count")),
    "detach": FaultKind(detach, takes=("entity",)),
    "expire-locks": FaultKind(expire_locks, takes=("entity",)),
    "throttle": FaultKind(throttle, takes=("entity", "count")),
    "refuse-requests": FaultKind(act_at_points, needs=("status",), takes=_REQUESTS, of_any_entity=True),
    "clock": FaultKind(clock, needs=("ms",)),
    "relay-down": FaultKind(relay_down, takes=("entity", "status"), of_relay=True),
    "relay-no-listeners": FaultKind(act_at_points, takes=("entity",), of_relay=True),
    "relay-drop-listeners": FaultKind(relay_drop_listeners, takes=("entity",), of_relay=True),
    "relay-swallow-response": FaultKind(act_at_points, takes=("entity", "count"), of_relay=True),
    "relay-without-via": FaultKind(act_at_points, takes=("entity", "count"), of_relay=True),
}
