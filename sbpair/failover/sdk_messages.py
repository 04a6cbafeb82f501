"""Messages on their way out, on the SDK's own types: their ids, their aliases, their sizes, and the ping. Pure.

The law: what the caller gave is never changed. Whatever has to differ is a copy, which shares with it what is the same.
"""

from __future__ import annotations

import calendar
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.amqp.types import Described, Long, Timestamp, Value
from sbpair.backlog import ALIASES, PING_TTL_MS, PING_TYPE, TICKS_PER_MS, Aliases, write_aliases
from sbpair.errors import UsageError
from sbpair.move.message.envelope import PARTITION_KEY, SCHEDULE

Message: TypeAlias = AmqpAnnotatedMessage
OneMessage: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages: TypeAlias = OneMessage | Iterable[OneMessage] | ServiceBusMessageBatch
Content: TypeAlias = ServiceBusMessage | Message | Sequence[ServiceBusMessage | Message] | ServiceBusMessageBatch
"""What an SDK's sender is given: one, several in one batch, or a batch."""

T = TypeVar("T")

MIN_LIMIT_BYTES = 262_144
"""What a message may have in the tiers that allow the least."""

SMALL_BODY_BYTES = MIN_LIMIT_BYTES // 2
_UNLIMITED = 2**62
DATA = AmqpMessageBodyType.DATA
_TTL_NONE_MS = 922_337_203_685_477
_DATA_SECTIONS = 5
_ENCODED = {Long: "LONG", Timestamp: "TIMESTAMP"}


class SizedBatch(ServiceBusMessageBatch):
    """The SDK's batch, which also remembers what is in it. To be had from `create_message_batch`."""

    def __init__(self, max_size_in_bytes: int) -> None:
        super().__init__(max_size_in_bytes)
        self.outgoing: list[Message] = []

    def add_message(self, message: OneMessage) -> None:
        """Raises MessageSizeExceededError where it does not fit, UsageError for one that has an alias already."""
        checked = outgoing(message)
        super().add_message(checked)
        self.outgoing.append(checked)


def outgoing(message: OneMessage) -> Message:
    """One message, with an id. Raises UsageError for one that has an alias already, TypeError for what is none."""
    raw = _annotated(message)
    for key in raw.application_properties or ():
        if _text(key) in ALIASES:
            raise UsageError(
                f"the message has a property {_text(key)} already",
                hint="that is what paired namespaces keep their own notes in: give the property another name",
            )
    if raw.properties is None or raw.properties.message_id is None:
        raw = _like(raw)
        properties = _like(raw.properties) if raw.properties is not None else AmqpMessageProperties()
        properties.message_id = str(uuid.uuid4())
        raw.properties = properties
    return raw


def scheduled(message: Message, at: datetime) -> Message:
    """The same, to be enqueued at `at`, which is UTC where it does not say."""
    later = _like(message)
    kept = {key: value for key, value in (message.annotations or {}).items() if _text(key) != SCHEDULE}
    later.annotations = {**kept, SCHEDULE.encode(): at}
    return later


def for_backlog(message: Message, path: str) -> Message:
    """The message as it waits in a backlog queue: its destination, session, life and schedule are aliases."""
    aliased = _like(message)
    annotations = dict(message.annotations or {})
    schedule = next((annotations.pop(key) for key in list(annotations) if _text(key) == SCHEDULE), None)
    aliases = Aliases(path, _session_id(message), _ttl_ticks(message), _milliseconds(schedule))
    _without_life(aliased)
    properties = _like(aliased.properties or AmqpMessageProperties())
    properties.group_id = None
    aliased.properties = properties
    aliased.annotations = annotations or None
    written: dict[str | bytes, Any] = {name: _tagged(value) for name, value in write_aliases(aliases).items()}
    aliased.application_properties = {**(message.application_properties or {}), **written}
    return aliased


def packed(messages: Iterable[Message], max_bytes: int) -> Iterator[tuple[Content, tuple[Message, ...]]]:
    """What to send one after the other so that each fits, in their order, with the messages that are in it.

    Those of one batch have one partition key, for queues in partitions take nothing else.
    """
    inside: list[Message] = []
    batch = ServiceBusMessageBatch(max_bytes)
    for message in messages:
        if inside and not (_same_key(inside[0], message) and _fits(batch, message)):
            yield (batch if len(inside) > 1 else inside[0]), tuple(inside)
            inside, batch = [], ServiceBusMessageBatch(max_bytes)
        if not inside and not _fits(batch, message):
            # Alone it may still be let through.
            yield message, (message,)
        else:
            inside.append(message)
    if inside:
        yield (batch if len(inside) > 1 else inside[0]), tuple(inside)


def size_of(message: Message) -> int:
    """How many bytes it takes, encoded."""
    batch = ServiceBusMessageBatch(_UNLIMITED)
    empty = batch.size_in_bytes
    batch.add_message(message)
    return batch.size_in_bytes - empty


def encoded(message: Message) -> bytes:
    """What the SDK would put on the wire. One with a time to live has the time of this moment in it."""
    batch = ServiceBusMessageBatch(_UNLIMITED)
    batch.add_message(message)
    # Not among what the SDK makes public: a batch has each of its messages, encoded, as a data section.
    [payload] = getattr(batch, "_message")[_DATA_SECTIONS]  # noqa: B009  mypy would have it public
    return bytes(payload)


def is_small(message: Message) -> bool:
    """Whether it surely fits a backlog queue of any tier: what is not body takes 64 KB at most, or no side takes it."""
    if message.body_type is not DATA:
        return False
    room = SMALL_BODY_BYTES
    for part in message.body:
        room -= len(part)
    return room >= 0


def ids_of(messages: Iterable[Message]) -> tuple[str, ...]:
    return tuple(str(_text(each.properties.message_id)) for each in messages if each.properties)


def ping(session_id: str) -> Message:
    """What tells whether an entity accepts messages; the service gives it to no receiver."""
    return AmqpAnnotatedMessage(
        data_body=b"",
        header={"time_to_live": PING_TTL_MS},
        properties={"message_id": str(uuid.uuid4()), "content_type": PING_TYPE, "group_id": session_id},
    )


# Inside -----------------------------------------------------------------------------------------


def _annotated(message: OneMessage) -> Message:
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message).raw_amqp_message
    raise TypeError(f"a {type(message).__name__} is no message: give a ServiceBusMessage")


def _like(thing: T) -> T:
    """A shallow copy, at a fraction of what copy.copy costs."""
    twin = object.__new__(type(thing))
    twin.__dict__.update(thing.__dict__)
    return twin


def _session_id(message: Message) -> str | None:
    found = _text(message.properties.group_id) if message.properties else None
    return None if found is None else str(found)


def _ttl_ticks(message: Message) -> int | None:
    ttl = message.header.time_to_live if message.header else None
    if not ttl and message.properties and message.properties.absolute_expiry_time and message.properties.creation_time:
        ttl = int(message.properties.absolute_expiry_time) - int(message.properties.creation_time)
    return int(ttl) * TICKS_PER_MS if ttl and 0 < ttl < _TTL_NONE_MS else None


def _without_life(message: Message) -> None:
    if _ttl_ticks(message) is None:
        return
    if message.header:
        message.header = _like(message.header)
        message.header.time_to_live = None
    if message.properties:
        message.properties = _like(message.properties)
        message.properties.creation_time = message.properties.absolute_expiry_time = None


def _milliseconds(schedule: Any) -> int | None:
    if isinstance(schedule, Mapping):
        schedule = schedule.get("VALUE")
    if isinstance(schedule, datetime):
        # In UTC, whatever zone it names; the SDK reads one without a zone so too.
        return calendar.timegm(schedule.utctimetuple()) * 1000 + schedule.microsecond // 1000
    return None if schedule is None else int(schedule)


def _tagged(value: Value) -> Any:
    """What makes the SDK encode the type that a client of .NET expects: it takes every plain integer for an int."""
    if isinstance(value, Described):
        return {"TYPE": "SYMBOL", "VALUE": str(value.descriptor).encode()}, _tagged(value.value)
    kind = _ENCODED.get(type(value))
    return {"TYPE": kind, "VALUE": int(cast("int", value))} if kind else value


def _same_key(one: Message, other: Message) -> bool:
    return bool(partition_key(one) == partition_key(other))


def partition_key(message: Message) -> Any:
    found = message.annotations or {}
    return _text(found.get(PARTITION_KEY.encode(), found.get(PARTITION_KEY)))


def _fits(batch: ServiceBusMessageBatch, message: Message) -> bool:
    try:
        batch.add_message(message)
    except MessageSizeExceededError:
        return False
    return True


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
