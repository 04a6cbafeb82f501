"""The values that filters calculate with, and the operators on them. Pure.

A value of a message is an int, a float, a decimal, a text, a bool, a Moment or a Span. Binary values and GUIDs can only
be compared for equality. None is unknown. Two values that cannot be compared or calculated raise Incalculable.
"""

from __future__ import annotations

import math
import operator
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, localcontext
from functools import lru_cache
from typing import Any, Final

from sbpair.amqp import types
from sbpair.amqp.types import Described, Symbol, Timestamp, Value, type_of
from sbpair.errors import SbpairError, UsageError
from sbpair.model.durations import TICKS_PER_SECOND, ticks

TICKS_PER_MS: Final = TICKS_PER_SECOND // 1000
_YEAR_1_TICKS: Final = 621_355_968_000_000_000
"""Ticks from the year 1, where .NET's times begin, to 1970."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOW, _HIGH = -(2**63), 2**63 - 1


class Incalculable(SbpairError):
    """A filter cannot be calculated for a message, which is then not chosen."""


class Span(int):
    """A duration in ticks of 100 ns."""

    __slots__ = ()


class Moment(int):
    """A time in ticks of 100 ns since 1970."""

    __slots__ = ()


def moment(ms: int) -> Moment:
    return Moment(ms * TICKS_PER_MS)


# From AMQP


def value_of(value: Value) -> Value:
    """Return the value to calculate with for one of AMQP."""
    convert = _CONVERSIONS.get(type_of(value))
    return value if convert is None else convert(value)


def _described(value: Described) -> Value:
    inner = value.value
    match value.descriptor:
        case "com.microsoft:timespan" if isinstance(inner, int):
            return Span(inner)
        case "com.microsoft:datetime-offset" if isinstance(inner, int):
            return Moment(inner - _YEAR_1_TICKS)
        case "com.microsoft:uri" if isinstance(inner, str):
            return str(inner)
    return value


def _decimal(raw: bytes) -> Value:
    # IEEE 754 with a binary coefficient, as .NET writes it: sign, exponent, coefficient.
    bits, (width, exponent_bits, bias) = int.from_bytes(raw), _LAYOUTS[len(raw)]
    coefficient_bits = width - 1 - exponent_bits
    exponent = bits >> coefficient_bits & (1 << exponent_bits) - 1
    if exponent >> (exponent_bits - 2) == 3:
        raise Incalculable("a decimal property is not a finite number")
    coefficient = bits & (1 << coefficient_bits) - 1
    return Decimal((bits >> (width - 1), tuple(map(int, str(coefficient))), exponent - bias))


_LAYOUTS: Final = {4: (32, 8, 101), 8: (64, 10, 398), 16: (128, 14, 6176)}
_INTEGERS = (types.Byte, types.Short, types.Int, types.Long, types.UByte, types.UShort, types.UInt, types.ULong)
_CONVERSIONS: Final[dict[type, Callable[[Any], Value]]] = {
    **dict.fromkeys(_INTEGERS, int),
    **dict.fromkeys((types.Float, float), float),
    **dict.fromkeys((str, Symbol, types.Char), str),
    **dict.fromkeys((types.Decimal32, types.Decimal64, types.Decimal128), _decimal),
    bool: bool,
    bytes: bytes,
    Timestamp: moment,
    Described: _described,
}

# Kinds: values of one kind can be compared.

_NAMES: Final[dict[type, str]] = {
    bool: "true or false", int: "a number", float: "a number", Decimal: "a number", str: "text", uuid.UUID: "a GUID",
    bytes: "bytes", Span: "a duration", Moment: "a time",
}  # fmt: skip
_ORDERED: Final = frozenset({"a number", "text", "a duration", "a time"})
NUMBER: Final = "a number"


def kind_of(value: Value) -> str:
    """Return the name of a value's kind, with its article; another type has its own."""
    return _NAMES.get(type(value)) or f"a value of type {type_of(value).__name__}"


# Text as a time or a duration

TIME_HINT: Final = "write a time as '2026-11-22' or '2026-11-22T10:00:00Z'"
SPAN_HINT: Final = "write a duration as '90s', '5m', '1h30m' or 'PT1M', or a number of seconds"


@lru_cache(1024)
def to_moment(text: str) -> Moment | None:
    """Return the time that a text is, in UTC without a zone; None if it is none."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return Moment((at - _EPOCH) // timedelta(microseconds=1) * 10)


@lru_cache(1024)
def to_span(text: str) -> Span | None:
    """Return the duration that a text is; None if it is none."""
    try:
        return Span(ticks(text))
    except UsageError:
        return None


def _alike(left: Value, right: Value) -> tuple[Value, Value]:
    """Return both, with one of them converted where the other is a time, a duration or a decimal."""
    kind, other = type(left), type(right)
    if kind in (Span, Moment) and other is not kind:
        return left, _converted(kind, right)
    if other in (Span, Moment) and kind is not other:
        return _converted(other, left), right
    if Decimal in (kind, other) and float in (kind, other):
        # As they are written: 0.1 is a tenth.
        return Decimal(repr(left) if kind is float else left), Decimal(repr(right) if other is float else right)
    return left, right


def _converted(kind: type, value: Value) -> Value:
    made: Value = None
    if isinstance(value, str):
        made = to_span(value) if kind is Span else to_moment(value)
    elif kind is Span and kind_of(value) == NUMBER:
        made = seconds(value)
    return value if made is None else made


def seconds(number: Value) -> Span:
    """Return a duration of so many seconds."""
    try:
        return Span(_fitting(int(number * TICKS_PER_SECOND)))
    except (ValueError, ArithmeticError):
        raise Incalculable(f"{number} is not a number of seconds") from None


# Comparison

COMPARE: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(symbol: str, left: Value, right: Value) -> bool | None:
    """Compare two values; None where one is unknown. Raises Incalculable for values of two kinds."""
    if left is None or right is None:
        return None
    left, right = _alike(left, right)
    kind = _NAMES.get(type(left))
    if kind is None or kind != _NAMES.get(type(right)) or (kind not in _ORDERED and symbol not in ("=", "<>", "!=")):
        raise Incalculable(f"cannot compare {kind_of(left)} with {kind_of(right)} by {symbol}")
    try:
        return bool(COMPARE[symbol](left, right))
    except ArithmeticError:
        return False  # a decimal and a float that is not a number


# Arithmetic

_CALCULATE: Final[dict[str, Callable[[Value, Value], Value]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "%": operator.mod,
}  # fmt: skip
_PRECISE: Final = Context(prec=80)


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """Apply `+ - * / %`; None where one side is unknown. Integers divide to integers; text is joined by `+`."""
    if left is None or right is None:
        return None
    kinds = kind_of(left), kind_of(right)
    if "a duration" in kinds or "a time" in kinds:
        return _with_time(symbol, left, right)
    if symbol == "+" and (type(left) is str or type(right) is str):
        return _joined(left) + _joined(right)
    if kinds != (NUMBER, NUMBER):
        raise _no_operator(symbol, left, right)
    try:
        return _with_numbers(symbol, left, right)
    except (ArithmeticError, ValueError) as error:
        raise Incalculable(f"{left} {symbol} {right} has no result: {type(error).__name__}") from None


def _joined(value: Value) -> str:
    if type(value) in (int, float, Decimal, uuid.UUID, str):
        return str(value)
    raise Incalculable(f"cannot join {kind_of(value)} to text")


def _with_numbers(symbol: str, left: Value, right: Value) -> Value:
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        with localcontext(_PRECISE):
            return _CALCULATE[symbol](Decimal(left), Decimal(right))
    if isinstance(left, float) or isinstance(right, float):
        return _with_floats(symbol, float(left), float(right))
    if symbol not in ("/", "%"):
        return _fitting(_CALCULATE[symbol](left, right))
    quotient, rest = divmod(abs(left), abs(right))
    if symbol == "%":
        return rest if left >= 0 else -rest  # the sign of the dividend
    return _fitting(quotient if (left < 0) == (right < 0) else -quotient)


def _with_floats(symbol: str, left: float, right: float) -> float:
    try:
        result: float = math.fmod(left, right) if symbol == "%" else _CALCULATE[symbol](left, right)
    except ZeroDivisionError:
        return math.nan if left != left or left == 0 else left * math.inf
    except ValueError:
        return math.nan
    return result


def _with_time(symbol: str, left: Value, right: Value) -> Value:
    """Apply an operator to times and durations. A number or text beside one is a duration."""
    apply, sums, kind = _CALCULATE[symbol], symbol in ("+", "-"), type(left)
    if kind is Moment and type(right) is Moment and symbol == "-":
        return Span(_fitting(int(left) - int(right)))
    if kind in (Span, Moment) and sums and isinstance(other := _converted(Span, right), Span):
        return kind(_fitting(apply(int(left), int(other))))
    if kind is Span and not sums and symbol != "%" and kind_of(right) == NUMBER:
        try:
            return Span(_fitting(int(apply(int(left), float(right)))))
        except (ArithmeticError, ValueError):
            raise Incalculable(f"a duration {symbol} {right} has no result") from None
    raise _no_operator(symbol, left, right)


def negated(value: Value) -> Value:
    """Return -value."""
    if value is None:
        return None
    if kind_of(value) not in (NUMBER, "a duration"):
        raise Incalculable(f"cannot negate {kind_of(value)}")
    return type(value)(_fitting(-value)) if isinstance(value, int) else -value


def _fitting(number: int) -> int:
    if not _LOW <= number <= _HIGH:
        raise Incalculable("a result does not fit 64 bits")
    return number


def _no_operator(symbol: str, left: Value, right: Value) -> Incalculable:
    return Incalculable(f"cannot calculate {kind_of(left)} {symbol} {kind_of(right)}")


# LIKE


@lru_cache(256)
def pattern(text: str, escape: str = "") -> re.Pattern[str]:
    """Return the expression for a pattern: `%` is any text, `_` any character. Time is bounded by text x pattern."""
    pieces, characters = [""], iter(text)
    for each in characters:
        if escape and each == escape:
            escaped = next(characters, "")
            if not escaped:
                raise Incalculable("a pattern ends with its escape character")
            pieces[-1] += re.escape(escaped)
        elif each == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if each == "_" else re.escape(each)
    first, *others = pieces
    # The first place of each piece leaves most text for the next ones: no piece is tried at a second place.
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    return re.compile(first + middle + (f".*{others[-1]}" if others else ""), re.DOTALL)
