"""Outgoing messages as SDK types: ids, aliases, sizes, batches, and the ping. Pure.

Invariant: the caller's message is never changed. A copy holds the differences, and shares the rest.
"""

from __future__ import annotations

import calendar
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar, cast

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from sbpair.amqp.message import Properties
from sbpair.amqp.types import Described, Long, Timestamp, Value
from sbpair.backlog import MAX_ALIASES_BYTES, PING_TTL_MS, PING_TYPE, Aliases, check_unreserved, write_aliases
from sbpair.errors import UsageError
from sbpair.failover.property_values import MAX_PROPERTIES_BYTES, properties_size, typed_properties
from sbpair.failover.sdk_encoding import encoding
from sbpair.model.tiers import SMALLEST_TIER_BYTES
from sbpair.move.message.envelope import PARTITION_KEY, SCHEDULE, alias_life_ms
from sbpair.move.message.route import MAX_TTL_HEADER_MS
from sbpair.timespan import LAST_EXPIRY_MS, TICKS_PER_MS

Message: TypeAlias = AmqpAnnotatedMessage
OneMessage: TypeAlias = ServiceBusMessage | AmqpAnnotatedMessage | Mapping[str, Any]
Messages: TypeAlias = OneMessage | Iterable[OneMessage] | ServiceBusMessageBatch
Content: TypeAlias = ServiceBusMessage | Message | Sequence[ServiceBusMessage | Message] | ServiceBusMessageBatch
"""The argument of an SDK sender: one message, several in one batch, or a batch."""

T = TypeVar("T")
Item = TypeVar("Item")
BatchT = TypeVar("BatchT", bound=ServiceBusMessageBatch)

SMALL_BODY_BYTES = SMALLEST_TIER_BYTES // 2
DATA = AmqpMessageBodyType.DATA
_ENCODED = {Long: "LONG", Timestamp: "TIMESTAMP"}


class _LongTtl(int):
    """The time to live of a header, with which the SDK sends the creation time and the expiry of the properties.

    The SDK replaces them by its own for each time to live that is true, and then caps the expiry at 49.7 days.
    """

    def __bool__(self) -> bool:
        return False


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
    """Return the message as it can be sent, with an id.

    Raises UsageError for an alias, a property that the service refuses or a time to live below 0, and TypeError for
    anything but a message.
    """
    raw = _annotated(message)
    for key in raw.application_properties or ():
        check_unreserved(_text(key))
    properties = raw.application_properties and typed_properties(raw.application_properties)
    if properties is not raw.application_properties:
        raw = _copy(raw)
        raw.application_properties = cast("dict[str | bytes, Any]", properties)
    if raw.properties is None or raw.properties.message_id is None:
        raw = _copy(raw)
        raw.properties = with_id = _copy(raw.properties) if raw.properties is not None else AmqpMessageProperties()
        with_id.message_id = str(uuid.uuid4())
    return _with_long_ttl(raw)


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
    """Return the message for a backlog queue: destination, session, time to live and schedule become aliases.

    As `aliased` in `move.message.envelope` does with bytes; the SDK's senders take only messages of the SDK.
    """
    aliased = _copy(message)
    annotations = dict(message.annotations or {})
    schedule = next((annotations.pop(key) for key in list(annotations) if _text(key) == SCHEDULE), None)
    ttl_ms = _ttl_ms(message)
    ttl_ticks = None if ttl_ms is None else ttl_ms * TICKS_PER_MS
    aliases = Aliases(path, _session_id(message), ttl_ticks, _milliseconds(schedule))
    if ttl_ms is not None:
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


def has_long_ttl(message: Message) -> bool:
    """Return whether its header states a time to live of 49.7 days or more, which the SDK does not send as it is."""
    return (_header_ttl_ms(message) or 0) >= MAX_TTL_HEADER_MS


def is_small(message: Message) -> bool:
    """Return whether a backlog queue of any tier accepts it. Everything but the body may have 64 KB on either side."""
    if message.body_type is not DATA or sum(map(len, message.body)) > SMALL_BODY_BYTES:
        return False
    properties = message.application_properties
    return not properties or properties_size(properties) <= MAX_PROPERTIES_BYTES - MAX_ALIASES_BYTES


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


def _with_long_ttl(message: Message) -> Message:
    """Return the message with a time to live above 49.7 days as .NET clients write it; without one that never ends."""
    header, given_ms = message.header, _header_ttl_ms(message)
    if given_ms is not None and given_ms < 0:
        raise UsageError("time_to_live must be greater than 0", hint="omit it for a message that never expires")
    if header is None or given_ms is None or not has_long_ttl(message) or type(header.time_to_live) is _LongTtl:
        return message
    ttl_ms = _ttl_ms(message)
    if ttl_ms is not None and ttl_ms <= MAX_TTL_HEADER_MS:
        return message
    message = _copy(message)
    if ttl_ms is None:
        _remove_ttl(message)
        return message
    message.header = header = _copy(header)
    header.time_to_live = _LongTtl(MAX_TTL_HEADER_MS)
    if given_ms > MAX_TTL_HEADER_MS:
        properties = message.properties = _copy(message.properties or AmqpMessageProperties())
        properties.creation_time = int(time.time() * 1000)
        properties.absolute_expiry_time = min(properties.creation_time + ttl_ms, LAST_EXPIRY_MS)
    return message


def _header_ttl_ms(message: Message) -> int | None:
    ttl = message.header.time_to_live if message.header else None
    return None if ttl is None else int(ttl)


def _ttl_ms(message: Message) -> int | None:
    """Return how long a message lives; None for ever."""
    properties = message.properties
    times = [properties.creation_time, properties.absolute_expiry_time] if properties else [None, None]
    created, expires = [None if each is None else int(each) for each in times]
    return alias_life_ms(_header_ttl_ms(message), Properties(creation_time=created, absolute_expiry_time=expires))


def _remove_ttl(message: Message) -> None:
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
        with encoding(message):
            batch.add_message(message)
    except MessageSizeExceededError:
        return False
    return True


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
