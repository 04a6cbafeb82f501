"""Two connections under random traffic, carried in random pieces, against a model of what ought to arrive.

The model knows only what each side was told to do: every message sent within credit arrives once, whole and in order on
its link; every settlement reaches the deliveries that it names and no others.
"""

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from sbpair.amqp import session as session_module
from sbpair.amqp.connection import Connection, ConnectionClosed
from sbpair.amqp.endpoint import EndpointState
from sbpair.amqp.link import CreditChanged, Delivery, LinkAttaching, LinkDetached, ReceivingLink, SendingLink
from sbpair.amqp.performatives import Accepted, Modified, Released, Source, Target
from sbpair.amqp.sasl import SaslClient, SaslServer
from sbpair.amqp.session import Disposed, SessionEnded

OUTCOMES = [Accepted(), Released(), Modified(True)]


class Road:
    """One link as its two owners see it, and what they expect of each other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.sender: SendingLink | None = None
        self.receiver: ReceivingLink | None = None
        self.sent: deque[tuple[bytes, bytes, bool]] = deque()
        self.unsettled: dict[int, Delivery] = {}
        self.outcomes: dict[bytes, Any] = {}
        self.sent_count = 0
        self.gone = False


class Traffic(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ends = (
            Connection(SaslClient(), container_id="client", max_frame_size=1_024),
            Connection(SaslServer(), container_id="server", max_frame_size=512),
        )
        self.air = [bytearray(), bytearray()]
        self.roads: list[Road] = []
        self.deliver_everything()
        self.sessions = [self.ends[0].begin(), self.ends[0].begin()]
        self.deliver_everything()

    # The air between.

    def collect(self) -> None:
        for towards, limit in ((0, 1_024), (1, 512)):
            said = self.ends[1 - towards].take()
            self.air[towards] += said
            position = 0
            while position < len(said) and self.roads:
                size = int.from_bytes(said[position : position + 4])
                assert size <= limit
                position += size

    def deliver(self, towards: int, count: int) -> None:
        data = bytes(self.air[towards][:count])
        del self.air[towards][:count]
        for event in self.ends[towards].receive(data, 0.0):
            self.on_event(event)
        self.collect()

    def deliver_everything(self) -> None:
        self.collect()
        rounds = 0
        while any(self.air):
            rounds += 1
            assert rounds < 500, "the two talk for ever"
            for towards in (0, 1):
                self.deliver(towards, len(self.air[towards]))

    def on_event(self, event: Any) -> None:
        assert not isinstance(event, (ConnectionClosed, SessionEnded)), event
        if isinstance(event, LinkAttaching):
            road = self.roads[int(event.link.name)]
            event.link.context = road
            if isinstance(event.link, ReceivingLink):
                road.receiver = event.link
            else:
                road.sender = event.link
            event.link.accept()
        elif isinstance(event, Delivery):
            self.on_delivery(event)
        elif isinstance(event, Disposed):
            self.on_disposed(event)
        elif isinstance(event, CreditChanged):
            if event.link.draining:
                event.link.drained()
        elif isinstance(event, LinkDetached):
            assert event.link.context.gone

    def on_delivery(self, delivery: Delivery) -> None:
        road: Road = delivery.link.context
        payload, tag, settled = road.sent.popleft()
        assert (delivery.payload, delivery.tag, delivery.settled) == (payload, tag, settled)
        if not settled and not road.gone:
            road.unsettled[delivery.id] = delivery

    def on_disposed(self, event: Disposed) -> None:
        for sent in event.deliveries:
            road: Road = sent.link.context
            assert road.outcomes.pop(sent.context) == event.state

    # What the owners do.

    @rule(towards=st.integers(0, 1), count=st.integers(1, 400))
    def a_piece_arrives(self, towards: int, count: int) -> None:
        self.deliver(towards, count)

    @rule()
    def everything_arrives(self) -> None:
        self.deliver_everything()

    @precondition(lambda self: len(self.roads) < 5)
    @rule(session=st.integers(0, 1), receiving=st.booleans())
    def open_a_link(self, session: int, receiving: bool) -> None:
        road = Road(len(self.roads))
        self.roads.append(road)
        link: Any
        if receiving:
            link = road.receiver = self.sessions[session].receiver(str(road.number))
        else:
            link = road.sender = self.sessions[session].sender(str(road.number))
        link.context = road
        link.open(source=Source("a"), target=Target("b"))
        self.collect()

    def road(self, pick: int) -> Road | None:
        return self.roads[pick % len(self.roads)] if self.roads else None

    @rule(pick=st.integers(0, 4), credit=st.integers(0, 9))
    def grant(self, pick: int, credit: int) -> None:
        road = self.road(pick)
        if road and road.receiver:
            road.receiver.grant(credit)
            self.collect()

    @rule(pick=st.integers(0, 4))
    def drain(self, pick: int) -> None:
        road = self.road(pick)
        if road and road.receiver:
            road.receiver.drain()
            self.collect()

    @rule(pick=st.integers(0, 4), size=st.sampled_from([0, 1, 100, 470, 1_500]), settled=st.booleans())
    def send(self, pick: int, size: int, settled: bool) -> None:
        road = self.road(pick)
        if not road or not road.sender:
            return
        road.sent_count += 1
        tag, payload = road.sent_count.to_bytes(4), bytes([road.sent_count % 256]) * size
        if road.sender.credit == 0:
            with pytest.raises(ValueError, match="no credit"):
                road.sender.send(payload, tag)
            return
        road.sent.append((payload, tag, settled))
        road.sender.send(payload, tag, settled=settled, context=tag)
        self.collect()

    @rule(pick=st.integers(0, 4), reach=st.integers(0, 6), outcome=st.sampled_from(OUTCOMES))
    def settle(self, pick: int, reach: int, outcome: Any) -> None:
        """A range from one delivery on, over whatever deliveries of other links it covers."""
        road = self.road(pick)
        if not road or not road.unsettled:
            return
        first = next(iter(road.unsettled))
        session = road.unsettled[first].link.session
        # Nobody settles what has not come yet.
        arrived = [got for other in self.roads for got, d in other.unsettled.items() if d.link.session is session]
        reach = min(reach, max(arrived) - first)
        for other in self.roads:
            for delivery_id, delivery in list(other.unsettled.items()):
                if delivery.link.session is session and first <= delivery_id <= first + reach:
                    other.outcomes[delivery.tag] = outcome
                    del other.unsettled[delivery_id]
        session.dispose(first, first + reach, outcome, receiver=True, settled=True)
        self.collect()

    @rule(pick=st.integers(0, 4), by_sender=st.booleans())
    def close_a_link(self, pick: int, by_sender: bool) -> None:
        road = self.road(pick)
        link = road and (road.sender if by_sender else road.receiver)
        if road and link:
            road.gone = True
            road.unsettled.clear()
            link.close()
            self.collect()

    @invariant()
    def nobody_owes_credit(self) -> None:
        for road in self.roads:
            assert road.sender is None or (road.sender.credit >= 0 and road.sender.queued >= 0)
            assert road.receiver is None or road.receiver.credit >= 0

    def teardown(self) -> None:
        self.deliver_everything()
        for road in self.roads:
            if not road.gone and road.receiver:
                road.receiver.grant(7)
        self.deliver_everything()
        for road in self.roads:
            assert road.sender
            assert road.receiver
            if road.gone:
                assert road.sender.state is road.receiver.state is EndpointState.CLOSED
                continue
            assert not road.sent
            assert not road.outcomes
            assert road.sender.credit == road.receiver.credit == 7
            assert road.sender.delivery_count == road.receiver.delivery_count
            assert road.sender.queued == 0
            unsettled = [got.id for got in road.receiver.session.received.values() if got.link is road.receiver]
            assert unsettled == list(road.unsettled)
            assert unsettled == [sent.id for sent in road.sender.session.sent.values() if sent.link is road.sender]


@pytest.mark.parametrize("window", [3, 5_000])
def test_random_traffic_arrives_once_whole_and_in_order(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "WINDOW", window)
    run_state_machine_as_test(Traffic, settings=settings(deadline=None, max_examples=40, stateful_step_count=40))  # type: ignore[no-untyped-call]
