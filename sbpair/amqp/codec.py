"""AMQP values to bytes and back: every value and its type, in whatever encoding a peer has picked.

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
    return _DECODERS[code](buffer, position + 1, depth)


def _fixed(layout: struct.Struct, make: Callable[[Any], Value]) -> Decoder:
    width, unpack = layout.size, layout.unpack_from
    return lambda buffer, position, _depth: (make(unpack(buffer, position)[0]), position + width)


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
        return Array(items, of=_ELEMENT_TYPES[code], descriptor=descriptor), end

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
    0x82: _fixed(_F64, float),
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


# Encoding: a function per Python type, value -> bytes with the shortest constructor that fits.


def encode(value: Value) -> bytes:
    """Return the bytes of a value, with its constructor.

    Raises TypeError for a Python value without an AMQP type of its own, such as a bare int, which could be any of nine;
    and for an array whose elements have several types.
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


def _list_body(value: list[Value]) -> bytes:
    return b"".join(map(encode, value))


def _map_body(value: Map | dict[Any, Value]) -> bytes:
    pairs = value.pairs if isinstance(value, Map) else value.items()
    return b"".join([encode(item) for pair in pairs for item in pair])


def _array_body(value: Array) -> bytes:
    """Return the one constructor of all elements, and each of them without it."""
    types = {*map(type, value.items), *([value.of] if value.of else [])}
    forms = {_CONSTRUCTORS.get(cls) for cls in types or {type(None)}}
    form = forms.pop()
    if forms or form is None:
        names = ", ".join(sorted(cls.__name__ for cls in types))
        raise TypeError(f"an array's elements are all of one AMQP type, not {names}")
    code, write = form
    descriptor = b"" if value.descriptor is None else b"\x00" + encode(value.descriptor)
    return descriptor + bytes((code,)) + b"".join(map(write, value.items))


def _with_size(value: bytes) -> bytes:
    return _U32.pack(len(value)) + value


_MAP: tuple[int, Encoder] = (0xD1, lambda value: compound(0xC1, 2 * len(value), _map_body(value), wide=True)[1:])

_CONSTRUCTORS: dict[type, tuple[int, Encoder]] = {
    type(None): (0x40, lambda _value: b""),
    bool: (0x56, lambda value: bytes((value,))),
    UByte: (0x50, lambda value: bytes((value,))),
    UShort: (0x60, _U16.pack),
    UInt: (0x70, _U32.pack),
    ULong: (0x80, _U64.pack),
    Byte: (0x51, _I8.pack),
    Short: (0x61, _I16.pack),
    Int: (0x71, _I32.pack),
    Long: (0x81, _I64.pack),
    Float: (0x72, lambda value: value.raw or _F32.pack(value)),
    float: (0x82, _F64.pack),
    Char: (0x73, lambda value: _U32.pack(ord(value))),
    Timestamp: (0x83, _I64.pack),
    Decimal32: (0x74, bytes),
    Decimal64: (0x84, bytes),
    Decimal128: (0x94, bytes),
    uuid.UUID: (0x98, lambda value: value.bytes),
    bytes: (0xB0, _with_size),
    str: (0xB1, lambda value: _with_size(value.encode())),
    Symbol: (0xB3, lambda value: _with_size(value.encode("ascii"))),
    list: (0xD0, lambda value: compound(0xC0, len(value), _list_body(value), wide=True)[1:]),
    dict: _MAP,
    Map: _MAP,
    Array: (0xF0, lambda value: compound(0xE0, len(value), _array_body(value), wide=True)[1:]),
}
"""The constructor that fits every value of a type, and value -> bytes after it: elements of an array share one."""

_ELEMENT_TYPES: dict[int, type] = {
    **{code: cls for cls, (code, _) in _CONSTRUCTORS.items()},
    0x41: bool, 0x42: bool, 0x43: UInt, 0x44: ULong, 0x45: list, 0x52: UInt, 0x53: ULong, 0x54: Int, 0x55: Long,
    0xA0: bytes, 0xA1: str, 0xA3: Symbol, 0xC0: list, 0xC1: Map, 0xE0: Array,
}  # fmt: skip


def _constructed(code: int, write: Encoder) -> Encoder:
    constructor = bytes((code,))
    return lambda value: constructor + write(value)


_ENCODERS: dict[type, Encoder] = {
    **{cls: _constructed(*form) for cls, form in _CONSTRUCTORS.items()},
    # Those with a shorter constructor for some values.
    bool: lambda value: b"\x41" if value else b"\x42",
    UInt: _unsigned(0x43, 0x52, 0x70, _U32.pack),
    ULong: _unsigned(0x44, 0x53, 0x80, _U64.pack),
    Int: _signed(0x54, 0x71, _I32.pack),
    Long: _signed(0x55, 0x81, _I64.pack),
    bytes: lambda value: _short_or_long(0xA0, 0xB0, value),
    str: lambda value: _short_or_long(0xA1, 0xB1, value.encode()),
    Symbol: lambda value: _short_or_long(0xA3, 0xB3, value.encode("ascii")),
    list: _encode_list,
    **dict.fromkeys((Map, dict), lambda value: compound(0xC1, 2 * len(value), _map_body(value))),
    Array: lambda value: compound(0xE0, len(value), _array_body(value)),
    Described: lambda value: b"\x00" + encode(value.descriptor) + encode(value.value),
}
