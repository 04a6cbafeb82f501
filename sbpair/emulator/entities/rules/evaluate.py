"""Compiler of SQL to functions of a message's view: three-valued conditions, values and action steps. Pure.

A text is compiled from its leaves to its root. Its depth is bounded, so it can be evaluated by recursion. The
semantics are the service's: an unknown property is unknown, and a value that cannot be calculated raises
EvaluationFailed. AND and OR stop at the operand that decides.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sbpair.amqp.types import Long, Value
from sbpair.emulator.entities.rules import syntax, values
from sbpair.emulator.entities.rules.syntax import SqlInvalid, invalid_at
from sbpair.emulator.entities.rules.values import EvaluationFailed, Truth, type_name
from sbpair.emulator.entities.rules.view import SYSTEM_PROPERTIES, Draft, MessageView

if TYPE_CHECKING:
    from lark import Token

Predicate: TypeAlias = Callable[[MessageView], Truth]
Step: TypeAlias = Callable[[Draft], None]
Parameters: TypeAlias = Mapping[str, Value]
"""Values by name in lower case, without the @."""

MAX_DEPTH: Final = 64
MAX_STATEMENTS: Final = 32
_CACHED_PATTERNS: Final = 256


def compile_filter(text: str, parameters: Parameters) -> Predicate:
    """Compile a filter to a predicate. Raises SqlInvalid."""
    predicate: Predicate = _compile("filter", text, parameters)
    return predicate


def compile_action(text: str, parameters: Parameters) -> tuple[Step, ...]:
    """Compile an action to its steps, in order. Raises SqlInvalid."""
    steps: tuple[Step, ...] = _compile("action", text, parameters)
    if len(steps) > MAX_STATEMENTS:
        raise SqlInvalid(f"an action has at most {MAX_STATEMENTS} statements")
    return steps


def _compile(start: str, text: str, parameters: Parameters) -> Any:
    builder, compiled = _Builder(parameters), None
    parts: dict[int, Any] = {}
    depths: dict[int, int] = {}
    for tree in syntax.parse(start, text).iter_subtrees():
        nests = tree.data in ("nested", "function")
        depths[id(tree)] = max([depths[id(each)] + nests for each in tree.children if id(each) in depths], default=0)
        if depths[id(tree)] > MAX_DEPTH:
            raise SqlInvalid(f"the expression nests deeper than {MAX_DEPTH}", token="(")  # noqa: S106  # a parenthesis
        compiled = getattr(builder, tree.data)([parts.get(id(each), each) for each in tree.children])
        parts[id(tree)] = compiled
    return compiled


@dataclass(frozen=True)
class Node:
    """A compiled part of a text. `run` evaluates it for a view."""

    run: Callable[[MessageView], Value]


class Expression(Node):
    """A node with a value."""


class Condition(Node):
    """A node that is true, false or unknown."""


@dataclass(frozen=True)
class Property(Expression):
    """A property. `name` is as written; for a system property it is known, in lower case."""

    name: str
    is_system: bool = False


class _Builder:
    """Compiles each grammar rule from its parts. Methods have the names of the rules."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def filter(self, parts: list[Any]) -> Predicate:
        return _condition(parts[0], None).run

    def action(self, parts: list[Any]) -> tuple[Step, ...]:
        return tuple(parts)

    def set(self, parts: list[Any]) -> Step:
        keyword, target, equals, value = parts
        name, run = _settable(target, keyword).name, _expression(value, equals).run
        if target.is_system:
            return lambda draft: draft.set_system(name, run(draft))
        if isinstance(value, Property) and not value.is_system:
            # A property that is only copied keeps the sender's value and type.
            source = value.name
            return lambda draft: draft.set_user(name, draft.raw(source))
        return lambda draft: draft.set_user(name, run(draft))

    def remove(self, parts: list[Any]) -> Step:
        keyword, target = parts
        name = _settable(target, keyword).name
        if target.is_system:
            return lambda draft: draft.set_system(name, None)
        return lambda draft: draft.remove_user(name)

    # Conditions

    def disjunction(self, parts: list[Any]) -> Condition:
        return _until(True, parts)

    def conjunction(self, parts: list[Any]) -> Condition:
        return _until(False, parts)

    def negation(self, parts: list[Any]) -> Condition:
        operand = _condition(parts[-1], parts[0])
        if len(parts) % 2:
            return operand
        test = operand.run

        def run(view: MessageView) -> Truth:
            answer = test(view)
            return None if answer is None else not answer

        return Condition(run)

    def comparison(self, parts: list[Any]) -> Condition:
        left, symbol, right = parts
        one, other, text = _expression(left, symbol).run, _expression(right, symbol).run, str(symbol)
        return Condition(lambda view: values.compare(text, one(view), other(view)))

    def is_null(self, parts: list[Any]) -> Condition:
        subject, negated = _property(parts[0], parts[1]), parts[2] is not None
        return Condition(lambda view: (subject.run(view) is None) is not negated)

    def is_in(self, parts: list[Any]) -> Condition:
        subject, negation, keyword, *choices = parts
        negated, value_of = negation is not None, _expression(subject, keyword).run
        choice_runs = [_expression(choice, keyword).run for choice in choices]

        def run(view: MessageView) -> Truth:
            value = value_of(view)
            if value is None:
                return None
            answer: Truth = False
            for choice in choice_runs:
                same = values.compare("=", value, choice(view))
                if same:
                    return not negated
                answer = None if same is None else answer
            return None if answer is None else negated

        return Condition(run)

    def like(self, parts: list[Any]) -> Condition:
        subject, negation, keyword, pattern, _, escape = parts
        negated = negation is not None
        text_of, pattern_of = _expression(subject, keyword).run, _expression(pattern, keyword).run
        sign_of = None if escape is None else _expression(escape, keyword).run

        def run(view: MessageView) -> Truth:
            text, wanted = text_of(view), pattern_of(view)
            sign = "" if sign_of is None else sign_of(view)
            if text is None or wanted is None or sign is None:
                return None
            if not (isinstance(text, str) and isinstance(wanted, str)):
                raise values.cannot_apply("LIKE", text, wanted)
            if sign_of is not None and not (isinstance(sign, str) and len(sign) == 1):
                raise EvaluationFailed("An escape character is a text of one character.")
            return like(text, wanted, sign) is not negated

        return Condition(run)

    def exists(self, parts: list[Any]) -> Condition:
        subject = _property(parts[1], parts[0])
        name = subject.name
        if subject.is_system:
            return Condition(lambda view: subject.run(view) is not None)
        return Condition(lambda view: view.has(name))

    # Values

    def chain(self, parts: list[Any]) -> Expression:
        """Compile `first + a - b`: operators of one precedence, applied from the left."""
        first, *operands = [_expression(part, parts[1]) for part in parts[::2]]
        rest = [(str(symbol), operand.run) for symbol, operand in zip(parts[1::2], operands, strict=True)]

        def run(view: MessageView) -> Value:
            result = first.run(view)
            for symbol, operand in rest:
                result = values.calculate(symbol, result, operand(view))
            return result

        return Expression(run)

    def signed(self, parts: list[Any]) -> Expression:
        *signs, operand = parts
        value_of = _expression(operand, signs[0]).run
        sign = "-" if signs.count("-") % 2 else "+"
        return Expression(lambda view: values.signed(sign, value_of(view)))

    def constant(self, parts: list[Token]) -> Expression:
        token = parts[0]
        try:
            value = _CONSTANTS[token.type](token)
        except ValueError:
            raise invalid_at(token, "the number is outside of the range of a 64-bit integer") from None
        return Expression(lambda _: value)

    def parameter(self, parts: list[Token]) -> Expression:
        name = parts[0][1:].lower()
        if name not in self._parameters:
            raise SqlInvalid("the parameter is not given", token=parts[0])
        value = self._parameters[name]
        return Expression(lambda _: value)

    def function(self, parts: list[Any]) -> Expression:
        name, argument = parts
        word = name.lower()
        if word == "newid" and argument is None:
            return Expression(lambda _: uuid.uuid4())
        if word not in ("property", "p") or argument is None:
            raise invalid_at(name, f"expected newid(), property(name) or p(name), got {name} with such an argument")
        name_of = _expression(argument, name).run

        def run(view: MessageView) -> Value:
            named = name_of(view)
            if named is not None and not isinstance(named, str):
                raise EvaluationFailed(f"The name of a property is text, not a '{type_name(named)}'.")
            return None if named is None else view.user_value(named)

        return Expression(run)

    def nested(self, parts: list[Any]) -> Node:
        inner: Node = parts[0]
        return inner

    def property(self, parts: list[Token | None]) -> Property:
        scope, name = parts
        assert name is not None  # noqa: S101  # the grammar has one
        text = _unquoted(name)
        if scope is None or scope.lower() == "user":
            return Property(lambda view: view.user_value(text), text)
        if scope.lower() != "sys":
            raise invalid_at(scope, "the scope of a property is sys or user")
        system = SYSTEM_PROPERTIES.get(text.lower())
        if system is None:
            raise invalid_at(name, f"The specified property '{text[:100]}' does not exist or is not allowed")
        return Property(system.read, text.lower(), is_system=True)


_CONSTANTS: Final[dict[str, Callable[[str], Value]]] = {
    "STRING": lambda text: text[1:-1].replace("''", "'"),
    "INTEGER": lambda text: int(Long(int(text) if len(text) < 32 else 1 << 64)),
    "DECIMAL": float,
    "APPROXIMATE": float,
    "TRUE": lambda _: True,
    "FALSE": lambda _: False,
    "NULL": lambda _: None,
}


def _until(decisive: bool, parts: list[Any]) -> Condition:
    """Combine operands: False decides AND, True decides OR; otherwise one unknown makes the whole unknown."""
    tests = [_condition(part, parts[1]).run for part in parts[::2]]

    def run(view: MessageView) -> Truth:
        answer: Truth = not decisive
        for test in tests:
            one: Truth = test(view)
            if one is decisive:
                return decisive
            answer = None if one is None else answer
        return answer

    return Condition(run)


def _unquoted(name: Token) -> str:
    if name.type == "DELIMITED":
        return name[1:-1].replace("]]", "]")
    return name[1:-1].replace('""', '"') if name.type == "QUOTED" else str(name)


def _condition(node: Node, near: Token | None) -> Condition:
    if not isinstance(node, Condition):
        raise invalid_at(near, "expected a condition, got a value")
    return node


def _expression(node: Node, near: Token) -> Expression:
    if not isinstance(node, Expression):
        raise invalid_at(near, "expected a value, got a condition")
    return node


def _property(node: Node, near: Token) -> Property:
    if not isinstance(node, Property):
        raise invalid_at(near, f"{near.upper()} applies to a property only")
    return node


def _settable(target: Property, near: Token) -> Property:
    if target.is_system and not SYSTEM_PROPERTIES[target.name].is_settable:
        raise invalid_at(near, f"The system property '{target.name}' cannot be changed")
    return target


# LIKE


def like(text: str, pattern: str, escape: str = "") -> bool:
    """Match `%` with any text and `_` with any character, in time bounded by the product of the two lengths."""
    return _pattern(pattern, escape).fullmatch(text) is not None


@lru_cache(_CACHED_PATTERNS)
def _pattern(pattern: str, escape: str) -> re.Pattern[str]:
    pieces = [""]
    escaped = False
    for one in pattern:
        if escaped:
            pieces[-1] += re.escape(one)
            escaped = False
        elif escape and one == escape:
            escaped = True
        elif one == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if one == "_" else re.escape(one)
    if escaped:
        raise EvaluationFailed("A pattern ends with its escape character.")
    first, *others = pieces
    # Taking each piece at its first place leaves the most text for the others: atomic groups, without backtracking.
    inner = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    return re.compile(first + inner + (f".*{others[-1]}" if others else ""), re.DOTALL)
