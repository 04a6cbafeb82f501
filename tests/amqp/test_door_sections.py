"""The short cut through a message's sections sees what the long way sees, and no more."""

from __future__ import annotations

import pytest

from sbpair.amqp import message
from sbpair.amqp.message import Sections, batch_members, data_body
from sbpair.errors import ProtocolError

HEAD = b"\x00\x53\x75"
LONG_HEAD = b"\x00\x80" + (0x75).to_bytes(8)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 70_000])
@pytest.mark.parametrize("head", [HEAD, LONG_HEAD, b"\x00\xa3\x10amqp:data:binary"])
def test_members_of_a_batch_are_found_however_they_are_written(size: int, head: bytes) -> None:
    short = [b"\xa0" + bytes((size,)) + bytes(size)] if size < 256 else []
    for encoded in (*short, b"\xb0" + size.to_bytes(4) + bytes(size)):
        assert list(batch_members(head + encoded + data_body(b"next"))) == [bytes(size), b"next"]


@pytest.mark.parametrize("cut", range(1, 12))
def test_a_section_that_is_cut_short_is_refused(cut: int) -> None:
    for whole in (HEAD + b"\xb0\x00\x00\x00\x04body", data_body(b"body1234"), b"\x00\x53\x73\xc0\x06\x01\xa1\x03abc"):
        if cut < len(whole):
            with pytest.raises(ProtocolError):
                Sections.split(whole[:-cut])


def test_a_size_beyond_the_message_is_refused() -> None:
    for body in (HEAD + b"\xb0\xff\xff\xff\xffx", HEAD + b"\xa0\xffx", b"\x00\x53\x74\xd1\x7f\xff\xff\xff\x00"):
        with pytest.raises(ProtocolError):
            Sections.split(body)
        with pytest.raises(ProtocolError):
            list(batch_members(body))


def test_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    payload = b"\x00\x53\x70\x45" + b"\x00\x53\x73\xc0\x04\x01\xa1\x01x" + data_body(b"a") + data_body(bytes(300))
    short = Sections.split(payload)
    monkeypatch.setattr(message, "_COMMON_HEADS", {})
    assert Sections.split(payload) == short
