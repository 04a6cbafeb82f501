"""The short cut for transfers: it says what the general reader says, about everything that a peer may write."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec, transfer
from sbpair.amqp.performatives import Accepted, Transfer, decode_composite
from sbpair.amqp.types import ULong
from sbpair.errors import ProtocolError

uints = st.sampled_from([0, 1, 255, 256, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
tags = st.binary(max_size=32)
flags = st.booleans()


@st.composite
def raw_uint(draw: st.DrawFn, value: int) -> bytes:
    wide = b"\x70" + value.to_bytes(4)
    if value == 0:
        return draw(st.sampled_from([b"\x43", b"\x52\x00", wide]))
    return draw(st.sampled_from([bytes((0x52, value)), wide])) if value < 256 else wide


def raw_flag() -> st.SearchStrategy[bytes]:
    return st.sampled_from([b"\x40", b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"])


@st.composite
def raw_fields(draw: st.DrawFn) -> list[bytes]:
    null = st.just(b"\x40")
    fields = [
        draw(uints.flatmap(raw_uint)),
        draw(null | uints.flatmap(raw_uint)),
        draw(null | tags.map(codec.encode) | tags.map(lambda tag: b"\xb0" + len(tag).to_bytes(4) + tag)),
        draw(null | uints.flatmap(raw_uint)),
        draw(raw_flag()),
        draw(raw_flag()),
        draw(st.sampled_from([b"\x40", b"\x43", b"\x50\x00", b"\x50\x01"])),
        draw(null | st.just(Accepted().encode())),
        *(draw(raw_flag()) for _ in range(3)),
    ]
    return fields[: draw(st.integers(1, 11))]


@st.composite
def raw_transfers(draw: st.DrawFn) -> bytes:
    fields = draw(raw_fields())
    body = b"".join(fields)
    descriptor = draw(
        st.sampled_from([b"\x00\x53\x14", b"\x00\x80" + (0x14).to_bytes(8), b"\x00\xa3\x12amqp:transfer:list"])
    )
    if draw(flags):
        return descriptor + b"\xd0" + (len(body) + 4).to_bytes(4) + len(fields).to_bytes(4) + body
    return descriptor + bytes((0xC0, len(body) + 1, len(fields))) + body


def generally(raw: bytes, start: int, end: int) -> Any:
    body, length = decode_composite(raw[start:end])
    assert isinstance(body, Transfer)
    flags = bool(body.settled), bool(body.more), bool(body.aborted)
    return (
        body.handle,
        body.delivery_id,
        body.delivery_tag,
        body.message_format or 0,
        *flags,
        start + length,
        body.state,
    )


@given(raw_transfers(), st.binary(max_size=20), st.binary(max_size=20))
@settings(deadline=None, max_examples=200)
def test_the_fast_path_equals_the_general_decoder(raw: bytes, before: bytes, payload: bytes) -> None:
    whole = before + raw + payload + b"the next frame"
    start, end = len(before), len(before + raw + payload)
    assert transfer.decode_transfer(whole, start, end) == generally(whole, start, end)


@given(raw_transfers(), st.data())
@settings(deadline=None, max_examples=200)
def test_the_fast_path_is_as_strict_as_the_general_decoder(raw: bytes, data: st.DataObject) -> None:
    broken = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 2))):
        broken[data.draw(st.integers(3, len(raw) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.integers(4, len(broken)))] if data.draw(flags) else broken
    try:
        expected = generally(bytes(broken), 0, len(broken))
    except (ProtocolError, AssertionError):
        with pytest.raises(ProtocolError):
            transfer.decode_transfer(bytes(broken), 0, len(broken))
    else:
        assert transfer.decode_transfer(bytes(broken), 0, len(broken)) == expected


@given(uints, uints, tags, uints, flags, flags)
@settings(deadline=None, max_examples=200)
def test_an_encoded_transfer_has_all_fields(
    handle: int, delivery_id: int, tag: bytes, message_format: int, settled: bool, more: bool
) -> None:
    raw = transfer.encode_transfer(handle, delivery_id, tag, message_format, settled=settled, more=more)
    body, end = decode_composite(raw + b"payload")
    assert body == Transfer(handle, delivery_id, tag, message_format, settled, more)
    assert end == len(raw)
    assert len(codec.decode_all(raw).value) == 11
    decoded = (handle, delivery_id, tag, message_format, settled, more, False, end, None)
    assert transfer.decode_transfer(raw, 0, len(raw)) == decoded


def test_a_transfer_of_something_else_is_refused() -> None:
    for raw in (b"\x00\x53\x14\xc0\x02\x01\x40", b"\x00\x53\x14\x45", b"\x00\x53\x14", codec.encode(ULong(0x14))):
        with pytest.raises(ProtocolError):
            transfer.decode_transfer(raw, 0, len(raw))
