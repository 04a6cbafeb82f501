"""AMQP values to bytes and back, without loss: a value in a longer form than necessary decodes to a subclass for it.

Invariant: `decode` raises only ProtocolError, and never allocates by a claimed length. AMQP 1.0, part 1: types.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from sbpair.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Map,
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
from sbpair.errors import ProtocolError

MAX_DEPTH = 64
"""Maximum nesting of values: messages of real applications stay under ten."""

MAX_CONSTANTS, MAX_EMPTY_LISTS = 255, 16
"""Maximum of elements without a body that an array may claim: they cost the sender no bytes."""

_U16, _U32, _U64 = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">Q")
_I8, _I16, _I32, _I64 = struct.Struct(">b"), struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_F32, _F64 = struct.Struct(">f"), struct.Struct(">d")

Decoder = Callable[[bytes, int, int], tuple[Value, int]]
Encoder = Callable[[Any], bytes]


# Decoding: a function per format code, (bytes, position after the code, depth) -> (value, position after the value).


def decode(buffer: bytes, position: int = 0) -> tuple[Value, int]:
    """Return the value at `position`, and the position after it. Raises ProtocolError."""
    try:
        return _decode(buffer, position, 0)
    except ProtocolError:
        raise
    except (IndexError, KeyError, ValueError, OverflowError, struct.error) as error:
        raise ProtocolError(f"an AMQP value at byte {position} cannot be decoded: {_why(error)}") from error


def decode_all(buffer: bytes) -> Value:
    """Return the only value in `buffer`. Raises ProtocolError if bytes are left over."""
    value, end = decode(buffer)
    if end != len(buffer):
        raise ProtocolError(f"{len(buffer) - end} bytes are left over after an AMQP value")
    return value


def _why(error: Exception) -> str:
    if isinstance(error, (IndexError, struct.error)):
        return "it is cut short"
    if isinstance(error, KeyError):
        return f"unknown format code {error.args[0]}"
    return str(error)


def _decode(buffer: bytes, position: int, depth: int) -> tuple[Value, int]:
    code = buffer[position]
    if code == 0x00:
        if depth >= MAX_DEPTH:
            raise ProtocolError(f"AMQP values nest deeper than {MAX_DEPTH}")
        descriptor, position = _decode(buffer, position + 1, depth + 1)
        value, position = _decode(buffer, position, depth + 1)
        return Described(descriptor, value), position
    value, end = _DECODERS[code](buffer, position + 1, depth)
    long_form = _LONG_FORMS.get(code)
    if long_form is not None and long_form[1](value, end - position - 1):
        value = long_form[0](value)
    return value, end


def _fixed(layout: struct.Struct, make: Callable[[Any], Value] | None = None) -> Decoder:
    width, unpack = layout.size, layout.unpack_from

    def unchanged(buffer: bytes, position: int, _depth: int) -> tuple[Value, int]:
        return unpack(buffer, position)[0], position + width

    def converted(buffer: bytes, position: int, _depth: int) -> tuple[Value, int]:
        return make(unpack(buffer, position)[0]), position + width  # type: ignore[misc]

    return unchanged if make is None else converted


def _constant(value: Value) -> Decoder:
    return lambda _buffer, position, _depth: (value, position)


def _small(make: Callable[[int], Value]) -> Decoder:
    return lambda buffer, position, _depth: (make(buffer[position]), position + 1)


def _sized(width: int, make: Callable[[bytes], Value]) -> Decoder:
    def read(buffer: bytes, position: int, _depth: int) -> tuple[Value, int]:
        if width == 1:
            start = position + 1
            end = start + buffer[position]
        else:
            start = position + 4
            end = start + _U32.unpack_from(buffer, position)[0]
        if end > len(buffer):
            raise IndexError
        return make(buffer[start:end]), end

    return read


def _boolean(buffer: bytes, position: int, _depth: int) -> tuple[Value, int]:
    if buffer[position] > 1:
        raise ValueError("a boolean is neither 0 nor 1")
    return buffer[position] == 1, position + 1


def _float(buffer: bytes, position: int, _depth: int) -> tuple[Value, int]:
    value = Float(_F32.unpack_from(buffer, position)[0])
    raw = buffer[position : position + 4]
    if _F32.pack(value) != raw:
        value.raw = raw
    return value, position + 4


def _bounds(buffer: bytes, position: int, width: int, depth: int) -> tuple[int, int, int]:
    """Return (position of the first element, end of the compound, count). Checks the end against the buffer."""
    if depth >= MAX_DEPTH:
        raise ProtocolError(f"AMQP values nest deeper than {MAX_DEPTH}")
    if width == 1:
        size, count = buffer[position], buffer[position + 1]
    else:
        size, count = _U32.unpack_from(buffer, position)[0], _U32.unpack_from(buffer, position + 4)[0]
    end = position + width + size
    if end > len(buffer) or size < width:
        raise IndexError
    return position + 2 * width, end, count


def _elements(read: Decoder, buffer: bytes, position: int, end: int, count: int, depth: int) -> list[Value]:
    values: list[Value] = []
    for _ in range(count):
        value, position = read(buffer, position, depth)
        if position > end:
            raise ValueError("a compound value runs past its own size")
        values.append(value)
    if position != end:
        raise ValueError("a compound value ends before its own size")
    return values


def _list(width: int) -> Decoder:
    def read(buffer: bytes, position: int, depth: int) -> tuple[Value, int]:
        first, end, count = _bounds(buffer, position, width, depth)
        return _elements(_decode, buffer, first, end, count, depth + 1), end

    return read


def _map(width: int) -> Decoder:
    def read(buffer: bytes, position: int, depth: int) -> tuple[Value, int]:
        first, end, count = _bounds(buffer, position, width, depth)
        if count % 2:
            raise ValueError("a map has a key without a value")
        flat = iter(_elements(_decode, buffer, first, end, count, depth + 1))
        return Map(zip(flat, flat, strict=True)), end

    return read


def _array(width: int) -> Decoder:
    def read(buffer: bytes, position: int, depth: int) -> tuple[Value, int]:
        first, end, count = _bounds(buffer, position, width, depth)
        descriptor = None
        code = buffer[first]
        first += 1
        if code == 0x00:
            descriptor, first = _decode(buffer, first, depth + 1)
            code = buffer[first]
            first += 1
        items = _array_items(code, buffer, first, end, count, depth + 1)
        wide = width == 4 and end - position - 8 < 255 and count < 256
        return Array(items, code=code, descriptor=descriptor, wide=wide), end

    return read


def _array_items(code: int, buffer: bytes, position: int, end: int, count: int, depth: int) -> Iterable[Value]:
    if code & 0xF0 != 0x40:
        return _elements(_DECODERS[code], buffer, position, end, count, depth)
    if count > (MAX_EMPTY_LISTS if code == 0x45 else MAX_CONSTANTS):
        raise ValueError(f"an array claims {count} elements without a body")
    if position != end:
        raise ValueError("an array ends before its own size")
    return _repeated(code, count) if code != 0x45 else [[] for _ in range(count)]


@cache
def _repeated(code: int, count: int) -> tuple[Value, ...]:
    """Return a tuple shared by all such arrays, so that a frame full of them costs no more than its bytes."""
    return (_DECODERS[code](b"", 0, 0)[0],) * count


_DECODERS: dict[int, Decoder] = {
    0x40: _constant(None),
    0x41: _constant(True),
    0x42: _constant(False),
    0x43: _constant(UInt(0)),
    0x44: _constant(ULong(0)),
    0x45: lambda _buffer, position, _depth: ([], position),
    0x50: _small(UByte),
    0x51: _fixed(_I8, Byte),
    0x52: _small(UInt),
    0x53: _small(ULong),
    0x54: _fixed(_I8, Int),
    0x55: _fixed(_I8, Long),
    0x56: _boolean,
    0x60: _fixed(_U16, UShort),
    0x61: _fixed(_I16, Short),
    0x70: _fixed(_U32, UInt),
    0x71: _fixed(_I32, Int),
    0x72: _float,
    0x73: _fixed(_U32, lambda code: Char(chr(code))),
    0x74: _fixed(struct.Struct("4s"), Decimal32),
    0x80: _fixed(_U64, ULong),
    0x81: _fixed(_I64, Long),
    0x82: _fixed(_F64),
    0x83: _fixed(_I64, Timestamp),
    0x84: _fixed(struct.Struct("8s"), Decimal64),
    0x94: _fixed(struct.Struct("16s"), Decimal128),
    0x98: _fixed(struct.Struct("16s"), lambda raw: uuid.UUID(bytes=raw)),
    0xA0: _sized(1, bytes),
    0xA1: _sized(1, bytes.decode),
    0xA3: _sized(1, lambda raw: Symbol(raw.decode("ascii"))),
    0xB0: _sized(4, bytes),
    0xB1: _sized(4, bytes.decode),
    0xB3: _sized(4, lambda raw: Symbol(raw.decode("ascii"))),
    0xC0: _list(1),
    0xC1: _map(1),
    0xD0: _list(4),
    0xD1: _map(4),
    0xE0: _array(1),
    0xF0: _array(4),
}


# Encoding: a function per Python type, value -> bytes with the constructor; and one per format code, without it.


def encode(value: Value) -> bytes:
    """Return the bytes of a value, with its constructor.

    Raises TypeError for a Python value without an AMQP type of its own, such as a bare int, which could be any of nine.
    Raises ValueError for an array whose elements do not fit its constructor.
    """
    try:
        encoder = _ENCODERS[type(value)]
    except KeyError:
        raise TypeError(f"{type(value).__name__} is not an AMQP type: wrap it in one of sbpair.amqp.types") from None
    return encoder(value)


def _short_or_long(short: int, long: int, body: bytes) -> bytes:
    size = len(body)
    return bytes((short, size)) + body if size < 256 else bytes((long,)) + _U32.pack(size) + body


def _unsigned(zero: int, small: int, wide: int, pack: Callable[[int], bytes]) -> Encoder:
    none, one, all_bytes = bytes((zero,)), bytes((small,)), bytes((wide,))

    def write(value: int) -> bytes:
        if value < 256:
            return one + bytes((value,)) if value else none
        return all_bytes + pack(value)

    return write


def _signed(small: int, wide: int, pack: Callable[[int], bytes]) -> Encoder:
    one, all_bytes, pack_small = bytes((small,)), bytes((wide,)), _I8.pack
    return lambda value: one + pack_small(value) if -128 <= value <= 127 else all_bytes + pack(value)


def compound(code: int, count: int, body: bytes, *, wide: bool = False) -> bytes:
    size = len(body)
    if size < 255 and count < 256 and not wide:
        return bytes((code, size + 1, count)) + body
    return bytes((code + 0x10,)) + _U32.pack(size + 4) + _U32.pack(count) + body


def _encode_list(value: list[Value]) -> bytes:
    return compound(0xC0, len(value), _list_body(value)) if value else b"\x45"


def _map_body(value: Map | dict[Any, Value]) -> bytes:
    pairs = value.pairs if isinstance(value, Map) else value.items()
    return b"".join([encode(item) for pair in pairs for item in pair])


def _encode_map(value: Map | dict[Any, Value]) -> bytes:
    return compound(0xC1, 2 * len(value), _map_body(value))


def _encode_array(value: Array) -> bytes:
    code = value.code if value.code is not None else _common_code(value.items)
    constructor = bytes((code,))
    if value.descriptor is not None:
        constructor = b"\x00" + encode(value.descriptor) + constructor
    write = _BODIES[code]
    body = constructor + b"".join([write(item) for item in value.items])
    return compound(0xE0, len(value.items), body, wide=value.wide)


def _common_code(items: tuple[Value, ...]) -> int:
    """Return the constructor that fits every element; null for no elements."""
    codes = {_CODES.get(type_of(item)) for item in items}
    if len(codes) > 1 or None in codes:
        names = ", ".join(sorted({type(item).__name__ for item in items}))
        raise TypeError(f"an array's elements are all of one AMQP type, not {names}")
    return codes.pop() or 0x40 if codes else 0x40


def _narrow(write: Encoder, limit: int) -> Encoder:
    """Check `write` for a constructor with one-byte sizes: an element that does not fit raises ValueError."""

    def checked(value: Any) -> bytes:
        body = write(value)
        if len(body) > limit or body[0] != len(body) - 1:
            raise ValueError("an array's element does not fit its constructor")
        return body

    return checked


def _described(value: Described) -> bytes:
    return b"\x00" + encode(value.descriptor) + encode(value.value)


def _without_body(*values: Value) -> Encoder:
    """Return the encoder of a constructor without a body, which fits only these values."""

    def checked(value: Any) -> bytes:
        if not any(value == allowed and type_of(value) is type_of(allowed) for allowed in values):
            raise ValueError(f"{value!r} does not fit an array of {values[0]!r}")
        return b""

    return checked


def _list_body(value: list[Value]) -> bytes:
    return b"".join(map(encode, value))


def _sized_8(value: bytes) -> bytes:
    return bytes((len(value),)) + value


def _sized_32(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


_BODIES: dict[int, Encoder] = {
    0x40: _without_body(None),
    0x41: _without_body(True),
    0x42: _without_body(False),
    0x43: _without_body(UInt(0)),
    0x44: _without_body(ULong(0)),
    0x45: _without_body([]),
    **dict.fromkeys((0x50, 0x52, 0x53, 0x56), lambda value: bytes((value,))),
    **dict.fromkeys((0x51, 0x54, 0x55), _I8.pack),
    0x60: _U16.pack,
    0x61: _I16.pack,
    0x70: _U32.pack,
    0x71: _I32.pack,
    0x72: lambda value: value.raw or _F32.pack(value),
    0x73: lambda value: _U32.pack(ord(value)),
    0x80: _U64.pack,
    **dict.fromkeys((0x81, 0x83), _I64.pack),
    0x82: _F64.pack,
    **dict.fromkeys((0x74, 0x84, 0x94), bytes),
    0x98: lambda value: value.bytes,
    0xA0: _sized_8,
    0xB0: _sized_32,
    0xA1: lambda value: _sized_8(value.encode()),
    0xB1: lambda value: _sized_32(value.encode()),
    0xA3: lambda value: _sized_8(value.encode("ascii")),
    0xB3: lambda value: _sized_32(value.encode("ascii")),
    0xC0: _narrow(lambda value: compound(0xC0, len(value), _list_body(value))[1:], 256),
    0xD0: lambda value: compound(0xC0, len(value), _list_body(value), wide=True)[1:],
    0xC1: _narrow(lambda value: _encode_map(value)[1:], 256),
    0xD1: lambda value: compound(0xC1, 2 * len(value), _map_body(value), wide=True)[1:],
    0xE0: _narrow(lambda value: _encode_array(value)[1:], 256),
    0xF0: lambda value: _encode_array(Array(value.items, code=value.code, descriptor=value.descriptor, wide=True))[1:],
}

_CODES: dict[type, int] = {
    type(None): 0x40, bool: 0x56, UByte: 0x50, UShort: 0x60, UInt: 0x70, ULong: 0x80, Byte: 0x51, Short: 0x61,
    Int: 0x71, Long: 0x81, Float: 0x72, float: 0x82, Char: 0x73, Timestamp: 0x83, Decimal32: 0x74, Decimal64: 0x84,
    Decimal128: 0x94, uuid.UUID: 0x98, bytes: 0xB0, str: 0xB1, Symbol: 0xB3, list: 0xD0, Map: 0xD1, dict: 0xD1,
    Array: 0xF0,
}  # fmt: skip
"""The default constructor of an array, by element type: one that fits every value."""


def _constructed(code: int) -> Encoder:
    constructor, body = bytes((code,)), _BODIES[code]
    return lambda value: constructor + body(value)


_ENCODERS: dict[type, Encoder] = {
    **{cls: _constructed(code) for cls, code in _CODES.items()},
    # Those with a shorter constructor for some values.
    type(None): lambda _value: b"\x40",
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt: _unsigned(0x43, 0x52, 0x70, _U32.pack),
    ULong: _unsigned(0x44, 0x53, 0x80, _U64.pack),
    Int: _signed(0x54, 0x71, _I32.pack),
    Long: _signed(0x55, 0x81, _I64.pack),
    bytes: lambda value: _short_or_long(0xA0, 0xB0, value),
    str: lambda value: _short_or_long(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _short_or_long(0xA3, 0xB3, value.encode("ascii")),
    list: _encode_list,
    Map: _encode_map,
    dict: _encode_map,
    Array: _encode_array,
    Described: _described,
}


# Values in a longer constructor than necessary: {code: (class that keeps the form, test for a longer form)}.

_LONG_FORMS: dict[int, tuple[Callable[[Any], Value], Callable[[Any, int], bool]]] = {}


def _register_long_form(
    code: int, base: type, longer: Callable[[Any, int], bool], *, plain: type | None = None
) -> None:
    plain = plain or base
    cls = type(plain.__name__, (base,), {"plain": plain, "__slots__": ()})
    _ENCODERS[cls] = _constructed(code)
    _LONG_FORMS[code] = ((lambda value: cls(value.pairs)) if base is Map else cls, longer)


_register_long_form(0x52, UInt, lambda value, _size: value == 0)
_register_long_form(0x70, UInt, lambda value, _size: value < 256)
_register_long_form(0x53, ULong, lambda value, _size: value == 0)
_register_long_form(0x80, ULong, lambda value, _size: value < 256)
_register_long_form(0x71, Int, lambda value, _size: -128 <= value <= 127)
_register_long_form(0x81, Long, lambda value, _size: -128 <= value <= 127)
_register_long_form(0x56, int, lambda _value, _size: True, plain=bool)
_register_long_form(0xB0, bytes, lambda _value, size: size < 260)
_register_long_form(0xB1, str, lambda _value, size: size < 260)
_register_long_form(0xB3, Symbol, lambda _value, size: size < 260)
_register_long_form(0xC0, list, lambda value, _size: not value)
_register_long_form(0xD0, list, lambda value, size: len(value) < 256 and size < 263)
_register_long_form(0xD1, Map, lambda _value, size: size < 263)
