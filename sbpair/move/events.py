"""Events of a run: facts about its progress, for a display or a log. None needs a reaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """The backlog queues to empty. `stranded` ones are beyond the pair's count.

    `managed` is False if they could not be listed without the Manage claim, and follow from the count.
    """

    queues: tuple[str, ...]
    stranded: tuple[str, ...]
    managed: bool


@dataclass(frozen=True, slots=True)
class QueueOpened:
    queue: str


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """Progress of a worker. `gone` deliveries have ended outside of the queue: sent, or dead-lettered.

    `skipped` messages stay in the queue, locked until the run ends.

    `remaining` is how many messages the queue has, if it was just counted. `oldest_ms` is when the message held longest
    was enqueued, in ms since 1970; None without held messages. The worker waits for `locked` messages that others have
    locked, at the latest until `locked_until_ms`.
    """

    queue: str
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

    queue: str
    messages: int
    oldest_ms: int | None = None


@dataclass(frozen=True, slots=True)
class DestinationProgress:
    """How many messages a destination has accepted from all workers, and how many wait while it backs off."""

    destination: str
    sent: int
    waiting: int


@dataclass(frozen=True, slots=True)
class QueueBlocked:
    """A worker holds as many messages as it may for destinations that back off, and receives no more."""

    queue: str
    destinations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MessagesLocked:
    """So many messages of a queue are locked by another receiver, or were left locked by one that was killed.

    `until_ms` is when they are free at the latest, in ms since 1970, unless their locks are renewed. `waiting` is
    whether the run waits for them. `overdue`: some should have been free by now.
    """

    queue: str
    locked: int
    until_ms: int
    waiting: bool
    overdue: bool


@dataclass(frozen=True, slots=True)
class QueueDone:
    queue: str


@dataclass(frozen=True, slots=True)
class QueueFailed:
    """A worker could not go on. `retry_seconds` is None if it does not try again.

    `away_since_ms` is when the namespace was lost that cannot be reached, in ms since 1970; None if both can be. `side`
    is that namespace, primary or secondary.
    """

    queue: str
    reason: str
    retry_seconds: float | None
    away_since_ms: int | None = None
    side: str | None = None


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
class TopicsUnchecked:
    """The rules of topics cannot be read: messages that no subscription takes are sent all the same."""

    reason: str


@dataclass(frozen=True, slots=True)
class DeadLettered:
    queue: str
    sequence_number: int
    message_id: str | None
    reason: str
    description: str
    destination: str | None = None


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The limit that slows the run down, in messages a second, and what sets it. None if no limit does any more."""

    per_second: float | None
    by: str | None


@dataclass(frozen=True, slots=True)
class RampProgress:
    """A ramp is in step `step` of `steps`, which ends at `total` sent messages; `sent` were sent so far.

    `state` is that of `receipt.RampState`. It observes dead letters for `observe_seconds` then.
    """

    step: int
    steps: int
    total: int
    sent: int
    state: str
    observe_seconds: float


@dataclass(frozen=True, slots=True)
class RunEvent:
    """A request of another process to the run with this id."""

    run: str


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
