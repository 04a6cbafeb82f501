"""Events of a run: facts about its progress, for a display or a log. None needs a reaction.

The descriptions of fields are those of the JSON Schema of event lines.
"""

from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

from sbpair.model.document import event_name
from sbpair.move.rate_limit import Limit
from sbpair.move.receipt import RampState

Queue = Annotated[str, "Path of the backlog queue"]
Destination = Annotated[str, "Path of the destination"]


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """The backlog queues to empty."""

    queues: Annotated[tuple[Queue, ...], "Backlog queues"]
    stranded: Annotated[tuple[Queue, ...], "Backlog queues beyond the pair's count"]
    managed: Annotated[bool, "Whether they were listed with the Manage claim; otherwise they follow from the count"]
    dead_letters: Annotated[int | None, "Dead letters of backlog queues; null if unknown"] = field(
        default=None, compare=False
    )
    disabled: Annotated[tuple[str, ...], "Those that let nothing be received"] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class QueueOpened:
    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a worker. `gone` deliveries have ended outside of the queue: sent, or dead-lettered.

    `skipped` messages stay in the queue, locked until the run ends.

    `remaining` is how many messages the queue has, if it was just counted. `oldest_ms` is when the message held longest
    was enqueued, in ms since 1970; None without held messages. The worker waits for `locked` messages that others have
    locked, at the latest until `locked_until_ms`.
    """

    queue: Queue
    received: int
    sent: int
    held: int
    remaining: int | None = None
    gone: int = 0
    oldest_ms: int | None = None
    locked: int = 0
    locked_until_ms: int | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class QueueDepths:
    """A count of a queue's messages, held ones included. Follows the worker's QueueProgress.

    `oldest_ms` is when the first of them was enqueued, if known.
    """

    queue: Queue
    messages: int
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DestinationProgress:
    """How many messages a destination has accepted from all workers, and how many wait while it backs off."""

    destination: Destination
    sent: int
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """A worker holds as many messages as it may for destinations that back off, and receives no more."""

    queue: Queue
    destinations: Annotated[tuple[Destination, ...], "Unavailable destinations"]


@dataclass(frozen=True, slots=True)
class MessagesLocked:
    """Messages of a queue are locked by another receiver or over a lost connection."""

    queue: Queue
    locked: Annotated[int, "Messages that are locked, and cannot be received"]
    until_ms: Annotated[int, "When they are free at the latest, unless renewed, in ms since 1970"]
    waiting: Annotated[bool, "Whether the run waits for them"]
    overdue: Annotated[bool, "Whether some should have been free before: a live receiver renews them"]


@dataclass(frozen=True, slots=True)
class QueueDone:
    queue: Queue


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """A worker could not go on."""

    queue: Queue
    reason: Annotated[str, "Why it failed"]
    retry_seconds: Annotated[float | None, "Time until the next attempt; null for none"]
    away_since_ms: Annotated[int | None, "When the namespace was lost, in ms since 1970; null if both are there"] = None
    side: Annotated[str | None, "Namespace that cannot be reached, primary or secondary; null if both can"] = None


@dataclass(frozen=True, slots=True)
class DestinationBackingOff:
    queue: Queue
    destination: Destination
    reason: Annotated[str, "Why it is unavailable"]
    seconds: Annotated[float, "Time until the next attempt"]
    waiting: Annotated[int, "Messages that wait for it"]


@dataclass(frozen=True, slots=True)
class DestinationRecovered:
    queue: Queue
    destination: Destination


@dataclass(frozen=True, slots=True)
class TopicsUnchecked:
    """The rules of topics cannot be read: messages that no subscription takes are sent all the same."""

    reason: Annotated[str, "Why the rules of topics cannot be read"]


@dataclass(frozen=True, slots=True)
class DeadLettered:
    queue: Queue
    sequence_number: Annotated[int, "Its sequence number"]
    message_id: Annotated[str | None, "Its message id"]
    reason: Annotated[str, "Dead-letter reason"]
    description: Annotated[str, "Its description"]
    destination: Annotated[str | None, "Queue or topic that it is for; null if none"] = None


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The limit that slows the run down."""

    per_second: Annotated[float | None, "Messages a second that the run is limited to; null if no limit slows it down"]
    by: Annotated[str | None, "What sets the limit", {"examples": ["--credits 50%"]}]

    @property
    def limit(self) -> Limit | None:
        return None if self.per_second is None or self.by is None else Limit(self.per_second, self.by)


@dataclass(frozen=True, slots=True)
class RampProgress:
    """A ramp is in a step, or its state has changed."""

    step: Annotated[int, "Number of the step, from 1"]
    steps: Annotated[int, "Steps of the ramp"]
    total: Annotated[int, "Messages sent since the start, after which the step ends"]
    sent: Annotated[int, "Messages sent so far"]
    state: Annotated[RampState, "Where the ramp is"]
    observe_seconds: Annotated[float, "How long dead letters are observed after the step"]


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A request of another process to the run with this id."""

    run: Annotated[str, "Id of the run"]


class RunPausing(RunEvent):
    """Nothing more is received or sent, and held messages go back."""


class RunPaused(RunEvent):
    """The run holds no message. It keeps its connections and leases."""


class RunResumed(RunEvent):
    """The run goes on after a pause."""


class RunCancelled(RunEvent):
    """The run ends as after an interruption."""


SyphonEvent: TypeAlias = (
    QueuesFound
    | QueueOpened
    | QueueProgress
    | QueueDepths
    | DestinationProgress
    | QueueBlocked
    | MessagesLocked
    | QueueDone
    | QueueFailed
    | DestinationBackingOff
    | DestinationRecovered
    | TopicsUnchecked
    | DeadLettered
    | LimitChanged
    | RampProgress
    | RunPausing
    | RunPaused
    | RunResumed
    | RunCancelled
)

WARNINGS = (QueueBlocked, MessagesLocked, QueueFailed, DestinationBackingOff, TopicsUnchecked, DeadLettered)


def name_and_level(kind: type[SyphonEvent]) -> tuple[str, str]:
    """Return the name and the level of an event in a log."""
    return event_name(kind), "warning" if kind in WARNINGS else "info"
