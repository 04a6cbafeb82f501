"""Sessions and links: attaching, deliveries in many frames, settling, and letting go at any moment."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.amqp import session as session_module
from sbpair.amqp.endpoint import EndpointState
from sbpair.amqp.link import Delivery, LinkAttached, LinkAttaching, LinkDetached, terminus_address
from sbpair.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    Error,
    Flow,
    Released,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from sbpair.amqp.session import Disposed, SessionEnded
from sbpair.amqp.types import Described, Symbol
from sbpair.errors import ProtocolError
from tests.amqp.conftest import NOT_FOUND, Pair, assert_settling_has_no_effect, deliver, frame_sizes, send


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=900)), max_size=12),
    st.sampled_from([512, 700, 65_536]),
    st.sampled_from([3, 5_000]),
)
@settings(max_examples=60)
def test_sending_all_at_once_is_sending_each(parts: list[tuple[bytes, bytes]], frame: int, window: int) -> None:
    arrived = []
    for together in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session_module, "WINDOW", window)
            pair = Pair(server={"max_frame_size": frame})
            sender, _ = pair.sender(credit=50)
            deliveries = [(bytes([number]) * 16, *each) for number, each in enumerate(parts)]
            if together:
                sender.send_all(deliveries)
            else:
                for tag, beginning, rest in deliveries:
                    sender.send(beginning + rest, tag, context=tag)
            pair.pump()
            got = pair.server.of(Delivery)
            state = (sender.credit, sender.delivery_count, sorted(sender.session.sent), sender.session.room)
            arrived.append(([(each.id, each.tag, each.payload) for each in got], state))
    assert arrived[0] == arrived[1]
    assert [payload for _, _, payload in arrived[0][0]] == [beginning + rest for beginning, rest in parts]


def test_sending_all_without_credit_is_refused(pair: Any) -> None:
    sender, _ = pair.sender(credit=1)
    with pytest.raises(ValueError, match="no credit"):
        sender.send_all([(b"1", b"", b"one"), (b"2", b"", b"two")])


# Attaching and letting go.


def test_both_roles_attach_with_the_terms_of_both_sides(pair: Any) -> None:
    session, _ = pair.session()
    sender, receiving = pair.sender(session, max_message_size=1_000, properties={Symbol("p"): "v"})
    receiver, sending = pair.receiver(session)
    assert [event.link for event in pair.client.of(LinkAttached)] == [sender, receiver]
    assert sender.remote.max_message_size == 1_000
    assert sender.remote.properties[Symbol("p")] == "v"
    assert terminus_address(sender.remote.target) == "queue"
    assert terminus_address(sending.remote.source) == "queue"
    assert terminus_address(Described(Symbol("x"), [])) is None
    assert all(link.is_open for link in (sender, receiving, receiver, sending))
    assert pair.bodies("client", Attach)[0].initial_delivery_count == 0
    assert pair.bodies("server", Attach)[1].initial_delivery_count == 0


@pytest.mark.parametrize("kind", ["sender", "receiver"])
def test_a_refused_link_is_attached_to_nothing_and_detached_with_the_error(pair: Any, kind: str) -> None:
    link = pair.opening(kind)
    pair.server.of(LinkAttaching)[0].link.close(NOT_FOUND)
    pair.pump()
    attach = pair.bodies("server", Attach)[0]
    assert attach.source is attach.target is None
    (detached,) = pair.client.of(LinkDetached)
    assert detached.error.condition == "amqp:not-found"
    assert pair.server.of(LinkDetached) == []
    assert link.session.links == pair.server.connection.sessions[0].links == ()


def test_a_transfer_before_the_answer_to_its_attach_ends_the_link(pair: Any) -> None:
    """Otherwise it would be lost without a word; the owner answers an attach now or later."""
    link = pair.opening("sender")
    pair.tell("server", Transfer(link.handle, 0, b"t", 0), payload=b"early")
    pair.pump()
    for side in (pair.client, pair.server):
        assert side.of(LinkDetached)[0].error.condition == "amqp:link:transfer-limit-exceeded"
    assert not pair.server.of(Delivery)


@pytest.mark.parametrize("closed", [True, False])
def test_a_receiver_that_is_refused_need_not_know_a_delivery_count(pair: Any, closed: bool) -> None:
    pair.opening("receiver")
    pair.tell("client", Attach("x", 0, False), Detach(0, closed, NOT_FOUND))
    (detached,) = pair.client.of(LinkDetached)
    assert (detached.error.condition, detached.closed) == ("amqp:not-found", closed)
    assert [each.closed for each in pair.answers("client")] == [closed]


@pytest.mark.parametrize("answer", ["accept", "refuse", "nothing"])
def test_a_link_whose_peer_lets_go_before_the_answer_stays_gone(pair: Any, answer: str) -> None:
    link = pair.session()[0].receiver("x")
    link.open(source=Source("a"), target=Target("b"))
    link.close()
    pair.pump()
    theirs = pair.server.of(LinkAttaching)[0].link
    assert pair.server.of(LinkDetached)[0].link is theirs
    if answer == "accept":
        theirs.accept()
    elif answer == "refuse":
        theirs.close(NOT_FOUND)
    pair.pump()
    assert link.state is theirs.state is EndpointState.CLOSED
    assert pair.client.of(LinkAttached) == pair.client.of(LinkDetached) == []
    assert len(pair.bodies("server", Attach)) == len(pair.bodies("server", Detach)) == 1


@pytest.mark.parametrize("who", ["client", "server", "both"])
def test_a_closed_link_is_detached_once_per_side_and_frees_its_handle(pair: Any, who: str) -> None:
    session, their_session = pair.session()
    link, theirs = pair.sender(session)
    if who in ("client", "both"):
        link.close(NOT_FOUND)
    if who in ("server", "both"):
        theirs.close(NOT_FOUND)
    pair.pump()
    assert len(pair.client.of(LinkDetached)) == (who == "server")
    assert len(pair.server.of(LinkDetached)) == (who == "client")
    assert [each.closed for each in pair.bodies("client", Detach) + pair.bodies("server", Detach)] == [True, True]
    assert link.state is theirs.state is EndpointState.CLOSED
    assert session.links == their_session.links == ()
    again, _ = pair.sender(session)
    assert again.handle == link.handle
    assert not pair.server.connection.over


def test_handles_run_out_with_an_error(pair: Any) -> None:
    session, _ = pair.session()
    for number in range(session_module.HANDLE_MAX + 1):
        session.sender(str(number))
    with pytest.raises(ProtocolError, match="no handle is free"):
        session.sender("one more")
    assert pair.bodies("client", Begin)[0].handle_max == session_module.HANDLE_MAX


def test_the_handle_limit_of_the_peer_is_kept(pair: Any) -> None:
    pair.pump()
    session = pair.client.connection.begin()
    pair.client.connection.take()
    pair.tell("client", Begin(0, 0, 9, 9, handle_max=1))
    for number in range(2):
        assert not session.is_full
        session.receiver(str(number))
    assert session.is_full
    with pytest.raises(ProtocolError, match="no handle is free"):
        session.sender("one more")


def test_detaching_what_is_gone_is_no_news(pair: Any) -> None:
    link, _ = pair.sender()
    link.close()
    pair.pump()
    pair.tell("server", Detach(0, True), Detach(77, True), Flow(0, 1, 0, 1, 0, 0, 5))
    assert not pair.server.connection.over
    assert len(pair.server.of(LinkDetached)) == 1


def test_a_closed_link_sends_no_frames_and_has_no_credit(pair: Any) -> None:
    receiver, sender = pair.receiver(credit=3)
    receiver.close()
    sender.close()
    pair.pump()
    receiver.grant(5)
    receiver.drain()
    sender.drained()
    assert pair.answers("client") == pair.answers("server") == []
    with pytest.raises(ValueError, match="no credit"):
        sender.send(b"x", b"t")


def test_the_links_of_a_session_end_with_it_and_are_reported_before_it(pair: Any) -> None:
    session, theirs = pair.session()
    sender, _ = pair.sender(session)
    receiver, _ = pair.receiver(session)
    unanswered = session.receiver("unanswered")
    unanswered.open(source=Source("a"), target=Target("b"))
    pair.pump()
    theirs.end(Error("amqp:internal-error", "gone"))
    pair.pump()
    reported = [event for event in pair.client.events if isinstance(event, (LinkDetached, SessionEnded))]
    assert [type(event) for event in reported] == [LinkDetached, LinkDetached, LinkDetached, SessionEnded]
    assert [event.link for event in reported[:3]] == [sender, receiver, unanswered]
    assert all(event.error.description == "gone" for event in reported)
    assert all(link.state is EndpointState.CLOSED for link in (sender, receiver, unanswered))
    assert pair.server.of(LinkDetached) == pair.server.of(SessionEnded) == []
    with pytest.raises(ProtocolError):
        session.sender("late").open(source=Source("a"), target=Target("b"))


# Deliveries in many frames.


@pytest.mark.parametrize("over", [0, 1])
def test_the_last_byte_of_a_frame_is_used_and_not_one_more(over: int) -> None:
    pair = Pair(server={"max_frame_size": 512})
    link, _ = pair.sender(credit=10)
    link.send(b"", b"tag")
    room = 512 - len(pair.client.connection.take())
    link.send(b"x" * (room + over), b"tag")
    assert [size == 512 for size in frame_sizes(pair.client.connection.take())] == [True] + [False] * over


def test_an_aborted_delivery_is_forgotten_and_still_counts(pair: Any) -> None:
    _, theirs = pair.sender()
    theirs.grant(5)
    pair.tell("server", Transfer(0, 0, b"a", 0, False, True), payload=b"half")
    pair.tell("server", Transfer(0, None, None, None, None, False, aborted=True))
    pair.tell("server", Transfer(0, 1, b"b", 0), payload=b"whole")
    assert pair.server.payloads() == [b"whole"]
    assert (theirs.credit, theirs.delivery_count) == (3, 2)
    assert list(theirs.session.received) == [1]


def test_a_delivery_in_frames_that_leave_out_what_they_may_is_put_together(pair: Any) -> None:
    _, theirs = pair.sender()
    theirs.grant(5)
    pair.tell("server", Transfer(0, 7, b"tag", 0, None, True), payload=b"one ")
    pair.tell("server", Transfer(0, None, None, None, None, True), payload=b"")
    pair.tell("server", Transfer(0, 7, None, None, True, False), payload=b"two")
    (delivery,) = pair.server.of(Delivery)
    assert (delivery.payload, delivery.id, delivery.tag, delivery.settled) == (b"one two", 7, b"tag", True)
    assert theirs.session.received == {}


@pytest.mark.parametrize("parts", [1, 2])
def test_a_delivery_has_the_state_that_it_was_sent_with(parts: int) -> None:
    pair = Pair(server={"max_frame_size": 512})
    sender, theirs = pair.sender(credit=5)
    for number, state in enumerate([TransactionalState(b"1"), None]):
        sender.send(b"x" * 400 * parts, b"t%d" % number, state=state)
    pair.pump()
    one, other = pair.server.of(Delivery)
    assert (one.id, one.tag, one.payload, one.state) == (0, b"t0", b"x" * 400 * parts, TransactionalState(b"1"))
    assert one.link is theirs.session.received[0].link is theirs
    assert type(other) is Delivery


@pytest.mark.parametrize(
    "transfers",
    [
        (Transfer(0, None, b"t"),),
        (Transfer(0, None, b"t", more=True),),
        (Transfer(0, 1, b"t", more=True), Transfer(0, 2, b"u")),
    ],
    ids=["no id", "no id, more", "another inside"],
)
def test_a_delivery_that_makes_no_sense_closes_the_connection(pair: Any, transfers: Any) -> None:
    pair.sender()
    pair.tell("server", *transfers)
    assert pair.server.closed.error.condition == "amqp:not-allowed"


def test_a_flow_in_the_middle_of_a_delivery_does_not_count_it_twice(pair: Any) -> None:
    _, theirs = pair.sender()
    theirs.grant(5)
    pair.tell("server", Transfer(0, 0, b"a", 0, False, True), payload=b"half")
    pair.tell("server", Flow(0, 9, 1, 9, 0, 1, 4))
    pair.tell("server", Transfer(0, 0, b"a"), payload=b"whole")
    assert (theirs.delivery_count, theirs.credit) == (1, 4)


@pytest.mark.parametrize("size", [1_000, 1_001, 200_000])
def test_a_message_that_is_too_large_closes_its_link_and_nothing_else(pair: Any, size: int) -> None:
    link, _ = pair.sender(max_message_size=1_000, credit=5)
    deliver(pair, link, b"x" * size, b"y")
    if size == 1_000:
        assert len(pair.server.of(Delivery)) == 2
        return
    (detached,) = pair.client.of(LinkDetached)
    assert detached.error.condition == "amqp:link:message-size-exceeded"
    assert pair.server.of(Delivery) == []
    assert link.session.is_open
    assert_settling_has_no_effect(pair, 0, 1)


def test_a_limit_that_the_peer_was_not_told_holds_for_endless_parts(pair: Any) -> None:
    link = pair.session()[0].receiver("bounded")
    link.max_message_size = 10
    link.open(source=Source("queue"), target=Target("here"))
    pair.pump()
    theirs = pair.server.of(LinkAttaching)[-1].link
    theirs.accept()
    link.grant(5)
    pair.pump()
    assert theirs.remote.max_message_size is None
    for part in (b"x" * 6, b"y" * 6):
        pair.tell("client", Transfer(0, 0, b"a", 0, False, True), payload=part)
    pair.pump()
    assert pair.client.of(Delivery) == []
    assert pair.server.of(LinkDetached)[0].error.condition == "amqp:link:message-size-exceeded"


def test_a_link_closed_in_the_middle_of_a_delivery_leaves_nothing_behind(pair: Any) -> None:
    link, theirs = pair.sender()
    theirs.grant(5)
    pair.tell("server", Transfer(0, 0, b"a", 0, False, True), payload=b"half")
    link.close()
    pair.pump()
    assert pair.server.of(Delivery) == []
    assert theirs.session.received == {}
    again, _ = pair.sender(link.session, credit=1)
    deliver(pair, again, b"whole")
    assert pair.server.payloads() == [b"whole"]


@pytest.mark.parametrize("descriptor", ["symbolic", "long"])
def test_a_transfer_is_known_by_any_form_of_its_descriptor(pair: Any, descriptor: str) -> None:
    _, theirs = pair.sender()
    theirs.grant(5)
    raw = Transfer(0, 0, b"t").encode()
    start = b"\x00\xa3\x12amqp:transfer:list" if descriptor == "symbolic" else b"\x00\x80" + (0x14).to_bytes(8)
    body = start + raw[3:] + b"payload"
    frame = (8 + len(body)).to_bytes(4) + b"\x02\x00\x00\x00" + body
    pair.server.events += pair.server.connection.receive(frame, 0)
    assert pair.server.payloads() == [b"payload"]


# Settling.


def exchange(pair: Any, count: int, *, first_id: int = 0) -> tuple[Any, Any]:
    session, _ = pair.session()
    session.numbered = first_id
    link, theirs = pair.sender(session, credit=count)
    for number in range(count):
        link.send(b"x", b"t", context=number)
    pair.pump()
    return link, theirs


@pytest.mark.parametrize("first_id", [0, 5, 0xFFFFFFFF, 0xFFFFFFFD])
def test_a_range_settles_the_deliveries_in_it_also_across_the_wrap(pair: Any, first_id: int) -> None:
    link, theirs = exchange(pair, 6, first_id=first_id)
    ids = [delivery.id for delivery in pair.server.of(Delivery)]
    assert ids == [(first_id + number) % (1 << 32) for number in range(6)]
    theirs.session.dispose(ids[1], ids[4], Accepted(), receiver=True, settled=True)
    pair.pump()
    (disposed,) = pair.client.of(Disposed)
    assert [sent.context for sent in disposed.deliveries] == [1, 2, 3, 4]
    assert (disposed.state, disposed.settled) == (Accepted(), True)
    assert list(link.session.sent) == list(theirs.session.received) == [ids[0], ids[5]]


def test_deliveries_stay_known_until_they_are_settled(pair: Any) -> None:
    link, theirs = exchange(pair, 2)
    theirs.session.dispose(0, 1, Released(), receiver=True, settled=False)
    pair.pump()
    assert not pair.client.of(Disposed)[0].settled
    assert len(link.session.sent) == len(theirs.session.received) == 2
    link.session.dispose(0, 1, Released(), receiver=False, settled=True)
    pair.pump()
    (answer,) = pair.server.of(Disposed)
    assert [delivery.id for delivery in answer.deliveries] == [0, 1]
    assert link.session.sent == theirs.session.received == {}


@pytest.mark.parametrize(("first", "last", "settled"), [(1, 0x7FFFFFFF, [1, 2]), (0x80000005, 1, [0, 1])])
def test_a_disposition_of_a_huge_range_settles_only_existing_deliveries(
    pair: Any, first: int, last: int, settled: list[int]
) -> None:
    link, _ = exchange(pair, 3)
    pair.tell("client", Disposition(True, first, last, True, Accepted()))
    assert [sent.id for sent in pair.client.of(Disposed)[0].deliveries] == settled
    assert sorted([*settled, *link.session.sent]) == [0, 1, 2]


@pytest.mark.parametrize("who", ["owner", "peer", "session"])
def test_unsettled_deliveries_end_with_their_link(pair: Any, who: str) -> None:
    link, theirs = exchange(pair, 3)
    {"owner": link.close, "peer": theirs.close, "session": theirs.session.end}[who]()
    pair.pump()
    assert link.session.sent == theirs.session.received == {}
    if who != "session":
        assert_settling_has_no_effect(pair, 0, 2)


def test_delivery_counts_wrap(pair: Any) -> None:
    session, _ = pair.session()
    link = session.sender("old")
    link.delivery_count = 0xFFFFFFFE
    link.open(source=Source("s"), target=Target("t"))
    pair.pump()
    theirs = pair.server.of(LinkAttaching)[0].link
    theirs.accept()
    assert theirs.delivery_count == 0xFFFFFFFE
    theirs.grant(5)
    pair.pump()
    deliver(pair, link, b"1", b"2", b"3")
    assert link.delivery_count == theirs.delivery_count == 1
    assert link.credit == theirs.credit == 2
    theirs.grant(4)
    pair.pump()
    assert link.credit == 4


def test_transfer_ids_wrap_in_the_window(pair: Any) -> None:
    session, theirs = pair.session()
    session._next_outgoing_id = theirs._next_incoming_id = 0xFFFFFFFE
    link, _ = pair.sender(session, credit=10)
    pair.tell("client", Flow(0xFFFFFFFE, 3, 0, 9))
    send(link, b"1", b"2", b"3", b"4")
    pair.tell("client", Flow(0xFFFFFFFF, 2, 0, 9))
    assert (session.room, link.queued) == (-1, 1)
    pair.tell("client", Flow(1, 1, 0, 9))
    assert (session.room, link.queued) == (0, 0)
    pair.pump()
    assert pair.server.payloads() == [b"1", b"2", b"3", b"4"]


def test_a_tag_that_is_too_long_is_refused_before_anything_is_counted(pair: Any) -> None:
    link, _ = pair.sender(credit=1)
    with pytest.raises(ValueError, match="at most 32 bytes"):
        link.send(b"x", b"t" * 33)
    assert (link.credit, link.session.sent) == (1, {})


def test_closing_a_link_twice_leaves_the_new_link_of_its_handle_alone(pair: Any) -> None:
    link, theirs = pair.sender()
    link.close()
    pair.pump()
    again, receiving = pair.sender(link.session)
    assert again.handle == link.handle
    link.close()
    theirs.close()
    receiving.grant(1)
    pair.pump()
    deliver(pair, again, b"x")
    assert pair.server.payloads() == [b"x"]
    assert link.session.links == (again,)
