"""The view of a message for rules: its system and application properties by name, each read when it is needed. Pure.

Only the named elements are decoded. Names are compared in lower case, as the service does. Of two names that differ
only in case, the first one counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from sbpair.amqp import codec, splice
from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, Sections, section, skip
from sbpair.amqp.types import Value, text_of
from sbpair.errors import ProtocolError
from sbpair.rules.values import NUMBER, SPAN, TEXT, TIME, EvaluationFailed, Instant, TimeSpanValue, instant, rule_value
from sbpair.timespan import MAX_TICKS

FOREVER: Final = TimeSpanValue(MAX_TICKS)
_CACHED: Final = 1024
_SHORT_MAPS: Final = section(APPLICATION_PROPERTIES, b"\xc1"), section(MESSAGE_ANNOTATIONS, b"\xc1")
_SHORT_TEXT: Final = 0xA1


class MessageView:
    """A message for rules. A subclass knows what its namespace adds to the bytes; times are in ms since 1970."""

    __slots__ = ()

    @property
    def sections(self) -> Sections:
        raise NotImplementedError

    @property
    def sequence_number(self) -> int:
        raise NotImplementedError

    @property
    def enqueued_at(self) -> int:
        raise NotImplementedError

    @property
    def size(self) -> int:
        """Bytes of the encoded message."""
        raise NotImplementedError

    @property
    def delivery_count(self) -> int:
        raise NotImplementedError

    @property
    def time_to_live(self) -> TimeSpanValue | None:
        """None for a message that never expires."""
        raise NotImplementedError

    @property
    def scheduled_at(self) -> Instant | None:
        raise NotImplementedError

    @property
    def enqueued_sequence_number(self) -> Value:
        return self.annotation("x-opt-enqueue-sequence-number") or self.sequence_number

    @property
    def message_id(self) -> str | None:
        return self.text(0)

    @property
    def session_id(self) -> Value:
        return self.field(10)

    def user(self, name: str) -> Value:
        """Return an application property by its name in lower case; None without it."""
        return self.find_user(name)[1]

    def find_user(self, name: str) -> tuple[bool, Value]:
        """Return whether there is an application property of this name, in lower case, and its value."""
        return find_value(self.sections.application_properties, name)[:2]

    def annotation(self, name: str) -> Value:
        return find_value(self.sections.message_annotations, name)[1]

    def field(self, index: int) -> Value:
        """Return an element of the properties section."""
        return element(self.sections.properties, index)

    def text(self, index: int) -> str | None:
        return text_of(self.field(index))


@lru_cache(_CACHED)
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
                return True, rule_value(codec.decode(raw, value_at)[0]), value_at
            position = value_at + 2 + raw[value_at + 1] if raw[value_at] == _SHORT_TEXT else skip(raw, value_at)
    except (ProtocolError, IndexError) as error:
        raise EvaluationFailed(f"The properties of the message cannot be read: {error}") from None
    return False, None, 0


def _find_carefully(raw: bytes, name: str) -> tuple[bool, Value, int]:
    for key, _, value in splice.map_pairs(raw):
        if isinstance(key, str) and key.lower() == name:
            return True, rule_value(codec.decode_all(value)), 0
    return False, None, 0


@lru_cache(_CACHED)
def element(raw: bytes, index: int) -> Value:
    """Return an element of a section that is a list."""
    try:
        elements = splice.fields(raw) if raw else []
        return rule_value(codec.decode_all(elements[index])) if index < len(elements) else None
    except ProtocolError as error:
        raise EvaluationFailed(f"The properties of the message cannot be read: {error.message}") from None


class SystemProperty(NamedTuple):
    """A property that is not an application property. Its values have one `kind`, as `values` names them."""

    name: str
    kind: str
    read: Callable[..., Value]


def _expires_at(view: MessageView) -> Instant | None:
    ttl = view.time_to_live
    return None if ttl is None else Instant(instant(view.enqueued_at) + ttl)


_PROPERTIES: Final = (
    SystemProperty("ContentType", TEXT, lambda view: view.text(6)),
    SystemProperty("CorrelationId", TEXT, lambda view: view.text(5)),
    SystemProperty("DeadLetterSource", TEXT, lambda view: view.annotation("x-opt-deadletter-source")),
    SystemProperty("DeliveryCount", NUMBER, lambda view: view.delivery_count),
    SystemProperty("EnqueuedSequenceNumber", NUMBER, lambda view: view.enqueued_sequence_number),
    SystemProperty("EnqueuedTimeUtc", TIME, lambda view: instant(view.enqueued_at)),
    SystemProperty("ExpiresAtUtc", TIME, _expires_at),
    SystemProperty("ForcePersistence", "true or false", lambda _: False),
    SystemProperty("Label", TEXT, lambda view: view.field(3)),
    SystemProperty("MessageId", TEXT, lambda view: view.message_id),
    SystemProperty("PartitionKey", TEXT, lambda view: view.annotation("x-opt-partition-key")),
    SystemProperty("ReplyTo", TEXT, lambda view: view.text(4)),
    SystemProperty("ReplyToSessionId", TEXT, lambda view: view.field(12)),
    SystemProperty("ScheduledEnqueueTimeUtc", TIME, lambda view: view.scheduled_at),
    SystemProperty("SequenceNumber", NUMBER, lambda view: view.sequence_number),
    SystemProperty("SessionId", TEXT, lambda view: view.session_id),
    SystemProperty("Size", NUMBER, lambda view: view.size),
    SystemProperty("Subject", TEXT, lambda view: view.field(3)),
    SystemProperty("TimeToLive", SPAN, lambda view: view.time_to_live or FOREVER),
    SystemProperty("To", TEXT, lambda view: view.text(2)),
    SystemProperty("ViaPartitionKey", TEXT, lambda view: view.annotation("x-opt-via-partition-key")),
)
SYSTEM_PROPERTIES: Final[dict[str, SystemProperty]] = {each.name.lower(): each for each in _PROPERTIES}
"""By name in lower case."""
