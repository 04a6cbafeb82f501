"""The values that rules calculate with. Pure.

A value of a message is converted once to an int, a double, a decimal, a text, a bool or a time. Binary values and GUIDs
can only be compared for equality. None is unknown, and so is NULL.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, NamedTuple

from sbpair.amqp import types
from sbpair.amqp.types import Described, Float, Long, Symbol, Timestamp, ULong, Value
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


class RuleInvalid(SbpairError):
    """An invalid filter, action or value. `line` counts from 1 and `column` from 0, as the service does."""

    def __init__(self, details: str, *, line: int = 1, column: int = 0) -> None:
        super().__init__(details)
        self.line, self.column = line, column


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
    convert = _CONVERSIONS.get(type(value))
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


class DotNetDecimal(Decimal):
    """The number that .NET reads from a decimal128, of which IEEE 754 makes another."""

    __slots__ = ()


def _decimal(value: bytes) -> Decimal:
    """Return the number of IEEE 754's binary integer form; of a decimal128 that .NET reads as another, .NET's.

    .NET writes 12 of the 14 bits of the exponent, and reads the scale modulo 256. Its scales are at most 28, and its
    coefficients have at most 96 bits.
    """
    # Bits of the coefficient, bias of the exponent, and the most digits.
    width, (precision, bias, max_digits) = 8 * len(value), _DECIMAL_FORMS[len(value)]
    bits = int.from_bytes(value)
    form = bits >> (width - 5) & 0b1111
    if form == 0b1111:
        raise EvaluationFailed("A decimal property is not a number that can be calculated with.")
    # A coefficient that begins with 100 is written without it, after two ones.
    shift, leading = (precision - 2, 0b100) if form >> 2 == 0b11 else (precision, 0)
    biased = bits >> shift & (1 << width - 1 - precision) - 1
    coefficient = leading << shift | bits & (1 << shift) - 1
    if coefficient >= 10**max_digits:
        coefficient = 0
    sign, digits, scale = bits >> (width - 1), tuple(map(int, str(coefficient))), (bias - biased) % 256
    is_dotnet = len(value) == types.Decimal128.WIDTH and scale <= _MAX_SCALE and 0 < coefficient < 1 << 96
    if is_dotnet and scale < bias - biased:
        return DotNetDecimal((sign, digits, -scale))
    return Decimal((sign, digits, biased - bias))


def _decimal128(value: Decimal) -> Value:
    """Encode a number as .NET does, rounded to the digits that it has; one that is too large becomes a double."""
    for digits in (29, 28):
        rounded = Context(prec=digits).plus(value)
        scale = min(_MAX_SCALE, max(0, -int(rounded.as_tuple().exponent)))
        coefficient = int(rounded.copy_abs().scaleb(scale, Context(prec=80)).to_integral_value())
        if coefficient < 1 << 96:
            biased = _DECIMAL_FORMS[types.Decimal128.WIDTH][1] - scale
            head = (value.is_signed() << 7 | biased >> 9, (biased & 0x7F) << 1, 0, 0)
            return types.Decimal128(bytes(head) + coefficient.to_bytes(12))
    return float(value)


_DECIMAL_FORMS: Final = {4: (23, 101, 7), 8: (53, 398, 16), 16: (113, 6176, 34)}
_MAX_SCALE: Final = 28
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
        return _decimal128(value)
    if type(value) is int:
        return Long(value) if value <= Long.HIGH else ULong(value)
    return value


def as_type_of(existing: Value, value: Value) -> Value:
    """Return `value` in the AMQP type of the number that it replaces, where it fits; else as it is."""
    wanted, given = type(existing), type(value)
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
    DotNetDecimal: (NUMBER, "Decimal"),
    str: (TEXT, "String"), uuid.UUID: ("a GUID", "Guid"), bytes: ("bytes", "Byte[]"), TimeSpanValue: (SPAN, "TimeSpan"),
    Instant: (TIME, "DateTime"),
}  # fmt: skip
EQUALITY: Final = frozenset({"=", "<>", "!="})


def type_name(value: Value) -> str:
    """Return the name that .NET has for the type of a value, for error texts."""
    return _TYPES.get(type(value), ("", type(value).__name__))[1]


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


def checked_int64(result: int) -> int:
    """Return an integer. Raises EvaluationFailed if an Int64 cannot hold it."""
    if not Long.LOW <= result <= Long.HIGH:
        raise EvaluationFailed("Arithmetic operation resulted in an overflow.")
    return result


def seconds(number: Value) -> TimeSpanValue:
    """Return a duration of so many seconds."""
    try:
        return TimeSpanValue(checked_int64(int(number * TICKS_PER_SECOND)))
    except (ValueError, ArithmeticError):
        raise EvaluationFailed(f"{number} is not a number of seconds") from None


class TypedValue(NamedTuple):
    """A value with its XML type. Rules calculate with `value`; `original` is the same in AMQP's types."""

    kind: str
    text: str
    original: Value
    value: Value


def read_typed(kind: str, text: str) -> TypedValue:
    """Parse the text of a type. Raises RuleInvalid for an unknown type or an invalid text."""
    reader = _READERS.get(kind)
    if reader is None:
        raise RuleInvalid(f"The type '{kind[:40]}' of a value is none of {', '.join(sorted(_READERS))}.")
    try:
        read = reader(text if kind == "string" else text.strip())
    except (ValueError, KeyError, OverflowError, InvalidOperation) as error:
        raise RuleInvalid(f"The value '{text[:100]}' is not of the type {kind}.") from error
    if isinstance(read, Decimal):
        return TypedValue(kind, text, amqp_value(read), read)
    return TypedValue(kind, text, read, rule_value(read))


def from_amqp(original: Value) -> TypedValue:
    """Convert an AMQP value. Raises RuleInvalid for a type that no property of a filter can have."""
    kind = _KINDS.get(type(original))
    value = rule_value(original)
    kind = kind or {TimeSpanValue: "duration", Instant: "dateTime"}.get(type(value))
    if kind is None:
        raise RuleInvalid(f"A value of the AMQP type {type(original).__name__} cannot be compared with.")
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


def _time(text: str) -> Value:
    at = to_instant(text)
    if at is None:
        raise ValueError(text)
    return amqp_value(at)


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
    "float": lambda text: Float(float(text)),
    "double": float,
    "decimal": _decimal_of,
    # .NET writes a char as the number of its code point.
    "char": lambda text: types.Char(chr(int(text))),
    "guid": uuid.UUID,
    "dateTime": _time,
    "duration": lambda text: amqp_value(TimeSpanValue(parse_timespan(text))),
}

_KINDS: Final[dict[object, str]] = {
    **{number: kind for kind, number in _NUMBERS.items()},
    str: "string", Symbol: "string", types.Char: "string", bool: "boolean", Float: "float", float: "double",
    uuid.UUID: "guid", **dict.fromkeys((types.Decimal32, types.Decimal64, types.Decimal128), "decimal"),
}  # fmt: skip
