"""The values that filters and actions calculate with: what AMQP carries, C#'s operators on it, and SQL's unknown.

Pure. None is unknown, and so is NULL. An integer keeps its AMQP type, since C#'s promotions ask for it. What no
operator can be applied to raises EvaluationFailed; nothing is ever converted from or to text in order to compare it.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Callable
from decimal import Context, Decimal
from typing import Final

from sbpair.amqp.types import (
    Byte,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    Value,
    type_of,
)
from sbpair.errors import SbpairError

TIMESPAN: Final = "com.microsoft:timespan"
DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
URI: Final = "com.microsoft:uri"
TICKS_PER_MS: Final = 10_000
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""1970-01-01 in .NET's ticks, which count from the year 1."""

Truth = bool | None
"""True, False, or unknown."""


class EvaluationFailed(SbpairError):
    """A filter or an action could not be calculated for a message."""


class Ticks(int):
    """100 ns units: of a duration, or since the year 1."""

    __slots__ = ()


class Span(Ticks):
    """A .NET TimeSpan."""

    __slots__ = ()


class Instant(Ticks):
    """A .NET DateTime, in UTC."""

    __slots__ = ()


# From AMQP, and back


def plain(value: Value) -> Value:
    """What to calculate with for an AMQP value. What cannot be calculated with stays as it is."""
    kind = type_of(value)
    if kind is bool:
        return bool(value)
    if kind is Timestamp:
        return Instant(value * TICKS_PER_MS + EPOCH_TICKS)
    if kind in _DECIMALS:
        return _decimal(value, *_DECIMALS[kind])
    return _described(value) if kind is Described else value


def _described(value: Described) -> Value:
    if isinstance(value.value, int):
        if value.descriptor == TIMESPAN:
            return Span(value.value)
        if value.descriptor == DATETIME_OFFSET:
            return Instant(value.value)
    return value.value if value.descriptor == URI else value


_DECIMALS: Final[dict[type, tuple[int, int]]] = {Decimal32: (8, 23), Decimal64: (10, 53), Decimal128: (14, 113)}
"""How many bits of exponent and of coefficient the binary integer form of IEEE 754 has."""

# Wide enough for every product of two; the service's own have 28 digits.
_EXACT: Final = Context(prec=80)


def _decimal(value: bytes, exponent_bits: int, coefficient_bits: int) -> Decimal:
    bits = int.from_bytes(value)
    width = 8 * len(value)
    sign = bits >> (width - 1)
    rest = bits & ((1 << (width - 1)) - 1)
    if rest >> (width - 3) == 0b11:
        raise EvaluationFailed("A decimal property is not a number that can be calculated with.")
    exponent, coefficient = rest >> coefficient_bits, rest & ((1 << coefficient_bits) - 1)
    digits = tuple(int(digit) for digit in str(coefficient))
    bias = {8: 101, 10: 398, 14: 6176}[exponent_bits]
    return Decimal((sign, digits, exponent - bias))


def amqp_value(value: Value) -> Value:
    """The AMQP value for the result of a calculation."""
    if isinstance(value, Span):
        return Described(Symbol(TIMESPAN), Long(value))
    if isinstance(value, Instant):
        return Timestamp((value - EPOCH_TICKS) // TICKS_PER_MS)
    if isinstance(value, Decimal):
        return float(value)
    return Long(value) if type(value) is int else value


def as_type_of(existing: Value, value: Value) -> Value:
    """`value` in the AMQP type of the property that it replaces, where C# could convert it; else as it is."""
    wanted = type_of(existing)
    if wanted is type_of(value) or isinstance(value, bool) or not isinstance(value, (int, float)):
        return value
    try:
        if wanted in _INTEGERS and type_of(value) in _INTEGERS:
            return wanted(value)
        return wanted(value) if wanted in (float, Float) else value
    except (ValueError, OverflowError):
        return value


# Kinds

_INTEGERS: Final = frozenset({int, Byte, Short, Int, Long, UByte, UShort, UInt, ULong})
_SMALL: Final = frozenset({Byte, Short, Int, UByte, UShort})
_NAMES: Final[dict[type, str]] = {
    bool: "Boolean", Byte: "SByte", Short: "Int16", Int: "Int32", Long: "Int64", int: "Int64", UByte: "Byte",
    UShort: "UInt16", UInt: "UInt32", ULong: "UInt64", Float: "Single", float: "Double", Decimal: "Decimal",
    str: "String", Symbol: "String", uuid.UUID: "Guid", bytes: "Byte[]", Span: "TimeSpan", Instant: "DateTime",
}  # fmt: skip


def type_name(value: Value) -> str:
    """The type of a value as .NET calls it, for error texts."""
    return _NAMES.get(type_of(value), type_of(value).__name__)


def _kind(value: Value) -> str:
    """Values of one kind can be compared with each other."""
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Ticks):
        return type(value).__name__
    if isinstance(value, (int, float, Decimal)):
        return "number"
    if isinstance(value, str):
        return "text"
    return {uuid.UUID: "guid", bytes: "bytes"}.get(type_of(value), "")


_ORDERED: Final = frozenset({"number", "text", "Span", "Instant"})
_COMPARE: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(symbol: str, left: Value, right: Value) -> Truth:
    """Unknown where one side is. Raises EvaluationFailed where C# would not compare the two."""
    if left is None or right is None:
        return None
    kind = _kind(left)
    if not kind or kind != _kind(right) or (symbol not in ("=", "<>", "!=") and kind not in _ORDERED):
        raise cannot_apply(symbol, left, right)
    try:
        return bool(_COMPARE[symbol](left, right))
    except ArithmeticError:
        # A decimal and a double that is not a number.
        return False


def equal(left: Value, right: Value) -> bool:
    """What a correlation filter asks: of one kind, and the same value. Never fails."""
    kind = _kind(left)
    return bool(kind) and kind == _kind(right) and bool(left == right)


def cannot_apply(symbol: str, left: Value, right: Value) -> EvaluationFailed:
    return EvaluationFailed(
        f"Operator '{symbol}' cannot be applied to operands of type '{type_name(left)}' and '{type_name(right)}'."
    )


# Arithmetic


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """`+ - * / %` as C# has them: text is joined, integers divide to integers, times and durations know each other."""
    if left is None or right is None:
        return None
    if symbol == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    if isinstance(left, Ticks) or isinstance(right, Ticks):
        return _with_ticks(symbol, left, right)
    if _kind(left) != "number" or _kind(right) != "number":
        raise cannot_apply(symbol, left, right)
    if type_of(left) in _INTEGERS and type_of(right) in _INTEGERS:
        return _with_integers(symbol, left, right)
    return _with_fractions(symbol, left, right)


def negate(value: Value) -> Value:
    if value is None:
        return None
    if isinstance(value, Span):
        return Span(-value)
    if _kind(value) != "number":
        raise EvaluationFailed(f"Operator '-' cannot be applied to operand of type '{type_name(value)}'.")
    return _fitting(-int(value), _promoted(value, value)) if type_of(value) in _INTEGERS else -value


def keep_sign(value: Value) -> Value:
    if value is not None and not isinstance(value, Span) and _kind(value) != "number":
        raise EvaluationFailed(f"Operator '+' cannot be applied to operand of type '{type_name(value)}'.")
    return value


def _text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int) and not isinstance(value, Ticks):
        return str(int(value))
    if isinstance(value, (float, Decimal, uuid.UUID)):
        return str(float(value)) if isinstance(value, float) else str(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise EvaluationFailed(f"A value of type '{type_name(value)}' cannot be joined to text.")


def _with_ticks(symbol: str, left: Value, right: Value) -> Ticks:
    span_right = isinstance(right, Span)
    if symbol in ("+", "-") and isinstance(left, Ticks) and span_right:
        made: type[Ticks] = type(left)
    elif symbol == "-" and isinstance(left, Instant) and isinstance(right, Instant):
        made = Span
    else:
        raise cannot_apply(symbol, left, right)
    return made(int(left) + int(right) if symbol == "+" else int(left) - int(right))


def _with_integers(symbol: str, left: int, right: int) -> Value:
    one, other = int(left), int(right)
    if symbol in ("/", "%") and other == 0:
        raise EvaluationFailed("Attempted to divide by zero.")
    if symbol == "/":
        result = abs(one) // abs(other) * (1 if (one < 0) == (other < 0) else -1)
    elif symbol == "%":
        result = abs(one) % abs(other) * (-1 if one < 0 else 1)
    else:
        result = {"+": operator.add, "-": operator.sub, "*": operator.mul}[symbol](one, other)
    return _fitting(result, _promoted(left, right))


def _promoted(left: Value, right: Value) -> type[int]:
    kinds = {type_of(left), type_of(right)}
    if kinds <= _SMALL:
        return Int
    return ULong if ULong in kinds else Long


def _fitting(result: int, wanted: type[int]) -> Value:
    try:
        return wanted(result)
    except ValueError:
        raise EvaluationFailed("Arithmetic operation resulted in an overflow.") from None


def _with_fractions(symbol: str, left: Value, right: Value) -> Value:
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _with_decimals(symbol, Decimal(left), Decimal(right))
    one, other = float(left), float(right)
    try:
        if symbol == "%":
            return _remainder(one, other)
        return {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}[symbol](one, other)
    except ZeroDivisionError:
        return one * math.inf if one == one and one != 0 else math.nan


def _remainder(one: float, other: float) -> float:
    try:
        return math.fmod(one, other)
    except ValueError:
        return math.nan


def _with_decimals(symbol: str, one: Decimal, other: Decimal) -> Decimal:
    try:
        operate = {
            "+": _EXACT.add, "-": _EXACT.subtract, "*": _EXACT.multiply, "/": _EXACT.divide, "%": _EXACT.remainder,
        }[symbol]  # fmt: skip
        return operate(one, other)
    except ArithmeticError as error:
        raise EvaluationFailed("Attempted to divide by zero, or the result is no decimal.") from error
