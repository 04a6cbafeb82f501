"""Values that are written in XML with the name of their type: SQL parameters and correlation properties. Pure.

It converts text and a type's name to an AMQP value, and back. The names are those of XML Schema, as .NET's serializer
uses them. The text of a request is returned unchanged.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

from sbpair.amqp import types
from sbpair.amqp.types import Described, Float, Long, Symbol, Timestamp, Value, type_of
from sbpair.rules.values import Instant, TimeSpanValue, amqp_value, rule_value
from sbpair.timespan import parse as parse_timespan
from sbpair.timespan import show as show_timespan

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


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


def _decimal(text: str) -> Decimal:
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
    "decimal": _decimal,
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
