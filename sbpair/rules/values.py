"""The values that rules calculate with, and the operators on them. Pure.

A value of a message is converted once to an int, a double, a decimal, a text, a bool or a time. Binary values and GUIDs
can only be compared for equality. None is unknown, and so is NULL. A mismatch of types raises EvaluationFailed. The
functions whose names end with `leniently` first convert text, or a number of seconds, beside a time or a duration.
"""

from __future__ import annotations

import math
import operator
import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from typing import Final, NamedTuple

from sbpair.amqp import types
from sbpair.amqp.types import Described, Float, Long, Symbol, Timestamp, ULong, Value, type_of
from sbpair.errors import SbpairError, UsageError
from sbpair.timespan import TICKS_PER_MS, TICKS_PER_SECOND, ticks
from sbpair.timespan import parse as parse_timespan
from sbpair.timespan import show as show_timespan

TIMESPAN: Final = "com.microsoft:timespan"
DATETIME_OFFSET: Final = "com.microsoft:datetime-offset"
URI: Final = "com.microsoft:uri"
EPOCH_TICKS: Final = 621_355_968_000_000_000
"""1970-01-01 in .NET's ticks, which count from the year 1."""

Truth = bool | None
"""True, False, or unknown."""


class EvaluationFailed(SbpairError):
    """A filter or an action could not be calculated for a message."""


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

NUMBER: Final = "a number"
SPAN: Final = "a duration"
TIME: Final = "a time"
TEXT: Final = "text"
_TYPES: Final[dict[type, tuple[str, str]]] = {
    bool: ("true or false", "Boolean"), int: (NUMBER, "Int64"), float: (NUMBER, "Double"), Decimal: (NUMBER, "Decimal"),
    str: (TEXT, "String"), uuid.UUID: ("a GUID", "Guid"), bytes: ("bytes", "Byte[]"), TimeSpanValue: (SPAN, "TimeSpan"),
    Instant: (TIME, "DateTime"),
}  # fmt: skip
_ORDERED: Final = frozenset({NUMBER, TEXT, SPAN, TIME})
EQUALITY: Final = frozenset({"=", "<>", "!="})


def type_name(value: Value) -> str:
    """Return the name that .NET has for the type of a value, for error texts."""
    return _TYPES.get(type(value), ("", type_of(value).__name__))[1]


def kind_of(value: Value) -> str:
    """Return the kind of a value, with its article: values of one kind can be compared. "" for one of no kind."""
    return _TYPES.get(type(value), ("", ""))[0]


# Text and numbers as times and durations

TIME_HINT: Final = "write a time as '2026-11-22' or '2026-11-22T10:00:00Z'"
SPAN_HINT: Final = "write a duration as '90s', '5m', '1h30m' or 'PT1M', or a number of seconds"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(1024)
def to_instant(text: str) -> Instant | None:
    """Return the time that a text is, in UTC without a zone; None if it is none."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return Instant((at - _EPOCH) // timedelta(microseconds=1) * 10 + EPOCH_TICKS)


@lru_cache(1024)
def to_span(text: str) -> TimeSpanValue | None:
    """Return the duration that a text is; None if it is none."""
    try:
        return TimeSpanValue(ticks(text))
    except UsageError:
        return None


def seconds(number: Value) -> TimeSpanValue:
    """Return a duration of so many seconds."""
    try:
        return TimeSpanValue(_fitting(int(number * TICKS_PER_SECOND)))
    except (ValueError, ArithmeticError):
        raise EvaluationFailed(f"{number} is not a number of seconds") from None


def _converted(kind: type, value: Value) -> Value:
    """Return a text or a number as a TimeSpanValue or an Instant; another value unchanged."""
    made: Value = None
    if isinstance(value, str):
        made = to_span(value) if kind is TimeSpanValue else to_instant(value)
    elif kind is TimeSpanValue and kind_of(value) == NUMBER:
        made = seconds(value)
    return value if made is None else made


# Comparison

COMPARE: Final[dict[str, Callable[[Value, Value], bool]]] = {
    "=": operator.eq, "<>": operator.ne, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def compare(symbol: str, left: Value, right: Value) -> Truth:
    """Return unknown where one side is. Raises EvaluationFailed for two values that cannot be compared."""
    if left is None or right is None:
        return None
    kind = kind_of(left)
    if not kind or kind != kind_of(right) or (symbol not in EQUALITY and kind not in _ORDERED):
        raise cannot_apply(symbol, left, right)
    types_of_both = {type(left), type(right)}
    if types_of_both == {Decimal, float}:
        # As they are written: 0.1 is a tenth.
        left, right = (Decimal(repr(each)) if type(each) is float else each for each in (left, right))
    try:
        return bool(COMPARE[symbol](left, right))
    except ArithmeticError:
        # A decimal and a double that is not a number.
        return False


def compare_leniently(symbol: str, left: Value, right: Value) -> Truth:
    for kind in (TimeSpanValue, Instant):
        if type(left) is not type(right) and kind in (type(left), type(right)):
            left, right = _converted(kind, left), _converted(kind, right)
            break
    return compare(symbol, left, right)


def equal(left: Value, right: Value) -> bool:
    """Compare for a correlation filter: of one kind, and the same value. Never fails."""
    kind = kind_of(left)
    return bool(kind) and kind == kind_of(right) and bool(left == right)


def cannot_apply(symbol: str, left: Value, right: Value) -> EvaluationFailed:
    return EvaluationFailed(
        f"Operator '{symbol}' cannot be applied to operands of type '{type_name(left)}' and '{type_name(right)}'."
    )


# Arithmetic


def calculate(symbol: str, left: Value, right: Value) -> Value:
    """Apply `+ - * / %`: text is joined, integers divide to integers, and durations are added to times."""
    if left is None or right is None:
        return None
    if isinstance(left, Ticks) or isinstance(right, Ticks):
        return _with_ticks(symbol, left, right)
    if symbol == "+" and (isinstance(left, str) or isinstance(right, str)):
        return _text(left) + _text(right)
    if kind_of(left) != NUMBER or kind_of(right) != NUMBER:
        raise cannot_apply(symbol, left, right)
    if isinstance(left, Decimal) or isinstance(right, Decimal):
        return _with_decimals(symbol, Decimal(left), Decimal(right))
    if isinstance(left, int) and isinstance(right, int):
        return _with_integers(symbol, left, right)
    return _with_doubles(symbol, float(left), float(right))


def calculate_leniently(symbol: str, left: Value, right: Value) -> Value:
    """Apply an operator. A number or a text beside a time or a duration is a duration, which has multiples."""
    if not isinstance(left, Ticks) or right is None:
        return calculate(symbol, left, right)
    if type(left) is TimeSpanValue and symbol in ("*", "/") and kind_of(right) == NUMBER:
        try:
            return TimeSpanValue(_fitting(int(_OPERATORS[symbol](int(left), float(right)))))
        except (ArithmeticError, ValueError):
            raise EvaluationFailed(f"a duration {symbol} {right} has no result") from None
    if symbol in ("+", "-") and not isinstance(right, Ticks):
        right = _converted(TimeSpanValue, right)
    return calculate(symbol, left, right)


def signed(sign: str, value: Value) -> Value:
    """Apply a sign: `+` or `-`."""
    if value is None:
        return None
    if not isinstance(value, TimeSpanValue) and kind_of(value) != NUMBER:
        raise EvaluationFailed(f"Operator '{sign}' cannot be applied to operand of type '{type_name(value)}'.")
    if sign == "+":
        return value
    return type(value)(_fitting(-value)) if isinstance(value, int) else -value


def _text(value: Value) -> str:
    if isinstance(value, (int, float, Decimal, uuid.UUID, str)) and not isinstance(value, bool):
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


# LIKE


@lru_cache(256)
def pattern(text: str, escape: str = "") -> re.Pattern[str]:
    """Return the expression for a pattern: `%` is any text, `_` any character. Time is bounded by text x pattern."""
    pieces, characters = [""], iter(text)
    for each in characters:
        if escape and each == escape:
            escaped = next(characters, "")
            if not escaped:
                raise EvaluationFailed("A pattern ends with its escape character.")
            pieces[-1] += re.escape(escaped)
        elif each == "%":
            pieces.append("")
        else:
            pieces[-1] += "." if each == "_" else re.escape(each)
    first, *others = pieces
    # The first place of each piece leaves most text for the next ones: no piece is tried at a second place.
    middle = "".join(f"(?>.*?{piece})" for piece in others[:-1] if piece)
    return re.compile(first + middle + (f".*{others[-1]}" if others else ""), re.DOTALL)


class TypedValue(NamedTuple):
    """A value with its XML type. Rules calculate with `value`; `original` is the same in AMQP's types."""

    kind: str
    text: str
    original: Value
    value: Value


def read_typed(kind: str, text: str) -> TypedValue:
    """Parse the text of a type. Raises ValueError for an unknown type or an invalid text."""
    reader = _READERS.get(kind)
    if reader is None:
        raise ValueError(f"The type '{kind[:40]}' of a value is none of {', '.join(sorted(_READERS))}.")
    try:
        read = reader(text if kind == "string" else text.strip())
    except (ValueError, KeyError, OverflowError, InvalidOperation) as error:
        raise ValueError(f"The value '{text[:100]}' is not of the type {kind}.") from error
    if isinstance(read, Decimal):
        return TypedValue(kind, text, amqp_value(read), read)
    return TypedValue(kind, text, read, rule_value(read))


def from_amqp(original: Value) -> TypedValue:
    """Convert an AMQP value. Raises ValueError for a type that no property of a filter can have."""
    kind = _KINDS.get(type_of(original))
    value = rule_value(original)
    kind = kind or {TimeSpanValue: "duration", Instant: "dateTime"}.get(type(value))
    if kind is None:
        raise ValueError(f"A value of the AMQP type {type_of(original).__name__} cannot be compared with.")
    return TypedValue(kind, _xml_text(value), original, value)


def _xml_text(value: Value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, TimeSpanValue):
        return show_timespan(value)
    if isinstance(value, Instant):
        # From the year 1, whose first tick is 0.
        return (datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=value // 10)).isoformat().replace("+00:00", "Z")
    if isinstance(value, float):
        return {math.inf: "INF", -math.inf: "-INF"}.get(value) or ("NaN" if math.isnan(value) else repr(float(value)))
    return str(value)


def _float(text: str) -> float:
    return {"INF": math.inf, "-INF": -math.inf, "NaN": math.nan}.get(text) or float(text)


def _time(text: str) -> Value:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Timestamp((moment - _EPOCH) // timedelta(milliseconds=1))


def _decimal_of(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite() or len(text) > 64 or abs(value.adjusted()) > 28:
        raise ValueError(text)
    return value


def _integer(number: Callable[[int], Value]) -> Callable[[str], Value]:
    return lambda text: number(int(text))


_NUMBERS: Final[dict[str, Callable[[int], Value]]] = {
    "byte": types.Byte, "short": types.Short, "int": types.Int, "long": Long,
    "unsignedByte": types.UByte, "unsignedShort": types.UShort, "unsignedInt": types.UInt, "unsignedLong": types.ULong,
}  # fmt: skip

_READERS: Final[dict[str, Callable[[str], Value]]] = {
    "string": str,
    "anyURI": str,
    "boolean": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    **{kind: _integer(number) for kind, number in _NUMBERS.items()},
    "float": lambda text: Float(_float(text)),
    "double": _float,
    "decimal": _decimal_of,
    # .NET writes a char as the number of its code point.
    "char": lambda text: types.Char(chr(int(text))),
    "guid": uuid.UUID,
    "dateTime": _time,
    "duration": lambda text: Described(Symbol("com.microsoft:timespan"), Long(parse_timespan(text))),
}

_KINDS: Final[dict[object, str]] = {
    **{number: kind for kind, number in _NUMBERS.items()},
    str: "string", Symbol: "string", types.Char: "string", bool: "boolean", Float: "float", float: "double",
    uuid.UUID: "guid",
}  # fmt: skip
