"""Events of a paired client: every change of where messages go, and every doubt; how events are published and counted.

`str(event)` is one line for the log. It holds no message body and no secret.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from threading import RLock
from typing import Any, ClassVar, Final, Generic, TypeAlias, TypeVar, dataclass_transform

from sbpair.failover.entity_states import SENDS_TO_BACKLOG, State
from sbpair.model.document import event_name


@dataclass_transform(frozen_default=True)
class Event:
    """A fact for a callback and the log. Subclasses are frozen dataclasses.

    `text` is the format of its line in the log, and refers to its fields. `level` is that of the line.
    """

    _text: ClassVar[str] = ""
    _level: ClassVar[int] = logging.WARNING

    def __init_subclass__(cls, *, text: str = "", level: int = logging.WARNING) -> None:
        dataclass(frozen=True)(cls)
        cls._text, cls._level = text, level

    def __str__(self) -> str:
        return self._text.format_map(vars(self))


def name_and_level(kind: type[Event]) -> tuple[str, str]:
    """Return the name and the level, info or warning, of an event in a log."""
    return event_name(kind), logging.getLevelName(kind._level).lower()


EventT = TypeVar("EventT", bound=Event)


class EntityChanged(Event, text="{entity}: {before.value} -> {after.value}: {reason}"):
    """The state of an entity of the primary has changed. `reason` is one line."""

    entity: str
    before: State
    after: State
    reason: str


class QueueLeft(Event, text="{queue} is out of the rotation: {reason}"):
    """A backlog queue failed. No sender of the client uses it until a probe succeeds."""

    queue: str
    reason: str


class QueueReturned(Event, text="{queue} is back in the rotation", level=logging.INFO):
    """A backlog queue is back in the rotation."""

    queue: str


class UnpairedSize(Event, text="{entity}: a message of {size} bytes is larger than the {limit} of the backlog"):
    """A message was sent that could not be sent while the primary is unavailable. Its sender has allowed it."""

    entity: str
    size: int
    limit: int


class SettledLost(Event, text="{entity}: a message that was sent settled is lost: {reason}"):
    """No side has accepted a message whose client does not wait for an answer. Its link ends with the error."""

    entity: str
    reason: str


class SendInDoubt(Event):
    """Messages are sent again after an attempt that was never answered: they may arrive twice.

    A receiver, or the service's duplicate detection, can detect that by `message_ids`. The client of a proxy sends
    again what the proxy has not accepted, also a batch of which the backlog has a part. A message of such a client
    that has no id is named by the SHA-256 of its bytes and the time.
    """

    entity: str
    message_ids: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        named = f"{self.message_ids[0]}{f' and {len(self.message_ids) - 1} more' if self.message_ids[1:] else ''}"
        return f"{self.entity}: possible duplicates: {named}, sent again without an answer: {self.reason}"


class SizeUnknown(
    Event, text="{entity}: a message of {size_with_aliases} bytes with its aliases may not fit the backlog: {reason}"
):
    """A large message goes to the primary while the size limit of the backlog is unknown. Size in bytes."""

    entity: str
    size_with_aliases: int
    reason: str


class SyphonFaulted(Event, text="the syphon is retried after {retry_seconds:g} s: {reason}"):
    """The syphon of a client has ended, or could not start. It is retried after so many seconds."""

    reason: str
    retry_seconds: float


class OutboxBegun(Event, text="{entity} goes to the outbox: {reason}"):
    """Neither side accepts an entity's messages: they go to the outbox until it is emptied."""

    entity: str
    reason: str


class OutboxStuck(Event, text="{entity} stays in the outbox: {reason}"):
    """An entity's messages cannot be delivered from the outbox. Reported again when the reason changes."""

    entity: str
    reason: str


class OutboxRefused(Event, text="{entity} refused a message of the outbox, {message_ids[0]}: {reason}"):
    """The entity refused one message of the outbox. It stays there, and the next client tries it again."""

    entity: str
    message_ids: tuple[str, ...]
    reason: str


class OutboxExpired(Event):
    """Messages expired in the outbox. They are delivered with a time to live of 1 ms, for the entity to expire."""

    entity: str
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.entity}: {len(self.message_ids)} messages expired in the outbox"


class OutboxEmptied(Event, text="{entity} has no more messages in the outbox", level=logging.INFO):
    """All of an entity's messages have left the outbox. New ones go to a side again."""

    entity: str


class OutboxClosed(
    Event, text="{messages} messages stay in {path}, for the next client that opens it", level=logging.INFO
):
    """The client is closed. So many messages stay in the file for the next client that opens it."""

    path: str
    messages: int


SenderEvent: TypeAlias = (
    EntityChanged
    | QueueLeft
    | QueueReturned
    | SendInDoubt
    | SettledLost
    | UnpairedSize
    | SizeUnknown
    | OutboxBegun
    | OutboxStuck
    | OutboxRefused
    | OutboxExpired
    | OutboxEmptied
    | OutboxClosed
    | SyphonFaulted
)
Listener: TypeAlias = Callable[[SenderEvent], Any]


@dataclass(frozen=True)
class EventReporter(Generic[EventT]):
    """Writes events to the log of their module and calls `on_event`, whose exceptions are logged too."""

    owner: str
    on_event: Callable[[EventT], Any] | None

    def __call__(self, event: EventT) -> None:
        log = logging.getLogger(type(event).__module__)
        log.log(event._level, "%s", event)
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                log.exception("an event listener of %s failed", self.owner)


class EventQueue:
    """Guards a state with `lock`, and publishes its events in order, outside of the lock under which they happened."""

    def __init__(self, on_event: Listener | None) -> None:
        self.lock = RLock()
        self._report: EventReporter[SenderEvent] = EventReporter("a paired client", on_event)
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


# Metrics, counted by OpenTelemetry's API if that is installed: without it nothing is, and none holds content.

_AMOUNTS: Final[dict[type, tuple[str, int]]] = {
    QueueLeft: ("queues_out", 1),
    QueueReturned: ("queues_out", -1),
    OutboxBegun: ("in_outbox", 1),
    OutboxEmptied: ("in_outbox", -1),
    SyphonFaulted: ("syphon_faults", 1),
}


def with_metrics(pair: str, on_event: Listener | None) -> Listener | None:
    """Return a listener that counts and then calls `on_event`, or `on_event` itself without the API."""
    instruments = _instruments()
    if instruments is None:
        return on_event

    def listener(event: SenderEvent) -> None:
        _count(instruments, event, {"sbpair.pair": pair})
        if on_event is not None:
            on_event(event)

    return listener


@cache
def _instruments() -> dict[str, Any] | None:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair")
    count, current = meter.create_counter, meter.create_up_down_counter
    return {
        "transitions": count("sbpair.entity.transitions", "{transition}", "Changes of an entity's state"),
        "failed_over": current("sbpair.entity.failed_over", "{entity}", "Entities whose messages go to the backlog"),
        "queues_out": current("sbpair.backlog.queues_out", "{queue}", "Backlog queues out of the rotation"),
        "in_doubt": count("sbpair.messages.in_doubt", "{message}", "Messages sent again after an unanswered attempt"),
        "in_outbox": current("sbpair.entity.in_outbox", "{entity}", "Entities with messages in the outbox"),
        "syphon_faults": count("sbpair.syphon.faults", "{fault}", "Failures of a client's syphon"),
    }


def _count(to: dict[str, Any], event: SenderEvent, pair: dict[str, str]) -> None:
    if isinstance(event, EntityChanged):
        to["transitions"].add(1, pair | {"sbpair.entity": event.entity, "sbpair.state": event.after.value})
        if change := (event.after in SENDS_TO_BACKLOG) - (event.before in SENDS_TO_BACKLOG):
            to["failed_over"].add(change, pair)
    elif isinstance(event, SendInDoubt):
        to["in_doubt"].add(len(event.message_ids), pair | {"sbpair.entity": event.entity})
    elif type(event) in _AMOUNTS:
        name, amount = _AMOUNTS[type(event)]
        to[name].add(amount, pair)
