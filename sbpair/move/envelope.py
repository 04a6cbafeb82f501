"""A message's raw sections as Facts, and a Send applied to them: what a move changes, and nothing else. Pure.

Body, footer and every property and application property that is not named here keep their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.amqp import codec, splice
from sbpair.amqp.message import MESSAGE_ANNOTATIONS, PROPERTIES, Header, Sections
from sbpair.amqp.types import Symbol, Timestamp, text_of
from sbpair.backlog import ALIASES, AliasError, Aliases, read_aliases
from sbpair.errors import ProtocolError
from sbpair.move.route import TTL_HEADER_MOST_MS, Facts, Send

if TYPE_CHECKING:
    from sbpair.amqp.types import Map

SEQUENCE_NUMBER, ENQUEUED = "x-opt-sequence-number", "x-opt-enqueued-time"
LOCKED_UNTIL = "x-opt-locked-until"
SCHEDULE = Symbol("x-opt-scheduled-enqueue-time")

SERVICE_ANNOTATIONS = frozenset(
    (
        ENQUEUED,
        SEQUENCE_NUMBER,
        "x-opt-enqueue-sequence-number",
        LOCKED_UNTIL,
        "x-opt-message-state",
        "x-opt-deadletter-source",
    )
)
"""What the service writes on a message: it says where a message has been, and not what it is."""

# Where these stand in the properties section.
_ABSOLUTE_EXPIRY, _CREATION, _GROUP_ID = 8, 9, 10


def facts_of(queue: str, payload: bytes) -> tuple[Sections, Facts]:
    """Split a delivery and say what is known of it. Raises ProtocolError for what is no message at all."""
    sections = Sections.split(payload)
    annotations = sections.read_message_annotations()
    message_id = content_type = aliases = None
    flaw = ""
    try:
        message_id, content_type = _identity(sections)
        aliases = _aliases(sections)
    except (AliasError, ProtocolError) as error:
        flaw = str(error)
    facts = Facts(
        queue=queue,
        sequence_number=_number(annotations, SEQUENCE_NUMBER),
        enqueued_at=_number(annotations, ENQUEUED),
        message_id=message_id,
        path=aliases.path if aliases else None,
        session_id=aliases.session_id if aliases else None,
        ttl_ticks=aliases.ttl_ticks if aliases else None,
        scheduled_at=aliases.scheduled_at if aliases else None,
        size=len(payload),
        content_type=content_type,
        flaw=flaw,
    )
    return sections, facts


def restored(sections: Sections, send: Send, now_ms: int) -> bytes:
    """The message as it was before it went into the backlog, encoded. Raises ProtocolError."""
    return Sections(
        header=_header(sections, send),
        message_annotations=_annotations(sections, send),
        properties=_properties(sections, send, now_ms),
        application_properties=splice.without(sections.application_properties, ALIASES.__contains__),
        body=sections.body,
        footer=sections.footer,
    ).join()


def locked_until(sections: Sections) -> int:
    """When the delivery's lock runs out, in ms since 1970; 0 where the service did not say."""
    return _number(sections.read_message_annotations(), LOCKED_UNTIL)


def _identity(sections: Sections) -> tuple[str | None, str | None]:
    properties = sections.read_properties()
    return text_of(properties.message_id), properties.content_type


def _aliases(sections: Sections) -> Aliases:
    pairs = splice.map_pairs(sections.application_properties)
    # The keys alone tell whether a value has to be decoded: one that is broken, and not ours, is none of our business.
    return read_aliases((key, codec.decode_all(value)) for key, _, value in pairs if key in ALIASES)


def _number(annotations: Map, name: str) -> int:
    value = annotations.get(name)
    return int(value) if isinstance(value, int) else 0


def _header(sections: Sections, send: Send) -> bytes:
    had = sections.read_header()
    ttl = None
    if send.ttl_ms is not None:
        ttl = min(send.ttl_ms, TTL_HEADER_MOST_MS)
    elif had.ttl is not None and had.ttl != TTL_HEADER_MOST_MS:
        # Nobody's alias, but somebody's wish all the same. The full value is what the service writes for "none".
        ttl = had.ttl
    if had.durable is None and had.priority is None and ttl is None:
        return b""
    return Header(durable=had.durable, priority=had.priority, ttl=ttl).encode()


def _annotations(sections: Sections, send: Send) -> bytes:
    doomed = SERVICE_ANNOTATIONS if send.scheduled_at is None else SERVICE_ANNOTATIONS | {SCHEDULE}
    raw = splice.without(sections.message_annotations, doomed.__contains__)
    if send.scheduled_at is None:
        return raw
    return splice.with_pairs(raw, MESSAGE_ANNOTATIONS, {SCHEDULE: Timestamp(send.scheduled_at)})


def _properties(sections: Sections, send: Send, now_ms: int) -> bytes:
    fields: dict[int, str | Timestamp] = {}
    if send.session_id is not None:
        fields[_GROUP_ID] = send.session_id
    if send.ttl_ms is not None and _states_expiry(sections, send.ttl_ms):
        fields[_CREATION] = Timestamp(now_ms)
        fields[_ABSOLUTE_EXPIRY] = Timestamp(min(now_ms + send.ttl_ms, Timestamp.HIGH))
    return splice.with_fields(sections.properties, PROPERTIES, fields) if fields else sections.properties


def _states_expiry(sections: Sections, ttl_ms: int) -> bool:
    """Whether the expiry is written out: where it does not fit the header, or where a stale one stands there."""
    return ttl_ms > TTL_HEADER_MOST_MS or sections.read_properties().absolute_expiry_time is not None
