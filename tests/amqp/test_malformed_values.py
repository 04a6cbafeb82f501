"""Bytes that are no AMQP value, or claim to be more than they are: one kind of error, in bounded time and memory."""

import contextlib
import struct
import time
import tracemalloc
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec
from sbpair.amqp.frames import AMQP_FRAME, FrameBuffer, frame
from sbpair.amqp.message import DATA, Sections, section, skip
from sbpair.amqp.types import Array, Described, Map, Symbol, Timestamp, UInt, ULong, same
from sbpair.errors import ProtocolError

RICH = codec.encode(
    Described(
        Symbol("com.example:everything"),
        [
            None, True, UInt(0), UInt(300), ULong(70_000), 1.5, Timestamp(0), b"bytes" * 60, "text", Symbol("symbol"),
            Map([(Symbol("key"), ["x", Map([("y", b"z")])]), ("k" * 300, None)]),
            Array(["a", "b"]), Array([Array([UInt(1)]), Array([UInt(2)])]), Array([], of=UUID),
            Described(ULong(0x24), []), [], [[[[]]]],
        ],
    )
)  # fmt: skip


def read_or_refuse(raw: bytes) -> Any:
    try:
        return codec.decode_all(raw)
    except ProtocolError:
        return None


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=1_000)
@example(b"")
@example(b"\x73\xff\xff\xff\xff")
@example(b"\xe0\x01\x00")
@example(b"\x56\x02")
def test_any_bytes_are_a_value_or_a_protocol_error(raw: bytes) -> None:
    value = read_or_refuse(raw)
    if value is not None:
        assert same(codec.decode_all(codec.encode(value)), value)


def test_a_value_cut_short_at_any_byte_is_a_protocol_error() -> None:
    for end in range(len(RICH)):
        with pytest.raises(ProtocolError):
            codec.decode_all(RICH[:end])


def test_a_value_with_any_bit_flipped_is_a_value_or_a_protocol_error() -> None:
    for position in range(len(RICH)):
        for bit in range(8):
            broken = bytearray(RICH)
            broken[position] ^= 1 << bit
            value = read_or_refuse(bytes(broken))
            if value is not None:
                codec.encode(value)


@pytest.mark.parametrize(
    "raw",
    [
        b"\xb0\xff\xff\xff\xff",
        b"\xb1\x7f\xff\xff\xff",
        b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff",
        b"\xd1\x00\x00\x00\x04\xff\xff\xff\xfe",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x45",
        b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x70",
        b"\xf0\x00\x00\x00\x05\x00\x00\x01\x00\x41",
        b"\xe0\x02\x11\x45",
        b"\xc1\x02\x01\x40",
        b"\xc0\x00\x00",
    ],
)
def test_a_length_or_a_count_is_not_believed(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_all(raw)
    assert peak_bytes(lambda: read_or_refuse(raw)) < 20_000


def peak_bytes(act: Callable[[], object]) -> int:
    act()
    tracemalloc.start()
    try:
        act()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def nested(opening: bytes, times: int) -> bytes:
    return opening * times + b"\x40"


def compounds(code: bytes, count: int, times: int) -> bytes:
    """Return a compound in a compound, whose sizes are true. The element before it, of a map, is its key."""
    raw = b"\x40"
    for _ in range(times):
        inside = b"\x40" * (count - 1) + raw
        raw = code + struct.pack(">II", len(inside) + 4, count) + inside
    return raw


DEEP = {
    "descriptors": nested(b"\x00", 65_000),
    "descriptions": nested(b"\x00\x40", 30_000),
    "narrow lists": nested(b"\xc0\xff\x01", 20_000),
    "wide lists": nested(b"\xd0\x00\x00\xff\xff\x00\x00\x00\x01", 7_000),
    "arrays": nested(b"\xf0\x00\x00\xff\xff\x00\x00\x00\x01", 7_000),
    "true lists": compounds(b"\xd0", 1, 100),
    "true maps": compounds(b"\xd1", 2, 100),
    "true arrays": compounds(b"\xf0", 1, 100),
}


@pytest.mark.parametrize("raw", DEEP.values(), ids=DEEP)
def test_nesting_has_an_end(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode_all(raw)
    with pytest.raises(ProtocolError):
        codec.decode_all(b"\x00\x53\x77" + raw)


def test_as_deep_as_real_messages_go_is_fine() -> None:
    value = codec.decode_all(compounds(b"\xd0", 1, 60))
    assert same(codec.decode_all(codec.encode(value)), value)


BULK = {
    "empty lists": (b"\x45", 20_000, 100),
    "nulls": (b"\x40", 20_000, 100),
    "empty maps": (b"\xc1\x01\x00", 20_000, 100),
    "empty arrays": (b"\xe0\x02\x00\x40", 6_000, 100),
    "arrays of nothing": (b"\xe0\x02\xff\x40", 6_000, 100),
    "wide arrays of nothing": (b"\xf0\x00\x00\x00\x05\x00\x00\x00\xff\x41", 6_000, 100),
    "arrays of empty lists": (b"\xe0\x02\x10\x45", 4_000, 300),
    "integers": (b"\x52\x00", 20_000, 100),
}


@pytest.mark.parametrize(("piece", "times", "multiple"), BULK.values(), ids=BULK.keys())
def test_memory_is_a_small_multiple_of_what_came(piece: bytes, times: int, multiple: int) -> None:
    raw = b"\xd0" + struct.pack(">II", len(piece) * times + 4, times) + piece * times
    assert len(codec.decode_all(raw)) == times
    assert peak_bytes(lambda: codec.decode_all(raw)) < multiple * len(raw)


def seconds(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


def grows_linearly(act: Callable[[int], Callable[[], object]], size: int) -> bool:
    """Eight times the work takes about eight times as long: 64 times where it is quadratic."""
    act(size)()
    small = min(seconds(act(size)) for _ in range(5))
    large = min(seconds(act(8 * size)) for _ in range(2))
    return large < 24 * max(small, 0.001)


def test_nested_arrays_cost_what_their_bytes_cost() -> None:
    def act(size: int) -> Callable[[], object]:
        inner = Array([b"x" * 100] * size)
        for _ in range(50):
            inner = Array([inner])
        raw = codec.encode(inner)
        return lambda: codec.decode_all(raw)

    assert grows_linearly(act, 500)
    assert seconds(act(4_000)) < 1


def test_a_frame_in_tiny_pieces_costs_what_its_bytes_cost() -> None:
    def act(size: int) -> Callable[[], object]:
        raw = frame(bytes(size))

        def feed() -> None:
            buffer = FrameBuffer(1 << 24)
            found = 0
            for position in range(0, len(raw), 4):
                if buffer.feed(raw[position : position + 4]):
                    found += len(list(buffer.frames(AMQP_FRAME)))
            assert found == 1

        return feed

    assert grows_linearly(act, 100_000)


def test_a_message_of_very_many_sections_costs_what_its_bytes_cost() -> None:
    def act(size: int) -> Callable[[], object]:
        payload = section(DATA, b"\xa0\x01x") * size

        def split() -> None:
            assert Sections.split(payload).body == payload

        return split

    assert grows_linearly(act, 5_000)


@given(st.binary(max_size=100))
@settings(deadline=None, max_examples=300)
@example(b"\x00" * 60_000)
def test_skipping_any_bytes_ends_within_them_or_is_a_protocol_error(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert 0 < skip(raw, 0) <= len(raw)


def test_skipping_a_value_ends_where_decoding_it_does() -> None:
    described = b"\x00" * 60 + b"\x40" * 61
    for raw in (RICH, described):
        value, end = codec.decode(raw + b"behind")
        assert skip(raw + b"behind", 0) == end
        assert codec.encode(value) == raw
