"""What is read as one run of transfers is what the same frames say when each of them comes alone."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sbpair.amqp import frames, transfer
from sbpair.amqp.connection import ConnectionClosed
from sbpair.amqp.frames import frame
from sbpair.amqp.link import Delivery, LinkAttaching, ReceivingLink
from sbpair.amqp.performatives import Transfer
from tests.amqp.conftest import Pair

FLOW = b"\x00\x53\x13"


@dataclass(frozen=True)
class Sent:
    """A transfer frame as a peer may write it."""

    handle: int
    tag: bytes
    message_format: int
    settled: bool
    more: bool
    payload: bytes
    general: bool = False

    def written(self, delivery_id: int) -> bytes:
        if self.general:
            body = Transfer(self.handle, delivery_id, self.tag, self.message_format, self.settled, self.more).encode()
        else:
            body = transfer.encode_transfer(
                self.handle, delivery_id, self.tag, self.message_format, settled=self.settled, more=self.more
            )
        return frame(body + self.payload)


class Listener:
    """The receiving side of two links, and all that it heard."""

    def __init__(self) -> None:
        pair = Pair(server={"max_frame_size": 512})
        session, _ = pair.session()
        for name in ("a", "b"):
            pair.opening("sender", name, session=session)
        self.server = pair.server.connection
        self.links: list[ReceivingLink] = [event.link for event in pair.server.of(LinkAttaching)]
        for link in self.links:
            link.accept(max_message_size=300)
            link.grant(10)
        pair.pump()
        self.heard: list[Any] = []

    def hear(self, data: bytes) -> None:
        for event in self.server.receive(data, 0.0):
            if isinstance(event, Delivery):
                told = (event.link.name, event.id, event.tag, event.format, event.settled, event.payload)
                self.heard.append(told)
            elif isinstance(event, ConnectionClosed):
                self.heard.append(event.error and event.error.condition)

    @property
    def state(self) -> Any:
        [session] = self.server.sessions
        counts = [(link.name, link.state, link.credit, link.delivery_count) for link in self.links]
        return self.heard, counts, sorted(session.received), self.server.take()


PAYLOADS = st.binary(max_size=40) | st.integers(250, 320).map(lambda size: b"x" * size)
FRAMES = st.builds(
    Sent,
    handle=st.integers(0, 2),
    tag=st.sampled_from([b"", b"a", b"four", b"f0ur", b"sixteen bytes ok", b"x" * 32]),
    message_format=st.sampled_from([0, 0, 0, 0x80013700]),
    settled=st.booleans(),
    more=st.sampled_from([False, False, False, True]),
    payload=PAYLOADS,
    general=st.sampled_from([False, False, False, True]),
)
FIELDS = ("handle", "tag", "message_format", "settled", "more", "payload", "general")


@st.composite
def streams(draw: st.DrawFn) -> list[Sent]:
    """Runs of what is alike; from one to the next, mostly a single thing is different."""
    frames = [draw(FRAMES)]
    for times in draw(st.lists(st.integers(1, 4), max_size=8)):
        other, field = draw(FRAMES), draw(st.sampled_from(FIELDS))
        frames += [replace(frames[-1], **{field: getattr(other, field)})] * times
    return frames


@given(streams(), st.sampled_from([0, 1, 70_000, 0xFFFFFFFD]), st.integers(0, 2_000))
@example([Sent(0, b"a", 0, False, False, b"x" * size) for size in (9, 9, 301, 9)], 70_000, 0)
@example([Sent(handle, b"a", 0, False, False, b"x") for handle in (0, 0, 1, 1, 2)], 70_000, 0)
@example([Sent(0, tag, 0, False, False, b"x") for tag in (b"a", b"b", b"cc", b"d")], 70_000, 0)
@example([Sent(0, b"a", 0, False, False, b"x" * 500)] * 2, 70_000, 0)
def test_frames_in_a_burst_equal_single_frames(sent: list[Sent], first: int, cut: int) -> None:
    frames = [each.written((first + number) & 0xFFFFFFFF) for number, each in enumerate(sent)]
    together, alone = Listener(), Listener()
    stream = b"".join(frames)
    for piece in (stream[:cut], stream[cut:]):
        together.hear(piece)
    for each in frames:
        alone.hear(each)
    if together.server.over or alone.server.over:
        assert together.heard == alone.heard
    else:
        assert together.state == alone.state


def test_a_long_burst_reopens_the_window() -> None:
    listener = Listener()
    [session] = listener.server.sessions
    link = listener.links[0]
    for start in range(0, 20_000, 1_000):
        stream = [Sent(0, b"tag4", 0, True, False, b"hello").written(start + number) for number in range(1_000)]
        listener.hear(b"".join(stream))
    assert len(listener.heard) == 20_000
    assert link.delivery_count == 20_000
    assert 6 <= listener.server.take().count(FLOW) <= 20
    assert not session.received


def test_equal_frames_take_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    whole = transfer.decode_transfer
    for module in (transfer, frames):
        monkeypatch.setattr(module, "decode_transfer", lambda *where: read.append(where) or whole(*where))
    listener = Listener()
    listener.hear(b"".join(Sent(0, b"tag4", 0, False, False, b"hello").written(70_000 + each) for each in range(50)))
    assert len(listener.heard) == 50
    assert len(read) == 2


@pytest.mark.parametrize("size", [0, 7, 8, 20, 30, 35, 36, 37, 38, 300, 512, 513, 0xFFFFFFFF])
def test_a_truncated_frame_in_a_burst_is_refused(size: int) -> None:
    good = [Sent(0, b"tag4", 0, False, False, b"").written(70_000 + each) for each in range(4)]
    good[2] = size.to_bytes(4) + good[2][4:]
    together, alone = Listener(), Listener()
    together.hear(b"".join(good))
    for each in (good[0], good[1], good[2] + good[3]):
        alone.hear(each)
    assert together.heard == alone.heard
    assert together.server.over == alone.server.over
