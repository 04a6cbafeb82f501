"""A backlog message as the SDK has decoded it: what it says of itself, and the message that is sent on. Pure.

The law: what the SDK has lost cannot be brought back here; what it has kept is passed on. Its integers have no width,
its strings, symbols and binary are all bytes, and described integers know their descriptor.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties

from sbpair.amqp.types import Described, Int, Long, Symbol, Timestamp, Value
from sbpair.backlog import ALIASES, SCHEDULED, Aliases, read_aliases

Received: TypeAlias = ServiceBusReceivedMessage
Outgoing: TypeAlias = AmqpAnnotatedMessage
Batch: TypeAlias = ServiceBusMessageBatch

Tagged: TypeAlias = Any
"""What the SDK encodes: a Python value, {"TYPE": …, "VALUE": …} where it would take the wrong type for it, a pair for
a described one."""

TTL_HEADER_MOST_MS = 0xFFFFFFFF

_SCHEDULE = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY, _LOCKED_UNTIL, _ENQUEUED = b"x-opt-partition-key", b"x-opt-locked-until", b"x-opt-enqueued-time"
_SERVICE_ANNOTATIONS = frozenset(
    (
        b"x-opt-enqueued-time",
        b"x-opt-sequence-number",
        b"x-opt-enqueue-sequence-number",
        b"x-opt-locked-until",
        b"x-opt-message-state",
        b"x-opt-deadletter-source",
    )
)
_INT32, _INT64 = 2**31, 2**63
_VALUE_BYTES = 9
"""How large a value is taken to be that is no text."""


def aliases_of(message: Received) -> Aliases:
    """What the aliases say. Raises AliasError.

    A time that is any other integer cannot be told from one that is a timestamp, and is taken for it.
    """
    return read_aliases(_aliases(message))


def message_id_of(message: Received) -> str | None:
    """In words, whatever type of id it is."""
    properties = message.raw_amqp_message.properties
    value = _text(properties.message_id) if properties else None
    if value is None:
        return None
    return value.hex() if isinstance(value, (bytes, bytearray)) else str(value)


def content_type_of(message: Received) -> str | None:
    properties = message.raw_amqp_message.properties
    value = _text(properties.content_type) if properties else None
    return value if isinstance(value, str) else None


def partition_key_of(message: Received) -> str | None:
    value = _text(_annotations(message).get(_PARTITION_KEY))
    return value if isinstance(value, str) else None


def enqueued_at(message: Received) -> int:
    """In ms since 1970; 0 where the service did not say."""
    return _number(_annotations(message).get(_ENQUEUED))


def locked_until(message: Received) -> int:
    """In ms since 1970; 0 where the service did not say."""
    return _number(_annotations(message).get(_LOCKED_UNTIL))


def size_of(message: Received) -> int:
    """About how many bytes it takes: what it was encoded in is not to be had."""
    raw = message.raw_amqp_message
    body = raw.body if raw.body_type is AmqpMessageBodyType.VALUE else list(raw.body)
    properties = raw.properties.values() if raw.properties else []
    return sum(map(_size, (body, properties, raw.application_properties, raw.annotations)))


def restored(
    message: Received,
    *,
    session_id: str | None,
    ttl_ms: int | None,
    scheduled_at: int | None,
    now_ms: int,
) -> Outgoing:
    """The message as it was before it went into the backlog, as far as the SDK has left it."""
    raw = message.raw_amqp_message
    ttl_ms = ttl_ms if ttl_ms is not None else _own_ttl(message)
    properties = _properties(raw.properties, session_id)
    header = {"durable": raw.header.durable, "priority": raw.header.priority} if raw.header else {}
    if ttl_ms is not None and ttl_ms > TTL_HEADER_MOST_MS:
        properties["creation_time"], properties["absolute_expiry_time"] = now_ms, now_ms + ttl_ms
    elif ttl_ms is not None:
        header["time_to_live"] = ttl_ms
    return Outgoing(
        header=header or None,
        properties=AmqpMessageProperties(**properties) if properties else None,
        application_properties=_application_properties(raw.application_properties or {}) or None,
        annotations=_kept_annotations(raw.annotations or {}, scheduled_at) or None,
        footer={key: typed(value) for key, value in (raw.footer or {}).items()} or None,
        **_body(raw),
    )


def typed(value: object) -> Tagged:
    """A decoded value with the type that it most likely had."""
    descriptor = getattr(value, "descriptor", None)
    if descriptor is not None:
        return _descriptor(descriptor), _bare(value)
    return _plain(value)


# What the SDK gives ------------------------------------------------------------------------------


def _aliases(message: Received) -> Iterator[tuple[Value, Value]]:
    for key, value in (message.application_properties or {}).items():
        name = _text(key)
        if name in ALIASES:
            yield name, _alias_value(name, value)


def _alias_value(name: str, value: object) -> Value:
    descriptor = getattr(value, "descriptor", None)
    if descriptor is not None:
        plain = Long(value) if isinstance(value, int) else None
        return Described(Symbol(str(_text(descriptor))), plain)
    if type(value) is int:
        return Timestamp(value) if name == SCHEDULED else Int(0)
    return _text(value)


def _annotations(message: Received) -> Mapping[Any, Any]:
    return message.raw_amqp_message.annotations or {}


def _own_ttl(message: Received) -> int | None:
    """Nobody's alias, but somebody's wish. The full value is what the service writes for "none"."""
    header = message.raw_amqp_message.header
    ttl = header.time_to_live if header else None
    return None if ttl == TTL_HEADER_MOST_MS else ttl


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0


def _text(value: Any) -> Any:
    """Bytes as the text that they most likely are."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return value


def _size(value: object) -> int:
    if isinstance(value, (bytes, str)):
        return len(value)
    if isinstance(value, Mapping):
        return sum(_size(key) + _size(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(_size, value))
    return 0 if value is None else _VALUE_BYTES


# What the SDK is given ---------------------------------------------------------------------------


def _properties(had: AmqpMessageProperties | None, session_id: str | None) -> dict[str, Any]:
    fields = {name: value for name, value in (had.items() if had else ()) if value is not None}
    for name in ("message_id", "correlation_id"):
        if name in fields:
            fields[name] = _text(fields[name])
    if session_id is not None:
        fields["group_id"] = session_id
    return fields


def _application_properties(had: Mapping[Any, Any]) -> dict[Any, Tagged]:
    return {_text(key): typed(value) for key, value in had.items() if _text(key) not in ALIASES}


def _kept_annotations(had: Mapping[Any, Any], scheduled_at: int | None) -> dict[Any, Tagged]:
    kept = {_text(key): typed(value) for key, value in had.items() if key not in _SERVICE_ANNOTATIONS}
    at = scheduled_at if scheduled_at is not None else had.get(_SCHEDULE.encode())
    if isinstance(at, int):
        kept[_SCHEDULE] = {"TYPE": "TIMESTAMP", "VALUE": int(at)}
    return kept


def _body(raw: Outgoing) -> dict[str, Any]:
    if raw.body_type is AmqpMessageBodyType.DATA:
        return {"data_body": [bytes(part) for part in raw.body]}
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return {"sequence_body": [[typed(each) for each in part] for part in raw.body]}
    value = raw.body
    # The SDK takes no types for what is all of a body: only for what is inside of it.
    if isinstance(value, int) and not hasattr(value, "descriptor"):
        return {"value_body": value}
    if isinstance(value, Mapping):
        return {"value_body": {_text(key): typed(each) for key, each in value.items()}}
    return {"value_body": typed(value)}


def _descriptor(descriptor: object) -> Tagged:
    if isinstance(descriptor, int):
        return {"TYPE": "ULONG", "VALUE": int(descriptor)}
    return {"TYPE": "SYMBOL", "VALUE": descriptor}


def _bare(value: object) -> Tagged:
    # Those that .NET describes are all longs: TimeSpan, DateTimeOffset.
    return {"TYPE": "LONG", "VALUE": int(value)} if isinstance(value, int) else _plain(value)


def _plain(value: object) -> Tagged:
    if isinstance(value, bool) or value is None or isinstance(value, (float, uuid.UUID)):
        return value
    if isinstance(value, int):
        return _integer(int(value))
    if isinstance(value, bytes):
        text = _text(bytes(value))
        # The SDK insists on bytes being text, and not on a bytearray.
        return text if isinstance(text, str) else bytearray(value)
    if isinstance(value, Mapping):
        return {"TYPE": "MAP", "VALUE": [(typed(key), typed(each)) for key, each in value.items()]}
    return [typed(each) for each in value] if isinstance(value, list) else value


def _integer(value: int) -> Tagged:
    if -_INT32 <= value < _INT32:
        return value
    return {"TYPE": "LONG" if value < _INT64 else "ULONG", "VALUE": value}
