"""Events of a paired client: every change of where messages go, and every doubt; and how events are published.

`str(event)` is one line for the log. It holds no message body and no secret.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from sbpair.failover.entity_states import State

log = logging.getLogger(__name__)

EventT = TypeVar("EventT")


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """The state of an entity of the primary has changed. `reason` is one line."""

    entity: str
    before: State
    after: State
    reason: str

    def __str__(self) -> str:
        return f"{self.entity}: {self.before.value} -> {self.after.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class QueueLeft:
    """A backlog queue failed. No sender of the client uses it until a probe succeeds."""

    queue: str
    reason: str

    def __str__(self) -> str:
        return f"{self.queue} is out of the rotation: {self.reason}"


@dataclass(frozen=True, slots=True)
class QueueReturned:
    """A backlog queue is back in the rotation."""

    queue: str

    def __str__(self) -> str:
        return f"{self.queue} is back in the rotation"


@dataclass(frozen=True, slots=True)
class SendInDoubt:
    """Messages are sent again after an attempt that was never answered: they may arrive twice.

    A receiver, or the service's duplicate detection, can detect that by `message_ids`.
    """

    entity: str
    message_ids: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        named = f"{self.message_ids[0]}{f' and {len(self.message_ids) - 1} more' if self.message_ids[1:] else ''}"
        return f"{self.entity}: possible duplicates: {named}, sent again without an answer: {self.reason}"


@dataclass(frozen=True, slots=True)
class SizeUnknown:
    """A large message goes to the primary while the size limit of the backlog is unknown. Size in bytes."""

    entity: str
    size_with_aliases: int
    reason: str

    def __str__(self) -> str:
        size = f"{self.size_with_aliases} bytes with its aliases"
        return f"{self.entity}: a message of {size} may not fit the backlog: {self.reason}"


@dataclass(frozen=True, slots=True)
class SyphonFaulted:
    """The syphon of a client has ended, or could not start. It is retried after so many seconds."""

    reason: str
    retry_seconds: float

    def __str__(self) -> str:
        return f"the syphon is retried after {self.retry_seconds:g} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxBegun:
    """Neither side accepts an entity's messages: they go to the outbox until it is emptied."""

    entity: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} goes to the outbox: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxStuck:
    """An entity's messages cannot be delivered from the outbox. Reported again when the reason changes."""

    entity: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} stays in the outbox: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxRefused:
    """The entity refused one message of the outbox. It stays there, and the next client tries it again."""

    entity: str
    message_ids: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} refused a message of the outbox, {', '.join(self.message_ids)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxExpired:
    """Messages expired in the outbox. They are delivered with a time to live of 1 ms, for the entity to expire."""

    entity: str
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.entity}: {len(self.message_ids)} messages expired in the outbox"


@dataclass(frozen=True, slots=True)
class OutboxEmptied:
    """All of an entity's messages have left the outbox. New ones go to a side again."""

    entity: str

    def __str__(self) -> str:
        return f"{self.entity} has no more messages in the outbox"


@dataclass(frozen=True, slots=True)
class OutboxClosed:
    """The client is closed. So many messages stay in the file for the next client that opens it."""

    path: str
    messages: int

    def __str__(self) -> str:
        return f"{self.messages} messages stay in {self.path}, for the next client that opens it"


SenderEvent: TypeAlias = (
    EntityChanged
    | QueueLeft
    | QueueReturned
    | SendInDoubt
    | SizeUnknown
    | OutboxBegun
    | OutboxStuck
    | OutboxRefused
    | OutboxExpired
    | OutboxEmptied
    | OutboxClosed
    | SyphonFaulted
)

_INFORMATIONAL = (QueueReturned, OutboxEmptied, OutboxClosed)


@dataclass(frozen=True)
class EventReporter(Generic[EventT]):
    """Writes events to a log and calls `on_event`, whose exceptions are logged and affect no message."""

    log: logging.Logger
    owner: str
    informational: tuple[type, ...]
    on_event: Callable[[EventT], Any] | None

    def __call__(self, event: EventT) -> None:
        self.log.log(logging.INFO if isinstance(event, self.informational) else logging.WARNING, "%s", event)
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                self.log.exception("an event listener of %s failed", self.owner)


class EventQueue:
    """Guards a state with `lock`, and publishes its events in order, outside of the lock under which they happened."""

    def __init__(self, on_event: Callable[[SenderEvent], Any] | None) -> None:
        self.lock = RLock()
        self._report: EventReporter[SenderEvent] = EventReporter(log, "a paired client", _INFORMATIONAL, on_event)
        self._pending: deque[SenderEvent] = deque()
        self._depth = 0
        self._publishing = RLock()

    def add(self, event: SenderEvent) -> None:
        """Add an event of the current change."""
        self._pending.append(event)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock, and publish the added events when the outermost change ends."""
        with self.lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                outermost = not self._depth
        if outermost and self._pending:
            self._publish()

    def _publish(self) -> None:
        with self._publishing:
            while self._pending:
                self._report(self._pending.popleft())
