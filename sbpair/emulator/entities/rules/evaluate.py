"""Compiler of SQL trees to functions of a message's view: three-valued conditions, values and action steps. Pure.

Parameters are looked up once, when a rule is created: a missing one makes the rule invalid. The semantics are the
service's: an unknown property is unknown, and a value that cannot be calculated raises EvaluationFailed. AND and OR
stop at the operand that decides.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias, cast

from sbpair.amqp.types import Value
from sbpair.emulator.entities.rules import syntax, syntax_tree
from sbpair.emulator.entities.rules.syntax import SqlInvalid
from sbpair.emulator.entities.rules.values import (
    EvaluationFailed,
    Truth,
    calculate,
    cannot_apply,
    compare,
    negate,
    type_name,
    unary_plus,
)
from sbpair.emulator.entities.rules.view import SYSTEM_PROPERTIES, Draft, MessageView

Predicate: TypeAlias = Callable[[MessageView], Truth]
Calculation: TypeAlias = Callable[[MessageView], Value]
Step: TypeAlias = Callable[[Draft], None]
Parameters: TypeAlias = Mapping[str, Value]
"""Values by name in lower case, without the @."""

_CACHED_PATTERNS: Final = 256


def compile_filter(text: str, parameters: Parameters) -> Predicate:
    """Compile a filter to a predicate. Raises SqlInvalid."""
    return _Compiler(parameters).test(syntax.parse_filter(text))


def compile_action(text: str, parameters: Parameters) -> tuple[Step, ...]:
    """Compile an action to its steps, in order. Raises SqlInvalid."""
    compiler = _Compiler(parameters)
    return tuple(compiler.step(statement) for statement in syntax.parse_action(text))


class _Compiler:
    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def test(self, node: syntax_tree.Condition) -> Predicate:
        return cast("Predicate", getattr(self, f"_{type(node).__name__.lower()}")(node))

    def value(self, node: syntax_tree.Expression) -> Calculation:
        return getattr(self, f"_{type(node).__name__.lower()}")(node)  # type: ignore[no-any-return]

    def step(self, statement: syntax_tree.Statement) -> Step:
        name, is_system = statement.target.name, statement.target.is_system
        if isinstance(statement, syntax_tree.Remove):
            return lambda draft: draft.set_system(name, None) if is_system else draft.remove_user(name)
        if is_system:
            written = self.value(statement.value)
            return lambda draft: draft.set_system(name, written(draft))
        value = self._raw(statement.value)
        return lambda draft: draft.set_user(name, value(draft))

    def _raw(self, node: syntax_tree.Expression) -> Calculation:
        # A property that is only copied keeps the sender's value and type.
        if isinstance(node, syntax_tree.Property) and not node.is_system:
            name = node.name
            return lambda view: view.raw(name)
        return self.value(node)

    # Values

    def _constant(self, node: syntax_tree.Constant) -> Calculation:
        value = node.value
        return lambda _: value

    def _parameter(self, node: syntax_tree.Parameter) -> Calculation:
        name = node.name[1:].lower()
        if name not in self._parameters:
            raise SqlInvalid("the parameter is not given", token=node.name)
        value = self._parameters[name]
        return lambda _: value

    def _property(self, node: syntax_tree.Property) -> Calculation:
        name = node.name
        if node.is_system:
            return SYSTEM_PROPERTIES[name].read
        return lambda view: view.user_value(name)

    def _newid(self, _: syntax_tree.NewId) -> Calculation:
        return lambda _: uuid.uuid4()

    def _propertynamed(self, node: syntax_tree.PropertyNamed) -> Calculation:
        name = self.value(node.name)

        def value(view: MessageView) -> Value:
            named = name(view)
            if named is not None and not isinstance(named, str):
                raise EvaluationFailed(f"The name of a property is text, not a '{type_name(named)}'.")
            return None if named is None else view.user_value(named)

        return value

    def _signed(self, node: syntax_tree.Signed) -> Calculation:
        operand, change = self.value(node.operand), negate if node.negative else unary_plus
        return lambda view: change(operand(view))

    def _chain(self, node: syntax_tree.Chain) -> Calculation:
        first = self.value(node.first)
        rest = [(symbol, self.value(operand)) for symbol, operand in node.rest]

        def value(view: MessageView) -> Value:
            result = first(view)
            for symbol, operand in rest:
                result = calculate(symbol, result, operand(view))
            return result

        return value

    # Conditions

    def _comparison(self, node: syntax_tree.Comparison) -> Predicate:
        symbol, left, right = node.symbol, self.value(node.left), self.value(node.right)
        return lambda view: compare(symbol, left(view), right(view))

    def _isnull(self, node: syntax_tree.IsNull) -> Predicate:
        subject, negated = self.value(node.subject), node.negated
        return lambda view: (subject(view) is None) is not negated

    def _exists(self, node: syntax_tree.Exists) -> Predicate:
        name = node.subject.name
        if node.subject.is_system:
            return lambda view: view.system_value(name) is not None
        return lambda view: view.has(name)

    def _in(self, node: syntax_tree.In) -> Predicate:
        subject, negated = self.value(node.subject), node.negated
        choices = [self.value(choice) for choice in node.choices]

        def test(view: MessageView) -> Truth:
            value = subject(view)
            if value is None:
                return None
            answer: Truth = False
            for choice in choices:
                same = compare("=", value, choice(view))
                if same:
                    return not negated
                answer = None if same is None else answer
            return None if answer is None else negated

        return test

    def _like(self, node: syntax_tree.Like) -> Predicate:
        subject, pattern, negated = self.value(node.subject), self.value(node.pattern), node.negated
        escape = None if node.escape is None else self.value(node.escape)

        def test(view: MessageView) -> Truth:
            text, wanted = subject(view), pattern(view)
            sign = "" if escape is None else escape(view)
            if text is None or wanted is None or sign is None:
                return None
            if not (isinstance(text, str) and isinstance(wanted, str)):
                raise cannot_apply("LIKE", text, wanted)
            if escape is not None and not (isinstance(sign, str) and len(sign) == 1):
                raise EvaluationFailed("An escape character is a text of one character.")
            return like(text, wanted, sign) is not negated

        return test

    def _not(self, node: syntax_tree.Not) -> Predicate:
        operand = self.test(node.operand)

        def test(view: MessageView) -> Truth:
            answer = operand(view)
            return None if answer is None else not answer

        return test

    def _all(self, node: syntax_tree.All) -> Predicate:
        return _until(False, [self.test(operand) for operand in node.operands])

    def _anyof(self, node: syntax_tree.AnyOf) -> Predicate:
        return _until(True, [self.test(operand) for operand in node.operands])


def _until(decisive: bool, operands: list[Predicate]) -> Predicate:
    """Combine operands: False decides AND, True decides OR; otherwise one unknown makes the whole unknown."""

    def test(view: MessageView) -> Truth:
        answer: Truth = not decisive
        for operand in operands:
            one = operand(view)
            if one is decisive:
                return decisive
            answer = None if one is None else answer
        return answer

    return test


# LIKE


def like(text: str, pattern: str, escape: str = "") -> bool:
    """Match `%` with any text and `_` with any character, in time bounded by the product of the two lengths."""
    pieces = _pieces(pattern, escape)
    first, last = pieces[0], pieces[-1]
    if len(pieces) == 1:
        return first.fullmatch(text) is not None
    found: Any = first.match(text)
    # Taking each piece at its first place leaves the most text for the others: no backtracking.
    for piece in pieces[1:-1]:
        found = found and piece.search(text, found.end())
    if not found:
        return False
    tail_at = len(text) - last.width
    return tail_at >= found.end() and last.match(text, tail_at) is not None


class _Piece:
    """The characters between two `%` of a pattern; an empty one stands for any character."""

    __slots__ = ("fullmatch", "match", "search", "width")

    def __init__(self, characters: list[str]) -> None:
        compiled = re.compile("".join("." if one == "" else re.escape(one) for one in characters), re.DOTALL)
        self.fullmatch, self.match, self.search = compiled.fullmatch, compiled.match, compiled.search
        self.width = len(characters)


@lru_cache(_CACHED_PATTERNS)
def _pieces(pattern: str, escape: str) -> tuple[_Piece, ...]:
    pieces: list[list[str]] = [[]]
    escaped = False
    for one in pattern:
        if escaped:
            pieces[-1].append(one)
            escaped = False
        elif escape and one == escape:
            escaped = True
        elif one == "%":
            pieces.append([])
        else:
            pieces[-1].append("" if one == "_" else one)
    if escaped:
        raise EvaluationFailed("A pattern ends with its escape character.")
    return tuple(_Piece(piece) for piece in pieces)
