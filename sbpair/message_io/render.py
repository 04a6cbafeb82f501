"""A received message as plain JSON values. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from azure.servicebus.amqp import AmqpMessageBodyType

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage


def render_message(message: ServiceBusReceivedMessage) -> dict[str, object]:
    """Return the fields of a message as JSON values. A body that is not text is in "body_base64"."""
    enqueued = message.enqueued_time_utc
    return {
        "message_id": message.message_id,
        "sequence_number": message.sequence_number,
        "enqueued_at": enqueued.isoformat() if enqueued else None,
        "delivery_count": message.delivery_count,
        "session_id": message.session_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
        "properties": _value(message.application_properties or {}),
        **_body(message),
    }


def _body(message: ServiceBusReceivedMessage) -> dict[str, object]:
    raw = message.raw_amqp_message
    if raw.body_type is not AmqpMessageBodyType.DATA:
        body = raw.body if raw.body_type is AmqpMessageBodyType.VALUE else list(raw.body)
        return {"body": _value(body)}
    data = b"".join(bytes(part) for part in raw.body)
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(data).decode()}


def _value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Mapping):
        return {str(_value(key)): _value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_value(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
