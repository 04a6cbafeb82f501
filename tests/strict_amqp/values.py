"""AMQP values, decoded, encoded in each form, and compared with the types of `specification.json`.

It shares no code with the product.
"""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TABLE = json.loads(Path(__file__).with_name("specification.json").read_text())
ENCODINGS: dict[int, tuple[str, str, int]] = {int(code, 16): tuple(row) for code, row in _TABLE["encodings"].items()}
CODES: defaultdict[str, list[int]] = defaultdict(list)
for _code in sorted(ENCODINGS, key=lambda code: ENCODINGS[code][2]):
    CODES[ENCODINGS[_code][0]].append(_code)
TYPES: dict[str, dict[str, Any]] = _TABLE["types"]
PRIMITIVES = {name for name, _, _ in ENCODINGS.values()}
BY_DESCRIPTOR = {key: name for name, each in TYPES.items() for key in each.get("descriptor", ())}
PROVIDERS: defaultdict[str, list[str]] = defaultdict(list)
for _name, _each in TYPES.items():
    for _role in _each.get("provides", ()):
        PROVIDERS[_role].append(_name)

_INTEGERS = {
    "ubyte": False, "ushort": False, "uint": False, "ulong": False,
    "byte": True, "short": True, "int": True, "long": True, "timestamp": True,
}  # fmt: skip
"""Whether an integer type is signed."""
_OPEN_CHOICES = {"error-condition", "txn-capability"}
"""Roles that values outside the specification may play: conditions of a service, for example."""


class Violation(Exception):
    """A peer breaks a rule of the specification."""


@dataclass(frozen=True, slots=True)
class Value:
    """`data` of a list is [Value], of a map [(Value, Value)], of a described value the Value behind its descriptor."""

    kind: str
    data: Any
    descriptor: Value | None = None

    @property
    def is_null(self) -> bool:
        return self.kind == "null"


NULL = Value("null", None)
MAX_EMPTY = 1_000
"""Elements without bytes that an array may have here: the specification sets no limit."""


def decode(buffer: bytes, position: int) -> tuple[Value, int]:
    """Return the value at `position` and the position after it. Raises Violation."""
    try:
        code = buffer[position]
        if code == 0x00:
            descriptor, position = decode(buffer, position + 1)
            value, position = decode(buffer, position)
            return Value("described", value, descriptor), position
        return _decode_as(code, buffer, position + 1)
    except RecursionError:
        raise Violation("values are nested without end") from None
    except (IndexError, struct.error):
        raise Violation("a value is cut short") from None


def _decode_as(code: int, buffer: bytes, position: int) -> tuple[Value, int]:
    if code not in ENCODINGS:
        raise Violation(f"no encoding has the code 0x{code:02x}")
    kind, category, width = ENCODINGS[code]
    if category == "fixed":
        end = position + width
        if end > len(buffer):
            raise IndexError
        return Value(kind, _fixed(kind, code, buffer[position:end])), end
    size = int.from_bytes(buffer[position : position + width])
    start, end = position + width, position + width + size
    if end > len(buffer):
        raise IndexError
    if category == "variable":
        return Value(kind, _variable(kind, buffer[start:end])), end
    count = int.from_bytes(buffer[start : start + width])
    decode_items = _array if category == "array" else _items
    items, reached = decode_items(buffer[:end], start + width, count)
    if reached != end:
        raise Violation(f"a {kind} says that it has {size} bytes, and has {reached - start}")
    return Value(kind, _pairs(items) if kind == "map" else items), end


def _fixed(kind: str, code: int, raw: bytes) -> Any:
    if kind in _INTEGERS:
        return int.from_bytes(raw, signed=_INTEGERS[kind])
    if kind == "boolean":
        if code == 0x56 and raw[0] > 1:
            raise Violation(f"a boolean is {raw[0]}")
        return raw == b"\x01" if code == 0x56 else code == 0x41
    if kind == "char":
        return _text(raw, "utf-32-be", kind)
    return [] if kind == "list" else None if kind == "null" else raw


def _variable(kind: str, raw: bytes) -> Any:
    return raw if kind == "binary" else _text(raw, "utf-8" if kind == "string" else "ascii", kind)


def _text(raw: bytes, encoding: str, kind: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        raise Violation(f"a {kind} is not {encoding}") from None


def _items(buffer: bytes, position: int, count: int) -> tuple[list[Value], int]:
    items = []
    for _ in range(count):
        value, position = decode(buffer, position)
        items.append(value)
    return items, position


def _array(buffer: bytes, position: int, count: int) -> tuple[list[Value], int]:
    code, descriptor = buffer[position], None
    position += 1
    if code == 0x00:
        descriptor, position = decode(buffer, position)
        code = buffer[position]
        position += 1
    if count > max(MAX_EMPTY, len(buffer) - position):
        raise Violation(f"an array claims {count} elements")
    items = []
    for _ in range(count):
        value, position = _decode_as(code, buffer, position)
        items.append(value if descriptor is None else Value("described", value, descriptor))
    return items, position


def _pairs(items: list[Value]) -> list[tuple[Value, Value]]:
    if len(items) % 2:
        raise Violation("a map has a key without a value")
    keys = [repr(key) for key in items[::2]]
    if len(set(keys)) != len(keys):
        raise Violation("a map has a key twice")
    return list(zip(items[::2], items[1::2], strict=True))


def encode(value: Value, choose: Callable[[list[bytes]], bytes]) -> bytes:
    """Return a value in the one of its encodings that is chosen. The shortest comes first."""
    if value.kind == "described":
        assert value.descriptor is not None
        return b"\x00" + encode(value.descriptor, choose) + encode(value.data, choose)
    ways = ((code, _encoded_as(code, value.data, choose)) for code in CODES[value.kind])
    return choose([bytes((code,)) + raw for code, raw in ways if raw is not None])


def _encoded_as(code: int, data: Any, choose: Callable[[list[bytes]], bytes]) -> bytes | None:
    """Return a value as a format code has it, without the code; None if it cannot."""
    kind, category, size = ENCODINGS[code]
    if category == "fixed":
        return _fixed_as(kind, code, size, data)
    if category == "variable":
        raw = data if isinstance(data, bytes) else data.encode()
    else:
        items = [each for pair in data for each in pair] if kind == "map" else data
        if len(items) >= 1 << 8 * size:
            return None
        body = _elements(items, choose) if kind == "array" else b"".join(encode(each, choose) for each in items)
        raw = len(items).to_bytes(size) + body
    return len(raw).to_bytes(size) + raw if len(raw) < 1 << 8 * size else None


def _elements(items: list[Value], choose: Callable[[list[bytes]], bytes]) -> bytes:
    first = items[0] if items else Value("symbol", "")
    if first.descriptor is not None:
        return b"\x00" + encode(first.descriptor, choose) + _elements([each.data for each in items], choose)
    ways = [(code, [_encoded_as(code, each.data, choose) for each in items]) for code in CODES[first.kind]]
    return choose([bytes((code,)) + b"".join(each) for code, each in ways if None not in each])  # type: ignore[arg-type]


def _fixed_as(kind: str, code: int, size: int, data: Any) -> bytes | None:
    if isinstance(data, bytes):
        return data
    if kind == "char":
        return str(data).encode("utf-32-be", "surrogatepass")
    if kind == "boolean" and size == 0:
        return b"" if data == (code == 0x41) else None
    if size == 0:
        return b"" if not data else None
    try:
        return int(data).to_bytes(size, signed=_INTEGERS.get(kind, False))
    except OverflowError:
        return None


# Types.


def check_type(value: Value, name: str, where: str) -> None:
    """Raise Violation unless a value that is not null has the type."""
    if name in PRIMITIVES and value.kind != name:
        raise Violation(f"{where} is a {value.kind}, not a {name}")
    if name in PRIMITIVES or name == "*":
        return
    definition = TYPES[name]
    if "descriptor" in definition:
        if name_of(value) != name:
            raise Violation(f"{where} is {name_of(value) or value.kind}, not {name}")
        if "fields" in definition:
            fields_of(value)
            return
        value = value.data
    check_type(value, definition["source"], where)
    choices = definition.get("choices")
    if choices and str(value.data).lower() not in choices:
        raise Violation(f"{where} is {value.data!r}, not one of {', '.join(choices)}")
    for key, each in value.data if name in _MAPS else ():
        _MAPS[name](key, each, where)


def check_role(value: Value, role: str, where: str) -> None:
    """Raise Violation unless a value is of a type that provides `role`, such as "source"."""
    providers = PROVIDERS[role]
    if role in _OPEN_CHOICES:
        check_type(value, "symbol", where)
    elif value.kind == "described":
        name = name_of(value)
        if name not in providers:
            raise Violation(f"{where} is {name or 'described by ' + repr(value.descriptor)}, which is no {role}")
        check_type(value, name, where)
    elif providers and not any(_has_type(value, name) for name in providers):
        raise Violation(f"{where} is a {value.kind}, which is no {role}")


def _has_type(value: Value, name: str) -> bool:
    try:
        check_type(value, name, "")
    except Violation:
        return False
    return True


def name_of(value: Value) -> str | None:
    """Return the specification's name of a described value."""
    if value.kind != "described" or value.descriptor is None or value.descriptor.kind not in ("ulong", "symbol"):
        return None
    return BY_DESCRIPTOR.get(value.descriptor.data)


def fields_of(value: Value) -> dict[str, Any]:
    """Return the data of a composite's fields, None for null; composites stay Values. Raises Violation."""
    name = name_of(value)
    definition = TYPES[name or ""]
    if value.data.kind != "list":
        raise Violation(f"{name} is a {value.data.kind}, not a list")
    given = value.data.data
    if len(given) > len(definition["fields"]):
        raise Violation(f"{name} has {len(given)} fields, more than {len(definition['fields'])}")
    found = {}
    for number, field in enumerate(definition["fields"]):
        item = given[number] if number < len(given) else NULL
        _check_field(item, field, f"{name}.{field['name']}")
        found[field["name"]] = item if item.kind == "described" else item.data
    return found


def _check_field(value: Value, field: dict[str, Any], where: str) -> None:
    if value.is_null:
        if field.get("mandatory"):
            raise Violation(f"{where} is missing")
        return
    for each in value.data if field.get("multiple") and value.kind == "array" else [value]:
        check_type(each, field["type"], where)
        if "requires" in field:
            check_role(each, field["requires"], where)


def _symbol_key(key: Value, _each: Value, where: str) -> None:
    if key.kind != "symbol":
        raise Violation(f"{where} has a {key.kind} as a key")


def _annotation_key(key: Value, _each: Value, where: str) -> None:
    if key.kind not in ("symbol", "ulong"):
        raise Violation(f"{where} has a {key.kind} as a key")


def _filter(key: Value, each: Value, where: str) -> None:
    _symbol_key(key, each, where)
    described = each.kind == "described" and each.descriptor is not None
    if not each.is_null and not (described and each.descriptor.kind in ("symbol", "ulong")):  # type: ignore[union-attr]
        raise Violation(f"{where}: the filter {key.data} is not described")


def _simple(key: Value, each: Value, where: str) -> None:
    if key.kind != "string":
        raise Violation(f"{where} has a {key.kind} as a key")
    if each.kind in ("list", "map", "array"):
        raise Violation(f"{where}: {key.data} is a {each.kind}, not a simple value")


_MAPS = {
    "fields": _symbol_key,
    "annotations": _annotation_key,
    "filter-set": _filter,
    "application-properties": _simple,
}

SECTIONS = [
    "header", "delivery-annotations", "message-annotations", "properties", "application-properties",
    "data", "amqp-sequence", "amqp-value", "footer",
]  # fmt: skip
BATCH_FORMAT = 0x80013700


def check_message(payload: bytes, message_format: int) -> None:
    """Raise Violation unless the payload is a message, or a Service Bus batch of messages (BATCH_FORMAT)."""
    position, last, members = 0, -1, []
    while position < len(payload):
        value, position = decode(payload, position)
        name = name_of(value)
        if name not in SECTIONS:
            raise Violation(f"a message has a part that is no section: {name or value.kind}")
        place = SECTIONS.index(name)
        if place < last or (place == last and name not in ("data", "amqp-sequence")):
            raise Violation(f"{name} follows {SECTIONS[last]} in a message")
        if 5 <= last < place <= 7:
            raise Violation(f"a body has both {SECTIONS[last]} and {name}")
        last = place
        check_type(value, name, name)
        if name == "data":
            members.append(value.data.data)
    if last < 5:
        raise Violation("a message has no body")
    if message_format == BATCH_FORMAT:
        for member in members:
            check_message(member, 0)
