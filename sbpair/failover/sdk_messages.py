"""Outgoing messages as SDK types: ids, aliases, sizes, batches, and the ping. Pure.

Invariant: the caller's message is never changed. A copy holds the differences, and shares the rest.
"""

from __future__ import annotations

import calendar
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.amqp.types import Described, Long, Timestamp, Value
from sbpair.backlog import ALIASES, PING_TTL_MS, PING_TYPE, Aliases, write_aliases
from sbpair.errors import UsageError
from sbpair.move.message.envelope import PARTITION_KEY, SCHEDULE
from sbpair.timespan import TICKS_PER_MS

Message: TypeAlias = AmqpAnnotatedMessage
OneMessage: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages: TypeAlias = OneMessage | Iterable[OneMessage] | ServiceBusMessageBatch
Content: TypeAlias = ServiceBusMessage | Message | Sequence[ServiceBusMessage | Message] | ServiceBusMessageBatch
"""The argument of an SDK sender: one message, several in one batch, or a batch."""

T = TypeVar("T")
Item = TypeVar("Item")
BatchT = TypeVar("BatchT", bound=ServiceBusMessageBatch)

SMALLEST_TIER_BYTES = 262_144
"""The maximum message size of the tiers with the smallest one."""

SMALL_BODY_BYTES = SMALLEST_TIER_BYTES // 2
_UNLIMITED = 2**62
DATA = AmqpMessageBodyType.DATA
_TTL_NONE_MS = 922_337_203_685_477
_DATA_SECTIONS = 5
_ENCODED = {Long: "LONG", Timestamp: "TIMESTAMP"}


class SizedBatch(ServiceBusMessageBatch):
    """An SDK batch that also keeps its messages. Returned by `create_message_batch`."""

    def __init__(self, max_size_in_bytes: int) -> None:
        super().__init__(max_size_in_bytes)
        self.prepared: list[Message] = []

    def add_message(self, message: OneMessage) -> None:
        """Add a message. Raises MessageSizeExceededError if it does not fit, UsageError if it has an alias."""
        prepared = prepare_one(message)
        super().add_message(prepared)
        self.prepared.append(prepared)


def prepare_one(message: OneMessage) -> Message:
    """Return the message with an id. Raises UsageError if it has an alias, TypeError if it is no message."""
    raw = _annotated(message)
    for key in raw.application_properties or ():
        if _text(key) in ALIASES:
            raise UsageError(
                f"the message already has a property {_text(key)}",
                hint="paired namespaces reserve that name: rename the property",
            )
    if raw.properties is None or raw.properties.message_id is None:
        raw = _copy(raw)
        properties = _copy(raw.properties) if raw.properties is not None else AmqpMessageProperties()
        properties.message_id = str(uuid.uuid4())
        raw.properties = properties
    return raw


def prepare(messages: Messages) -> tuple[list[Message], Content]:
    """Return the messages, each with an id, and the content to send: the caller's own if nothing changed."""
    if isinstance(messages, ServiceBusMessage | AmqpAnnotatedMessage | Mapping):
        one = prepare_one(messages)
        return [one], _unchanged(messages, one)
    if isinstance(messages, SizedBatch):
        return messages.prepared, messages
    if isinstance(messages, ServiceBusMessageBatch):
        # The messages of a plain sender's batch are not public in the SDK.
        return [prepare_one(each) for each in getattr(messages, "_messages", ())], messages
    given = list(messages)
    prepared = [prepare_one(each) for each in given]
    return prepared, [_unchanged(each, checked) for each, checked in zip(given, prepared, strict=True)]


def with_schedule(message: Message, at: datetime) -> Message:
    """Return a copy scheduled at `at`, which is in UTC unless it has a time zone."""
    copy = _copy(message)
    others = {key: value for key, value in (message.annotations or {}).items() if _text(key) != SCHEDULE}
    copy.annotations = {**others, SCHEDULE.encode(): at}
    return copy


def for_backlog(message: Message, path: str) -> Message:
    """Return the message for a backlog queue: destination, session, time to live and schedule become aliases."""
    aliased = _copy(message)
    annotations = dict(message.annotations or {})
    schedule = next((annotations.pop(key) for key in list(annotations) if _text(key) == SCHEDULE), None)
    aliases = Aliases(path, _session_id(message), _ttl_ticks(message), _milliseconds(schedule))
    _remove_ttl(aliased)
    properties = _copy(aliased.properties or AmqpMessageProperties())
    properties.group_id = None
    aliased.properties = properties
    aliased.annotations = annotations or None
    written: dict[str | bytes, Any] = {name: _with_type(value) for name, value in write_aliases(aliases).items()}
    aliased.application_properties = {**(message.application_properties or {}), **written}
    return aliased


def batches(
    items: Iterable[Item], max_bytes: int, kind: type[BatchT], message_of: Callable[[Item], Message]
) -> Iterator[tuple[BatchT | Message, list[Item]]]:
    """Yield batches that fit, in order, each with its items. An item alone is yielded as its message.

    Messages of one batch share their session and partition key, as partitioned queues require.
    """
    members: list[Item] = []
    batch = kind(max_bytes)
    shared: tuple[object, object] | None = None
    for item in items:
        message = message_of(item)
        before, shared = shared, batch_key(message)
        if members and not (shared == before and _fits(batch, message)):
            yield (batch if len(members) > 1 else message_of(members[0])), members
            members, batch = [], kind(max_bytes)
        if not members and not _fits(batch, message):
            # The service may still accept it alone.
            yield message, [item]
        else:
            members.append(item)
    if members:
        yield (batch if len(members) > 1 else message_of(members[0])), members


def encoded_size(message: Message) -> int:
    """Return the encoded size in bytes."""
    batch = ServiceBusMessageBatch(_UNLIMITED)
    empty = batch.size_in_bytes
    batch.add_message(message)
    return batch.size_in_bytes - empty


def encode(message: Message) -> bytes:
    """Return the bytes that the SDK would send. Those of a message with a time to live include the current time."""
    batch = ServiceBusMessageBatch(_UNLIMITED)
    batch.add_message(message)
    # Not public in the SDK: a batch holds each of its messages, encoded, as a data section.
    [payload] = getattr(batch, "_message")[_DATA_SECTIONS]  # noqa: B009  mypy would have it public
    return bytes(payload)


def is_small(message: Message) -> bool:
    """Return whether a backlog queue of any tier accepts it. Everything but the body may have 64 KB on either side."""
    return message.body_type is DATA and sum(map(len, message.body)) <= SMALL_BODY_BYTES


def message_ids(messages: Iterable[Message]) -> tuple[str, ...]:
    return tuple(str(_text(each.properties.message_id)) for each in messages if each.properties)


def ping_message(session_id: str) -> Message:
    """Return a ping: it shows whether an entity accepts messages, and the service delivers it to no receiver."""
    return AmqpAnnotatedMessage(
        data_body=b"",
        header={"time_to_live": PING_TTL_MS},
        properties={"message_id": str(uuid.uuid4()), "content_type": PING_TYPE, "group_id": session_id},
    )


def _annotated(message: OneMessage) -> Message:
    if isinstance(message, ServiceBusMessage):
        return message.raw_amqp_message
    if isinstance(message, AmqpAnnotatedMessage):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message).raw_amqp_message
    raise TypeError(f"expected ServiceBusMessage, got {type(message).__name__}")


def _unchanged(given: OneMessage, prepared: Message) -> ServiceBusMessage | Message:
    """Return the given message if nothing was added: the SDK would wrap the other form again."""
    return given if isinstance(given, ServiceBusMessage) and given.raw_amqp_message is prepared else prepared


def _copy(thing: T) -> T:
    """Return a shallow copy, much faster than copy.copy."""
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


def _remove_ttl(message: Message) -> None:
    if _ttl_ticks(message) is None:
        return
    if message.header:
        message.header = _copy(message.header)
        message.header.time_to_live = None
    if message.properties:
        message.properties = _copy(message.properties)
        message.properties.creation_time = message.properties.absolute_expiry_time = None


def _milliseconds(schedule: Any) -> int | None:
    if isinstance(schedule, Mapping):
        schedule = schedule.get("VALUE")
    if isinstance(schedule, datetime):
        # The SDK also reads a time without a zone as UTC.
        return calendar.timegm(schedule.utctimetuple()) * 1000 + schedule.microsecond // 1000
    return None if schedule is None else int(schedule)


def _with_type(value: Value) -> Any:
    """Return the value with the AMQP type that .NET clients expect: the SDK encodes a plain integer as an int."""
    if isinstance(value, Described):
        return {"TYPE": "SYMBOL", "VALUE": str(value.descriptor).encode()}, _with_type(value.value)
    kind = _ENCODED.get(type(value))
    return {"TYPE": kind, "VALUE": int(cast("int", value))} if kind else value


def batch_key(message: Message) -> tuple[object, object]:
    """Return the session and the partition key, which messages of one batch must share."""
    return (message.properties.group_id if message.properties else None, partition_key(message))


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
