"""The rules of a subscription: filters that select messages, and actions that change copies of them. Pure.

All matching rules without an action make one copy together. Every matching rule with an action makes a copy of its
own, with the rule's name as property RuleName. Only the parts that an action changes are copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from sbpair.amqp.message import APPLICATION_PROPERTIES, MESSAGE_ANNOTATIONS, PROPERTIES, Sections
from sbpair.amqp.splice import with_fields, with_pairs, without
from sbpair.amqp.types import Symbol, Value
from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.service_envelope import set_time_to_live
from sbpair.errors import ProtocolError
from sbpair.rules.actions import SETTABLE, ActionCompiler, Statement
from sbpair.rules.filters import Filter, NamedValues, SqlRuleFilter, TrueRuleFilter, compile_rule
from sbpair.rules.values import (
    EvaluationFailed,
    Instant,
    TimeSpanValue,
    amqp_value,
    as_type_of,
    instant,
    rule_value,
)
from sbpair.rules.view import FOREVER, SYSTEM_PROPERTIES, MessageView
from sbpair.timespan import TICKS_PER_MS

if TYPE_CHECKING:
    from sbpair.emulator.entities.stored_message import StoredMessage

DEFAULT_RULE: Final = "$Default"
MAX_RULE_NAME: Final = 50
RULE_NAME: Final = "RuleName"
_FORBIDDEN: Final = frozenset("/\\@?#*")


@dataclass(frozen=True, slots=True)
class SqlAction:
    """An action that changes a message. Raises RuleInvalid."""

    expression: str
    parameters: NamedValues = ()
    steps: tuple[Step, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        statements = compile_rule(ActionCompiler, "action", self.expression, self.parameters)
        object.__setattr__(self, "steps", tuple(map(_step, statements)))


@dataclass(frozen=True, slots=True)
class SubscriptionRule:
    """A named filter with an optional action. Raises ArgumentInvalid for an invalid name."""

    name: str = DEFAULT_RULE
    filter: Filter = field(default_factory=TrueRuleFilter)
    action: SqlAction | None = None
    created_at_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_RULE_NAME:
            raise ArgumentInvalid(f"The name of a rule has 1 to {MAX_RULE_NAME} characters, not {len(self.name)}.")
        if not self.name.isprintable() or not self.name.strip() or _FORBIDDEN & set(self.name):
            raise ArgumentInvalid(f"'{self.name}' contains characters that are not allowed in the name of a rule.")


# A message for rules


class StoredView(MessageView):
    """One message as it was sent. Its application properties are decoded once, for all rules of all subscriptions."""

    __slots__ = ("_user", "message")

    def __init__(self, message: StoredMessage) -> None:
        self.message = message
        self._user: dict[str, tuple[Value, Value]] | None = None

    @property
    def named(self) -> dict[str, tuple[Value, Value]]:
        """The application properties: name and value as sent, by name in lower case."""
        if self._user is None:
            try:
                pairs = self.sections.read_application_properties().pairs
            except ProtocolError as error:
                raise EvaluationFailed(f"The properties of the message cannot be read: {error.message}") from error
            self._user = {str(key).lower(): (key, value) for key, value in reversed(pairs)}
        return self._user

    def raw(self, name: str) -> Value:
        """Return an application property as sent, by its name in lower case, or None."""
        found = self.named.get(name)
        return None if found is None else found[1]

    def user(self, name: str) -> Value:
        return rule_value(self.raw(name))

    def find_user(self, name: str) -> tuple[bool, Value]:
        return name in self.named, self.user(name)

    @property
    def sections(self) -> Sections:
        return self.message.sections

    @property
    def sequence_number(self) -> int:
        return self.message.sequence_number

    @property
    def enqueued_sequence_number(self) -> int:
        return self.message.enqueued_sequence_number or self.message.sequence_number

    @property
    def enqueued_at(self) -> int:
        return self.message.enqueued_at_ms

    @property
    def size(self) -> int:
        return self.message.size

    @property
    def delivery_count(self) -> int:
        return self.message.delivery_count

    @property
    def time_to_live(self) -> TimeSpanValue | None:
        ttl = self.message.ttl_ms
        return None if ttl is None or ttl >= NEVER else TimeSpanValue(min(ttl * TICKS_PER_MS, FOREVER))

    @property
    def scheduled_at(self) -> Instant | None:
        at_ms = self.message.scheduled_at_ms
        return None if at_ms is None else instant(at_ms)


# Copies of a message


class ActionFailed(EvaluationFailed):
    """An action could not be calculated for a message."""


class RuleFailure(NamedTuple):
    """The error of a rule that could not be evaluated: a dead letter's reason and text."""

    reason: str
    description: str


class RuleMatches(NamedTuple):
    """The copies for one subscription, and the first failure. Rules that matched have their copies in any case."""

    copies: list[StoredMessage]
    failure: RuleFailure | None


def select_copies(rules: Iterable[SubscriptionRule], view: StoredView) -> RuleMatches:
    """Return the copies of a message for one subscription."""
    failure: RuleFailure | None = None
    plain = False
    changed: list[StoredMessage] = []
    for rule in rules:
        if plain and rule.action is None:
            continue
        try:
            if rule.filter.matches(view) is not True:
                continue
            if rule.action is None:
                plain = True
            else:
                changed.append(_changed_copy(rule, rule.action, view))
        except EvaluationFailed as error:
            reason = "RuleActionException" if isinstance(error, ActionFailed) else "FilterException"
            failure = failure or RuleFailure(reason, error.message)
    return RuleMatches([view.message.for_subscription(), *changed] if plain else changed, failure)


def _changed_copy(rule: SubscriptionRule, action: SqlAction, view: StoredView) -> StoredMessage:
    draft = Draft(view)
    try:
        for step in action.steps:
            step(draft)
        draft.set_user(RULE_NAME, rule.name)
        return draft.finish()
    except EvaluationFailed as error:
        raise ActionFailed(error.message) from error


def selects_all(rules: Sequence[SubscriptionRule]) -> bool:
    """Return whether every message makes one plain copy, so that none needs to be decoded."""
    return any(type(rule.filter) is TrueRuleFilter and rule.action is None for rule in rules) and all(
        rule.action is None and not isinstance(rule.filter, SqlRuleFilter) for rule in rules
    )


# Actions


def _step(statement: Statement) -> Step:
    name, system, value = statement
    if system is not None:
        read = value.run if value else lambda _draft: None
        return lambda draft: draft.set_system(system, read(draft))
    if value is None:
        return lambda draft: draft.remove_user(name)
    if value.user is not None:
        # A property that is only copied keeps the sender's value and type.
        source = value.user
        return lambda draft: draft.set_user(name, draft.raw(source))
    return lambda draft: draft.set_user(name, value.run(draft))


class Draft(StoredView):
    """A copy of a message for an action to change. The sender's bytes stay, except what is set or removed."""

    def __init__(self, view: StoredView) -> None:
        super().__init__(view.message.for_subscription())
        self.message.enqueued_at_ms = view.message.enqueued_at_ms
        self.message.sequence_number = view.message.sequence_number
        self._user = dict(view.named)
        self._changed: dict[str, Value] = {}
        """Names, as sent, of the application properties that were set or removed."""
        self._key_changed = False

    def set_user(self, name: str, value: Value) -> None:
        """Set an application property, in the type of its earlier value if the new one fits."""
        key, existing = self.named.get(name.lower(), (name, None))
        self._changed[key] = None
        self.named[name.lower()] = (key, as_type_of(existing, amqp_value(value)))

    def remove_user(self, name: str) -> None:
        found = self.named.pop(name.lower(), None)
        if found is not None:
            self._changed[found[0]] = None

    def set_system(self, name: str, value: Value) -> None:
        """Set a system property. Raises EvaluationFailed for a value of the wrong type."""
        place, shown = SETTABLE[name], SYSTEM_PROPERTIES[name].name
        self._key_changed |= name in ("sessionid", "partitionkey")
        sections = self.message.sections = replace(self.message.sections)
        if isinstance(place, int):
            self._set_field(sections, place, shown, value)
        elif name == "timetolive":
            self._set_time_to_live(sections, value)
        elif name == "partitionkey":
            self._set_partition_key(sections, place, _checked_text(shown, value))

    def _set_field(self, sections: Sections, index: int, name: str, value: Value) -> None:
        text = _checked_text(name, value)
        written: Value = Symbol(text) if name == "ContentType" and text is not None else text
        try:
            sections.properties = with_fields(sections.properties, PROPERTIES, {index: written})
        except UnicodeEncodeError as error:
            raise EvaluationFailed(f"The value of {name} is not ASCII.") from error
        if name == "SessionId":
            self.message.session_id = text

    def _set_time_to_live(self, sections: Sections, value: Value) -> None:
        if not isinstance(value, TimeSpanValue) or value <= 0:
            raise EvaluationFailed("TimeToLive can only be set to a duration of more than zero.")
        ttl = max(1, value // TICKS_PER_MS)
        self.message.ttl_ms = ttl
        set_time_to_live(sections, ttl, self.message.enqueued_at_ms)

    def _set_partition_key(self, sections: Sections, place: str, text: str | None) -> None:
        kept = without(sections.message_annotations, lambda key: key == place)
        pairs = {} if text is None else {Symbol(place): text}
        sections.message_annotations = with_pairs(kept, MESSAGE_ANNOTATIONS, pairs)
        self.message.partition_key = text

    def finish(self) -> StoredMessage:
        """Return the changed copy with its new size. Raises EvaluationFailed if its keys contradict each other."""
        message = self.message
        if self._key_changed and message.session_id and message.partition_key not in (None, message.session_id):
            raise EvaluationFailed("The PartitionKey of a message must be its SessionId where both are set.")
        if self._changed:
            sections = message.sections = replace(message.sections)
            kept = without(sections.application_properties, lambda key: key in self._changed)
            pairs = {key: value for key, value in self.named.values() if key in self._changed}
            sections.application_properties = with_pairs(kept, APPLICATION_PROPERTIES, pairs)
        message.size = len(message.sections)
        return message


def _checked_text(name: str, value: Value) -> str | None:
    if value is not None and not isinstance(value, str):
        raise EvaluationFailed(f"The property {name} can only be set to text.")
    return None if value is None else str.__str__(value)


Step = Callable[[Draft], None]
