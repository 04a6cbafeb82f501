"""The properties of a message that a filter can name, each read from the message's bytes when it is needed. Pure.

Only the named elements are decoded. Names are compared without regard to case, as the service does. The aliases of a
stranded message count as the properties that they stand for: session, time to live and schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from sbpair.amqp import codec, splice
from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, section, skip
from sbpair.amqp.types import Value, text_of
from sbpair.backlog import TICKS_PER_MS
from sbpair.errors import ProtocolError
from sbpair.model.durations import TIMESPAN_MAX, ticks
from sbpair.move.filter.filter_values import NUMBER, Incalculable, Moment, Span, moment, value_of
from sbpair.move.message import dead_letters, envelope
from sbpair.move.message.route import MAX_TTL_HEADER_MS

if TYPE_CHECKING:
    from sbpair.amqp.message import Sections
    from sbpair.move.message.decode import Content
    from sbpair.move.message.route import Facts

FOREVER: Final = Span(ticks(TIMESPAN_MAX))
_STATES: Final = {envelope.ACTIVE: "active", envelope.DEFERRED: "deferred", envelope.SCHEDULED: "scheduled"}


class FilteredMessage:
    """A message for a filter. `content` is None for bytes that are not a message. `now_ms` is the service's time."""

    __slots__ = ("_sections", "content", "facts", "now_ms")

    def __init__(self, facts: Facts, content: Content | None, now_ms: int) -> None:
        self.facts = facts
        self.content = content
        self.now_ms = now_ms
        self._sections: Sections | None = None

    @property
    def sections(self) -> Sections:
        if self._sections is None:
            if self.content is None:
                raise Incalculable(f"it is not a message: {self.facts.flaw}")
            self._sections = self.content.split()
        return self._sections

    @property
    def sequence_number(self) -> int:
        return self.facts.sequence_number

    @property
    def enqueued_at(self) -> int:
        """When the message was enqueued, in ms since 1970."""
        return self.facts.enqueued_at

    @property
    def size(self) -> int:
        return self.facts.size

    def user(self, name: str) -> Value:
        """Return an application property by its name in lower case; None without it."""
        return self.find_user(name)[1]

    def find_user(self, name: str) -> tuple[bool, Value]:
        """Return whether there is an application property of this name, in lower case, and its value."""
        if self.content is None:
            return False, None
        return find_value(self.content.application_properties, name)[:2]

    def annotation(self, name: str) -> Value:
        return find_value(self.sections.message_annotations, name)[1]

    def field(self, index: int) -> Value:
        """Return an element of the properties section."""
        return _element(self.sections.properties, index)

    def text(self, index: int) -> str | None:
        return text_of(self.field(index))


@lru_cache(4096)
def find_value(raw: bytes, name: str) -> tuple[bool, Value, int]:
    """Return whether a map has a key, in lower case, the value of the first such key, and the position of that.

    The position is 0 if the map has another form than usual.
    """
    try:
        if not name.isascii() or not raw.startswith(_SHORT_MAPS):
            return _find_carefully(raw, name)
        wanted = name.encode()
        if wanted not in raw.lower():
            return False, None, 0
        # The usual form: short text as keys.
        position, size, length = 6, len(raw), len(wanted)
        while position < size:
            if raw[position] != _SHORT_TEXT:
                return _find_carefully(raw, name)
            value_at = position + 2 + raw[position + 1]
            if raw[position + 1] == length and raw[position + 2 : value_at].lower() == wanted:
                return True, value_of(codec.decode(raw, value_at)[0]), value_at
            position = value_at + 2 + raw[value_at + 1] if raw[value_at] == _SHORT_TEXT else skip(raw, value_at)
    except (ProtocolError, IndexError) as error:
        raise Incalculable(f"its properties cannot be read: {error}") from None
    return False, None, 0


def _find_carefully(raw: bytes, name: str) -> tuple[bool, Value, int]:
    for key, _, value in splice.map_pairs(raw):
        if isinstance(key, str) and key.lower() == name:
            return True, value_of(codec.decode_all(value)), 0
    return False, None, 0


_SHORT_MAPS: Final = section(APPLICATION_PROPERTIES, b"\xc1"), section(MESSAGE_ANNOTATIONS, b"\xc1")
_SHORT_TEXT: Final = 0xA1


@lru_cache(4096)
def _element(raw: bytes, index: int) -> Value:
    try:
        elements = splice.fields(raw) if raw else []
        return value_of(codec.decode_all(elements[index])) if index < len(elements) else None
    except ProtocolError as error:
        raise Incalculable(f"its properties cannot be read: {error.message}") from None


class MessageField(NamedTuple):
    """A property that is not an application property. Its values have one `kind`, as `filter_values` names them."""

    name: str
    kind: str
    read: Callable[[FilteredMessage], Value]


def _ttl(message: FilteredMessage) -> Span | None:
    """Return the time to live; None for a message that never expires."""
    if message.facts.ttl_ticks is not None:
        return Span(message.facts.ttl_ticks)
    ttl = _element(message.sections.header, 2)
    return None if ttl is None or ttl == MAX_TTL_HEADER_MS else Span(ttl * TICKS_PER_MS)


def _expires_at(message: FilteredMessage) -> Moment | None:
    ttl = _ttl(message)
    return None if ttl is None else Moment(_enqueued(message) + ttl)


def _enqueued(message: FilteredMessage) -> Moment:
    return moment(message.enqueued_at)


def _age(message: FilteredMessage) -> Span | None:
    enqueued_at = message.enqueued_at
    return Span(max(0, message.now_ms - enqueued_at) * TICKS_PER_MS) if enqueued_at > 0 else None


def _scheduled(message: FilteredMessage) -> Moment | None:
    at = message.facts.scheduled_at
    return message.annotation("x-opt-scheduled-enqueue-time") if at is None else moment(at)


def _field(name: str, kind: str, read: Callable[[FilteredMessage], Value]) -> tuple[str, MessageField]:
    return name.lower(), MessageField(name, kind, read)


_LABEL: Final = 3
SYSTEM: Final = dict(
    (
        _field("sys.ContentType", "text", lambda message: message.text(6)),
        _field("sys.CorrelationId", "text", lambda message: message.text(5)),
        _field("sys.DeadLetterSource", "text", lambda message: message.annotation("x-opt-deadletter-source")),
        _field("sys.DeliveryCount", NUMBER, lambda message: _element(message.sections.header, 4) or 0),
        _field(
            "sys.EnqueuedSequenceNumber",
            NUMBER,
            lambda message: message.annotation("x-opt-enqueue-sequence-number") or message.sequence_number,
        ),
        _field("sys.EnqueuedTimeUtc", "a time", _enqueued),
        _field("sys.ExpiresAtUtc", "a time", _expires_at),
        _field("sys.ForcePersistence", "true or false", lambda _: False),
        _field("sys.Label", "text", lambda message: message.field(_LABEL)),
        _field("sys.MessageId", "text", lambda message: message.facts.message_id),
        _field("sys.PartitionKey", "text", lambda message: message.annotation(envelope.PARTITION_KEY)),
        _field("sys.ReplyTo", "text", lambda message: message.text(4)),
        _field("sys.ReplyToSessionId", "text", lambda message: message.field(12)),
        _field("sys.ScheduledEnqueueTimeUtc", "a time", _scheduled),
        _field("sys.SequenceNumber", NUMBER, lambda message: message.sequence_number),
        _field("sys.SessionId", "text", lambda message: message.facts.session_id or message.field(10)),
        _field("sys.Size", NUMBER, lambda message: message.size),
        _field("sys.State", "text", lambda message: _STATES.get(envelope.message_state(message.sections), "active")),
        _field("sys.Subject", "text", lambda message: message.field(_LABEL)),
        _field("sys.TimeToLive", "a duration", lambda message: _ttl(message) or FOREVER),
        _field("sys.To", "text", lambda message: message.text(2)),
        _field("sys.ViaPartitionKey", "text", lambda message: message.annotation("x-opt-via-partition-key")),
    )
)
"""By name in lower case."""

OWN: Final = dict(
    (
        _field("age", "a duration", _age),
        _field("enqueued", "a time", _enqueued),
        _field("path", "text", lambda message: message.facts.path or None),
        _field("reason", "text", lambda message: message.user(dead_letters.REASON.lower())),
        _field("size", NUMBER, lambda message: message.size),
    )
)
"""Names of sbpair's own, without a scope. Of a user property with such a name, the scope is `user`."""
