"""The credit of links, and the windows of sessions."""

from typing import Any

import pytest

from sbpair.amqp import session as session_module
from sbpair.amqp.performatives import Detach, Flow, Source, Target, Transfer
from sbpair.amqp.session import DrainAnswered
from tests.amqp.conftest import Pair, assert_settling_has_no_effect, deliver, frame_sizes, send

# Credit.


def test_a_grant_of_less_than_what_is_under_way_is_no_credit(pair: Any) -> None:
    link, theirs = pair.sender(credit=9)
    send(link, b"1", b"2", b"3")
    theirs.grant(0)
    pair.pump()
    assert link.credit == 0
    theirs.grant(1)
    pair.pump()
    assert link.credit == 1


def test_all_the_credit_that_a_flow_can_name_is_believed(pair: Any) -> None:
    link, theirs = pair.sender(credit=0xFFFFFFFF)
    deliver(pair, link, b"1", b"2")
    assert link.credit == theirs.credit == 0xFFFFFFFD


def test_credit_granted_before_the_attach_is_answered_counts_from_zero(pair: Any) -> None:
    session, _ = pair.session()
    receiver = session.receiver("eager")
    receiver.open(source=Source("q"), target=Target("t"))
    receiver.grant(4)
    assert pair.bodies("client", Flow) == []
    pair.pump()
    assert pair.bodies("client", Flow)[0].delivery_count is None
    assert receiver.credit == 4


def test_a_flow_without_a_count_counts_from_the_first_delivery(pair: Any) -> None:
    link, _ = pair.sender(credit=5)
    deliver(pair, link, b"1", b"2")
    pair.tell("client", Flow(2, 100, 0, 100, 0, None, 5))
    assert link.credit == 3


def test_a_peer_that_overruns_its_credit_loses_no_message(pair: Any) -> None:
    link, theirs = pair.sender(credit=1)
    link.credit = 3
    deliver(pair, link, b"1", b"2", b"3")
    assert pair.server.payloads() == [b"1", b"2", b"3"]
    assert theirs.credit == 0
    theirs.grant(2)
    pair.pump()
    assert link.credit == 2


def test_a_drained_sender_gives_its_credit_back(pair: Any) -> None:
    link, theirs = pair.sender(credit=10)
    send(link, b"1")
    theirs.drain()
    pair.pump()
    assert link.draining
    link.drained()
    pair.pump()
    assert (link.credit, theirs.credit, link.delivery_count, theirs.delivery_count) == (0, 0, 10, 10)
    assert not link.draining
    assert [event.link for event in pair.server.of(DrainAnswered)] == [theirs]
    theirs.grant(2)
    pair.pump()
    deliver(pair, link, b"2", b"3")
    assert pair.server.payloads() == [b"1", b"2", b"3"]
    assert theirs.credit == 0


def test_a_message_for_credit_that_was_withdrawn_is_sent(pair: Any) -> None:
    link, theirs = pair.sender(credit=1)
    theirs.grant(0)
    pair.pump()
    with pytest.raises(ValueError, match="no credit"):
        link.send(b"1", b"t")
    link.send(b"1", b"t", overrun=True)
    pair.pump()
    assert pair.server.payloads() == [b"1"]
    theirs.grant(1)
    pair.pump()
    assert (link.credit, link.delivery_count, theirs.delivery_count) == (1, 1, 1)


def test_a_peer_that_closes_with_credit_0_and_drain_gets_its_answer(pair: Any) -> None:
    receiver, sender = pair.receiver(credit=5)
    receiver.credit = 0
    receiver.drain()
    pair.pump()
    assert sender.draining
    sender.drained()
    pair.pump()
    assert pair.bodies("server", Flow)[-1].drain


@pytest.mark.parametrize("who", ["client", "server"])
def test_an_echo_is_answered_for_a_link_and_for_a_session(pair: Any, who: str) -> None:
    pair.sender()
    pair.answers(who)
    pair.tell(who, Flow(0, 9, 0, 9, 0, 0, 4), Flow(0, 9, 0, 9))
    assert pair.answers(who) == []
    pair.tell(who, Flow(0, 9, 0, 9, 0, 0, 4, 0, False, True), Flow(0, 9, 0, 9, echo=True))
    first, second = pair.answers(who)
    assert first.handle == 0
    assert second.handle is None
    assert not first.echo
    assert not second.echo


# The session's window.


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "WINDOW", 4)


@pytest.mark.usefixtures("small_window")
def test_no_more_frames_leave_than_the_window_has_and_the_order_is_kept() -> None:
    pair = Pair(server={"max_frame_size": 512})
    link, theirs = pair.sender(credit=100)
    payloads = [bytes([65 + number]) * (700 * (number % 3)) for number in range(12)]
    for payload in payloads:
        link.send(payload, b"t")
    assert len(frame_sizes(pair.client.connection._out[0] and b"".join(pair.client.connection._out))) == 4
    assert link.queued > 0
    pair.pump()
    assert pair.server.payloads() == payloads
    assert (link.queued, link.delivery_count, theirs.delivery_count) == (0, 12, 12)
    assert link.credit == theirs.credit == 88


def closed_window(pair: Any) -> tuple[Any, Any]:
    """A sender whose two messages left before its peer shut the window; `flow(…)` opens it again."""
    link, theirs = pair.sender(credit=100)
    send(link, b"left 1", b"left 2")
    pair.tell("client", Flow(0, 2, 0, 5, 0, 0, 100))
    return link, theirs


def transfers(pair: Any) -> int:
    return sum(isinstance(body, Transfer) for body in pair.answers("client"))


def test_a_window_that_shrinks_below_the_transfers_in_flight_is_closed(pair: Any) -> None:
    link, _ = closed_window(pair)
    pair.tell("client", Flow(0, 1, 0, 5))
    send(link, b"waits")
    assert link.session.room <= 0
    assert transfers(pair) == 2
    pair.tell("client", Flow(2, 1, 0, 5))
    assert transfers(pair) == 1


@pytest.mark.parametrize(("counted", "window"), [(2, 0xFFFFFFFF), (50, 3)], ids=["widest", "counts ahead of us"])
def test_the_window_of_the_peer_is_believed(pair: Any, counted: int, window: int) -> None:
    link, _ = closed_window(pair)
    pair.tell("client", Flow(counted, window, 0, 5))
    assert link.session.room == window


def test_credit_accounts_for_what_waits_for_the_window(pair: Any) -> None:
    link, _ = closed_window(pair)
    send(link, b"waits 1", b"waits 2")
    pair.tell("client", Flow(0, 2, 0, 5, 0, 0, 100, 0, False, True))
    assert (link.credit, link.queued) == (96, 2)
    flow = pair.answers("client")[-1]
    assert (flow.delivery_count, flow.link_credit, flow.available) == (2, 98, 2)
    assert flow.next_outgoing_id == 2


def test_a_closed_link_takes_what_waits_with_it(pair: Any) -> None:
    link, _ = closed_window(pair)
    send(link, b"never leaves")
    link.close()
    pair.tell("client", Flow(2, 100, 0, 5))
    said = pair.answers("client")
    assert [type(body) for body in said] == [Transfer, Transfer, Detach]
    assert_settling_has_no_effect(pair, 0, 2)


def test_what_waits_leaves_before_the_answer_to_a_drain(pair: Any) -> None:
    link, _ = closed_window(pair)
    send(link, b"waits")
    pair.tell("client", Flow(2, 0, 0, 5, 0, 2, 98, 0, True))
    assert link.draining
    link.drained()
    link.drained()
    assert transfers(pair) == 2
    pair.tell("client", Flow(2, 10, 0, 5))
    said = pair.answers("client")
    assert [type(body) for body in said] == [Transfer, Flow]
    assert (said[1].delivery_count, said[1].link_credit, said[1].drain) == (100, 0, True)


def test_a_drain_withdrawn_while_its_answer_waits_is_not_answered(pair: Any) -> None:
    link, _ = closed_window(pair)
    send(link, b"waits")
    pair.tell("client", Flow(2, 0, 0, 5, 0, 2, 98, 0, True))
    link.drained()
    pair.answers("client")
    pair.tell("client", Flow(2, 10, 0, 5, 0, 2, 98))
    assert [type(body) for body in pair.answers("client")] == [Transfer]
    assert link.credit == 97


def test_a_busy_receiver_opens_its_window_again_by_itself(pair: Any) -> None:
    _, _ = pair.sender(credit=100_000)
    half = session_module.WINDOW // 2
    for number in range(half):
        pair.tell("server", Transfer(0, number, b"t", 0, True))
    assert pair.answers("server") == []
    pair.tell("server", Transfer(0, half, b"t", 0, True))
    (flow,) = pair.answers("server")
    assert (flow.next_incoming_id, flow.incoming_window, flow.handle) == (half + 1, session_module.WINDOW, None)
