"""The filters of rules, and those of all subscriptions of a topic: which messages they select. Pure.

A topic discards a message that no subscription selects, and reports no error.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

from sbpair.rules.compiler import Compiler, Dialect, Parameters, Predicate, SqlMistake
from sbpair.rules.operators import equal
from sbpair.rules.values import EvaluationFailed, RuleInvalid, Truth, TypedValue
from sbpair.rules.view import SYSTEM_PROPERTIES, MessageView

MAX_LENGTH: Final = 1024

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
    """A filter that selects messages for which its expression is true. Raises RuleInvalid."""

    expression: str
    parameters: NamedValues = ()
    matches: Predicate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        compiled = compile_rule(Compiler, "filter", self.expression, self.parameters)
        object.__setattr__(self, "matches", compiled.run)


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
        """Raise RuleInvalid for a filter that compares nothing."""
        if not self.properties and all(getattr(self, name) is None for name in CORRELATION_FIELDS):
            raise RuleInvalid("A correlation filter needs at least one property to compare with.")

    def matches(self, view: MessageView) -> Truth:
        for name, system in CORRELATION_FIELDS.items():
            wanted = getattr(self, name)
            if wanted is not None and SYSTEM_PROPERTIES[system.lower()].read(view) != wanted:
                return False
        return all(equal(view.user(name.lower()), wanted.value) for name, wanted in self.properties)


CORRELATION_FIELDS: Final = {
    each.name: each.name.title().replace("_", "") for each in fields(CorrelationRuleFilter) if each.name != "properties"
}
"""System property by field of a correlation filter, in the service's order."""

Filter = TrueRuleFilter | FalseRuleFilter | SqlRuleFilter | CorrelationRuleFilter


def compile_rule(compiler: type[Compiler], start: str, text: str, parameters: NamedValues) -> Any:
    """Compile a "filter" or an "action" of a rule. Raises RuleInvalid with the service's text."""
    if len(text) > MAX_LENGTH:
        raise _invalid(text, SqlMistake(f"the expression is {len(text)} characters long, of {MAX_LENGTH} at most", 0))
    named: Parameters = {name.removeprefix("@").lower(): typed.value for name, typed in parameters}
    try:
        return compiler(Dialect(named)).compile(start, text)
    except SqlMistake as mistake:
        raise _invalid(text, mistake) from mistake


def _invalid(text: str, mistake: SqlMistake) -> RuleInvalid:
    before = text[: mistake.at]
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n") - 1
    return RuleInvalid(
        f"There was an error parsing the SQL expression. [Token line={line}, column={column}, "
        f"Token in error={mistake.token[:100]}, Additional details= {mistake.mistake}]",
        line=line,
        column=column,
    )


# A topic


class Unknowable(Exception):
    """A filter needs what only the namespace of the topic decides, such as the sequence number."""


@dataclass(frozen=True, slots=True)
class SubscriptionFilters:
    """The filters of a subscription; None stands for one that cannot be evaluated here.

    `keeps_failures` is whether a message is dead-lettered in it for which a filter fails.
    """

    name: str
    filters: tuple[Filter | None, ...]
    keeps_failures: bool = True


@dataclass(frozen=True, slots=True)
class TopicFilters:
    """The filters of a topic's subscriptions. The rules of `unread` further ones are not known."""

    subscriptions: tuple[SubscriptionFilters, ...]
    unread: int = 0

    @property
    def count(self) -> int:
        """How many filters evaluate each message; each unread subscription is assumed to have one."""
        return sum(len(each.filters) for each in self.subscriptions) + self.unread

    @property
    def take_all(self) -> bool:
        return any(isinstance(one, TrueRuleFilter) for each in self.subscriptions for one in each.filters)

    def take(self, view: MessageView) -> Truth:
        """Return whether a subscription takes a message; None if that is not known."""
        answer: Truth = None if self.unread else False
        for each in self.subscriptions:
            for one in each.filters:
                try:
                    if one is None:
                        answer = None
                    elif one.matches(view) is True:
                        return True
                except Unknowable:
                    answer = None
                except EvaluationFailed:
                    if each.keeps_failures:
                        return True
        return answer
