"""What a mover tells while it works, for whoever draws it or writes it down. Facts; nothing need be done about one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """The backlog queues that will be emptied. `stranded` ones lie beyond the pair's count.

    `managed` is False where they could not be listed, for lack of the Manage claim, and were taken from the count.
    """

    queues: tuple[str, ...]
    stranded: tuple[str, ...]
    managed: bool


@dataclass(frozen=True, slots=True)
class QueueOpened:
    queue: str


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Where a lane is. `gone` is how many deliveries have ended outside of the queue: sent, or dead-lettered.

    `remaining` is how many messages the queue holds, where they have just been counted. `oldest_ms` is when the message
    that is longest in hand was enqueued, in ms since 1970; None where none is.
    """

    queue: str
    received: int
    sent: int
    held: int
    remaining: int | None = None
    gone: int = 0
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class QueueDepths:
    """A queue was counted, and holds so many messages, those in hand included; the lane has told its Progress before.

    `oldest_ms` is when the first of them was enqueued, where somebody looked.
    """

    queue: str
    messages: int
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DestinationProgress:
    """What a destination has accepted from all lanes, and how many messages wait for it while it rests."""

    destination: str
    sent: int
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """A lane holds as much as it may for destinations that rest, and takes no more."""

    queue: str
    destinations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueueDone:
    queue: str


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """A lane could not go on. `retry_seconds` is None where it will not be tried again."""

    queue: str
    reason: str
    retry_seconds: float | None


@dataclass(frozen=True, slots=True)
class DestinationBackingOff:
    queue: str
    destination: str
    reason: str
    seconds: float
    waiting: int


@dataclass(frozen=True, slots=True)
class DestinationRecovered:
    queue: str
    destination: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    queue: str
    sequence_number: int
    message_id: str | None
    reason: str
    description: str


SyphonEvent: TypeAlias = (
    QueuesFound
    | QueueOpened
    | QueueProgress
    | QueueDepths
    | DestinationProgress
    | QueueBlocked
    | QueueDone
    | QueueFailed
    | DestinationBackingOff
    | DestinationRecovered
    | DeadLettered
)
