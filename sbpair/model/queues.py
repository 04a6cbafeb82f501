"""Queues as specified and as found, and their differences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from sbpair.model.document import OMITTED
from sbpair.model.message_state import MessageState
from sbpair.timespan import TIMESPAN_MAX


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue's description. The defaults are the service's own; durations are ISO 8601 text.

    Text, since TIMESPAN_MAX does not fit a timedelta.
    """

    kind: ClassVar[str] = "queue"

    path: str
    lock_duration: str = "PT1M"
    max_size_in_megabytes: int = 1024
    max_delivery_count: int = 10
    default_message_time_to_live: str = TIMESPAN_MAX
    auto_delete_on_idle: str = TIMESPAN_MAX
    dead_lettering_on_message_expiration: bool = False
    enable_batched_operations: bool = True
    requires_session: bool = False
    requires_duplicate_detection: bool = False
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    status: str = "Active"


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages of a queue."""

    active: Annotated[int, "Active messages"] = 0
    dead_letter: Annotated[int, "Dead-lettered messages"] = 0
    scheduled: Annotated[int, "Scheduled messages"] = 0
    total: Annotated[int, "All messages, including those without a count of their own, such as deferred ones"] = 0
    transfer: Annotated[int, "Messages to be forwarded"] = 0
    transfer_dead_letter: Annotated[int, "Messages that could not be forwarded"] = 0

    @property
    def empty(self) -> bool:
        return self == Counts()

    def of(self, state: MessageState) -> int | None:
        """Return how many messages are in a state; None for deferred ones, which have no count of their own."""
        counted = {MessageState.ACTIVE: self.active, MessageState.DEAD: self.dead_letter}
        counted |= {MessageState.SCHEDULED: self.scheduled, MessageState.TRANSFER_DEAD: self.transfer_dead_letter}
        return counted.get(state)


@dataclass(frozen=True, slots=True)
class Usage:
    """The bytes of a queue, and when it was last used, in seconds since 1970; None if unknown."""

    size_bytes: int | None = None
    created_at: float | None = None
    updated_at: float | None = None
    accessed_at: float | None = None

    @property
    def used_at(self) -> float | None:
        """When it was last created, changed, sent to or received from."""
        return max((at for at in (self.created_at, self.updated_at, self.accessed_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the service returned it. `counts` and `usage` are None if not requested.

    `availability` is the service's word, such as Limited while a partition is down; None for Available.
    """

    spec: QueueSpec
    partitioned: bool = False
    counts: Counts | None = None
    usage: Usage | None = None
    availability: str | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """A property of a queue with an unexpected value."""

    property: Annotated[str, "The service's name of the property", {"examples": ["LockDuration"]}]
    expected: Annotated[str | int | bool, "Expected value"]
    actual: Annotated[str | int | bool, "Actual value"]
    alters: Annotated[bool, "Whether messages are refused, lost or changed by it"] = False


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The size, age and growth of a queue; None where not measured. `full_in_seconds` is None if it does not grow."""

    max_bytes: int
    size_bytes: Annotated[int | None, "Bytes in use"] = None
    idle_seconds: Annotated[float | None, "Time since the queue was last used"] = None
    idle: Annotated[bool, "Whether it was unused longer than --idle"] = False
    peeked: Annotated[int | None, "Number of peeked messages"] = None
    complete: Annotated[bool, "Whether all messages were peeked"] = False
    oldest_seconds: Annotated[float | None, "Age of the oldest peeked message"] = None
    bytes_per_second: Annotated[float | None, "Growth between two samples"] = None

    @property
    def fill_ratio(self) -> Annotated[float | None, "Used share of the size, from 0 to 1"]:
        return None if self.size_bytes is None or not self.max_bytes else self.size_bytes / self.max_bytes

    @property
    def effective_max_size_mb(self) -> Annotated[int, "Size of all partitions, in MB"]:
        return self.max_bytes // 1024 // 1024

    @property
    def full_in_seconds(self) -> Annotated[float | None, "Time until it is full at this rate; null if not growing"]:
        if self.size_bytes is None or self.bytes_per_second is None or self.bytes_per_second <= 0:
            return None
        return max(0, self.max_bytes - self.size_bytes) / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """The facts of one queue in a report. `counts` is None if it does not exist, or was not counted."""

    index: Annotated[int | None, "Index of the backlog queue; null if the name has none"]
    partitioned: Annotated[bool, "Present if the queue is partitioned", OMITTED, {"const": True}] = False
    counts: Annotated[Counts | None, "Messages of the queue", OMITTED] = None
    differences: Annotated[tuple[Difference, ...], "Properties that differ from the expected description", OMITTED] = ()
    availability: Annotated[
        str | None, "Availability, such as Limited while a partition is down; absent if Available", OMITTED
    ] = None


@dataclass(frozen=True, slots=True)
class AuditedQueue(QueueFinding):
    """The facts of one queue in an audit, measured unless it is another primary's."""

    fill: Annotated[Utilisation | None, "Utilisation and age of a queue; null where not measured", OMITTED] = None
