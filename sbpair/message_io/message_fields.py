"""The fields of a message in JSON, and the message of such fields, as its sender gave it. Pure.

Invariant: `sections_of` is the inverse of `fields_of`. A section whose bytes do not follow from the fields, since its
sender has written it in another way, is in the field `sections` as well.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    ORDER,
    SEQUENCE,
    Header,
    Properties,
    Sections,
    data_body,
    encode_map,
    section,
    value_body,
)
from sbpair.amqp.types import Map, Symbol, Timestamp, UInt, Value, text_of
from sbpair.backlog import SESSION_ID
from sbpair.errors import ProtocolError, UsageError
from sbpair.message_io.typed_values import (
    JsonObject,
    kind_of,
    read_map,
    read_time,
    read_value,
    render_map,
    render_time,
    render_value,
    shown,
    text_of_json,
    unique,
)
from sbpair.model.document import UNLESS_NONE
from sbpair.move.message.body import body_content, content_encoding, held_text
from sbpair.move.message.envelope import (
    PARTITION_KEY,
    SCHEDULE,
    SERVICE_ANNOTATIONS,
    delivery_annotations_of,
    header_of,
    is_one_of,
    lifetime_ms,
)
from sbpair.move.message.route import MAX_TTL_HEADER_MS
from sbpair.timespan import MAX_TICKS, TICKS_PER_MS, iso_duration, ticks

Read = TypeVar("Read")


class MessageBody(NamedTuple):
    """The body of a message; `body_base64` are the bytes of one that is not plain text, `body_text` what they hold."""

    body: Annotated[
        object, "Body: text, or AMQP values as properties; null if body_base64 is present or it is unreadable"
    ]
    body_base64: Annotated[str | None, "Body that is not UTF-8 text, in base64", UNLESS_NONE] = None
    body_kind: Annotated[
        str | None, "Kind of a body that is not data: value, or sequence", UNLESS_NONE, {"enum": ["value", "sequence"]}
    ] = None
    body_text: Annotated[
        str | None, "Text that body_base64 holds: of .NET's serializer, gzip or deflate, up to 1 MB", UNLESS_NONE
    ] = None


def fields_of(sections: Sections, enqueued_ms: int = 0) -> dict[str, Any]:
    """Return the fields in JSON of the sections that `as_sent` returns, without their body; null for those not set.

    A section that cannot be read counts as empty.
    """
    header = readable(sections.read_header, Header())
    properties = readable(sections.read_properties, Properties())
    annotations = readable(sections.read_message_annotations, Map())
    given = readable(sections.read_application_properties, Map())
    life_ms = lifetime_ms(header.ttl, properties, enqueued_ms)
    key, schedule = annotations.get(PARTITION_KEY), annotations.get(SCHEDULE)
    own = {PARTITION_KEY: type(key) is str, SCHEDULE: type(schedule) is Timestamp}
    others = Map(pair for pair in annotations.pairs if not (isinstance(pair[0], str) and own.get(pair[0])))
    session = given.get(SESSION_ID)
    stated = {field: _PLAIN.get(field, text_of)(getattr(properties, name)) for name, field in _PROPERTIES.items()}
    return stated | {
        "session_id": session if isinstance(session, str) else properties.group_id,
        "partition_key": key if own[PARTITION_KEY] else None,
        "ttl": iso_duration(life_ms * TICKS_PER_MS) if life_ms else None,
        "scheduled": _time(schedule) if own[SCHEDULE] else None,
        "durable": header.durable or None,
        "priority": header.priority,
        "properties": render_map(given),
        "annotations": render_map(others, Symbol) if others else None,
        "delivery_annotations": _rendered(sections.read_delivery_annotations),
        "footer": _rendered(sections.read_footer),
    }


def _time(ms: int | None) -> str | None:
    return None if ms is None else render_time(ms)


def _rendered(read: Callable[[], Map]) -> Any:
    values = readable(read, Map())
    return render_map(values, Symbol) if len(values) else None


def readable(read: Callable[[], Read], default: Read) -> Read:
    """Return the result of `read`, or `default` for a malformed section."""
    try:
        return read()
    except ProtocolError:
        return default


def body_of(sections: Sections) -> MessageBody:
    """Return a body, and None in place of one that cannot be read."""
    try:
        is_data, content = body_content(sections)
    except ProtocolError:
        return MessageBody(None)
    if not is_data:
        return MessageBody(
            render_value(content), None, "sequence" if sections.read_body()[0][0] == SEQUENCE else "value"
        )
    text = held_text(content, content_encoding(sections))
    if text is not None and text.encode() == content:
        return MessageBody(text)
    return MessageBody(None, base64.b64encode(content).decode(), body_text=text)


def text_or_base64(data: bytes) -> tuple[str | None, str | None]:
    """Return bytes as text, or else as base64."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(data).decode()


def as_sent(sections: Sections) -> Sections:
    """Return the sections of a delivered message without the service's own values."""
    header, properties = readable(sections.read_header, Header()), readable(sections.read_properties, Properties())
    raw, life_ms = sections.message_annotations, lifetime_ms(header.ttl, properties, 0)
    return replace(
        sections,
        header=readable(lambda: header_of(sections.header, life_ms), sections.header),
        delivery_annotations=delivery_annotations_of(sections),
        message_annotations=readable(lambda: splice.without(raw, is_one_of(SERVICE_ANNOTATIONS)), raw),
    )


def other_bytes(sections: Sections, fields: dict[str, Any], body: MessageBody | None) -> dict[str, str] | None:
    """Return the sections, in base64, that are not those that `sections_of` makes of the fields and the body."""
    made = sections_of(_copied(fields, body))
    names = (name for name in ORDER if body is not None or name != "body")
    found = {name: getattr(sections, name) for name in names if getattr(sections, name) != getattr(made, name)}
    return {name: base64.b64encode(raw).decode() for name, raw in found.items()} or None


def _copied(fields: dict[str, Any], body: MessageBody | None) -> dict[str, Any]:
    """Return the values of fields and a body that are copied as JSON."""
    raw: dict[str, Any] = {}
    if body is not None and body.body_kind is None and isinstance(body.body, str):
        raw["body"] = body.body.encode()
    elif body is not None:
        fields = fields | body._asdict()
    return read_fields(json.loads(json.dumps(fields), object_pairs_hook=JsonObject)) | raw


def sections_of(values: Mapping[str, Any]) -> Sections:
    """Return the message of the values of `read_fields`. `sections` are used where they have equal fields."""
    made = _made(values)
    for name, raw in values.get("sections", {}).items():
        other = replace(made, **{name: raw})
        said = _made(_copied(fields_of(other), body_of(other) if name == "body" else None))
        if getattr(said, name) == getattr(made, name):
            made = other
    return made


def _made(values: Mapping[str, Any]) -> Sections:
    given, ttl_ms = values.get("properties", Map()), values.get("ttl")
    ttl = None if ttl_ms is None else UInt(min(ttl_ms, MAX_TTL_HEADER_MS))
    header = Header(durable=values.get("durable"), priority=values.get("priority"), ttl=ttl)
    stated = {name: values.get(field) for name, field in _PROPERTIES.items()}
    properties = Properties(**stated | ({"group_id": None} if SESSION_ID in given else {}))
    own = {PARTITION_KEY: values.get("partition_key"), SCHEDULE: values.get("scheduled")}
    added = [(Symbol(name), value) for name, value in own.items() if value is not None]
    annotations = Map([*values.get("annotations", Map()).pairs, *added])
    return Sections(
        header=b"" if header == Header() else header.encode(),
        delivery_annotations=encode_map(DELIVERY_ANNOTATIONS, values.get("delivery_annotations", Map())),
        message_annotations=encode_map(MESSAGE_ANNOTATIONS, annotations),
        properties=b"" if properties == Properties() else properties.encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, given),
        body=_body(values),
        footer=encode_map(FOOTER, values.get("footer", Map())),
    )


def _body(values: Mapping[str, Any]) -> bytes:
    body, kind = values.get("body_base64", values.get("body")), values.get("body_kind")
    if kind == "sequence":
        return b"".join(section(SEQUENCE, codec.encode(each)) for each in body)
    if kind == "value":
        return value_body(body)
    return b"" if body is None else data_body(body)


def read_fields(members: JsonObject) -> dict[str, Any]:
    """Return the values of fields, of those that are not null. Raises UsageError, naming the field."""
    named = unique(members, "field")
    kind = named.get("body_kind")
    if kind is not None:
        if kind not in KINDS:
            raise UsageError(f"body_kind: expected value or sequence, got {shown(kind)}", hint="leave it out for data")
        named["body"] = _amqp_body(named.get("body"), kind)
    elif named.get("body") is not None:
        named["body"] = text_of_json(named["body"], "body").encode()
    return {
        name: FIELDS[name](value, name) if name in FIELDS else value
        for name, value in named.items()
        if value is not None or name == "body"
    }


def _amqp_body(body: Any, kind: str) -> Value:
    found = read_value(body, "body")
    if kind == "sequence" and not (isinstance(found, list) and all(isinstance(each, list) for each in found)):
        raise UsageError("body: expected a list of lists, as body_kind is sequence", hint="[[1, 2], [3]]")
    return found


def _bytes(value: Any, field: str) -> bytes:
    try:
        return base64.b64decode(text_of_json(value, field), validate=True)
    except (binascii.Error, ValueError):
        raise UsageError(f"{field}: not base64", hint="use the base64 alphabet, padded with =") from None


def _ttl(value: Any, field: str) -> int:
    """Return milliseconds, at least 1."""
    text = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else text_of_json(value, field)
    try:
        ttl = ticks(text)
    except UsageError as error:
        raise UsageError(f"{field}: {error.message}", hint=error.hint) from None
    if ttl > MAX_TICKS:
        raise UsageError(f"{field}: too long", hint="omit it for a message that never expires")
    if not ttl:
        raise UsageError(f"{field} must be greater than 0", hint="omit it, or write a duration such as 90s or PT1M")
    return -(-ttl // TICKS_PER_MS)


def _moment(value: Any, field: str) -> Timestamp:
    try:
        return Timestamp(read_time(text_of_json(value, field)))
    except ValueError as error:
        raise UsageError(f"{field}: {error}", hint="write 2026-12-01T10:00:00Z, or +01:00") from None


def _number(value: Any, field: str) -> UInt:
    if type(value) is not int or not 0 <= value <= LIMITS.get(field, UInt.HIGH):
        raise UsageError(
            f"{field}: expected a number up to {LIMITS.get(field, UInt.HIGH)}", hint="omit it, or correct it"
        )
    return UInt(value)


def _flag(value: Any, field: str) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{field}: expected true or false, got {kind_of(value)}", hint="omit it, or correct it")
    return value


def _symbol_text(value: Any, field: str) -> str:
    if not (text := text_of_json(value, field)).isascii():
        raise UsageError(f"{field}: expected ASCII text", hint="it is a symbol in AMQP")
    return text


def _sections(value: Any, field: str) -> dict[str, bytes]:
    if not isinstance(value, JsonObject) or not {name for name, _ in value} <= set(ORDER):
        raise UsageError(f"{field}: expected an object of sections", hint="leave it out: the other fields say it all")
    return {name: _bytes(each, field) for name, each in value}


def _symbols(value: Any, field: str) -> Map:
    return read_map(value, field, Symbol)


KINDS: Final = ("value", "sequence")
LIMITS: Final = {"priority": 255}
FIELDS: Final[dict[str, Callable[[Any, str], Any]]] = {
    **dict.fromkeys(("message_id", "session_id", "partition_key", "correlation_id", "subject", "to"), text_of_json),
    **dict.fromkeys(("reply_to", "reply_to_session_id"), text_of_json),
    **dict.fromkeys(("content_type", "content_encoding"), _symbol_text),
    **dict.fromkeys(("body_base64", "user_id"), _bytes),
    **dict.fromkeys(("scheduled", "creation_time", "absolute_expiry_time"), _moment),
    **dict.fromkeys(("group_sequence", "priority"), _number),
    **dict.fromkeys(("annotations", "delivery_annotations", "footer"), _symbols),
    "ttl": _ttl,
    "durable": _flag,
    "properties": read_map,
    "sections": _sections,
}
"""The fields that a sender sets, beside `body` and `body_kind`, with the readers of their JSON."""
_PLAIN: Final[dict[str, Callable[[Any], Any]]] = {
    "user_id": lambda raw: None if raw is None else base64.b64encode(raw).decode(),
    "group_sequence": lambda number: number,
    **dict.fromkeys(("creation_time", "absolute_expiry_time"), _time),
}
"""Fields of the properties section that are no text, with their renderers."""
_PROPERTIES: Final = {each.name: each.name for each in fields(Properties)} | {
    "group_id": "session_id",
    "reply_to_group_id": "reply_to_session_id",
}
