"""Messages as JSON values: of a queue, peeked or received. Pure.

Invariant: nothing that a sender has set is left out. `line_reader` makes a message of these values, as a move sends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from sbpair.amqp.message import Header, Properties, Sections
from sbpair.amqp.types import Map
from sbpair.errors import ProtocolError, UnreadableMessage
from sbpair.message_io.message_fields import (
    MessageBody,
    as_sent,
    body_of,
    fields_of,
    other_bytes,
    readable,
)
from sbpair.message_io.typed_values import CONVENTION
from sbpair.model.document import SPREAD, UNLESS_NONE
from sbpair.move.message import envelope
from sbpair.move.message.dead_letters import cause_in
from sbpair.move.peek.peeker import PeekedMessage
from sbpair.timespan import MAX_MS, TICKS_PER_MS

MessageState = Literal["active", "deferred", "scheduled"]
STATES: Final[Mapping[object, MessageState]] = {envelope.DEFERRED: "deferred", envelope.SCHEDULED: "scheduled"}
Body_co = TypeVar("Body_co", covariant=True)
BodyT = TypeVar("BodyT", bound="MessageBody | None")


class MessageOrigin(NamedTuple):
    """The facts of a message besides its fields: of its queue, the backlog and dead letters."""

    state: Annotated[MessageState, "State"]
    scheduled_at: Annotated[
        str | None, "Time for which it is, or was, scheduled; of a backlog message, at its destination"
    ]
    expires_at: Annotated[str | None, "Time at which it expires; null for never, or if unknown"]
    size: Annotated[int, "Encoded size, in bytes"]
    destination: Annotated[str | None, "Destination of a backlog message"]
    dead_letter_reason: Annotated[str | None, "Reason of a dead letter"]
    dead_letter_description: Annotated[str | None, "Description of a dead letter"]


class OtherFields(NamedTuple):
    """Fields that most messages lack."""

    to: Annotated[str | None, "To", UNLESS_NONE]
    reply_to: Annotated[str | None, "Reply to", UNLESS_NONE]
    reply_to_session_id: Annotated[str | None, "Session id of replies", UNLESS_NONE]
    partition_key: Annotated[str | None, "Partition key", UNLESS_NONE]
    ttl: Annotated[str | None, "Time to live, in ISO 8601", UNLESS_NONE]
    scheduled: Annotated[str | None, "Time for which it is, or was, scheduled in this entity", UNLESS_NONE]
    user_id: Annotated[str | None, "User id, in base64", UNLESS_NONE]
    content_encoding: Annotated[str | None, "Content encoding", UNLESS_NONE]
    group_sequence: Annotated[int | None, "Position within the session, as the sender counts", UNLESS_NONE]
    creation_time: Annotated[str | None, "Creation time", UNLESS_NONE]
    absolute_expiry_time: Annotated[str | None, "Expiry time, as the sender states it", UNLESS_NONE]
    durable: Annotated[bool | None, "Whether the sender asks for durability", UNLESS_NONE]
    priority: Annotated[int | None, "Priority", UNLESS_NONE]
    annotations: Annotated[object, "The sender's other message annotations, as properties", UNLESS_NONE]
    delivery_annotations: Annotated[object, "The sender's delivery annotations, as properties", UNLESS_NONE]
    footer: Annotated[object, "Footer, as properties", UNLESS_NONE]
    dead_letter_source: Annotated[str | None, "Entity that it was dead-lettered in, if it was forwarded", UNLESS_NONE]
    locked_until: Annotated[str | None, "Time at which its lock ends", UNLESS_NONE]
    flaw: Annotated[str | None, "What of it cannot be read", UNLESS_NONE]
    sections: Annotated[
        object,
        "Sections whose bytes are not those of the other fields in AMQP's shortest form, in base64; send uses them"
        " where they say the same",
        UNLESS_NONE,
    ]


class RenderedMessage(NamedTuple, Generic[Body_co]):
    """A message in JSON. `sbpair send` takes it back if it has a body."""

    side: Annotated[str, "Namespace it came from: primary, secondary, or its own name", {"name": "from"}]
    message_id: Annotated[str | None, "Message id"]
    sequence_number: Annotated[int | None, "Sequence number"]
    enqueued_at: Annotated[str | None, "Enqueued time, with its UTC offset"]
    delivery_count: Annotated[int | None, "Delivery count"]
    session_id: Annotated[str | None, "Session id; of a backlog message, that of its destination"]
    subject: Annotated[str | None, "Subject"]
    content_type: Annotated[str | None, "Content type"]
    correlation_id: Annotated[str | None, "Correlation id"]
    properties: Annotated[object, f"Application properties, with their types: {CONVENTION}", {"type": "object"}]
    origin: Annotated[MessageOrigin, SPREAD]
    body: Annotated[Body_co, SPREAD]
    others: Annotated[OtherFields, SPREAD]


Peeked: TypeAlias = RenderedMessage[MessageBody | None]
Received: TypeAlias = RenderedMessage[MessageBody]


@dataclass(slots=True)
class ReceiveCounts:
    """Messages shown and removed; shown and not removed, so that they come again; further copies removed.

    `locked` were not received before the end, since another receiver has them.
    """

    received: Annotated[int, "Received or peeked messages"] = 0
    not_removed: Annotated[int, "Messages that were printed but not removed"] = 0
    duplicates: Annotated[int, "Copies that were not printed"] = 0
    locked: int = 0


def render_peeked(side: str, message: PeekedMessage, body: BodyT) -> RenderedMessage[BodyT]:
    """Return the fields of a message, with its body or None. A section that cannot be read counts as empty."""
    facts, sections = message
    sent = as_sent(sections)
    fields = fields_of(sent, facts.enqueued_at)
    header, annotations = readable(sections.read_header, Header()), readable(sections.read_message_annotations, Map())
    properties = readable(sections.read_properties, Properties())
    scheduled = facts.scheduled_at or annotations.get(envelope.SCHEDULE) or 0
    life_ms = envelope.lifetime_ms(header.ttl, properties, facts.enqueued_at)
    if facts.ttl_ticks:
        life_ms = facts.ttl_ticks // TICKS_PER_MS
    cause, source = cause_in(sections), annotations.get(envelope.DEAD_LETTER_SOURCE)
    origin = MessageOrigin(
        STATES.get(envelope.message_state(sections), "active"),
        moment(scheduled),
        moment(max(facts.enqueued_at, scheduled) + life_ms) if life_ms else None,
        facts.size,
        facts.path,
        cause.reason,
        cause.description,
    )
    found = {
        "dead_letter_source": source if isinstance(source, str) else None,
        "locked_until": moment(envelope.locked_until(sections)),
        "flaw": _flaw(sections) or (None if annotations else facts.flaw or None),
        "sections": other_bytes(sent, fields, body),
    }
    others = OtherFields(**{name: each for name, each in {**fields, **found}.items() if name in OtherFields._fields})
    return RenderedMessage(
        side,
        fields["message_id"],
        facts.sequence_number,
        moment(facts.enqueued_at),
        header.delivery_count or 0,
        fields["session_id"],
        fields["subject"],
        fields["content_type"],
        fields["correlation_id"],
        fields["properties"],
        origin,
        body,
        others,
    )


def _flaw(sections: Sections) -> str | None:
    try:
        sections.check()
    except ProtocolError as error:
        return error.message
    return None


def moment(ms: int) -> str | None:
    """Return a time in ms since 1970 in ISO 8601; None before that, which means unknown, and after the year 9999."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat() if 0 < ms <= MAX_MS else None


def render_received(side: str, message: PeekedMessage) -> Received:
    """Return the fields of a received message with its body. Raises UnreadableMessage unless all can be read."""
    sections = message.sections
    try:
        sections.read_header()
        sections.read_properties()
        sections.read_application_properties()
        sections.read_body()
    except ProtocolError as error:
        text = f"a message of {message.facts.queue!r} cannot be read: {error.message}"
        raise UnreadableMessage(text, hint="it stays; move it (sbpair help move), or peek the others") from error
    return render_peeked(side, message, body_of(sections))
