"""The rules of a subscription: filters that select messages, and actions that change copies of them. Pure.

All matching rules without an action make one copy together. Every matching rule with an action makes a copy of its
own, with the rule's name as property RuleName. Only the parts that an action changes are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final, NamedTuple

from sbpair.emulator.entities.rules import evaluate
from sbpair.emulator.entities.rules.typed import TypedValue
from sbpair.emulator.entities.rules.values import EvaluationFailed, Truth, equal
from sbpair.emulator.entities.rules.view import SYSTEM_PROPERTIES, Draft, MessageView
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from sbpair.emulator.entities.rules.evaluate import Parameters, Predicate, Step
    from sbpair.emulator.entities.stored_message import StoredMessage

DEFAULT_RULE: Final = "$Default"
MAX_RULE_NAME: Final = 50
RULE_NAME: Final = "RuleName"
_FORBIDDEN: Final = frozenset("/\\@?#*")

NamedValues = tuple[tuple[str, TypedValue], ...]
"""Parameters of an expression, or properties of a correlation filter, in the order of the request."""


@dataclass(frozen=True, slots=True)
class TrueRuleFilter:
    """A filter that selects every message."""

    expression = "1=1"

    def matches(self, view: MessageView) -> Truth:  # noqa: ARG002  # one signature for all filters
        return True


@dataclass(frozen=True, slots=True)
class FalseRuleFilter:
    """A filter that selects no message."""

    expression = "1=0"

    def matches(self, view: MessageView) -> Truth:  # noqa: ARG002  # one signature for all filters
        return False


@dataclass(frozen=True, slots=True)
class SqlRuleFilter:
    """A filter that selects messages for which its expression is true. Raises SqlInvalid."""

    expression: str
    parameters: NamedValues = ()
    matches: Predicate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "matches", evaluate.compile_filter(self.expression, _values(self.parameters)))


@dataclass(frozen=True, slots=True)
class CorrelationRuleFilter:
    """A filter that selects messages with all of these values. A field that is None is not compared."""

    correlation_id: str | None = None
    message_id: str | None = None
    to: str | None = None
    reply_to: str | None = None
    label: str | None = None
    session_id: str | None = None
    reply_to_session_id: str | None = None
    content_type: str | None = None
    properties: NamedValues = ()

    def __post_init__(self) -> None:
        if not self.properties and all(getattr(self, name) is None for name in CORRELATION_FIELDS):
            raise ArgumentInvalid("A correlation filter needs at least one property to compare with.")

    def matches(self, view: MessageView) -> Truth:
        for name, system in CORRELATION_FIELDS.items():
            wanted = getattr(self, name)
            if wanted is not None and SYSTEM_PROPERTIES[system.lower()].read(view) != wanted:
                return False
        return all(equal(view.user_value(name), wanted.value) for name, wanted in self.properties)


CORRELATION_FIELDS: Final = {
    each.name: each.name.title().replace("_", "") for each in fields(CorrelationRuleFilter) if each.name != "properties"
}
"""System property by field of a correlation filter, in the service's order."""

Filter = TrueRuleFilter | FalseRuleFilter | SqlRuleFilter | CorrelationRuleFilter


@dataclass(frozen=True, slots=True)
class SqlAction:
    """An action that changes a message. Raises SqlInvalid."""

    expression: str
    parameters: NamedValues = ()
    steps: tuple[Step, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", evaluate.compile_action(self.expression, _values(self.parameters)))


@dataclass(frozen=True, slots=True)
class SubscriptionRule:
    """A named filter with an optional action. Raises ArgumentInvalid for an invalid name."""

    name: str = DEFAULT_RULE
    filter: Filter = TrueRuleFilter()
    action: SqlAction | None = None
    created_at_ms: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= MAX_RULE_NAME:
            raise ArgumentInvalid(f"The name of a rule has 1 to {MAX_RULE_NAME} characters, not {len(self.name)}.")
        if not self.name.isprintable() or not self.name.strip() or _FORBIDDEN & set(self.name):
            raise ArgumentInvalid(f"'{self.name}' contains characters that are not allowed in the name of a rule.")


def _values(named: NamedValues) -> Parameters:
    return {name.removeprefix("@").lower(): typed.value for name, typed in named}


# Copies of a message


class RuleFailure(NamedTuple):
    """The error of a rule that could not be evaluated: a dead letter's reason and text."""

    reason: str
    description: str


class RuleMatches(NamedTuple):
    """The copies for one subscription, and the first failure. Rules that matched have their copies in any case."""

    copies: list[StoredMessage]
    failure: RuleFailure | None


def select_copies(rules: Iterable[SubscriptionRule], view: MessageView) -> RuleMatches:
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
            failure = failure or RuleFailure(error.reason, error.message)
    return RuleMatches([view.message.for_subscription(), *changed] if plain else changed, failure)


def _changed_copy(rule: SubscriptionRule, action: SqlAction, view: MessageView) -> StoredMessage:
    draft = Draft(view)
    try:
        for step in action.steps:
            step(draft)
        draft.set_user(RULE_NAME, rule.name)
        return draft.finish()
    except EvaluationFailed as error:
        error.reason = "RuleActionException"
        raise


def selects_all(rules: Sequence[SubscriptionRule]) -> bool:
    """Return whether every message makes one plain copy, so that none needs to be decoded."""
    return any(type(rule.filter) is TrueRuleFilter and rule.action is None for rule in rules) and all(
        rule.action is None and not isinstance(rule.filter, SqlRuleFilter) for rule in rules
    )
