"""Facts from a message's raw sections, and a Send applied to them: all changes that a move makes. Pure.

Body, footer, and every property and application property not named here keep their bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sbpair.amqp import codec, splice
from sbpair.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Properties,
    Sections,
    section,
)
from sbpair.amqp.types import Map, Symbol, Timestamp, UInt, Value, text_of
from sbpair.backlog import ALIASES, AliasError, Aliases, check_unreserved, read_aliases, write_aliases
from sbpair.errors import ProtocolError
from sbpair.move.message.route import BACKLOG, MAX_TTL_HEADER_MS, NO_TTL, WRAPPED_MAX_TTL_MS, Facts, MessageForm, Send
from sbpair.timespan import LAST_EXPIRY_MS, TICKS_PER_DAY, TICKS_PER_MS, TIMESPAN_MAX_DAYS

T = TypeVar("T")

SEQUENCE_NUMBER, ENQUEUED = "x-opt-sequence-number", "x-opt-enqueued-time"
ENQUEUE_SEQUENCE_NUMBER = "x-opt-enqueue-sequence-number"
LOCKED_UNTIL, MESSAGE_STATE, LOCK_TOKEN = "x-opt-locked-until", "x-opt-message-state", "x-opt-lock-token"
SCHEDULE = Symbol("x-opt-scheduled-enqueue-time")
PARTITION_KEY, PARTITION_ID = "x-opt-partition-key", "x-opt-partition-id"
DEAD_LETTER_SOURCE = "x-opt-deadletter-source"
ACTIVE, DEFERRED, SCHEDULED = range(3)

SERVICE_ANNOTATIONS = frozenset((
    ENQUEUED, SEQUENCE_NUMBER, ENQUEUE_SEQUENCE_NUMBER, LOCKED_UNTIL, MESSAGE_STATE, DEAD_LETTER_SOURCE,
    PARTITION_ID,
))  # fmt: skip
"""Annotations that the service writes: they describe where a message has been, not the message.

Of the delivery annotations, only LOCK_TOKEN is the service's; it keeps a sender's own.
"""

_SHORT_HEADER = section(HEADER, b"\xc0")
_ONLY_TOKEN = section(DELIVERY_ANNOTATIONS, b"\xc1\x24\x02\xa3\x10" + LOCK_TOKEN.encode() + b"\x98")

_ENDLESS_MS = TIMESPAN_MAX_DAYS * TICKS_PER_DAY // TICKS_PER_MS

# Positions in the header and the properties section.
_TTL = 2
_ABSOLUTE_EXPIRY, _CREATION, _GROUP_ID = 8, 9, 10


def read_facts(queue: str, payload: bytes, form: MessageForm = BACKLOG) -> tuple[Sections, Facts]:
    """Split a delivery and return its sections and facts. Raises ProtocolError if it is not a message.

    Errors inside a section that a move reads or changes become the facts' flaw. `restore` takes only messages without a
    flaw, and does not fail for them.
    """
    sections = Sections.split(payload)
    flaws: list[str] = []
    header = _read("header", sections.read_header, flaws) or Header()
    annotations = _read("message annotations", sections.read_message_annotations, flaws) or Map()
    properties = _read("properties", sections.read_properties, flaws) or Properties()
    if form.destination is None:
        aliases = _read("application properties", lambda: _aliases(sections), flaws)
    else:
        _read("application properties", lambda: list(splice.map_pairs(sections.application_properties)), flaws)
        life_ms = lifetime_ms(header.ttl, properties, _number(annotations, ENQUEUED))
        destination, why = form.destination_for(annotations.get(DEAD_LETTER_SOURCE))
        flaws += [why] if why else []
        aliases = Aliases(destination, properties.group_id, life_ms and life_ms * TICKS_PER_MS)
    facts = Facts(
        queue=queue,
        sequence_number=_number(annotations, SEQUENCE_NUMBER),
        enqueued_at=_number(annotations, ENQUEUED),
        message_id=_printable(text_of(properties.message_id)),
        path=aliases.path if aliases and not flaws else None,
        session_id=aliases.session_id if aliases else None,
        ttl_ticks=aliases.ttl_ticks if aliases else None,
        scheduled_at=aliases.scheduled_at if aliases else None,
        size=len(payload),
        content_type=properties.content_type,
        flaw="; ".join(flaws),
    )
    return sections, facts


def lifetime_ms(ttl: int | None, properties: Properties, enqueued_ms: int) -> int | None:
    """Return how long a message lives from its acceptance, as its sender stated it; None for ever, or if unknown.

    The expiry decides unless the header can hold the time to live.
    """
    if ttl is not None and ttl not in (MAX_TTL_HEADER_MS, WRAPPED_MAX_TTL_MS):
        return ttl or None
    expires, created = properties.absolute_expiry_time, properties.creation_time
    begins = enqueued_ms if created is None else created
    if expires is not None and 0 < begins < expires:
        return expires - begins
    return ttl if ttl == WRAPPED_MAX_TTL_MS else None


def alias_life_ms(ttl: int | None, properties: Properties) -> int | None:
    """Return the time to live that a client's message has as an alias: stated by the header, or by its two times."""
    life_ms = lifetime_ms(ttl or None, properties, 0) or ttl
    return life_ms if life_ms and life_ms < _ENDLESS_MS else None


def aliased(sections: Sections, path: str) -> Sections:
    """Return a client's message for `path` as its copy for a backlog queue, which `restore` undoes.

    Destination, session, time to live and schedule become aliases; all other bytes stay. `restore` gives the client's
    bytes back, but for these: sections are in AMQP's order; a schedule is the last annotation; two times that only
    state a time to live are left out, or begin anew; a map that is, or was left, empty is left out; an expiry without
    a header has one; a restored value, and a map that grew by the aliases, have the shortest size.

    Raises UsageError for a property with the name of an alias, ProtocolError for a section that cannot be read.
    """
    header, properties, annotations = (
        sections.read_header(),
        sections.read_properties(),
        sections.read_message_annotations(),
    )
    for key, _, _ in splice.map_pairs(sections.application_properties):
        check_unreserved(key)
    life_ms, schedule = alias_life_ms(header.ttl, properties), annotations.get(SCHEDULE)
    scheduled_at = int(schedule) if isinstance(schedule, int) else None
    aliases = Aliases(path, properties.group_id, life_ms and life_ms * TICKS_PER_MS, scheduled_at)
    stated: dict[int, int | str | None] = {_GROUP_ID: properties.group_id}
    if life_ms is not None:
        stated |= {_CREATION: properties.creation_time, _ABSOLUTE_EXPIRY: properties.absolute_expiry_time}
    moved = frozenset((SCHEDULE,)) if scheduled_at is not None else frozenset[str]()
    return replace(
        sections,
        header=_nulled(sections.header, HEADER, {_TTL: life_ms and header.ttl}),
        message_annotations=splice.without(sections.message_annotations, is_one_of(moved)),
        properties=_nulled(sections.properties, PROPERTIES, stated),
        application_properties=splice.with_pairs(
            sections.application_properties, APPLICATION_PROPERTIES, {**write_aliases(aliases)}
        ),
    )


def _nulled(raw: bytes, code: int, stated: dict[int, int | str | None]) -> bytes:
    """Return a list section with null for each of the fields that has a value."""
    fields = {position: None for position, value in stated.items() if value is not None}
    return splice.with_fields(raw, code, fields) if fields else raw


def restore(sections: Sections, send: Send, now_ms: int, form: MessageForm = BACKLOG) -> bytes:
    """Return the message as it was before it entered the backlog, or was dead-lettered, encoded."""
    if form.destination is not None:
        send = as_stated(send, sections.read_header().ttl, sections.read_properties(), now_ms)
    return Sections(
        header=header_of(sections.header, send.ttl_ms),
        delivery_annotations=delivery_annotations_of(sections),
        message_annotations=annotations_of(sections, send),
        properties=properties_of(sections, send, now_ms),
        application_properties=splice.without(sections.application_properties, is_one_of(form.removed)),
        body=sections.body,
        footer=sections.footer,
    ).join()


def as_stated(send: Send, ttl: int | None, properties: Properties, now_ms: int) -> Send:
    """Return a Send without what a message that was no copy states itself: its session, and its expiry without a ttl.

    An expiry that has passed begins anew, as a ttl does: the destination might drop the message.
    """
    expires = properties.absolute_expiry_time
    is_kept = ttl is None and expires is not None and expires > now_ms
    return send._replace(session_id=None, ttl_ms=None if is_kept else send.ttl_ms)


def locked_until(sections: Sections) -> int:
    """Return when the delivery's lock expires, in ms since 1970; 0 if unknown."""
    return _annotation(sections, LOCKED_UNTIL)


def partition_key(sections: Sections) -> str | None:
    key = (_read("message annotations", sections.read_message_annotations, []) or Map()).get(PARTITION_KEY)
    return str(key) if isinstance(key, str) else None


def dead_letter_source(sections: Sections) -> str | None:
    source = (_read("message annotations", sections.read_message_annotations, []) or Map()).get(DEAD_LETTER_SOURCE)
    return str(source) if isinstance(source, str) else None


def sequence_number(sections: Sections) -> int:
    return _annotation(sections, SEQUENCE_NUMBER)


def enqueued_at(sections: Sections) -> int:
    """Return when the message was enqueued, in ms since 1970."""
    return _annotation(sections, ENQUEUED)


def message_state(sections: Sections) -> int:
    """Return ACTIVE, DEFERRED or SCHEDULED; the service need not set it on received messages.

    The service keeps SCHEDULED after a message has become due. Its time of enqueueing is then that of its activation,
    so such a message is ACTIVE here: it may be received, or be locked.
    """
    annotations = _read("message annotations", sections.read_message_annotations, []) or Map()
    state = _number(annotations, MESSAGE_STATE)
    is_due = _number(annotations, SCHEDULE) <= _number(annotations, ENQUEUED)
    return ACTIVE if state == SCHEDULED and is_due else state


def _annotation(sections: Sections, name: str) -> int:
    return _number(_read("message annotations", sections.read_message_annotations, []) or Map(), name)


def _read(what: str, read: Callable[[], T], flaws: list[str]) -> T | None:
    try:
        return read()
    except AliasError as error:
        flaws.append(str(error))
    except ProtocolError as error:
        flaws.append(f"its {what} cannot be read: {error.message}")
    return None


def _aliases(sections: Sections) -> Aliases:
    is_alias = is_one_of(ALIASES)
    pairs = splice.map_pairs(sections.application_properties)
    # Decode only the values of aliases: a broken one of another key is kept as it is.
    return read_aliases((key, codec.decode_all(value)) for key, _, value in pairs if is_alias(key))


def is_one_of(names: frozenset[str]) -> Callable[[Value], bool]:
    # A key may be of any type, even an unhashable one.
    return lambda key: isinstance(key, str) and key in names


def _printable(text: str | None) -> str | None:
    """Replace half a surrogate pair: a legal char in AMQP, but an error for terminals and files."""
    return None if text is None else text.encode(errors="replace").decode()


def _number(annotations: Map, name: str) -> int:
    value = annotations.get(name)
    return int(value) if isinstance(value, int) else 0


def header_of(raw: bytes, ttl_ms: int | None) -> bytes:
    """Return the sender's header with its TTL restored and delivery counts reset."""
    original, ttl = Sections(header=raw).read_header(), None
    if ttl_ms is not None:
        ttl = min(ttl_ms, MAX_TTL_HEADER_MS) or None
    elif original.ttl is not None and original.ttl != MAX_TTL_HEADER_MS:
        # Without an alias, the sender's own TTL stays. The service writes the maximum for "none".
        ttl = original.ttl
    if raw and original.first_acquirer is None and original.delivery_count is None:
        # No service has counted its deliveries: these are its sender's bytes.
        fields = {_TTL: None if ttl is None else UInt(ttl)}
        return splice.with_fields(raw, HEADER, fields) if ttl != original.ttl else raw
    if original.durable is None and original.priority is None and ttl is None:
        return b""
    return Header(durable=original.durable, priority=original.priority, ttl=ttl).encode()


def delivery_annotations_of(sections: Sections) -> bytes:
    """Return the sender's delivery annotations; b"" for unreadable ones."""
    try:
        return splice.without(sections.delivery_annotations, lambda key: isinstance(key, str) and key == LOCK_TOKEN)
    except ProtocolError:
        return b""


def without_lock_token(payload: bytes) -> bytes:
    """Return a delivery without the service's lock token; an unreadable one unchanged."""
    at = 5 + int.from_bytes(payload[4:5]) if payload.startswith(_SHORT_HEADER) else 0
    if payload.startswith(_ONLY_TOKEN, at):
        return payload[:at] + payload[at + len(_ONLY_TOKEN) + 16 :]
    if LOCK_TOKEN.encode() not in payload:
        return payload
    try:
        sections = Sections.split(payload)
        kept = splice.without(sections.delivery_annotations, is_one_of(frozenset((LOCK_TOKEN,))))
    except ProtocolError:
        return payload
    if kept == sections.delivery_annotations:
        return payload
    sections.delivery_annotations = kept
    return sections.join()


def annotations_of(sections: Sections, send: Send) -> bytes:
    """Return the message annotations without the service's own, and with the schedule."""
    removed = SERVICE_ANNOTATIONS if send.scheduled_at is None else SERVICE_ANNOTATIONS | {SCHEDULE}
    raw = splice.without(sections.message_annotations, is_one_of(removed))
    if send.scheduled_at is None:
        return raw
    return splice.with_pairs(raw, MESSAGE_ANNOTATIONS, {SCHEDULE: Timestamp(send.scheduled_at)})


def properties_of(sections: Sections, send: Send, now_ms: int) -> bytes:
    """Return the properties with the session restored, and an absolute expiry if one is needed."""
    fields: dict[int, str | Timestamp | None] = {}
    if send.session_id is not None:
        fields[_GROUP_ID] = send.session_id
    if send.ttl_ms is not None and _states_expiry(sections, send.ttl_ms):
        ends_ms, lives = min(now_ms + send.ttl_ms, LAST_EXPIRY_MS), send.ttl_ms != NO_TTL
        fields[_CREATION] = Timestamp(now_ms) if lives else None
        fields[_ABSOLUTE_EXPIRY] = Timestamp(ends_ms) if lives else None
    return splice.with_fields(sections.properties, PROPERTIES, fields) if fields else sections.properties


def _states_expiry(sections: Sections, ttl_ms: int) -> bool:
    """Return whether an absolute expiry is written: the TTL does not fit the header, or a stale expiry is present.

    The maximum alone stands for none.
    """
    return ttl_ms >= MAX_TTL_HEADER_MS or sections.read_properties().absolute_expiry_time is not None
