"""Splicing what a peer has sent broken: a protocol error, never another, and never an endless loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec, splice
from sbpair.amqp.message import APPLICATION_PROPERTIES, HEADER
from sbpair.amqp.types import Int, Map, UInt
from sbpair.errors import ProtocolError

ACTS: dict[str, Callable[[bytes], object]] = {
    "map_pairs": lambda raw: list(splice.map_pairs(raw)),
    "without": lambda raw: splice.without(raw, lambda key: key == "k"),
    "with_pairs": lambda raw: splice.with_pairs(raw, APPLICATION_PROPERTIES, {"k": Int(1)}),
    "with_fields": lambda raw: splice.with_fields(raw, HEADER, {2: UInt(5)}),
}
MAPPED = b"\x00\x53\x74" + codec.encode(Map([("k", Int(300)), ("other", "x" * 40)]))
LISTED = b"\x00\x53\x70" + codec.encode([True, None, UInt(70_000)])


@pytest.mark.parametrize("name", ACTS)
def test_a_broken_section_is_a_protocol_error(name: str) -> None:
    whole = LISTED if name == "with_fields" else MAPPED

    @given(st.binary(max_size=40), st.integers(0, len(whole) - 1), st.integers(0, 255))
    @settings(deadline=None, max_examples=100)
    @example(b"\xc0\x00", 0, 0)
    @example(b"\xc1\x00", 0, 0)
    @example(b"\xd1\x00\x00\x00\x00", 0, 0)
    @example(b"\xd0\x00\x00\x00\x04\xff\xff\xff\xff", 0, 0)
    def refused(behind: bytes, position: int, value: int) -> None:
        damaged = whole[:position] + bytes((value,)) + whole[position + 1 :]
        for raw in (whole[:3] + behind, damaged, whole[: position + 1]):
            with contextlib.suppress(ProtocolError):
                ACTS[name](raw)

    refused()
