"""The values of filters and actions, and the operators on them. Pure.

A value of a message is converted once to an int, a double, a decimal, a text, a bool or a time. Binary values and GUIDs
can only be compared for equality. None is unknown, and so is NULL. A mismatch of types raises EvaluationFailed:
nothing is converted from or to text for a comparison.
"""

from __future__ import annotations

import math
import operator
import uuid
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from typing import Final

from sbpair.amqp import types
from sbpair.amqp.types import Described, Float, Long, Symbol, Timestamp, ULong, Value, type_of
from sbpair.emulator.timespan import TICKS_PER_MS
from sbpair.errors import SbpairError

TIMESPAN: Final = "com.microsoft:timespan"
DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
URI: Final = "com.microsoft:uri"
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""1970-01-01 in .NET's ticks, which count from the year 1."""

Truth = bool | None
"""True, False, or unknown."""


class EvaluationFailed(SbpairError):
    """A filter or an action could not be calculated for a message. `reason` is that of a dead letter."""

    reason = "FilterException"


class Ticks(int):
    """100 ns units: of a duration, or since the year 1."""

    __slots__ = ()


class TimeSpanValue(Ticks):
    """A .NET TimeSpan."""

    __slots__ = ()


class Instant(Ticks):
    """A .NET DateTime, in UTC."""

    __slots__ = ()


# From AMQP, and back


def rule_value(value: Value) -> Value:
    """Return the value to calculate with for an AMQP value; any other value unchanged."""
    convert = _CONVERSIONS.get(type_of(value))
    return value if convert is None else convert(value)


def instant(ms: int) -> Instant:
    """Return the value of a time in milliseconds since 1970."""
    return Instant(ms * TICKS_PER_MS + EPOCH_TICKS)


def _described(value: Described) -> Value:
    inner = value.value
    if isinstance(inner, int) and value.descriptor == TIMESPAN:
        return TimeSpanValue(inner)
    if isinstance(inner, int) and value.descriptor == DATETIME_OFFSET:
        return Instant(inner)
    return str(inner) if isinstance(inner, str) and value.descriptor == URI else value


def _decimal(value: bytes) -> Decimal:
    # The binary integer form of IEEE 754: how many bits the coefficient has, and what its exponent is biased by.
    coefficient_bits, bias = {4: (23, 101), 8: (53, 398), 16: (113, 6176)}[len(value)]
    bits = int.from_bytes(value)
    width = 8 * len(value)
    sign, rest = bits >> (width - 1), bits & ((1 << (width - 1)) - 1)
    if rest >> (width - 3) == 0b11:
        raise EvaluationFailed("A decimal property is not a number that can be calculated with.")
    exponent, coefficient = rest >> coefficient_bits, rest & ((1 << coefficient_bits) - 1)
    return Decimal((sign, tuple(map(int, str(coefficient))), exponent - bias))


_FLOAT_MAX: Final = (2 - 2**-23) * 2.0**127
_INTEGERS: Final = frozenset({types.Byte, types.Short, types.Int, Long, types.UByte, types.UShort, types.UInt, ULong})
_DOUBLES: Final = frozenset({Float, float})
_CONVERSIONS: Final[dict[type, Callable[[Value], Value]]] = {
    **dict.fromkeys(_INTEGERS, int), **dict.fromkeys(_DOUBLES, float), **dict.fromkeys((str, Symbol, types.Char), str),
    **dict.fromkeys((types.Decimal32, types.Decimal64, types.Decimal128), _decimal), bool: bool, bytes: bytes,
    Timestamp: instant, Described: _described,
}  # fmt: skip


def amqp_value(value: Value) -> Value:
    """Return the AMQP value for the result of a calculation."""
    if isinstance(value, TimeSpanValue):
        return Described(Symbol(TIMESPAN), Long(value))
    if isinstance(value, Instant):
        return Timestamp((value - EPOCH_TICKS) // TICKS_PER_MS)
    if isinstance(value, Decimal):
        return float(value)
    if type(value) is int:
        return Long(value) if value <= Long.HIGH else ULong(value)
    return value


def as_type_of(existing: Value, value: Value) -> Value:
    """Return `value` in the AMQP type of the number that it replaces, where it fits; else as it is."""
    wanted, given = type_of(existing), type_of(value)
    if wanted in _INTEGERS:
        fits = given in _INTEGERS and wanted.LOW <= value <= wanted.HIGH
    else:
        fits = wanted in _DOUBLES and given in _INTEGERS | _DOUBLES
        fits = fits and not (wanted is Float and _FLOAT_MAX < abs(value) < math.inf)
    return wanted(value) if fits else value


# Kinds

_NAMES: Final[dict[type, str]] = {
    bool: "Boolean", int: "Int64", float: "Double", Decimal: "Decimal", str: "String", uuid.UUID: "Guid",
    bytes: "Byte[]", TimeSpanValue: "TimeSpan", Instant: "DateTime",
}  # fmt: skip
_NUMBERS: Final = frozenset({int, float, Decimal})


def type_name(value: Value) -> str:
    """Return the name that .NET has for the type of a value, for error texts."""
    return _NAMES.get(type(value), type_of(value).__name__)


def _kind(value: Value) -> str:
    # Values of one kind can be compared with each other.
    return "number" if type(value) in _NUMBERS else _NAMES.get(type(value), "")


_ORDERED: Final = frozenset({"number", "String", "TimeSpan", "DateTime"})
_COMPARE: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(symbol: str, left: Value, right: Value) -> Truth:
    """Return unknown where one side is. Raises EvaluationFailed for two values that cannot be compared."""
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
    """Compare for a correlation filter: of one kind, and the same value. Never fails."""
    kind = _kind(left)
    return bool(kind) and kind == _kind(right) and bool(left == right)


def cannot_apply(symbol: str, left: Value, right: Value) -> EvaluationFailed:
    return EvaluationFailed(
        f"Operator '{symbol}' cannot be applied to operands of type '{type_name(left)}' and '{type_name(right)}'."
    )


# Arithmetic


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """Apply `+ - * / %`: text is joined, integers divide to integers, and durations are added to times."""
    if left is None or right is None:
        return None
    if symbol == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    if isinstance(left, Ticks) or isinstance(right, Ticks):
        return _with_ticks(symbol, left, right)
    if _kind(left) != "number" or _kind(right) != "number":
        raise cannot_apply(symbol, left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _with_decimals(symbol, Decimal(left), Decimal(right))
    if isinstance(left, int) and isinstance(right, int):
        return _with_integers(symbol, left, right)
    return _with_doubles(symbol, float(left), float(right))


def signed(sign: str, value: Value) -> Value:
    """Apply a sign: `+` or `-`."""
    if value is None:
        return None
    if not isinstance(value, TimeSpanValue) and _kind(value) != "number":
        raise EvaluationFailed(f"Operator '{sign}' cannot be applied to operand of type '{type_name(value)}'.")
    if sign == "+":
        return value
    return type(value)(_fitting(-value)) if isinstance(value, int) else -value


def _text(value: Value) -> str:
    if isinstance(value, (int, float, Decimal, uuid.UUID, str)) and not isinstance(value, Ticks):
        return str(value)
    raise EvaluationFailed(f"A value of type '{type_name(value)}' cannot be joined to text.")


def _with_ticks(symbol: str, left: Value, right: Value) -> Ticks:
    span_right = isinstance(right, TimeSpanValue)
    if symbol in ("+", "-") and isinstance(left, Ticks) and span_right:
        made: type[Ticks] = type(left)
    elif symbol == "-" and isinstance(left, Instant) and isinstance(right, Instant):
        made = TimeSpanValue
    else:
        raise cannot_apply(symbol, left, right)
    return made(_fitting(int(left) + int(right) if symbol == "+" else int(left) - int(right)))


def _with_integers(symbol: str, one: int, other: int) -> int:
    if symbol not in ("/", "%"):
        return _fitting(_OPERATORS[symbol](one, other))
    if other == 0:
        raise EvaluationFailed("Attempted to divide by zero.")
    quotient, remainder = divmod(abs(one), abs(other))
    if symbol == "%":
        return remainder if one >= 0 else -remainder
    return _fitting(quotient if (one < 0) == (other < 0) else -quotient)


def _fitting(result: int) -> int:
    if not Long.LOW <= result <= Long.HIGH:
        raise EvaluationFailed("Arithmetic operation resulted in an overflow.")
    return result


def _with_doubles(symbol: str, one: float, other: float) -> float:
    try:
        result: float = math.fmod(one, other) if symbol == "%" else _OPERATORS[symbol](one, other)
    except ZeroDivisionError:
        return one * math.inf if one == one and one != 0 else math.nan
    except ValueError:
        return math.nan
    return result


_OPERATORS: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip

# Wide enough for every product of two; the service's own have 28 digits.
_EXACT: Final = Context(prec=80)


def _with_decimals(symbol: str, one: Decimal, other: Decimal) -> Decimal:
    try:
        with localcontext(_EXACT):
            result: Decimal = _OPERATORS[symbol](one, other)
    except ArithmeticError as error:
        raise EvaluationFailed("Attempted to divide by zero, or the result is no decimal.") from error
    return result
