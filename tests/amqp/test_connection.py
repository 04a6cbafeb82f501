"""The life of a connection: signing in, opening, beating, closing, and what a peer may not do."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import frames, sasl
from sbpair.amqp.connection import CHANNEL_MAX, Connection, ConnectionClosed, ConnectionOpened
from sbpair.amqp.endpoint import EndpointState
from sbpair.amqp.link import LinkAttaching, LinkDetached
from sbpair.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Composite,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from sbpair.amqp.sasl import SaslClient, SaslServer
from sbpair.amqp.session import HANDLE_MAX, SessionBegun, SessionEnded
from sbpair.amqp.types import Array, Described, Symbol
from sbpair.errors import ProtocolError
from tests.amqp.conftest import Pair


@given(st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_a_connection_opens_and_closes_with_any_chunks(piece: int) -> None:
    pair = Pair(piece=piece)
    pair.session()
    for side in (pair.client, pair.server):
        assert [type(event) for event in side.events] == [ConnectionOpened, SessionBegun]
        assert side.connection.is_open
    assert pair.server.of(ConnectionOpened)[0].open.hostname == "h"
    pair.client.connection.close()
    pair.pump()
    assert pair.client.closed == ConnectionClosed(None, by_peer=False)
    assert pair.server.closed == ConnectionClosed(None, by_peer=True)
    assert pair.client.connection.state is pair.server.connection.state is EndpointState.CLOSED


MECHANISMS = {
    "ANONYMOUS": SaslClient(),
    "EXTERNAL": SaslClient(sasl.EXTERNAL),
    "MSSBCBS": SaslClient(sasl.MSSBCBS),
    "PLAIN": SaslClient("PLAIN", b"\0name\0key"),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_signs_in(mechanism: str) -> None:
    pair = Pair()
    pair.client.connection = Connection(MECHANISMS[mechanism], container_id="c", hostname="h")
    pair.server.connection = Connection(SaslServer(lambda *given: given == ("name", "key")), container_id="s")
    pair.pump()
    assert pair.client.connection.is_open
    sent = pair.bodies("client", SaslInit)[0]
    assert (sent.mechanism, sent.hostname) == (mechanism, "h")
    offered = list(pair.bodies("server", SaslMechanisms)[0].sasl_server_mechanisms)
    assert set(offered) == set(MECHANISMS)


REFUSED = [
    SaslClient("PLAIN", b"\0name\0wrong"),
    SaslClient(sasl.PLAIN, b"no nulls"),
    SaslClient(sasl.PLAIN, b"\x00\xff\x00\xff"),
    SaslClient(sasl.PLAIN),
]


@pytest.mark.parametrize("client", REFUSED, ids=["wrong key", "malformed", "no text", "nothing"])
def test_a_refused_sign_in_closes_both_sides(client: SaslClient) -> None:
    pair = Pair()
    pair.client.connection = Connection(client, container_id="c")
    pair.server.connection = Connection(SaslServer(lambda *given: given == ("name", "key")), container_id="s")
    pair.pump()
    for side, by_peer in ((pair.client, True), (pair.server, False)):
        assert side.closed.error.condition == "amqp:unauthorized-access"
        assert side.closed.error.description
        assert side.closed.by_peer is by_peer
        assert side.connection.over
    assert pair.bodies("client", Open) == []


@pytest.mark.parametrize("code", [2, 3, 4])
def test_a_sign_in_that_could_not_be_checked_is_not_a_refused_one(code: int) -> None:
    """AMQP 1.0, part 5.3.3.6: sys, sys-perm and sys-temp are errors of the peer's system."""
    client = Connection(SaslClient(), container_id="c")
    (closed,) = client.receive(
        frames.SASL_HEADER + sasl_frame(SaslMechanisms(Symbol("ANONYMOUS")), SaslOutcome(code)), 0
    )
    assert (closed.error.condition, closed.by_peer) == ("amqp:internal-error", True)
    assert f"code {code}" in closed.error.description


def test_plain_is_refused_without_a_check() -> None:
    assert SaslServer().judge(SaslInit("PLAIN", b"\x00a\x00b")).code == sasl.AUTH_FAILED
    assert SaslServer().judge(SaslInit("SCRAM-SHA-1", b"")).code == sasl.AUTH_FAILED


def sasl_frame(*bodies: Any) -> bytes:
    return b"".join(frames.frame(body.encode(), kind=frames.SASL_FRAME) for body in bodies)


OFFER = SaslMechanisms(Symbol("ANONYMOUS"))
HELLO = frames.SASL_HEADER + sasl_frame(SaslInit("ANONYMOUS")) + frames.AMQP_HEADER


@pytest.mark.parametrize("offer", [Symbol("PLAIN"), Array([Symbol("PLAIN"), Symbol("EXTERNAL")])])
def test_a_client_sends_no_response_if_its_mechanism_is_not_offered(offer: Any) -> None:
    client = Connection(SaslClient(response=b"secret"), container_id="c")
    client.take()
    (closed,) = client.receive(frames.SASL_HEADER + sasl_frame(SaslMechanisms(offer)), 0)
    assert closed.error.condition == "amqp:unauthorized-access"
    assert client.take() == b""


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x00\x00\x09\x01",
        frames.SASL_HEADER + sasl_frame(SaslInit("PLAIN")),
        frames.SASL_HEADER + sasl_frame(Open("x")),
        frames.SASL_HEADER + frames.frame(SaslMechanisms(Array([])).encode()),
        frames.SASL_HEADER + b"\x00\x00\x00\x07\x02\x01\x00\x00",
        frames.SASL_HEADER + b"\x7f\x00\x00\x00\x02\x01\x00\x00",
        frames.AMQP_HEADER + frames.frame(Open("x").encode()),
        frames.SASL_HEADER + sasl_frame(SaslOutcome(0)),
    ],
    ids=[str(number) for number in range(10)],
)
def test_a_client_of_another_protocol_fails_and_sends_nothing_more(data: bytes) -> None:
    client = Connection(SaslClient(), container_id="c")
    client.take()
    (closed,) = client.receive(data, 0)
    assert closed.error is not None
    assert not closed.by_peer
    assert client.over


@pytest.mark.parametrize(
    "then", [sasl_frame(OFFER), sasl_frame(SaslOutcome(0)) + frames.SASL_HEADER], ids=["offer", "header"]
)
def test_a_client_that_has_sent_its_response_sends_no_other(then: bytes) -> None:
    client = Connection(SaslClient(), container_id="c")
    client.receive(frames.SASL_HEADER + sasl_frame(OFFER), 0)
    client.take()
    (closed,) = client.receive(then, 0)
    assert (closed.by_peer, client.over) == (False, True)
    assert sasl_frame(SaslInit("ANONYMOUS")) not in client.take()


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"AMQP\x02\x01\x00\x00"])
def test_a_server_answers_another_version_with_its_own(header: bytes) -> None:
    server = Connection(SaslServer(), container_id="s")
    (closed,) = server.receive(header, 0)
    assert closed.error.condition == "amqp:not-implemented"
    assert server.take() == frames.AMQP_HEADER


def test_another_protocol_is_detected_at_its_first_byte() -> None:
    server = Connection(SaslServer(), container_id="s")
    (closed,) = server.receive(b"G", 0)
    assert closed.error.condition == "amqp:connection:framing-error"


@pytest.mark.parametrize("opened", [False, True])
def test_a_connection_that_fails_before_open_sends_no_close(opened: bool) -> None:
    for connection in (Connection(SaslClient(), container_id="c"), Connection(SaslServer(), container_id="s")):
        if opened and isinstance(connection._sasl, SaslServer):
            connection.receive(frames.SASL_HEADER + sasl_frame(SaslInit("ANONYMOUS")), 0)
        said = connection.take()
        connection.fail(Error("amqp:internal-error", "it is over"))
        assert connection.take() == b""
        assert [event.error.description for event in connection.tick(0)] == ["it is over"]  # type: ignore[union-attr]
        assert connection.tick(1) == connection.receive(b"more", 1) == []
        assert b"AMQP" in said or isinstance(connection._sasl, SaslServer)


def test_a_server_that_fails_after_its_header_opens_to_close() -> None:
    server = Connection(SaslServer(), container_id="s")
    server.receive(HELLO, 0)
    server.take()
    pair = Pair()
    pair.server.connection = server
    server.fail(Error("amqp:connection:forced", "going down"))
    opened, closed = pair.answers("server")
    assert isinstance(opened, Open)
    assert closed.error.condition == "amqp:connection:forced"


def test_closing_before_open_sends_nothing() -> None:
    client = Connection(SaslClient(), container_id="c")
    client.take()
    with pytest.raises(ProtocolError):
        client.begin()
    client.close()
    assert client.receive(b"", 0) == [ConnectionClosed(None, by_peer=False)]
    assert client.take() == b""
    with pytest.raises(ProtocolError):
        client.begin()


def test_both_sides_may_close_at_once(pair: Any) -> None:
    pair.session()
    pair.client.connection.close()
    pair.server.connection.close(Error("amqp:connection:forced", "bye"))
    pair.pump()
    assert pair.client.closed == ConnectionClosed(
        Error("amqp:connection:forced", "bye", pair.client.closed.error.info), False
    )
    assert pair.server.closed == ConnectionClosed(None, by_peer=False)


def test_closing_twice_is_closing_once(pair: Any) -> None:
    pair.session()
    pair.client.connection.close()
    pair.client.connection.close()
    pair.pump()
    pair.client.connection.close()
    pair.pump()
    assert len(pair.bodies("client", Close)) == 1


ILLEGAL: dict[str, tuple[Any, ...]] = {
    "a second open": ("amqp:illegal-state", Open("again")),
    "a begin for nobody": ("amqp:not-allowed", Begin(7, 0, 1, 1)),
    "a begin on a channel in use": ("amqp:not-allowed", Begin(None, 0, 1, 1)),
    "a channel without a session": ("amqp:not-found", End(), Flow(None, 1, 0, 1)),
    "a range that ends before it begins": ("amqp:invalid-field", Disposition(True, 5, 3, True, Accepted())),
    "a frame that is no performative": ("amqp:not-allowed", Accepted()),
    "a sasl body": ("amqp:not-allowed", SaslOutcome(0)),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_an_illegal_step_closes_the_connection_with_a_reason(pair: Any, name: str) -> None:
    pair.session()
    condition, *bodies = ILLEGAL[name]
    pair.tell("server", *bodies)
    assert not pair.server.closed.by_peer
    assert pair.server.closed.error.condition == condition
    pair.pump()
    assert pair.client.closed.error.condition == pair.server.closed.error.condition
    assert pair.client.closed.error.description == pair.server.closed.error.description
    assert pair.client.closed.by_peer


@pytest.mark.parametrize(
    ("condition", "bodies"),
    [
        ("amqp:session:handle-in-use", (Attach("a", 0, True), Attach("b", 0, True))),
        ("amqp:resource-limit-exceeded", (Attach("a", HANDLE_MAX + 1, True),)),
        ("amqp:session:unattached-handle", (Transfer(9, 0, b"t"),)),
        ("amqp:session:unattached-handle", (Flow(0, 1, 0, 1, handle=9),)),
        ("amqp:session:errant-link", (Attach("a", 0, True), Transfer(0, 0, b"t"))),
    ],
)
def test_an_error_of_a_session_ends_that_session_alone(
    pair: Any, condition: str, bodies: tuple[Composite, ...]
) -> None:
    ours, theirs = pair.session()
    other, _ = pair.session()
    pair.tell("server", *bodies, Flow(0, 1, 0, 1))
    assert pair.server.of(SessionEnded)[0].error.condition == condition
    attached = [event.link for event in pair.server.of(LinkAttaching)]
    assert [event.link for event in pair.server.of(LinkDetached)] == attached
    pair.pump()
    assert pair.client.of(SessionEnded)[0].error.condition == condition
    assert (ours.state, theirs.state, other.is_open) == (EndpointState.CLOSED, EndpointState.CLOSED, True)
    link, their_link = pair.sender(other, credit=1)
    assert link.is_open
    assert their_link.is_open


def test_a_sender_need_not_state_its_count(pair: Any) -> None:
    pair.session()
    attach = Attach("a", 0, False, source=Source("x"), target=Target("y"))
    pair.tell("server", attach)
    assert pair.server.of(LinkAttaching)[0].link.delivery_count == 0


@pytest.mark.parametrize(
    "body", [Begin(None, 0, 1, 1), Flow(), Transfer(0, 0, b""), Detach(0), End(), Attach("a", 0, True)]
)
def test_a_frame_before_open_is_refused(body: Any) -> None:
    server = Connection(SaslServer(), container_id="s")
    (closed,) = server.receive(HELLO + frames.frame(body.encode()), 0)
    assert closed.error.condition == "amqp:illegal-state"
    assert server.take().count(Open("s").PREFIX) == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x08\x01\x00\x00\x00",
        b"\x00\x00\x00\x09\x03\x00\x00\x00",
        b"\x00\x00\x00\x08\x02\x01\x00\x00",
        b"\xff\xff\xff\xff\x02\x00\x00\x00",
        b"\x00\x01\x00\x01\x02\x00\x00\x00",
        b"\x00\x00\x00\x0c\x02\x00\x00\x00oops",
    ],
)
def test_an_impossible_frame_is_refused_at_its_head(pair: Any, data: bytes) -> None:
    pair.session()
    pair.server.events += pair.server.connection.receive(data, 0)
    assert pair.server.closed.error is not None
    pair.pump()
    assert pair.client.closed.by_peer


def test_an_extended_header_of_a_frame_is_skipped(pair: Any) -> None:
    pair.session()
    body = b"extended" + Close().encode()
    head = (8 + len(body)).to_bytes(4) + b"\x04\x00\x00\x00"
    pair.server.events += pair.server.connection.receive(head + body, 0)
    assert pair.server.closed == ConnectionClosed(None, by_peer=True)


def test_an_error_of_an_unknown_type_is_none(pair: Any) -> None:
    pair.session()
    pair.tell("client", Close(Described(Symbol("x:error"), [])))
    assert pair.client.closed == ConnectionClosed(None, by_peer=True)


BODIES = [
    Open("x", "y", 512, 0, 1),
    Begin(None, 0xFFFFFFFF, 0xFFFFFFFF, 0),
    Attach("x", 1, True, 1, 1, Source("q"), Target("t")),
    Attach("y", 2, False, 0, 0, Source("q"), Target("t"), initial_delivery_count=0xFFFFFFFF),
    Flow(1, 0, 5, 6, 0, 1, 0xFFFFFFFF, 0, True, True),
    Flow(None, 1, 1, 1, None, None, None, None, False, True),
    Transfer(0, 0, b"tag", 0, False, True),
    Disposition(True, 0, 0xFFFF, True, Accepted()),
    Detach(0, True, Error("x", "y")),
    End(Error("x", "y")),
    Close(Error("x", "y")),
]


@given(st.lists(st.sampled_from(BODIES), min_size=1, max_size=8), st.data())
@settings(deadline=None, max_examples=250)
def test_legal_frames_in_any_order_with_any_damage_are_events_or_the_end(
    bodies: list[Any], data: st.DataObject
) -> None:
    pair = Pair()
    link, _ = pair.sender(credit=5)
    link.send(b"payload", b"tag")
    pair.pump()
    side = data.draw(st.sampled_from([pair.client, pair.server]))
    for body in bodies:
        raw = bytearray(body.encode())
        if data.draw(st.booleans()):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        channel = data.draw(st.sampled_from([0, 0, 0, 1, 300]))
        side.events += side.connection.receive(frames.frame(bytes(raw), channel=channel), 0)
    assert len(side.of(ConnectionClosed)) == side.connection.over


def test_nothing_is_sent_or_read_after_the_end(pair: Any) -> None:
    link, theirs = pair.sender(credit=5)
    link.send(b"one", b"1")
    pair.pump()
    pair.client.connection.close()
    pair.pump()
    theirs.session.dispose(0, 0, Accepted(), receiver=True, settled=True)
    theirs.grant(7)
    theirs.close()
    theirs.session.end()
    link.send(b"two", b"2")
    link.close()
    pair.server.connection.fail(Error("late"))
    for side in (pair.client, pair.server):
        assert side.connection.take() == b""
        assert side.connection.receive(frames.EMPTY_FRAME, 0) == side.connection.tick(1e9) == []
        assert side.connection.deadline() == float("inf")


def test_a_long_reason_is_shortened() -> None:
    pair = Pair(client={"max_frame_size": 512})
    pair.session()
    pair.server.connection.fail(Error("amqp:internal-error", "ü" * 5_000))
    pair.pump()
    assert pair.client.closed.error.description == "ü" * 200


@pytest.mark.parametrize("over", [0, 1, 100])
def test_a_frame_too_large_for_the_peer_ends_the_connection(over: int) -> None:
    pair = Pair(server={"max_frame_size": 512})
    session, _ = pair.session()
    terms = {"source": Source("a"), "target": Target("b")}
    named = Attach("x" * 300, 0, role=False, initial_delivery_count=0, **terms)
    session.sender("x" * (300 + 512 - len(frames.frame(named.encode())) + over)).open(**terms)
    pair.pump()
    if not over:
        assert pair.server.of(LinkAttaching)
        return
    assert pair.client.connection.receive(b"", 0) == []
    assert pair.client.closed.error.condition == "amqp:frame-size-too-small"
    assert pair.server.closed.error.condition == "amqp:frame-size-too-small"


def test_channels_run_out_and_are_free_after_the_end(pair: Any) -> None:
    pair.pump()
    sessions = [pair.client.connection.begin() for _ in range(CHANNEL_MAX + 1)]
    with pytest.raises(ProtocolError, match="no channel is free"):
        pair.client.connection.begin()
    pair.pump()
    assert len(pair.server.connection.sessions) == CHANNEL_MAX + 1
    sessions[17].end()
    pair.pump()
    assert len(pair.server.connection.sessions) == CHANNEL_MAX
    assert pair.client.connection.begin().channel == 17
    pair.pump()
    assert len(pair.server.of(SessionBegun)) == CHANNEL_MAX + 2


def test_the_channel_limit_of_the_peer_is_kept(pair: Any) -> None:
    client = pair.client.connection
    pair.server.connection._open_frame.channel_max = 0
    pair.pump()
    client.begin()
    with pytest.raises(ProtocolError, match="no channel is free"):
        client.begin()


def test_a_session_that_the_peer_ends_is_answered_and_reported(pair: Any) -> None:
    ours, theirs = pair.session()
    theirs.end(Error("amqp:session:errant-link", "why"))
    pair.pump()
    (ended,) = pair.client.of(SessionEnded)
    assert (ended.session, ended.error.condition) == (ours, "amqp:session:errant-link")
    assert pair.server.of(SessionEnded) == []
    assert ours.state is theirs.state is EndpointState.CLOSED
    assert pair.client.connection.sessions == pair.server.connection.sessions == ()
    ours.dispose(0, 0, Accepted(), receiver=True, settled=True)
    assert pair.answers("client") == []


def test_a_session_ended_before_its_answer_is_not_reported_as_begun(pair: Any) -> None:
    pair.pump()
    session = pair.client.connection.begin()
    session.end()
    pair.pump()
    assert session.state is EndpointState.CLOSED
    assert pair.client.of(SessionBegun) == []
    assert len(pair.server.of(SessionEnded)) == 1


def test_frames_for_an_ended_session_are_dropped(pair: Any) -> None:
    _, theirs = pair.session()
    theirs.end()
    pair.tell("server", Detach(0), Flow(), Attach("late", 0, True), Transfer(0, 0, b""), End())
    assert pair.server.connection.sessions == ()
    pair.tell("server", Detach(0), End())  # some clients detach after an end
    assert not pair.server.connection.over


# Time.


@pytest.fixture
def timed() -> Any:
    pair = Pair(idle_seconds=60.0)
    pair.session()
    return pair


def test_a_heartbeat_is_sent_only_after_silence(timed: Any) -> None:
    client, server = timed.client.connection, timed.server.connection
    for side in (client, server):
        side.wrote(0.0)
        assert side.deadline() == 15.0
        assert side.tick(14.9) == []
        assert side.take() == b""
    assert client.tick(15.0) == []
    assert client.take() == frames.EMPTY_FRAME
    assert client.deadline() == 30.0
    assert server.receive(frames.EMPTY_FRAME, 15.0) == []
    assert server.tick(74.9) == []
    assert not server.over


def test_a_silent_peer_ends_the_connection(timed: Any) -> None:
    timed.server.connection.receive(frames.EMPTY_FRAME[:3], 59.0)  # part of a frame ends the silence
    assert timed.server.connection.tick(118.9) == []
    (closed,) = timed.server.connection.tick(119.0)
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert closed.error.description
    assert [type(body) for body in timed.answers("server")] == [Close]


def test_a_client_that_never_signs_in_times_out() -> None:
    server = Connection(SaslServer(), container_id="s", idle_seconds=10.0, now=5.0)
    assert server.deadline() == 15.0
    (closed,) = server.tick(15.0)
    assert closed.error.condition == "amqp:resource-limit-exceeded"
    assert server.take() == b""


def test_without_an_idle_time_there_is_no_deadline() -> None:
    pair = Pair(idle_seconds=0.0)
    pair.session()
    assert pair.server.of(ConnectionOpened)[0].open.idle_time_out is None
    assert pair.client.connection.deadline() == float("inf")
    assert pair.client.connection.tick(1e12) == []


def test_an_unanswered_close_does_not_restart_the_timer(timed: Any) -> None:
    timed.client.connection.close()
    timed.client.connection.take()
    assert timed.client.connection.deadline() == 60.0
    assert timed.client.connection.tick(59.0) == []
    assert timed.client.connection.take() == b""
    (closed,) = timed.client.connection.tick(60.0)
    assert not closed.by_peer
