"""The short cut through dispositions agrees with the general road, on what it knows and on what it does not."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp import frames
from sbpair.amqp.performatives import (
    Accepted,
    Composite,
    Disposition,
    Error,
    Modified,
    Rejected,
    Released,
    decode_composite,
)
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


Heard = list[tuple[int, Disposition]]


def normal(body: Disposition) -> Disposition:
    """Without what the short cut does not read, and with the last id told where it is the first."""
    body.batchable = False
    body.last = body.first if body.last is None else body.last
    return body


def general(frame: bytes) -> object:
    try:
        body = decode_composite(frame)[0]
    except ProtocolError:
        return ProtocolError
    assert isinstance(body, Disposition)
    return normal(body)


def heard(said: list[tuple[int, bytes]]) -> Heard:
    found: Heard = []

    def hear(channel: int, body: Composite) -> None:
        assert isinstance(body, Disposition)
        found.append((channel, normal(body)))

    run, buffer = frames.DispositionRange(hear), frames.FrameBuffer(65_536)
    buffer.feed(b"".join(frames.frame(body, channel=channel) for channel, body in said))
    for channel, data, start, end in buffer.frames(frames.AMQP_FRAME):
        buffer.skip_to(run.add(channel, data, start, end))
    run.end()
    run.end()
    return found


def short(frame: bytes) -> object:
    try:
        return heard([(0, frame)])[0][1]
    except ProtocolError:
        return ProtocolError


@given(dispositions, st.data())
def test_a_damaged_disposition_equals_the_general_decoder(sent: Disposition, data: st.DataObject) -> None:
    frame = bytearray(sent.encode())
    at = data.draw(st.integers(3, len(frame) - 1))
    frame[at] = data.draw(st.integers(0, 255))
    assert short(bytes(frame)) == general(bytes(frame))


@given(dispositions, st.data())
def test_a_truncated_disposition_is_refused(sent: Disposition, data: st.DataObject) -> None:
    frame = sent.encode()
    with pytest.raises(ProtocolError):
        heard([(0, frame[: data.draw(st.integers(3, len(frame) - 1))])])


def test_forms_of_other_peers_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    flags, firsts = (b"\x41", b"\x42", b"\x40"), (b"\x43", b"\x52\x05", b"\x70\x00\x01\x11\x70")
    states = [
        b"\x40",
        *(b"\x00\x53" + code + empty for code in (b"\x24", b"\x26") for empty in (b"\x45", b"\xc0\x01\x00")),
    ]
    forms = product(flags[:2], firsts, (*firsts, b"\x40"), flags, states, (b"", *flags))
    fields = [(5 + bool(each[5]), b"".join(each)) for each in forms]
    said = [b"\x00\x53\x15\xc0" + bytes((1 + len(raw), count)) + raw for count, raw in fields]
    expected = [general(frame) for frame in said]
    monkeypatch.setattr(frames, "decode_composite", None)
    assert [short(frame) for frame in said] == expected


few = st.builds(
    Disposition,
    role=st.booleans(),
    first=st.integers(0, 3),
    last=st.none() | st.integers(0, 4),
    settled=st.booleans(),
    state=st.sampled_from([None, Accepted(), Released()]),
)


def each(said: Heard) -> list[tuple[int, bool | None, int, bool | None, object]]:
    """What was said of every single delivery, in order."""
    return [
        (channel, body.role, number, body.settled, body.state)
        for channel, body in said
        for number in range(body.first or 0, (body.first if body.last is None else body.last) + 1)
    ]


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 3), st.integers(1, 3), few), max_size=6),
    st.sampled_from([0, 70_000]),
    st.data(),
)
def test_ranges_of_dispositions_equal_single_ones(runs: list[Any], number: int, data: st.DataObject) -> None:
    said = []
    for channel, length, width, body in runs:
        for _ in range(length):
            last = None if body.last is None and width == 1 else number + width - 1
            said.append((channel, replace(body, first=number, last=last)))
            number += width
        number += data.draw(st.sampled_from([0, 0, 1, -1]) if number else st.just(0))
    assert each(heard([(channel, body.encode()) for channel, body in said])) == each(said)


@pytest.mark.parametrize("extended", [0, 3, 6])
def test_a_frame_with_a_longer_header_does_not_mislead(extended: int) -> None:
    found: Heard = []
    run = frames.DispositionRange(lambda channel, body: found.append((channel, normal(body))))  # type: ignore[arg-type]
    bodies = [Disposition(True, 70_000 + number, 70_000 + number, True, Accepted()) for number in range(8)]
    stream = [frames.frame(body.encode()) for body in bodies]
    whole = stream[extended]
    stream[extended] = (len(whole) + 4).to_bytes(4) + b"\x03\x00\x00\x00" + b"\x02\x00\x00\x00" + whole[8:]
    buffer = frames.FrameBuffer(65_536)
    buffer.feed(b"".join(stream))
    for channel, data, start, end in buffer.frames(frames.AMQP_FRAME):
        buffer.skip_to(run.add(channel, data, start, end))
    run.end()
    assert each(found) == each([(0, body) for body in bodies])


def test_adjacent_dispositions_are_reported_as_one() -> None:
    for base in (0, 70_000):
        alike = [Disposition(True, base + number, base + number, False, Accepted()) for number in range(100)]
        together = [(0, Disposition(True, base, base + 99, False, Accepted(), False))]
        assert heard([(0, body.encode()) for body in alike]) == together


def test_equal_dispositions_are_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    usual = frames._read_common
    monkeypatch.setattr(frames, "_read_common", lambda frame: read.append(frame) or usual(frame))
    alike = [Disposition(True, 70_000 + number, 70_000 + number, False, Accepted()) for number in range(100)]
    heard([(0, body.encode()) for body in alike])
    assert len(read) == 1


@given(ids, ids, st.booleans(), st.booleans())
def test_a_directly_written_disposition_decodes(first: int, last: int, role: bool, settled: bool) -> None:
    written = frames.write_accepted(first, last, role=role, settled=settled)
    assert decode_composite(written)[0] == Disposition(role, first, last, settled, Accepted(), batchable=False)
