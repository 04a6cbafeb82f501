"""Changes to one part of an encoded section that keep the bytes of all the rest. Pure.

Only the requested keys are decoded. A section keeps four-byte sizes that its sender did not need; otherwise it gets the
shortest sizes that fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from sbpair.amqp import codec
from sbpair.amqp.message import skip
from sbpair.amqp.types import Value
from sbpair.errors import ProtocolError

NULL = b"\x40"


class _Layout(NamedTuple):
    """The positions in a described list or map. `base` is the one-byte constructor: 0xC0 or 0xC1."""

    constructor: int
    first: int
    end: int
    number: int
    base: int
    wide: bool


def map_pairs(raw: bytes) -> Iterable[tuple[Value, bytes, bytes]]:
    """Yield each pair of a map section: (key, bytes of key and value, bytes of the value). Raises ProtocolError."""
    if not raw:
        return
    layout = _layout(raw, 0xC1)
    position = layout.first
    for _ in range(layout.number // 2):
        key, value_at = codec.decode(raw, position)
        end = skip(raw, value_at)
        yield key, raw[position:end], raw[value_at:end]
        position = end
    if position != layout.end:
        raise ProtocolError("a map does not end at its stated size")


def map_values(raw: bytes) -> Iterable[tuple[int, int]]:
    """Yield where each value of a map section begins and ends. Raises ProtocolError."""
    if not raw:
        return
    layout = _layout(raw, 0xC1)
    end = layout.first
    for _ in range(layout.number // 2):
        start = skip(raw, end)
        end = skip(raw, start)
        yield start, end
    if end != layout.end:
        raise ProtocolError("a map does not end at its stated size")


def without(raw: bytes, removed: Callable[[Value], bool]) -> bytes:
    """Return a map section without the pairs whose key is `removed`; b"" if none is left. Raises ProtocolError."""
    if not raw:
        return raw
    pairs = list(map_pairs(raw))
    kept = [pair for key, pair, _ in pairs if not removed(key)]
    if len(kept) == len(pairs):
        return raw
    return _rebuilt(raw, _layout(raw, 0xC1), kept, 2 * len(kept)) if kept else b""


def with_pairs(raw: bytes, code: int, pairs: Mapping[Value, Value]) -> bytes:
    """Return a map section with `pairs` appended; a new section `code` if `raw` is b"". Raises ProtocolError."""
    added = [codec.encode(key) + codec.encode(value) for key, value in pairs.items()]
    if not added:
        return raw
    if not raw:
        return bytes((0x00, 0x53, code)) + codec.encode(dict(pairs))
    layout = _layout(raw, 0xC1)
    return _rebuilt(raw, layout, [raw[layout.first : layout.end], *added], layout.number + 2 * len(added))


def with_fields(raw: bytes, code: int, fields: Mapping[int, Value]) -> bytes:
    """Return a list section with the elements at these indexes replaced, padded with nulls.

    A new section `code` if `raw` is b"". Raises ProtocolError.
    """
    raw = raw or bytes((0x00, 0x53, code, 0x45))
    layout = _layout(raw, 0xC0)
    elements = _elements(raw, layout)
    elements += [NULL] * (max(fields, default=-1) + 1 - len(elements))
    for index, value in fields.items():
        elements[index] = codec.encode(value)
    return _rebuilt(raw, layout, elements, len(elements))


def fields(raw: bytes) -> list[bytes]:
    """Return each element of a list section, encoded. Raises ProtocolError."""
    return _elements(raw, _layout(raw, 0xC0))


def _elements(raw: bytes, layout: _Layout) -> list[bytes]:
    elements, position = [], layout.first
    for _ in range(layout.number):
        end = skip(raw, position)
        elements.append(raw[position:end])
        position = end
    if position != layout.end:
        raise ProtocolError("a list does not end at its stated size")
    return elements


def _layout(raw: bytes, base: int) -> _Layout:
    at = skip(raw, 1)
    code = raw[at] if at < len(raw) else 0
    if skip(raw, at) != len(raw):
        raise ProtocolError("a section does not end at its stated size")
    if code == 0x45 and base == 0xC0:
        return _Layout(at, at + 1, at + 1, 0, base, wide=False)
    if code == base and at + 3 <= len(raw):
        return _Layout(at, at + 3, len(raw), raw[at + 2], base, wide=False)
    if code == base + 0x10:
        count, size = int.from_bytes(raw[at + 5 : at + 9]), len(raw) - at - 9
        if count > size:
            raise ProtocolError("a section claims more elements than it has bytes")
        return _Layout(at, at + 9, len(raw), count, base, wide=size < 255 and count < 256)
    raise ProtocolError("a section has the wrong type")


def _rebuilt(raw: bytes, layout: _Layout, parts: list[bytes], count: int) -> bytes:
    return raw[: layout.constructor] + codec.compound(layout.base, count, b"".join(parts), wide=layout.wide)
