"""AMQP's types as Python values that keep their type: `UInt(5) == 5`, and it encodes as a uint.

None (null), bool, float (double), str (string), bytes (binary), UUID and list need no subclass. AMQP 1.0, part 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

Value: TypeAlias = Any
"""None, bool, float, bytes, UUID, list, or one of the classes below."""


class Integer(int):
    """An AMQP integer of a given width. Raises ValueError if the value does not fit."""

    LOW: ClassVar[int] = 0
    HIGH: ClassVar[int] = 0
    __slots__ = ()

    def __new__(cls, value: int) -> Integer:
        if not cls.LOW <= value <= cls.HIGH:
            raise ValueError(f"{value} does not fit an AMQP {cls.__name__.lower()}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int(self)})"

    __str__ = int.__repr__


class UByte(Integer):
    HIGH = 0xFF
    __slots__ = ()


class UShort(Integer):
    HIGH = 0xFFFF
    __slots__ = ()


class UInt(Integer):
    HIGH = 0xFFFFFFFF
    __slots__ = ()


class ULong(Integer):
    HIGH = 0xFFFFFFFFFFFFFFFF
    __slots__ = ()


class Byte(Integer):
    LOW, HIGH = -0x80, 0x7F
    __slots__ = ()


class Short(Integer):
    LOW, HIGH = -0x8000, 0x7FFF
    __slots__ = ()


class Int(Integer):
    LOW, HIGH = -0x80000000, 0x7FFFFFFF
    __slots__ = ()


class Long(Integer):
    LOW, HIGH = -0x8000000000000000, 0x7FFFFFFFFFFFFFFF
    __slots__ = ()


class Timestamp(Integer):
    """Milliseconds since 1970-01-01T00:00:00Z."""

    LOW, HIGH = -0x8000000000000000, 0x7FFFFFFFFFFFFFFF
    __slots__ = ()


class Float(float):
    """Four bytes of IEEE 754. `raw` is kept for a NaN whose bits Python's own conversion would change."""

    raw: bytes | None = None

    def __repr__(self) -> str:
        return f"Float({float(self)!r})"


class Symbol(str):
    """ASCII text from a constrained domain: not the same as a string, though it compares like one."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str(self)!r})"


class Char(str):
    """One Unicode code point (a lone surrogate too: .NET's char is half of a pair)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str(self)!r})"


class Decimal(bytes):
    """An IEEE 754 decimal as received: no arithmetic."""

    WIDTH: ClassVar[int] = 0
    __slots__ = ()

    def __new__(cls, value: bytes) -> Decimal:
        if len(value) != cls.WIDTH:
            raise ValueError(f"{len(value)} bytes are not a {cls.__name__.lower()}, which has {cls.WIDTH}")
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({bytes(self)!r})"


class Decimal32(Decimal):
    WIDTH = 4
    __slots__ = ()


class Decimal64(Decimal):
    WIDTH = 8
    __slots__ = ()


class Decimal128(Decimal):
    WIDTH = 16
    __slots__ = ()


@dataclass(slots=True)
class Described:
    """A value with a descriptor of its meaning, such as `com.microsoft:timespan`."""

    descriptor: Value
    value: Value


class Map:
    """An AMQP map in its original order.

    Not a dict: Symbol("a") and "a", or UInt(1) and Int(1), are two keys in AMQP and one in Python.
    """

    __slots__ = ("pairs",)

    def __init__(self, pairs: Iterable[tuple[Value, Value]] = ()) -> None:
        self.pairs: tuple[tuple[Value, Value], ...] = tuple(pairs)

    def get(self, key: str, default: Value = None) -> Value:
        """Return the value of the first key that compares equal to `key`."""
        for candidate, value in self.pairs:
            if candidate == key:
                return value
        return default

    def __getitem__(self, key: str) -> Value:
        for candidate, value in self.pairs:
            if candidate == key:
                return value
        raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return any(candidate == key for candidate, _ in self.pairs)

    def __iter__(self) -> Iterator[Value]:
        return (key for key, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Map) and self.pairs == other.pairs

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Map({list(self.pairs)!r})"


class Array:
    """Values of one type that share one constructor. `of` is the type; None is that of the values.

    `descriptor` describes every element, if the constructor is a described one.
    """

    __slots__ = ("descriptor", "items", "of")

    def __init__(self, items: Iterable[Value], *, of: type | None = None, descriptor: Value = None) -> None:
        self.items: tuple[Value, ...] = tuple(items)
        self.of = of
        self.descriptor = descriptor

    def __iter__(self) -> Iterator[Value]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Array) and (self.items, self.descriptor) == (other.items, other.descriptor)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Array({list(self.items)!r}, descriptor={self.descriptor!r})"


def amqp_type_name(value: Value) -> str:
    """Return the specification's name of a value's type."""
    name = type(value).__name__
    return _PYTHON_TYPES.get(name, name.lower())


_PYTHON_TYPES = {"NoneType": "null", "bytes": "binary", "float": "double", "bool": "boolean", "str": "string"}


def same(left: Value, right: Value) -> bool:
    """Return whether values are equal, with equal AMQP types at every level; `==` takes UInt(1) for Int(1)."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    if isinstance(left, Map):
        return same([list(pair) for pair in left.pairs], [list(pair) for pair in right.pairs])
    if isinstance(left, Array):
        return same(left.descriptor, right.descriptor) and same(list(left.items), list(right.items))
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return left == right or (left != left and right != right)
    return bool(left == right)


def text_of(value: Value) -> str | None:
    """Return the text of a message id of any type; None for None."""
    if value is None:
        return None
    return value.hex() if isinstance(value, bytes) else str(value)
