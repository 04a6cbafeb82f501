"""What each kind of fault does to a namespace, and undoes when it ends.

One function a kind; KINDS says which fields each needs and takes. Nothing here reads a request or the machine's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, get_args

from sbpair.emulator.access.sas import scope_of
from sbpair.emulator.faults.fault_points import Swallow, belongs
from sbpair.emulator.faults.faulty_connection import Action, ConnectionFault
from sbpair.emulator.faults.http_refusals import RequestFault
from sbpair.emulator.service_errors import EntityUnavailable, ServerBusy

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.partitions import Partitions
    from sbpair.emulator.entities.subqueue import SubQueue


@dataclass(frozen=True, slots=True)
class Fault:
    """What was asked for. Which of the optional fields a kind needs or takes is said in KINDS."""

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

    @property
    def path(self) -> str:
        """The entity as the points know it; empty where all are meant."""
        return scope_of(self.entity or "")


@dataclass(frozen=True, slots=True)
class FaultContext:
    """What a fault can reach: the namespace, and the clock of the whole emulator."""

    namespace: Namespace
    advance: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class FaultKind:
    begin: Callable[[FaultContext, Fault], AbstractContextManager[None]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    of_any_entity: bool = False
    """The entity need not be there yet."""


@contextmanager
def namespace_down(stage: FaultContext, _: Fault) -> Iterator[None]:
    """Every connection breaks, and new ones are refused, until the fault ends."""
    stage.namespace.take_down()
    try:
        yield
    finally:
        stage.namespace.bring_up()


@contextmanager
def entity_down(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """The links of one entity end, and new ones are refused; its management node's too. Its description can be read.

    Nothing is forwarded to it, or from it, meanwhile.
    """
    points = stage.namespace.fault_points
    points.take_down(fault.path)
    try:
        yield
    finally:
        points.bring_up(fault.path)
        stage.namespace.resume_forwarding()


@contextmanager
def partition_down(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """One partition of an entity, or of all that are partitioned: keyed sends to it fail, others go elsewhere.

    What is forwarded with such a key stays where it is, and what comes after it too.
    """
    number = fault.partition or 0
    divided = list(divided_by(stage.namespace, fault.path))
    for partitions in divided:
        partitions.take_down(number)
    if not fault.path:
        stage.namespace.fault_points.take_partition_down(number)
    try:
        yield
    finally:
        for partitions in divided:
            partitions.bring_up(number)
        if not fault.path:
            stage.namespace.fault_points.bring_partition_up(number)
        stage.namespace.resume_forwarding()


def divided_by(namespace: Namespace, path: str) -> Iterator[Partitions]:
    """The partitions of one entity, or of each; a subscription's are its topic's."""
    entities = [namespace.resolve(path).queue] if path else [*namespace.queues(), *namespace.topics()]
    for entity in entities:
        if entity.partitions is not None:
            yield entity.partitions


@contextmanager
def latency(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Whatever is answered, over AMQP or HTTP, leaves `ms` later, in its order."""
    points, seconds = stage.namespace.fault_points, (fault.ms or 0) / 1000
    points.add_latency(seconds)
    try:
        yield
    finally:
        points.remove_latency(seconds)


@contextmanager
def line(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """AMQP connections end without a goodbye (drop), are broken (reset), or fall silent until the fault ends (stall).

    `after_frames` frames of the client still have their effect and their answers; the next one strikes and has none.
    """
    points = stage.namespace.fault_points
    action: Action = next(known for known in get_args(Action) if known == fault.kind)
    struck = ConnectionFault(action, fault.after_frames or 0, fault.count, fault.path)
    points.add_connection_fault(struck)
    try:
        yield
    finally:
        points.remove_connection_fault(struck)


@contextmanager
def swallow_acks(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Messages are taken in, and their senders are never told."""
    swallow = Swallow(fault.path, fault.count)
    stage.namespace.fault_points.swallows.append(swallow)
    try:
        yield
    finally:
        stage.namespace.fault_points.swallows.remove(swallow)


@contextmanager
def detach(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Links end at once, as when the service moves an entity; they can be had again."""
    text = "The link was force detached by the broker. Please retry the operation."
    stage.namespace.fault_points.detach(fault.path, EntityUnavailable.condition, text)
    yield


@contextmanager
def expire_locks(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Every message that is under lock is so no more, as if its time had run out."""
    for messages in _held_by(stage.namespace, fault.path):
        messages.expire_locks()
    yield


def _held_by(namespace: Namespace, path: str) -> list[SubQueue]:
    subscriptions = [each for topic in namespace.topics() for each in topic.subscriptions]
    entities = [namespace.resolve(path).queue] if path else [*namespace.queues(), *subscriptions]
    return [messages for entity in entities for messages in (entity.messages, entity.dead_letters)]


class Throttle:
    """A Meter that refuses `count` operations, or all of them, and meanwhile lets no delivery leave."""

    def __init__(self, entity: str, count: int | None) -> None:
        self._entity = entity
        self._left = count

    def spend(self, operations: int, path: str) -> None:
        if self._left == 0 or not operations or not belongs(path, self._entity):
            return
        if self._left is not None:
            self._left -= 1
        raise busy()

    def allowed(self, wanted: int, path: str) -> int:
        return wanted if self._left is not None or not belongs(path, self._entity) else 0

    def took(self, deliveries: int, path: str) -> None:
        """What leaves is not held against anybody."""


def busy() -> ServerBusy:
    return ServerBusy(
        "The request was terminated because the namespace is being throttled. Error code : 50009. "
        "Please wait 2 seconds and try again."
    )


@contextmanager
def throttle(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Sends and requests are answered server-busy: `count` of them, or all; then deliveries wait too."""
    points, meter = stage.namespace.fault_points, Throttle(fault.path, fault.count)
    points.add_meter(meter)
    try:
        yield
    finally:
        points.remove_meter(meter)


@contextmanager
def refuse_requests(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """Management requests are answered with `status`: `count` of them, or all; one entity's, or one method's."""
    refusing = RequestFault(
        fault.status or 500, fault.sub_code, fault.retry_after_seconds, fault.path, fault.method or "", fault.count
    )
    stage.namespace.fault_points.request_faults.append(refusing)
    try:
        yield
    finally:
        stage.namespace.fault_points.request_faults.remove(refusing)


@contextmanager
def clock(stage: FaultContext, fault: Fault) -> Iterator[None]:
    """The time of the whole emulator jumps by `ms`. It cannot be put back."""
    stage.advance(fault.ms or 0)
    yield


_REQUESTS: Final = ("entity", "method", "count", "sub_code", "retry_after_seconds")
_LINE: Final = ("after_frames", "count", "entity")

KINDS: Final[dict[str, FaultKind]] = {
    "namespace-down": FaultKind(namespace_down),
    "entity-down": FaultKind(entity_down, needs=("entity",)),
    "partition-down": FaultKind(partition_down, needs=("partition",), takes=("entity",)),
    "latency": FaultKind(latency, needs=("ms",)),
    "drop": FaultKind(line, takes=_LINE),
    "stall": FaultKind(line, takes=_LINE),
    "reset": FaultKind(line, takes=_LINE),
    "swallow-acks": FaultKind(swallow_acks, takes=("entity", "count")),
    "detach": FaultKind(detach, takes=("entity",)),
    "expire-locks": FaultKind(expire_locks, takes=("entity",)),
    "throttle": FaultKind(throttle, takes=("entity", "count")),
    "refuse-requests": FaultKind(refuse_requests, needs=("status",), takes=_REQUESTS, of_any_entity=True),
    "clock": FaultKind(clock, needs=("ms",)),
}
