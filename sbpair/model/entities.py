"""An application's own entities, as specified and as read: queues, topics, subscriptions and rules.

Frozen data. Only properties that both management clients, azure-servicebus and azure-mgmt-servicebus, can set.
Durations are ISO 8601 text, as in QueueSpec; every default is the service's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import ClassVar, Final, NamedTuple, TypeVar

from sbpair.model.queues import QueueSpec
from sbpair.timespan import TIMESPAN_MAX

DEFAULT_RULE = "$Default"
"""The rule of a new subscription: it selects every message."""

EVERY_MESSAGE = "1=1"
NO_MESSAGE = "1=0"


@dataclass(frozen=True, slots=True)
class Queue(QueueSpec):
    """A queue with all its properties; QueueSpec has those of a backlog queue.

    `max_message_size_in_kilobytes` is None for the tier's default: 256, or 1024 on Premium. `max_size_in_megabytes` is
    the size of one partition, also when read.
    """

    duplicate_detection_history_time_window: str = "PT10M"
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str = ""
    max_message_size_in_kilobytes: int | None = None


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. Sizes are as in Queue."""

    kind: ClassVar[str] = "topic"

    path: str
    max_size_in_megabytes: int = 1024
    default_message_time_to_live: str = TIMESPAN_MAX
    auto_delete_on_idle: str = TIMESPAN_MAX
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window: str = "PT10M"
    enable_batched_operations: bool = True
    support_ordering: bool = True
    status: str = "Active"
    enable_partitioning: bool = False
    enable_express: bool = False
    user_metadata: str = ""
    max_message_size_in_kilobytes: int | None = None


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of `topic`, which determines its size, duplicate detection and partitions."""

    kind: ClassVar[str] = "subscription"

    topic: str
    name: str
    lock_duration: str = "PT1M"
    max_delivery_count: int = 10
    default_message_time_to_live: str = TIMESPAN_MAX
    auto_delete_on_idle: str = TIMESPAN_MAX
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    enable_batched_operations: bool = True
    requires_session: bool = False
    forward_to: str = ""
    forward_dead_lettered_messages_to: str = ""
    user_metadata: str = ""
    status: str = "Active"

    @property
    def path(self) -> str:
        return f"{self.topic}/Subscriptions/{self.name}"


PlainValue = bool | int | float | datetime


class RuleValue(NamedTuple):
    """A value of a rule that is not text, with its type in Atom, such as `int` or `dateTime`."""

    name: str
    kind: str
    text: str

    @classmethod
    def of(cls, name: str, value: PlainValue) -> RuleValue:
        """Return a value as the service writes it, a time in UTC and without a fraction of a second."""
        if isinstance(value, bool):
            return cls(name, "boolean", str(value).lower())
        if isinstance(value, int):
            return cls(name, "int" if value < 2**31 else "long", str(value))
        if isinstance(value, float):
            return cls(name, "double", str(value))
        return cls(name, "dateTime", value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))

    @property
    def plain(self) -> PlainValue | None:
        """The value; None for one that `of` would not write with the same type and meaning."""
        try:
            value = _READERS[self.kind](self.text)
        except (LookupError, ValueError):
            return None
        if isinstance(value, datetime) and (value.tzinfo is None or value.microsecond):
            return None
        return value if RuleValue.of(self.name, value).kind == self.kind else None

    def __str__(self) -> str:
        return f"{self.name} = {self.text} ({self.kind})"


_READERS: Final[dict[str, Callable[[str], PlainValue]]] = {
    "boolean": {"true": True, "false": False}.__getitem__,
    "int": int,
    "long": int,
    "double": float,
    "dateTime": datetime.fromisoformat,
}


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """Selects messages for which an SQL expression is true. `typed` are the parameters of its rule."""

    expression: str = EVERY_MESSAGE
    typed: tuple[RuleValue, ...] = ()

    def __str__(self) -> str:
        return ", ".join((self.expression, *map(str, self.typed)))


@dataclass(frozen=True, slots=True)
class CorrelationFilter:
    """Selects messages whose properties have exactly these values. An empty value is not compared.

    `properties` are application properties that are text, sorted by name, and `typed` all others, which
    azure-mgmt-servicebus does not support.
    """

    correlation_id: str = ""
    message_id: str = ""
    to: str = ""
    reply_to: str = ""
    label: str = ""
    session_id: str = ""
    reply_to_session_id: str = ""
    content_type: str = ""
    properties: tuple[tuple[str, str], ...] = ()
    typed: tuple[RuleValue, ...] = ()

    def __str__(self) -> str:
        system = ((name, getattr(self, name)) for name in CORRELATION_KEYS)
        selected = " and ".join(f"{name} = {value!r}" for name, value in (*system, *self.properties) if value)
        return ", ".join(filter(None, (selected, *map(str, self.typed))))


CORRELATION_KEYS = tuple(each.name for each in fields(CorrelationFilter) if each.name not in ("properties", "typed"))
"""The message's own properties that a CorrelationFilter compares."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of a subscription: messages that `filter` selects are delivered, after the SQL `action` if any."""

    kind: ClassVar[str] = "rule"

    topic: str
    subscription: str
    name: str
    filter: SqlFilter | CorrelationFilter = SqlFilter()
    action: str = ""

    @property
    def path(self) -> str:
        return f"{self.topic}/Subscriptions/{self.subscription}/Rules/{self.name}"


AnyEntity = Queue | Topic | Subscription | Rule
Described = AnyEntity | QueueSpec
Kind = TypeVar("Kind", bound=AnyEntity)
Sized = TypeVar("Sized", bound=Queue | Topic)


def subscription_of(path: str) -> Subscription | None:
    """Return the subscription that a path names, `TOPIC/subscriptions/NAME` in any case; None for another path."""
    topic, marker, name = re.sub("/subscriptions/", "//", path, count=1, flags=re.IGNORECASE).partition("//")
    return Subscription(topic, name) if marker and topic and name and "/" not in name else None


def with_partitions(entity: QueueSpec | Topic) -> Queue | Topic:
    if isinstance(entity, (Queue, Topic)):
        return replace(entity, enable_partitioning=True)
    return Queue(**asdict(entity), enable_partitioning=True)


def pascal(name: str) -> str:
    """Return a property's name as the service writes it in Atom: `LockDuration` for `lock_duration`."""
    return name.title().replace("_", "")
