"""AMQP values as JSON, and back. Pure.

JSON's own types are an AMQP string, boolean, null, a list, a map with text keys, an int (32 bits) and a double with a
fraction. All others are an object of a type and a text: `{"type": "timestamp", "value": "2026-01-02T00:00:00.000Z"}`.

Invariant: `read_value` returns the value that `render_value` was given, whatever tool has copied the JSON in between.
"""

from __future__ import annotations

import base64
import math
import struct
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from sbpair.amqp import codec, types
from sbpair.amqp.types import Array, Described, Int, Integer, Long, Map, Symbol, Timestamp, ULong, Value
from sbpair.backlog import TIMESPAN
from sbpair.errors import ProtocolError, UsageError
from sbpair.rules.values import EvaluationFailed, amqp_value, rule_value
from sbpair.timespan import parse, show

CONVENTION: Final = (
    "text, true, false, null, a list, an object, an int and a double with a fraction as JSON has them; all others as"
    ' {"type": NAME, "value": TEXT}: ubyte, ushort, uint, ulong, byte, short, int, long, float, double, decimal32,'
    " decimal64, decimal128, char, timestamp (ISO 8601), timespan (such as PT1M), uuid, binary (base64), symbol; array"
    " (a list), map (a list of pairs), described (a descriptor and a value)"
)
HINT: Final = 'a type that JSON lacks is an object such as {"type": "timestamp", "value": "2026-12-01T10:00:00Z"}'
TYPED: Final = {"type", "value"}
SCALARS: Final = "expected text, a number, true, false, null or a typed value"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)


class JsonObject(list[tuple[str, Any]]):
    """The members of a JSON object, duplicates included."""


def unique(members: JsonObject, what: str) -> dict[str, Any]:
    """Return the members as a dict. Raises UsageError for a name that is given twice."""
    found: dict[str, Any] = {}
    for name, value in members:
        if name in found:
            raise UsageError(f"{what} {shown(name)}: given twice", hint=HINT)
        found[name] = value
    return found


def shown(text: object) -> str:
    """Return the beginning of a text in quotes."""
    return repr(text if len(str(text)) <= 60 else f"{str(text)[:60]}…")


def kind_of(value: object) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", list: "a list", JsonObject: "an object"}
    return kinds.get(type(value), "null" if value is None else "text")


def render_time(ms: int) -> str:
    """Return a time in ms since 1970 in ISO 8601; as its number before the year 1 and after 9999."""
    try:
        return (EPOCH + ms * _MS).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(int(ms))


def read_time(text: str) -> int:
    """Return ms since 1970. Raises ValueError with the reason."""
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a date and time") from None
    if at.tzinfo is None:
        raise ValueError(f"{shown(text)} has no time zone")
    return (at - EPOCH) // _MS


def _render_real(value: float) -> str:
    if math.isnan(value) and codec.encode(value) != codec.encode(type(value)(math.nan)):
        return f"0x{codec.encode(value)[1:].hex()}"
    return str(float(value))


def _real(code: bytes, kind: type[float]) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        value = codec.decode_all(code + bytes.fromhex(text[2:])) if text.startswith("0x") else kind(float(text))
        codec.encode(value)
        return value

    return read


def _render_decimal(value: bytes) -> str:
    """Return the number of a decimal that .NET has written, which has one form; the bytes of any other."""
    try:
        text = str(Decimal(rule_value(value)))
        if types.same(amqp_value(Decimal(text)), value):
            return text
    except (EvaluationFailed, ArithmeticError):
        pass
    return f"0x{value.hex()}"


def _decimal(kind: type[types.Decimal]) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        value = kind(bytes.fromhex(text[2:])) if text.startswith("0x") else amqp_value(Decimal(text))
        if type(value) is not kind:
            raise ValueError("it does not fit")
        return value

    return read


def _integer(kind: type[Integer]) -> tuple[type, Callable[[Any], str], Callable[[str], Value]]:
    return kind, lambda value: str(int(value)), lambda text: kind(int(text))


def _render_char(value: str) -> str:
    # Other tools replace half a surrogate pair, which .NET's char may be.
    return f"0x{ord(value):x}" if "\ud800" <= value <= "\udfff" else str(value)


def _char(text: str) -> Value:
    if len(text) != 1 and not text.startswith("0x"):
        raise ValueError("expected one character")
    return types.Char(text if len(text) == 1 else chr(int(text, 16)))


def _symbol(text: str) -> Value:
    return Symbol(text.encode("ascii").decode())


_INTEGERS: Final = (types.UByte, types.UShort, types.UInt, ULong, types.Byte, types.Short, Int, Long)
_DECIMALS: Final = (types.Decimal32, types.Decimal64, types.Decimal128)
_TEXTS: Final[dict[str, tuple[type, Callable[[Any], str], Callable[[str], Value]]]] = {
    **{kind.__name__.lower(): _integer(kind) for kind in _INTEGERS},
    **{kind.__name__.lower(): (kind, _render_decimal, _decimal(kind)) for kind in _DECIMALS},
    "float": (types.Float, _render_real, _real(b"\x72", types.Float)),
    "double": (float, _render_real, _real(b"\x82", float)),
    "char": (types.Char, _render_char, _char),
    "timestamp": (Timestamp, render_time, lambda text: Timestamp(read_time(text))),
    "uuid": (uuid.UUID, str, uuid.UUID),
    "binary": (bytes, lambda raw: base64.b64encode(raw).decode(), lambda text: base64.b64decode(text, validate=True)),
    "symbol": (Symbol, str, _symbol),
    "timespan": (Described, lambda span: show(span.value), lambda text: Described(TIMESPAN, Long(parse(text)))),
}
"""The types of an object with a text: class, value -> text, and text -> value, which raises ValueError."""
_NAMES: Final = {kind: name for name, (kind, _, _) in _TEXTS.items() if kind is not Described}


def render_value(value: Value) -> Any:
    """Return an AMQP value as JSON."""
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is list:
        return list(map(render_value, value))
    if kind is Int:
        return int(value)
    if kind is float and math.isfinite(value) and value % 1:
        return value
    if kind is Map:
        return render_map(value)
    if kind is Array:
        return {"type": "array", "value": list(map(render_value, value))}
    name = _NAMES.get(kind)
    if kind is Described and types.same(value.descriptor, TIMESPAN) and type(value.value) is Long:
        name = "timespan"
    if name is None:
        return {"type": "described", "value": [render_value(value.descriptor), render_value(value.value)]}
    return {"type": name, "value": _TEXTS[name][1](value)}


def render_map(value: Map, key: type[str] = str) -> Any:
    """Return a map as an object if all its keys are of the type `key`, each once; else as its pairs."""
    names = [str(each) for each in value if type(each) is key]
    if len(set(names)) == len(value) and set(names) != TYPED:
        return {str(name): render_value(each) for name, each in value.pairs}
    return {"type": "map", "value": [[render_value(name), render_value(each)] for name, each in value.pairs]}


def read_value(value: Any, where: str) -> Value:
    """Return the AMQP value of JSON whose objects are `JsonObject`. `where` names it in errors. Raises UsageError."""
    if isinstance(value, list) and not isinstance(value, JsonObject):
        return [read_value(each, where) for each in value]
    if isinstance(value, JsonObject):
        return _read_object(value, where)
    return _read_plain(value, where)


def read_map(value: Any, field: str, key: type[str] = str) -> Map:
    """Return the map of an object with keys of the type `key`, or of pairs. Raises UsageError."""
    if not isinstance(value, JsonObject):
        raise UsageError(f"{field}: expected an object, got {kind_of(value)}", hint=HINT)
    named = unique(value, "property" if field == "properties" else field)
    if set(named) == TYPED and isinstance(named["value"], list):
        return _pairs(named["value"], field)
    label = "property" if field == "properties" else field
    return Map((key(text_of_json(name, field)), read_value(each, f"{label} {shown(name)}")) for name, each in value)


def text_of_json(value: Any, where: str) -> str:
    """Return text that can be encoded. Raises UsageError for any other value."""
    if not isinstance(value, str):
        raise UsageError(f"{where}: expected text, got {kind_of(value)}", hint=f"quote it; {HINT}")
    if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        raise UsageError(f"{where}: an unpaired surrogate cannot be encoded", hint=HINT)
    return value


def _read_plain(value: Any, where: str) -> Value:
    if isinstance(value, str):
        return text_of_json(value, where)
    if type(value) is int:
        for kind in (Int, Long, ULong):
            if kind.LOW <= value <= kind.HIGH:
                return kind(value)
        raise UsageError(f"{where}: the number has more than 64 bits", hint="numbers have up to 64 bits")
    if isinstance(value, float) and not math.isfinite(value):
        raise UsageError(f"{where}: {SCALARS}, got a number that is too large", hint="numbers have up to 64 bits")
    return value


def _read_object(value: JsonObject, where: str) -> Value:
    named = unique(value, where)
    if set(named) != TYPED:
        return Map((text_of_json(name, where), read_value(each, where)) for name, each in value)
    name, given = named["type"], named["value"]
    if name == "map":
        return _pairs(given, where)
    if name in ("array", "described") and type(given) is list:
        items = [read_value(each, where) for each in given]
        if name == "described" and len(items) == 2:
            return Described(*items)
        if name == "array" and len(set(map(type, items))) <= 1:
            return Array(items)
    if not isinstance(name, str) or name not in _TEXTS or type(given) is bool:
        raise UsageError(f"{where}: {shown(name)} is no type of {kind_of(given)}", hint=HINT)
    text = given if isinstance(given, str) else str(given) if isinstance(given, int | float) else None
    if text is None:
        raise UsageError(f"{where}: expected a text as the value of a {name}, got {kind_of(given)}", hint=HINT)
    try:
        return _TEXTS[name][2](text)
    except (ValueError, ArithmeticError, OverflowError, ProtocolError, struct.error) as error:
        detail = str(error) if name == "timestamp" else f"{shown(text)} is no {name}"
        raise UsageError(f"{where}: {detail}", hint=HINT) from None


def _pairs(given: Any, where: str) -> Map:
    if type(given) is not list or not all(type(pair) is list and len(pair) == 2 for pair in given):
        raise UsageError(f"{where}: expected the list of pairs of a map", hint='[["name", "value"], …]')
    return Map((read_value(name, where), read_value(each, where)) for name, each in given)
