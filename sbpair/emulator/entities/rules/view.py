"""The view of a message for rules, and the draft of a copy for actions: system and application properties by name.

Invariant: a section is decoded when a rule first needs it, once for all rules of all subscriptions, and is never
encoded as a whole. Names are compared in lower case, as the service's filters do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from sbpair.amqp.message import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, PROPERTIES, Sections
from sbpair.amqp.splice import with_fields, with_pairs, without
from sbpair.amqp.types import Symbol, UInt, Value, text_of
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.rules.values import (
    EvaluationFailed,
    Instant,
    TimeSpanValue,
    amqp_value,
    as_type_of,
    instant,
    rule_value,
)
from sbpair.emulator.timespan import MAX_TICKS, TICKS_PER_MS
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.message import Properties
    from sbpair.emulator.entities.stored_message import StoredMessage

MAX_SPAN: Final = TimeSpanValue(MAX_TICKS)
_TTL: Final = 2
_MAX_TTL: Final = 0xFFFFFFFF

T = TypeVar("T")


class MessageView:
    """One message as it was sent, decoded on demand."""

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        # Not by `cached_property`: its lock costs a tenth of what a filter costs.
        self._properties: Properties | None = None
        self._annotations: dict[str, Value] | None = None
        self._user: dict[str, tuple[Value, Value]] | None = None

    @property
    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = _read(self.message.sections.read_properties)
        return self._properties

    @property
    def annotations(self) -> dict[str, Value]:
        if self._annotations is None:
            pairs = _read(self.message.sections.read_message_annotations).pairs
            self._annotations = {str(key): value for key, value in pairs}
        return self._annotations

    @property
    def user(self) -> dict[str, tuple[Value, Value]]:
        """The application properties: name and value as sent, by name in lower case."""
        if self._user is None:
            pairs = _read(self.message.sections.read_application_properties).pairs
            # Of two names that differ only in case, the first one counts.
            self._user = {str(key).lower(): (key, value) for key, value in reversed(pairs)}
        return self._user

    def annotation(self, name: str) -> Value:
        return rule_value(self.annotations.get(name))

    def user_value(self, name: str) -> Value:
        return rule_value(self.raw(name))

    def raw(self, name: str) -> Value:
        """Return an application property as sent, or None. `name` may be in any case."""
        found = self.user.get(name.lower())
        return None if found is None else found[1]

    def has(self, name: str) -> bool:
        return name.lower() in self.user


def _read(reader: Callable[[], T]) -> T:
    try:
        return reader()
    except ProtocolError as error:
        raise EvaluationFailed(f"The properties of the message cannot be read: {error.message}") from error


# SystemProperty properties


class SystemProperty(NamedTuple):
    """A system property: how to read it, and where an action writes it, a field of Properties or another `place`."""

    name: str
    read: Callable[[MessageView], Value]
    field: int | None = None
    place: str = ""

    @property
    def is_settable(self) -> bool:
        return self.field is not None or bool(self.place)


def _text(value: Value) -> str | None:
    return None if value is None else str.__str__(text_of(value) or "")


def _time_to_live(view: MessageView) -> TimeSpanValue:
    ttl = view.message.ttl_ms
    return MAX_SPAN if ttl is None or ttl >= NEVER else TimeSpanValue(min(ttl * TICKS_PER_MS, MAX_SPAN))


def _expires_at(view: MessageView) -> Instant | None:
    ttl = view.message.ttl_ms
    return None if ttl is None else instant(view.message.enqueued_at_ms + ttl)


def _scheduled_at(view: MessageView) -> Instant | None:
    at_ms = view.message.scheduled_at_ms
    return None if at_ms is None else instant(at_ms)


_PROPERTIES: Final = (
    SystemProperty("ContentType", lambda view: _text(view.properties.content_type), 6),
    SystemProperty("CorrelationId", lambda view: _text(view.properties.correlation_id), 5),
    SystemProperty("DeadLetterSource", lambda _: None),
    SystemProperty("DeliveryCount", lambda view: view.message.delivery_count),
    SystemProperty(
        "EnqueuedSequenceNumber", lambda view: view.message.enqueued_sequence_number or view.message.sequence_number
    ),
    SystemProperty("EnqueuedTimeUtc", lambda view: instant(view.message.enqueued_at_ms)),
    SystemProperty("ExpiresAtUtc", _expires_at),
    SystemProperty("ForcePersistence", lambda _: False),
    SystemProperty("Label", lambda view: view.properties.subject, 3),
    SystemProperty("MessageId", lambda view: _text(view.properties.message_id), 0),
    SystemProperty("PartitionKey", lambda view: view.annotation("x-opt-partition-key"), None, "x-opt-partition-key"),
    SystemProperty("ReplyTo", lambda view: _text(view.properties.reply_to), 4),
    SystemProperty("ReplyToSessionId", lambda view: view.properties.reply_to_group_id, 12),
    SystemProperty("ScheduledEnqueueTimeUtc", _scheduled_at, None, "nowhere"),
    SystemProperty("SequenceNumber", lambda view: view.message.sequence_number),
    SystemProperty("SessionId", lambda view: view.properties.group_id, 10),
    SystemProperty("Size", lambda view: view.message.size),
    SystemProperty("Subject", lambda view: view.properties.subject, 3),
    SystemProperty("TimeToLive", _time_to_live, None, "ttl"),
    SystemProperty("To", lambda view: _text(view.properties.to), 2),
    SystemProperty("ViaPartitionKey", lambda view: view.annotation("x-opt-via-partition-key")),
)

SYSTEM_PROPERTIES: Final[dict[str, SystemProperty]] = {each.name.lower(): each for each in _PROPERTIES}
"""By name in lower case. An action may set ScheduledEnqueueTimeUtc, but a subscription ignores it."""


# Changes by an action


class Draft(MessageView):
    """A copy of a message for an action to change. The sender's bytes stay, except what is set or removed."""

    def __init__(self, view: MessageView) -> None:
        super().__init__(view.message.for_subscription())
        self.message.enqueued_at_ms = view.message.enqueued_at_ms
        self.message.sequence_number = view.message.sequence_number
        self._user = dict(view.user)
        self._changed: dict[str, Value] = {}
        """Names, as sent, of the application properties that were set or removed."""
        self._key_changed = False

    def set_user(self, name: str, value: Value) -> None:
        """Set an application property, in the type of its earlier value if the new one fits."""
        key, existing = self.user.get(name.lower(), (name, None))
        self._changed[key] = None
        self.user[name.lower()] = (key, as_type_of(existing, amqp_value(value)))

    def remove_user(self, name: str) -> None:
        found = self.user.pop(name.lower(), None)
        if found is not None:
            self._changed[found[0]] = None

    def set_system(self, name: str, value: Value) -> None:
        """Set a system property. Raises EvaluationFailed for a value of the wrong type."""
        system = SYSTEM_PROPERTIES[name]
        self._key_changed |= system.name in ("SessionId", "PartitionKey")
        sections = self.message.sections = replace(self.message.sections)
        if system.field is not None:
            self._set_field(sections, system, value)
        elif system.place == "ttl":
            self._set_time_to_live(sections, value)
        elif system.place.startswith("x-opt"):
            self._set_annotation(sections, system, value)

    def _set_field(self, sections: Sections, system: SystemProperty, value: Value) -> None:
        text = _checked_text(system.name, value)
        written: Value = Symbol(text) if system.name == "ContentType" and text is not None else text
        try:
            sections.properties = with_fields(sections.properties, PROPERTIES, {system.field or 0: written})
        except UnicodeEncodeError as error:
            raise EvaluationFailed(f"The value of {system.name} is not ASCII.") from error
        self._properties = None
        if system.name == "SessionId":
            self.message.session_id = text

    def _set_time_to_live(self, sections: Sections, value: Value) -> None:
        if not isinstance(value, TimeSpanValue) or value <= 0:
            raise EvaluationFailed("TimeToLive can only be set to a duration of more than zero.")
        ttl = max(1, value // TICKS_PER_MS)
        self.message.ttl_ms = ttl
        sections.header = with_fields(sections.header, HEADER, {_TTL: UInt(min(ttl, _MAX_TTL))})

    def _set_annotation(self, sections: Sections, system: SystemProperty, value: Value) -> None:
        text = _checked_text(system.name, value)
        kept = without(sections.message_annotations, lambda key: key == system.place)
        pairs = {} if text is None else {Symbol(system.place): text}
        sections.message_annotations = with_pairs(kept, MESSAGE_ANNOTATIONS, pairs)
        self._annotations = None
        self.message.partition_key = text

    def finish(self) -> StoredMessage:
        """Return the changed copy with its new size. Raises EvaluationFailed if its keys contradict each other."""
        message = self.message
        if self._key_changed and message.session_id and message.partition_key not in (None, message.session_id):
            raise EvaluationFailed("The PartitionKey of a message must be its SessionId where both are set.")
        if self._changed:
            sections = message.sections = replace(message.sections)
            kept = without(sections.application_properties, lambda key: key in self._changed)
            pairs = {key: value for key, value in self.user.values() if key in self._changed}
            sections.application_properties = with_pairs(kept, APPLICATION_PROPERTIES, pairs)
        message.size = len(message.sections)
        return message


def _checked_text(name: str, value: Value) -> str | None:
    if value is not None and not isinstance(value, str):
        raise EvaluationFailed(f"The property {name} can only be set to text.")
    return None if value is None else str.__str__(value)
