"""Queues as they are asked for and as they are found, the differences, and the events of management calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sbpair.model.durations import TIMESPAN_MAX


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue's description. The defaults are the service's own; durations are ISO 8601 text.

    Text and not timedelta, because TIMESPAN_MAX does not fit a timedelta.
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
    """Messages of a queue. `total` includes what has no figure of its own here, such as deferred ones.

    `transfer` are on their way to where the queue forwards to, `transfer_dead_letter` never got there.
    """

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    total: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0

    @property
    def empty(self) -> bool:
        """Whether there is no message of any kind."""
        return not any((self.active, self.dead_letter, self.scheduled, self.total, self.transfer)) and not (
            self.transfer_dead_letter
        )


@dataclass(frozen=True, slots=True)
class Usage:
    """What a queue holds, in bytes, and when it was last touched, in seconds since 1970; None where nobody said."""

    size_bytes: int | None = None
    created_at: float | None = None
    updated_at: float | None = None
    accessed_at: float | None = None

    @property
    def used_at(self) -> float | None:
        """When it was made, changed, sent to or received from for the last time."""
        return max((at for at in (self.created_at, self.updated_at, self.accessed_at) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class QueueState:
    """A queue as the service gave it back. `counts` and `usage` are None where they were not asked for."""

    spec: QueueSpec
    partitioned: bool = False
    counts: Counts | None = None
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One property of a queue that is not what it should be. `property` is the service's own name for it."""

    property: str
    expected: str | int | bool
    actual: str | int | bool


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How full a queue is, how old and how busy. None is what nobody measured, or said.

    `max_bytes` is what fits into all of its partitions together. `idle` is whether `idle_seconds` is more than was
    allowed. `looked_at` is how many of its messages were looked at, `saw_all` whether that was all of them, and
    `oldest_seconds` the age of the oldest among these. `full_in_seconds` is None for a queue that does not grow.
    """

    max_bytes: int
    size_bytes: int | None = None
    idle_seconds: float | None = None
    idle: bool = False
    looked_at: int | None = None
    saw_all: bool = False
    oldest_seconds: float | None = None
    bytes_per_second: float | None = None

    @property
    def share(self) -> float | None:
        """From 0, empty, to 1, full."""
        return None if self.size_bytes is None or not self.max_bytes else self.size_bytes / self.max_bytes

    @property
    def full_in_seconds(self) -> float | None:
        if self.size_bytes is None or self.bytes_per_second is None or self.bytes_per_second <= 0:
            return None
        return max(0, self.max_bytes - self.size_bytes) / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class QueueFinding:
    """What is known of one queue of a report. `counts` is None where the queue is not there, or was not counted."""

    index: int | None
    counts: Counts | None = None
    differences: tuple[Difference, ...] = ()
    partitioned: bool = False
    fill: Utilisation | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """Event: the backlog queues of a namespace were read."""

    namespace: str
    queues: int


@dataclass(frozen=True, slots=True)
class Retrying:
    """Event: something failed in a way that may pass, and is tried again after `wait_seconds`."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class QueueProvisioned:
    """Event: one queue of `total` was dealt with. `outcome` is a value of `report.Outcome`."""

    path: str
    outcome: str
    done: int
    total: int


ControlEvent = Listed | Retrying | QueueProvisioned
