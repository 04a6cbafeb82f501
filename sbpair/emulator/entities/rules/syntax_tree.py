"""The tree of a parsed SQL filter or action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.amqp.types import Value


@dataclass(frozen=True, slots=True)
class Node:
    """A node. `depth` counts the parentheses and functions between it and its deepest leaf."""

    depth: int


class Expression(Node):
    """A node with a value."""

    __slots__ = ()


class Condition(Node):
    """A node that is true, false or unknown."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    value: Value


@dataclass(frozen=True, slots=True)
class Parameter(Expression):
    name: str


@dataclass(frozen=True, slots=True)
class Property(Expression):
    """A property. `name` is as written; for a system property it is known, in lower case."""

    name: str
    is_system: bool


@dataclass(frozen=True, slots=True)
class NewId(Expression):
    pass


@dataclass(frozen=True, slots=True)
class PropertyNamed(Expression):
    """`property(name)`, whose name is calculated."""

    name: Expression


@dataclass(frozen=True, slots=True)
class Signed(Expression):
    negative: bool
    operand: Expression


@dataclass(frozen=True, slots=True)
class Chain(Expression):
    """`first + a - b`: operators of one precedence, applied from the left."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Comparison(Condition):
    symbol: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNull(Condition):
    subject: Property
    negated: bool


@dataclass(frozen=True, slots=True)
class In(Condition):
    subject: Expression
    choices: tuple[Expression, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like(Condition):
    subject: Expression
    pattern: Expression
    escape: Expression | None
    negated: bool


@dataclass(frozen=True, slots=True)
class Exists(Condition):
    subject: Property


@dataclass(frozen=True, slots=True)
class Not(Condition):
    operand: Condition


@dataclass(frozen=True, slots=True)
class All(Condition):
    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AnyOf(Condition):
    operands: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Set:
    target: Property
    value: Expression


@dataclass(frozen=True, slots=True)
class Remove:
    target: Property


Statement = Set | Remove
