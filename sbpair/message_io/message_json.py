"""Messages as JSON, and back. Pure.

A line of a file becomes a message: as its raw body, or as a JSON object with its fields. Received and peeked messages
become JSON values.

Invariant: an unknown field is refused, never ignored: a misspelt name would lose a property.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from sbpair.amqp.message import DATA, VALUE, Header, Properties, Sections
from sbpair.amqp.types import Array, Described, Map
from sbpair.errors import ProtocolError, UnreadableMessage, UsageError
from sbpair.model.document import SPREAD, UNLESS_NONE
from sbpair.move.message import envelope
from sbpair.move.message.dead_letters import cause_in
from sbpair.move.peek.peeker import PeekedMessage
from sbpair.timespan import MAX_MS, MAX_TICKS, TICKS_PER_MS, ticks

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusReceivedMessage

    from sbpair.failover.sdk_messages import Message
    from sbpair.move.raw_source import RawReceivedMessage

HINT = 'a line is an object such as {"body": "hello", "message_id": "1", "session_id": "a", "properties": {"n": 1}}'
_MAX_REFUSED = 60


def parse_body(line: bytes) -> Message:
    """Return a message with the line as its body, and an id."""
    return _message(line)


def parse_json(line: bytes) -> Message:
    """Return the message that a JSON object describes. Raises UsageError."""
    described = _object(line)
    fields: dict[str, Any] = {}
    for name, value in described:
        field = _field(name)
        if field in fields:
            raise UsageError(f"{field}: given twice", hint=HINT)
        given = value is not None or field in _BODIES
        fields[field] = _READERS[field](value, field) if given else None
    bodies = [fields.pop(name) for name in _BODIES if name in fields]
    if len(bodies) != 1:
        raise UsageError("expected one body, as body (text) or body_base64", hint=HINT)
    try:
        return _message(
            bodies[0],
            fields.pop("ttl", None),
            **{_ARGUMENTS.get(name, name): value for name, value in fields.items()},
        )
    except (ValueError, TypeError) as error:
        raise UsageError(str(error).rstrip("."), hint=HINT) from None


def _message(body: bytes, ttl_ms: int | None = None, **fields: Any) -> Message:
    # The SDK, which takes long to load, and which a rendered message does not need.
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.amqp import AmqpMessageHeader

    from sbpair.failover import sdk_messages

    message = ServiceBusMessage(body, **fields)
    if ttl_ms is not None:
        # The SDK cuts off parts of a second.
        message.raw_amqp_message.header = AmqpMessageHeader(time_to_live=ttl_ms)
    return sdk_messages.prepare_one(message)


class _Pairs(list[tuple[str, Any]]):
    """The members of a JSON object, duplicates included."""


def _object(line: bytes) -> _Pairs:
    try:
        found = _DECODER.decode(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("the line is not UTF-8", hint="save it as UTF-8, or give the body as body_base64") from None
    except json.JSONDecodeError as error:
        detail = f"{error.msg[0].lower()}{error.msg[1:]}"
        raise UsageError(f"the line is not JSON: {detail} (column {error.colno})", hint=HINT) from None
    except ValueError:
        raise UsageError("a number has more digits than a property can hold", hint=HINT) from None
    except RecursionError:
        raise UsageError("the object is nested too deeply", hint=HINT) from None
    if not isinstance(found, _Pairs):
        raise UsageError(f"expected a JSON object, got {_kind(found)}", hint=HINT)
    return found


def _constant(name: str) -> float:
    raise UsageError(f"{name} is not JSON", hint=HINT)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_Pairs, parse_constant=_constant)


def _field(name: str) -> str:
    plain = name.lower().replace("_", "").replace("-", "")
    if plain in _SPELLINGS:
        return _SPELLINGS[plain]
    close = difflib.get_close_matches(plain, _SPELLINGS, 1)
    suggestion = f"; did you mean {_SPELLINGS[close[0]]}?" if close else f"; expected one of {', '.join(_READERS)}"
    raise UsageError(f"unknown field {_shown(name)}{suggestion}", hint=f"{HINT}; your own names go into properties")


def _text(value: Any, field: str) -> str:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{field}: an unpaired surrogate cannot be encoded", hint=HINT) from None
        return value
    raise UsageError(f"{field}: expected text, got {_kind(value)}", hint=f"quote it: {HINT}")


def _name(value: Any, field: str) -> str:
    if not (text := _text(value, field)):
        raise UsageError(f"{field}: expected text, got an empty one", hint="omit it, or give a value")
    return text


def _body(value: Any, field: str) -> bytes:
    return _text(value, field).encode()


def _bytes(value: Any, field: str) -> bytes:
    try:
        return base64.b64decode(_text(value, field), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{field}: not base64", hint="use the base64 alphabet, padded with =") from None


def _ttl(value: Any, field: str) -> int:
    """Return milliseconds, at least 1."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else _text(value, field)
    try:
        ttl = ticks(text)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", hint=error.hint) from None
    if ttl > MAX_TICKS:
        raise UsageError(f"{field}: too long", hint="omit it for a message that never expires")
    if not ttl:
        raise UsageError(f"{field} must be greater than 0", hint="omit it, or write a duration such as 90s or PT1M")
    return -(-ttl // TICKS_PER_MS)


def _moment(value: Any, field: str) -> datetime:
    text = _text(value, field)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{field}: {_shown(text)} is not a date and time", hint="write 2026-12-01T10:00:00Z") from None
    if moment.tzinfo is None:
        raise UsageError(f"{field}: {_shown(text)} has no time zone", hint="write 2026-12-01T10:00:00Z, or +01:00")
    return moment


def _properties(value: Any, field: str) -> dict[str | bytes, Any]:
    if not isinstance(value, _Pairs):
        raise UsageError(f"{field}: expected an object, got {_kind(value)}", hint=HINT)
    found: dict[str | bytes, Any] = {}
    for name, each in value:
        if name in found:
            raise UsageError(f"property {_shown(name)}: given twice", hint=HINT)
        found[_text(name, field)] = _property(each, name)
    return found


def _property(value: Any, name: str) -> Any:
    if isinstance(value, str):
        return _text(value, f"property {_shown(name)}")
    if value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    kind = "a number that is too large" if isinstance(value, float) else _kind(value)
    raise UsageError(
        f"property {_shown(name)}: expected text, a number, true, false or null, got {kind}",
        hint="numbers have up to 64 bits",
    )


def _kind(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", _Pairs: "an object"}
    return kinds.get(type(value), "null" if value is None else "text")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _MAX_REFUSED else f"{text[:_MAX_REFUSED]}…")


_READERS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "body": _body,
    "body_base64": _bytes,
    "message_id": _name,
    "session_id": _name,
    "partition_key": _name,
    "correlation_id": _text,
    "subject": _text,
    "to": _text,
    "reply_to": _text,
    "reply_to_session_id": _text,
    "content_type": _text,
    "ttl": _ttl,
    "scheduled": _moment,
    "properties": _properties,
}
_BODIES: Final = ("body", "body_base64")
_ARGUMENTS: Final = {
    "scheduled": "scheduled_enqueue_time_utc",
    "properties": "application_properties",
}
# The spellings of the SDKs and the portal. Case, '_' and '-' do not count.
_SPELLINGS: Final = {
    **{name.replace("_", ""): name for name in (*_READERS, *_ARGUMENTS)},
    "label": "subject",
    "timetolive": "ttl",
    "scheduledenqueuetime": "scheduled",
    "scheduledenqueuetimeutc": "scheduled",
    "applicationproperties": "properties",
    "userproperties": "properties",
}

Read = TypeVar("Read")
MessageState = Literal["active", "deferred", "scheduled"]
STATES: Final[Mapping[object, MessageState]] = {envelope.DEFERRED: "deferred", envelope.SCHEDULED: "scheduled"}


Body_co = TypeVar("Body_co", covariant=True)
Origin_co = TypeVar("Origin_co", covariant=True)


class MessageBody(NamedTuple):
    """The body of a message; `body_base64` is that of one that is not UTF-8."""

    body: Annotated[object, "Body: text, or an AMQP value; null if body_base64 is present or it cannot be read"]
    body_base64: Annotated[str | None, "Body that is not UTF-8, in base64", UNLESS_NONE] = None


class MessageOrigin(NamedTuple):
    """The facts of a peeked message besides its fields: of its queue, the backlog and dead letters."""

    state: Annotated[MessageState, "State"]
    scheduled_at: Annotated[
        str | None, "Time for which it is, or was, scheduled; of a backlog message, at its destination"
    ]
    expires_at: Annotated[str | None, "Time at which it expires; null for never, or if unknown"]
    size: Annotated[int, "Encoded size, in bytes"]
    destination: Annotated[str | None, "Destination of a backlog message"]
    dead_letter_reason: Annotated[str | None, "Reason of a dead letter"]
    dead_letter_description: Annotated[str | None, "Description of a dead letter"]


class RenderedMessage(NamedTuple, Generic[Origin_co, Body_co]):
    """A message in JSON."""

    side: Annotated[str, "Namespace it came from: primary, secondary, or its own name", {"name": "from"}]
    message_id: Annotated[str | None, "Message id"]
    sequence_number: Annotated[int | None, "Sequence number"]
    enqueued_at: Annotated[str | None, "Enqueued time, with its UTC offset"]
    delivery_count: Annotated[int | None, "Delivery count"]
    session_id: Annotated[str | None, "Session id"]
    subject: Annotated[str | None, "Subject"]
    content_type: Annotated[str | None, "Content type"]
    correlation_id: Annotated[str | None, "Correlation id"]
    properties: Annotated[object, "Application properties", {"type": "object"}]
    origin: Annotated[Origin_co, SPREAD]
    body: Annotated[Body_co, SPREAD]


Peeked: TypeAlias = RenderedMessage[MessageOrigin, MessageBody | None]
Received: TypeAlias = RenderedMessage[MessageOrigin | None, MessageBody]


@dataclass(slots=True)
class ReceiveCounts:
    """Messages shown and removed; shown and not removed, so that they come again; further copies removed.

    `locked` were not received before the end, since another receiver has them.
    """

    received: Annotated[int, "Received or peeked messages"] = 0
    not_removed: Annotated[int, "Messages that were printed but not removed"] = 0
    duplicates: Annotated[int, "Copies that were not printed"] = 0
    locked: int = 0


def render_message(side: str, message: ServiceBusReceivedMessage) -> Received:
    """Return the fields of a received message of a side as JSON values."""
    enqueued = message.enqueued_time_utc
    raw = message.raw_amqp_message
    if raw.body_type == "data":
        body = _data(b"".join(bytes(part) for part in raw.body))
    else:
        body = MessageBody(plain_value(raw.body if raw.body_type == "value" else list(raw.body)))
    times = (enqueued.isoformat() if enqueued else None, message.delivery_count, message.session_id)
    names = (message.subject, message.content_type, message.correlation_id)
    properties = plain_value(message.application_properties or {})
    return RenderedMessage(side, message.message_id, message.sequence_number, *times, *names, properties, None, body)


def render_peeked(side: str, message: PeekedMessage, body: Read) -> RenderedMessage[MessageOrigin, Read]:
    """Return the fields of a peeked message as `render_message` does. A section that cannot be read counts as empty."""
    facts, sections = message
    header, cause = readable(sections.read_header, Header()), cause_in(sections)
    properties = readable(sections.read_properties, Properties())
    scheduled = facts.scheduled_at or readable(sections.read_message_annotations, Map()).get(envelope.SCHEDULE)
    life_ms = envelope.lifetime_ms(header.ttl, properties, facts.enqueued_at)
    if facts.ttl_ticks:
        life_ms = facts.ttl_ticks // TICKS_PER_MS
    expires = moment(max(facts.enqueued_at, scheduled or 0) + life_ms) if life_ms else None
    state, places = STATES.get(envelope.message_state(sections), "active"), (facts.size, facts.path)
    origin = MessageOrigin(state, moment(scheduled or 0), expires, *places, cause.reason, cause.description)
    session = facts.session_id or properties.group_id
    times = (facts.sequence_number, moment(facts.enqueued_at), header.delivery_count or 0, session)
    names = (properties.subject, properties.content_type, plain_value(properties.correlation_id))
    given = plain_value(readable(sections.read_application_properties, Map()))
    return RenderedMessage(side, facts.message_id, *times, *names, given, origin, body)


def moment(ms: int) -> str | None:
    """Return a time in ms since 1970 in ISO 8601; None before that, which means unknown, and after the year 9999."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat() if 0 < ms <= MAX_MS else None


def render_received(side: str, message: RawReceivedMessage) -> Received:
    """Return the fields of a received message with its body. Raises UnreadableMessage unless all can be read."""
    try:
        sections = Sections.split(message.payload)
        sections.read_header()
        sections.read_properties()
        sections.read_application_properties()
        sections.read_body()
    except ProtocolError as error:
        text = f"a message of {message.facts.queue!r} cannot be read: {error.message}"
        raise UnreadableMessage(text, hint="it stays; move it (sbpair help move), or peek the others") from error
    return render_peeked(side, PeekedMessage(message.facts, sections), body_of(sections))


def body_of(sections: Sections) -> MessageBody:
    """Return a body, and None in place of one that cannot be read."""
    try:
        is_data, content = body_content(sections)
    except ProtocolError:
        return MessageBody(None)
    return _data(content) if is_data else MessageBody(plain_value(content))


def body_content(sections: Sections) -> tuple[bool, Any]:
    """Return whether the body is data, and its bytes, its value or its list of sequences. Raises ProtocolError."""
    parts = sections.read_body()
    kinds, values = {kind for kind, _ in parts}, [value for _, value in parts]
    if kinds <= {DATA}:
        return True, b"".join(values)
    return False, values[0] if kinds == {VALUE} else values


def _data(data: bytes) -> MessageBody:
    try:
        return MessageBody(data.decode())
    except UnicodeDecodeError:
        return MessageBody(None, base64.b64encode(data).decode())


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
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no such number
    if value is None or isinstance(value, int | float | str):
        return value
    return str(value)
