"""Splicing against decoding and encoding: the same meaning, and the bytes of all the rest."""

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import codec, splice
from sbpair.amqp.message import APPLICATION_PROPERTIES, HEADER, PROPERTIES, section
from sbpair.amqp.types import Described, Int, Long, Map, Symbol, Timestamp, UInt, same
from sbpair.errors import ProtocolError

KEYS = st.sampled_from(["a", "b", "x-ms-path", "c" * 300]) | st.builds(Symbol, st.sampled_from(["a", "x-ms-path"]))
PLAIN = (
    st.none()
    | st.booleans()
    | st.text(max_size=20)
    | st.binary(max_size=300)
    | st.integers(-(2**31), 2**31 - 1).map(Int)
    | st.integers(0, 2**32 - 1).map(UInt)
    | st.integers(0, 2**60).map(Timestamp)
)
VALUES = PLAIN | st.builds(Described, st.just(Symbol("com.microsoft:timespan")), st.integers(0, 2**60).map(Long))
DEEP = VALUES | st.lists(VALUES, max_size=3) | st.lists(st.tuples(KEYS, VALUES), max_size=3).map(Map)
MAPS = st.lists(st.tuples(KEYS | st.integers(0, 9).map(Int) | st.lists(PLAIN, max_size=1), DEEP), max_size=12)


def wide(encoded: bytes) -> bytes:
    """The same map or list with four-byte sizes."""
    if encoded[0] == 0x45:
        return b"\xd0" + (4).to_bytes(4) + bytes(4)
    if encoded[0] >= 0xD0:
        return encoded
    body = encoded[3:]
    return bytes((encoded[0] + 0x10,)) + (len(body) + 4).to_bytes(4) + encoded[2].to_bytes(4) + body


def described(code: int, encoded: bytes, *, symbolic: bool) -> bytes:
    name = {APPLICATION_PROPERTIES: "amqp:application-properties:map", PROPERTIES: "amqp:properties:list"}[code]
    return b"\x00" + codec.encode(Symbol(name)) + encoded if symbolic else section(code, encoded)


def read(raw: bytes) -> object:
    return codec.decode_all(raw).value


def is_path(key: object) -> bool:
    return isinstance(key, str) and key == "x-ms-path"


@given(MAPS, st.booleans(), st.booleans())
def test_cutting_keys_out_is_decoding_and_encoding_without_them(pairs, symbolic, roomy):
    encoded = codec.encode(Map(pairs))
    raw = described(APPLICATION_PROPERTIES, wide(encoded) if roomy else encoded, symbolic=symbolic)
    kept = [(key, value) for key, value in pairs if not is_path(key)]
    cut = splice.without(raw, is_path)
    if len(kept) == len(pairs):
        assert cut == raw
    elif not kept:
        assert cut == b""
    else:
        # Four-byte sizes that the sender did not need are kept.
        shorter = wide(codec.encode(Map(kept))) if roomy and encoded[0] == 0xC1 else codec.encode(Map(kept))
        assert cut == described(APPLICATION_PROPERTIES, shorter, symbolic=symbolic)


@given(MAPS, st.booleans(), st.dictionaries(KEYS, VALUES, max_size=3))
def test_pairs_are_added_after_what_is_there(pairs, roomy, added):
    encoded = codec.encode(Map(pairs))
    raw = section(APPLICATION_PROPERTIES, wide(encoded) if roomy else encoded)
    assert same(read(splice.with_pairs(raw, APPLICATION_PROPERTIES, added)), Map([*pairs, *added.items()]))


@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=3))
def test_a_section_that_was_not_there_is_made_for_what_is_added(added):
    raw = splice.with_pairs(b"", APPLICATION_PROPERTIES, added)
    assert raw == section(APPLICATION_PROPERTIES, codec.encode(Map(added.items())))
    assert splice.with_pairs(b"", APPLICATION_PROPERTIES, {}) == b""


@given(
    st.lists(DEEP, max_size=13), st.booleans(), st.booleans(), st.dictionaries(st.integers(0, 12), VALUES, max_size=3)
)
def test_fields_are_replaced_where_they_stand(elements, roomy, symbolic, fields):
    encoded = codec.encode(elements)
    raw = described(PROPERTIES, wide(encoded) if roomy else encoded, symbolic=symbolic)
    wanted = list(elements) + [None] * (max(fields, default=-1) + 1 - len(elements))
    for index, value in fields.items():
        wanted[index] = value
    changed = splice.with_fields(raw, PROPERTIES, fields)
    assert same(read(changed), wanted)
    assert same([*map(codec.decode_all, splice.fields(changed))], wanted)


@given(st.dictionaries(st.integers(0, 12), VALUES, min_size=1, max_size=3))
def test_fields_of_a_section_that_was_not_there_stand_among_nulls(fields):
    made = read(splice.with_fields(b"", PROPERTIES, fields))
    assert same(made, [fields.get(index) for index in range(max(fields) + 1)])


ACTS: dict[str, Callable[[bytes], object]] = {
    "map_pairs": lambda raw: list(splice.map_pairs(raw)),
    "without": lambda raw: splice.without(raw, is_path),
    "with_pairs": lambda raw: splice.with_pairs(raw, APPLICATION_PROPERTIES, {"k": Int(1)}),
    "with_fields": lambda raw: splice.with_fields(raw, HEADER, {2: UInt(5)}),
}


@given(MAPS | st.lists(DEEP, max_size=5).map(tuple), st.binary(max_size=40), st.data())
def test_damaged_bytes_are_a_protocol_error_and_nothing_else(contents, behind, data):
    listed = isinstance(contents, tuple)
    code, value = (PROPERTIES, [*contents]) if listed else (APPLICATION_PROPERTIES, Map(contents))
    whole = section(code, codec.encode(value))
    raw = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(3, len(raw) - 1))] = data.draw(st.integers(0, 255))
    broken = bytes(raw[: data.draw(st.integers(4, len(raw)))])
    for act in ACTS.values():
        for bad in (broken, whole[:3] + behind):
            with contextlib.suppress(ProtocolError):
                act(bad)


@pytest.mark.parametrize(
    "encoded",
    [
        b"\xc1\x00",
        b"\xc1\x01\x02",
        b"\xc1\x02\x01\x40",
        b"\xd1\x00\x00\x00\x00",
        b"\xd1\x00\x00\x00\x04\x01\x00\x00\x00",
        b"\xc0\x01\x00",
        b"\x40",
        b"\xc1\x05\x02\xa1\x01a\x40\x40",
    ],
)
def test_a_map_that_lies_about_itself_is_a_protocol_error(encoded):
    with pytest.raises(ProtocolError):
        splice.without(section(APPLICATION_PROPERTIES, encoded), is_path)
