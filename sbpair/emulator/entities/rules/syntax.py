"""The parser of SQL filters and actions: text in, a `syntax_tree` out, or SqlInvalid with the place of the error.

The grammar is the documented one. The parser is LALR, so its time is linear in the text, whose length is bounded. The
depth of a tree is bounded too, so it can be walked by recursion. The parser library is imported with the first text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.types import Long, Value
from sbpair.emulator.entities.rules.syntax_tree import (
    All,
    AnyOf,
    Chain,
    Comparison,
    Condition,
    Constant,
    Exists,
    Expression,
    In,
    IsNull,
    Like,
    NewId,
    Node,
    Not,
    Parameter,
    Property,
    PropertyNamed,
    Remove,
    Set,
    Signed,
    Statement,
)
from sbpair.emulator.entities.rules.view import SYSTEM_PROPERTIES
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput

MAX_LENGTH: Final = 1024
MAX_DEPTH: Final = 64
MAX_STATEMENTS: Final = 32


class SqlInvalid(ArgumentInvalid):
    """An invalid filter or action. `line` counts from 1 and `column` from 0, as the service does."""

    def __init__(self, details: str, *, token: str = "", line: int = 1, column: int = 0) -> None:
        self.token, self.line, self.column = token, line, column
        super().__init__(
            "There was an error parsing the SQL expression. "
            f"[Token line={line}, column={column}, Token in error={token[:100]}, Additional details= {details}]"
        )


def parse_filter(text: str) -> Condition:
    """Parse a filter. Raises SqlInvalid."""
    tree: Condition = _parse("filter", text)
    return tree


def parse_action(text: str) -> tuple[Statement, ...]:
    """Parse the statements of an action. Raises SqlInvalid."""
    statements: tuple[Statement, ...] = _parse("action", text)
    if len(statements) > MAX_STATEMENTS:
        raise SqlInvalid(f"an action has at most {MAX_STATEMENTS} statements")
    return statements


def _parse(start: str, text: str) -> Any:
    if len(text) > MAX_LENGTH:
        raise SqlInvalid(f"the expression is {len(text)} characters long, and may be {MAX_LENGTH} at most")
    from lark.exceptions import UnexpectedInput

    try:
        return _parser().parse(text, start)
    except UnexpectedInput as error:
        raise _sql_invalid(error, text) from error


def _sql_invalid(error: UnexpectedInput, text: str) -> SqlInvalid:
    from lark.exceptions import UnexpectedToken

    if not isinstance(error, UnexpectedToken):
        details = "no token begins with this, or it does not end"
        return SqlInvalid(details, token=getattr(error, "char", ""), line=error.line, column=error.column - 1)
    if error.token.type == "$END":
        details = f"syntax error, unexpected EOF, expecting {_expected(error)}"
        return SqlInvalid(details, line=text.count("\n") + 1, column=len(text) - text.rfind("\n") - 1)
    details = f"syntax error, unexpected {error.token.type}, expecting {_expected(error)}"
    return _at(error.token, details)


def _expected(error: Any) -> str:
    return ", or ".join(sorted(str(name) for name in error.expected))


def _at(token: Token | None, details: str) -> SqlInvalid:
    if token is None:
        return SqlInvalid(details)
    return SqlInvalid(details, token=str(token), line=token.line or 1, column=(token.column or 1) - 1)


# The grammar

KEYWORDS: Final = frozenset(
    "AND ESCAPE EXISTS FALSE IN IS LIKE NOT NULL OR REMOVE SET TRUE".split()  # noqa: SIM905  # a list of words
)

_GRAMMAR: Final = r"""
filter: disjunction
action: statement (";"* statement)* ";"*
statement: SET property EQUALS sum -> set
         | REMOVE property         -> remove
?disjunction: conjunction
            | conjunction (OR conjunction)+
?conjunction: negation
            | negation (AND negation)+
?negation: predicate
         | NOT+ predicate
?predicate: sum
          | sum (COMPARATOR | EQUALS) sum       -> comparison
          | sum IS [NOT] NULL                   -> is_null
          | sum [NOT] IN "(" sum ("," sum)* ")" -> is_in
          | sum [NOT] LIKE sum [ESCAPE sum]     -> like
          | EXISTS "(" property ")"             -> exists
?sum: product
    | product (SIGN product)+     -> chain
?product: signed
        | signed (FACTOR signed)+ -> chain
?signed: atom
       | SIGN+ atom
?atom: (STRING | INTEGER | DECIMAL | APPROXIMATE | TRUE | FALSE | NULL) -> constant
     | property
     | PARAMETER                        -> parameter
     | IDENTIFIER "(" [disjunction] ")" -> function
     | "(" disjunction ")"              -> nested
property: [IDENTIFIER "."] (IDENTIFIER | DELIMITED | QUOTED)

IDENTIFIER: /[^\W\d_]\w*/
DELIMITED: /\[(?:[^\]]|\]\])+\]/
QUOTED: /"(?:[^"]|"")+"/
STRING: /'(?:[^']|'')*'/
PARAMETER: /@\w+/
APPROXIMATE.3: /(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][+-]?[0-9]+/
DECIMAL.2: /[0-9]+\.[0-9]*|\.[0-9]+/
INTEGER: /[0-9]+/
COMPARATOR: /<>|!=|<=|>=|<|>/
EQUALS: "="
SIGN: /[+-]/
FACTOR: /[*\/%]/
%declare KEYWORDS
%ignore /\s+/
""".replace("KEYWORDS", " ".join(sorted(KEYWORDS)))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    from lark import Lark

    return Lark(
        _GRAMMAR,
        start=["filter", "action"],
        parser="lalr",
        # Not the contextual lexer: a keyword is a keyword at every position.
        lexer="basic",
        lexer_callbacks={"IDENTIFIER": _keyword},
        transformer=_Builder(),
    )


def _keyword(token: Token) -> Token:
    word = token.upper()
    if word in KEYWORDS:
        token.type = word
    return token


class _Builder:
    """Builds the node of each grammar rule from its parts. Methods have the names of the rules."""

    def filter(self, parts: list[Any]) -> Condition:
        return _condition(parts[0], None)

    def action(self, parts: list[Any]) -> tuple[Statement, ...]:
        return tuple(parts)

    def set(self, parts: list[Any]) -> Set:
        keyword, target, equals, value = parts
        return Set(_settable(target, keyword), _expression(value, equals))

    def remove(self, parts: list[Any]) -> Remove:
        return Remove(_settable(parts[1], parts[0]))

    def disjunction(self, parts: list[Any]) -> AnyOf:
        operands = tuple(_condition(part, parts[1]) for part in parts[::2])
        return AnyOf(_depth(*operands), operands)

    def conjunction(self, parts: list[Any]) -> All:
        operands = tuple(_condition(part, parts[1]) for part in parts[::2])
        return All(_depth(*operands), operands)

    def negation(self, parts: list[Any]) -> Condition:
        operand = _condition(parts[-1], parts[0])
        return Not(operand.depth, operand) if len(parts) % 2 == 0 else operand

    def comparison(self, parts: list[Any]) -> Comparison:
        left, symbol, right = parts
        left, right = _expression(left, symbol), _expression(right, symbol)
        return Comparison(_depth(left, right), str(symbol), left, right)

    def is_null(self, parts: list[Any]) -> IsNull:
        return IsNull(0, _property(parts[0], parts[1]), parts[2] is not None)

    def is_in(self, parts: list[Any]) -> In:
        subject, negated, keyword, *choices = parts
        checked = [_expression(part, keyword) for part in (subject, *choices)]
        return In(_depth(*checked), checked[0], tuple(checked[1:]), negated is not None)

    def like(self, parts: list[Any]) -> Like:
        subject, negated, keyword, pattern, _, escape = parts
        subject, pattern = _expression(subject, keyword), _expression(pattern, keyword)
        escape = None if escape is None else _expression(escape, keyword)
        return Like(_depth(subject, pattern, escape), subject, pattern, escape, negated is not None)

    def exists(self, parts: list[Any]) -> Exists:
        return Exists(0, _property(parts[1], parts[0]))

    def chain(self, parts: list[Any]) -> Chain:
        operands = [_expression(part, parts[1]) for part in parts[::2]]
        symbols = [str(symbol) for symbol in parts[1::2]]
        return Chain(_depth(*operands), operands[0], tuple(zip(symbols, operands[1:], strict=True)))

    def signed(self, parts: list[Any]) -> Expression:
        *signs, operand = parts
        operand = _expression(operand, signs[0])
        return Signed(operand.depth, sum(sign == "-" for sign in signs) % 2 == 1, operand)

    def constant(self, parts: list[Token]) -> Constant:
        token = parts[0]
        try:
            return Constant(0, _CONSTANTS[token.type](token))
        except ValueError:
            raise _at(token, "the number is outside of the range of a 64-bit integer") from None

    def parameter(self, parts: list[Token]) -> Parameter:
        return Parameter(0, str(parts[0]))

    def function(self, parts: list[Any]) -> Expression:
        name, argument = parts
        word = name.lower()
        if word == "newid" and argument is None:
            return NewId(0)
        if word in ("property", "p") and argument is not None:
            argument = _expression(argument, name)
            return PropertyNamed(self.nested([argument]).depth, argument)
        raise _at(name, f"expected newid(), property(name) or p(name), got {name} with such an argument")

    def nested(self, parts: list[Any]) -> Node:
        inner: Node = parts[0]
        if inner.depth >= MAX_DEPTH:
            raise SqlInvalid(f"the expression nests deeper than {MAX_DEPTH}", token="(")  # noqa: S106  # a parenthesis
        return replace(inner, depth=inner.depth + 1)

    def property(self, parts: list[Token | None]) -> Property:
        scope, name = parts
        assert name is not None  # noqa: S101  # the grammar has one
        text = _unquoted(name)
        if scope is None or scope.lower() == "user":
            return Property(0, text, is_system=False)
        if scope.lower() != "sys":
            raise _at(scope, "the scope of a property is sys or user")
        if text.lower() not in SYSTEM_PROPERTIES:
            raise _at(name, f"The specified property '{text[:100]}' does not exist or is not allowed")
        return Property(0, text.lower(), is_system=True)


_CONSTANTS: Final[dict[str, Callable[[str], Value]]] = {
    "STRING": lambda text: text[1:-1].replace("''", "'"),
    "INTEGER": lambda text: int(Long(int(text) if len(text) < 32 else 1 << 64)),
    "DECIMAL": float,
    "APPROXIMATE": float,
    "TRUE": lambda _: True,
    "FALSE": lambda _: False,
    "NULL": lambda _: None,
}


def _unquoted(name: Token) -> str:
    if name.type == "DELIMITED":
        return name[1:-1].replace("]]", "]")
    return name[1:-1].replace('""', '"') if name.type == "QUOTED" else str(name)


def _depth(*nodes: Node | None) -> int:
    return max(node.depth for node in nodes if node is not None)


def _condition(node: Node, near: Token | None) -> Condition:
    if not isinstance(node, Condition):
        raise _at(near, "expected a condition, got a value")
    return node


def _expression(node: Node, near: Token) -> Expression:
    if not isinstance(node, Expression):
        raise _at(near, "expected a value, got a condition")
    return node


def _property(node: Node, near: Token) -> Property:
    if not isinstance(node, Property):
        raise _at(near, f"{near.upper()} applies to a property only")
    return node


def _settable(target: Property, near: Token) -> Property:
    if target.is_system and not SYSTEM_PROPERTIES[target.name].is_settable:
        raise _at(near, f"The system property '{target.name}' cannot be changed")
    return target
