"""The short cut for transfers: it says what the general reader says, about everything that a peer may write."""

from itertools import product
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import codec, transfer
from sbpair.amqp.performatives import Transfer, decode_composite
from sbpair.amqp.types import ULong
from sbpair.errors import ProtocolError
from tests.strict_amqp.values import NULL, Value, encode

uints = st.sampled_from([0, 1, 255, 256, 0xFFFFFFFF]) | st.integers(0, 0xFFFFFFFF)
tags = st.binary(max_size=32)
flags = st.booleans()


FIELDS = (
    *(("uint", uints), ("uint", uints), ("binary", tags), ("uint", uints), ("boolean", flags), ("boolean", flags)),
    *(("ubyte", st.integers(0, 1)), ("described", st.just(Value("list", [])))),
    *(("boolean", flags), ("boolean", flags), ("boolean", flags)),
)


@st.composite
def raw_transfers(draw: st.DrawFn) -> bytes:
    """A transfer in any of its encodings, where all fields but the handle may be null, and the last ones missing."""
    accepted = Value("ulong", 0x24)
    given = [Value(kind, draw(of), accepted if kind == "described" else None) for kind, of in FIELDS]
    fields = [given[0], *(draw(st.sampled_from([each, NULL])) for each in given[1:])]
    descriptor = draw(st.sampled_from([Value("ulong", 0x14), Value("symbol", "amqp:transfer:list")]))
    body = Value("list", fields[: draw(st.integers(1, 11))])
    return encode(Value("described", body, descriptor), Random(draw(st.integers(0, 2**32))).choice)


def generally(raw: bytes, start: int, end: int) -> Any:
    body, length = decode_composite(raw[start:end])
    if not isinstance(body, Transfer):
        raise ProtocolError(type(body).__name__)
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


@given(raw_transfers(), st.data(), st.binary(max_size=20), st.binary(max_size=20))
@settings(deadline=None, max_examples=400)
def test_the_fast_path_equals_the_general_decoder(
    raw: bytes, data: st.DataObject, before: bytes, payload: bytes
) -> None:
    broken = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 2))):
        broken[data.draw(st.integers(3, len(raw) - 1))] = data.draw(st.integers(0, 255))
    broken = broken[: data.draw(st.integers(4, len(broken)))] if data.draw(flags) else broken + payload
    whole = before + broken + b"the next frame"
    where = len(before), len(before) + len(broken)
    try:
        expected = generally(whole, *where)
    except ProtocolError:
        with pytest.raises(ProtocolError):
            transfer.decode_transfer(whole, *where)
    else:
        assert transfer.decode_transfer(whole, *where) == expected


UINTS = (b"\x43", b"\x52\x05", b"\x70\x00\x01\x11\x70")


@pytest.mark.parametrize(("no", "yes"), [(b"\x42", b"\x41"), (b"\x56\x00", b"\x56\x01")])
def test_common_forms_take_the_fast_path(no: bytes, yes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    flag, off = (b"\x40", no, yes), (b"\x40", no)
    fields = (UINTS, (*UINTS, b"\x40"), (b"\xa0\x03tag",), (*UINTS, b"\x40"))
    rest = (flag, flag, (b"\x40", b"\x43", b"\x50\x01"), (b"\x40",), off, off, flag)
    forms = [*product(*fields, *rest[:2]), *product((b"\x43",), *fields[1:], *rest)]
    encoded = [b"\x00\x53\x14\xc0" + bytes((1 + len(b"".join(each)), len(each))) + b"".join(each) for each in forms]
    expected = [generally(raw + b"payload", 0, len(raw) + 7) for raw in encoded]
    monkeypatch.setattr(transfer, "_decode_any", None)
    assert [transfer.decode_transfer(raw + b"payload", 0, len(raw) + 7) for raw in encoded] == expected


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
