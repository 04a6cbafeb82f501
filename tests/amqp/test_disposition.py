"""The short cut through dispositions agrees with the general road, on what it knows and on what it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import disposition
from sbpair.amqp.performatives import Accepted, Disposition, Error, Modified, Rejected, Released, decode_composite
from sbpair.errors import ProtocolError

ids = st.one_of(st.integers(0, 300), st.integers(0, 0xFFFFFFFF))
states = st.sampled_from(
    [None, Accepted(), Released(), Rejected(Error("amqp:not-found", "gone")), Modified(delivery_failed=True)]
)
dispositions = st.builds(
    Disposition,
    role=st.booleans(),
    first=ids,
    last=st.none() | ids,
    settled=st.booleans(),
    state=states,
    batchable=st.booleans(),
)


def general(frame: bytes) -> object:
    try:
        body = decode_composite(frame)[0]
    except ProtocolError:
        return ProtocolError
    assert isinstance(body, Disposition)
    body.batchable = False  # nobody asks for it, and the short cut does not read it
    return body


def short(frame: bytes) -> object:
    try:
        body = disposition.read(frame)
    except ProtocolError:
        return ProtocolError
    assert isinstance(body, Disposition)
    body.batchable = False
    return body


@given(dispositions)
def test_any_disposition_reads_as_it_does_in_general(sent: Disposition) -> None:
    assert short(sent.encode()) == general(sent.encode())


@given(dispositions, st.data())
def test_a_damaged_disposition_reads_as_it_does_in_general(sent: Disposition, data: st.DataObject) -> None:
    frame = bytearray(sent.encode())
    at = data.draw(st.integers(3, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    assert short(bytes(frame)) == general(bytes(frame))


@given(dispositions, st.data())
def test_a_disposition_that_is_cut_short_is_refused(sent: Disposition, data: st.DataObject) -> None:
    frame = sent.encode()
    with pytest.raises(ProtocolError):
        disposition.read(frame[: data.draw(st.integers(3, len(frame) - 1))])


def test_the_forms_of_other_peers_take_the_short_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disposition, "decode_composite", None)
    trimmed = bytes.fromhex("005315c00a05414343 41 00532445".replace(" ", ""))
    trimmed = trimmed[:4] + bytes((len(trimmed) - 5,)) + trimmed[5:]
    assert disposition.read(trimmed) == Disposition(True, 0, 0, True, Accepted())
