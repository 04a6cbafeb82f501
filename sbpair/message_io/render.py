"""Received and peeked messages as JSON values. Pure."""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair.amqp.message import DATA, VALUE, Header, Properties, Sections
from sbpair.amqp.types import Array, Described, Map, type_of
from sbpair.errors import ProtocolError, UnreadableMessage
from sbpair.move.message import envelope
from sbpair.move.message.dead_letters import cause_in
from sbpair.move.peek.peeker import PeekedMessage
from sbpair.timespan import MAX_MS

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.move.raw_source import RawReceivedMessage

Read = TypeVar("Read")
STATES = {envelope.DEFERRED: "deferred", envelope.SCHEDULED: "scheduled"}


def render_message(message: ServiceBusReceivedMessage) -> dict[str, object]:
    """Return the fields of a received message as JSON values. A body that is not text is in "body_base64"."""
    enqueued = message.enqueued_time_utc
    raw = message.raw_amqp_message
    if raw.body_type == "data":
        body = _data(b"".join(bytes(part) for part in raw.body))
    else:
        body = {"body": plain_value(raw.body if raw.body_type == "value" else list(raw.body))}
    return {
        "message_id": message.message_id,
        "sequence_number": message.sequence_number,
        "enqueued_at": enqueued.isoformat() if enqueued else None,
        "delivery_count": message.delivery_count,
        "session_id": message.session_id,
        "subject": message.subject,
        "content_type": message.content_type,
        "correlation_id": message.correlation_id,
        "properties": plain_value(message.application_properties or {}),
        **body,
    }


def render_peeked(message: PeekedMessage, *, body: bool) -> dict[str, object]:
    """Return the fields of a peeked message as `render_message` does, with those of the backlog and dead letters.

    A section that cannot be read counts as empty; such a body is None.
    """
    facts, sections = message
    header, cause = readable(sections.read_header, Header()), cause_in(sections)
    properties = readable(sections.read_properties, Properties())
    return {
        "message_id": facts.message_id,
        "sequence_number": facts.sequence_number,
        "enqueued_at": moment(facts.enqueued_at),
        "delivery_count": header.delivery_count or 0,
        "session_id": facts.session_id or properties.group_id,
        "subject": properties.subject,
        "content_type": properties.content_type,
        "correlation_id": plain_value(properties.correlation_id),
        "properties": plain_value(readable(sections.read_application_properties, Map())),
        "state": STATES.get(envelope.message_state(sections), "active"),
        "size": facts.size,
        "destination": facts.path,
        "dead_letter_reason": cause.reason,
        "dead_letter_description": cause.description,
        **(_body(sections) if body else {}),
    }


def moment(ms: int) -> str | None:
    """Return a time in ms since 1970 in ISO 8601; None before that, which means unknown, and after the year 9999."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat() if 0 < ms <= MAX_MS else None


def render_received(message: RawReceivedMessage) -> dict[str, object]:
    """Return the fields of a received message with its body. Raises UnreadableMessage unless all can be read."""
    try:
        sections = Sections.split(message.payload)
        sections.read_header()
        sections.read_properties()
        sections.read_application_properties()
        sections.read_body()
    except ProtocolError as error:
        text = f"a message of {message.facts.queue!r} cannot be read: {error.message}"
        raise UnreadableMessage(text, hint="it stays; move it with sbpair move, or peek the others") from error
    return render_peeked(PeekedMessage(message.facts, sections), body=True)


def _body(sections: Sections) -> dict[str, object]:
    try:
        parts = sections.read_body()
    except ProtocolError:
        return {"body": None}
    kinds, values = {kind for kind, _ in parts}, [value for _, value in parts]
    if kinds <= {DATA}:
        return _data(b"".join(values))
    return {"body": plain_value(values[0] if kinds == {VALUE} else values)}


def _data(data: bytes) -> dict[str, object]:
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(data).decode()}


def readable(read: Callable[[], Read], default: Read) -> Read:
    """Return what `read` returns, or `default` for a malformed section."""
    try:
        return read()
    except ProtocolError:
        return default


def plain_value(value: Any) -> Any:
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode(errors="replace")
    if isinstance(value, Map):
        return {str(plain_value(key)): plain_value(each) for key, each in value.pairs}
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, Described):
        return plain_value(value.value)
    if isinstance(value, list | tuple | Array):
        return [plain_value(each) for each in value]
    if type_of(value) is bool:
        return bool(value)  # one in its long form is read as a number
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)
