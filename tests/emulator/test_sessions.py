"""Operations of sessions, on a manual clock."""

import sys

import pytest

from sbpair.amqp.message import Sections
from sbpair.amqp.types import Map
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.request_links import AmqpRequest
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    MessageLockExpired,
    MessageNotFound,
    NotAllowed,
)

MINUTE = 60_000


class Waiter:
    def __init__(self) -> None:
        self.held = None

    def on_session_locked(self, held) -> None:
        self.held = held


class SessionConsumer:
    """A consumer of one session."""

    def __init__(self, held, credit: int) -> None:
        self.held = held
        self.credit = credit
        self.got: list[int] = []

    def wake(self) -> None:
        taken = self.held.receive(self.credit, self)
        self.credit -= len(taken)
        self.got += numbers(taken)


def numbers(messages) -> list[int]:
    return [message.sequence_number for message in messages]


@pytest.fixture(params=[False, True], ids=["whole", "partitioned"])
def queue(make_queue, request):
    return make_queue(requires_session=True, max_delivery_count=3, enable_partitioning=request.param)


@pytest.fixture
def send_to(queue):
    """Send a message to each of these sessions; return their sequence numbers."""

    def send(*sessions: str, **fields: object) -> list[int]:
        messages = [StoredMessage(Sections(), 100, session_id=each, **fields) for each in sessions]
        for message in messages:
            queue.send([message])
        return numbers(messages)

    return send


def test_an_empty_session_can_be_accepted_by_name(queue) -> None:
    held = queue.messages.accept("new")
    assert held.receive(1) == []
    held.close()
    assert queue.messages.list_sessions() == []
    assert queue.messages._sessions.sessions == {}


def test_the_session_available_for_longest_comes_first(queue, send_to) -> None:
    send_to("b", "a", "b", "c")
    locked = [queue.messages.accept_next(Waiter()) for _ in range(4)]
    assert [held and held.id for held in locked] == ["b", "a", "c", None]


def test_a_waiter_gets_the_first_available_session(queue, send_to) -> None:
    first, second, third = Waiter(), Waiter(), Waiter()
    for waiter in (first, second, third):
        assert queue.messages.accept_next(waiter) is None
    queue.messages.remove_waiter(second)
    send_to("a")
    assert (first.held.id, third.held) == ("a", None)
    first.held.close()
    assert third.held.id == "a"
    third.held.close()
    assert second.held is None


def test_a_message_for_a_held_session_wakes_its_consumer(queue, send_to) -> None:
    held = queue.messages.accept("a")
    receiver = SessionConsumer(held, credit=2)
    receiver.wake()
    sent = send_to("a", "b", "a", "a")
    assert receiver.got == [sent[0], sent[2]]


def test_renewing_a_session_renews_its_messages(queue, send_to, clock, advance) -> None:
    send_to("a")
    held = queue.messages.accept("a")
    message = held.receive(1)[0]
    advance(MINUTE - 1)
    assert held.renew() == message.locked_until_ms == clock.now_ms() + MINUTE
    advance(MINUTE - 1)
    held.complete(message.lock_token)
    with pytest.raises(MessageLockExpired):
        held.complete(message.lock_token)
    with pytest.raises(NotAllowed):
        queue.messages.renew(message.lock_token)


def test_a_deferred_message_is_received_through_its_session(queue, send_to) -> None:
    mine, other = send_to("a", "b")
    for name in ("a", "b"):
        held = queue.messages.accept(name)
        held.defer(held.receive(1)[0].lock_token)
        held.close()
    held = queue.messages.accept("a")
    with pytest.raises(MessageNotFound):
        held.receive_deferred([other])
    with pytest.raises(NotAllowed):
        queue.messages.receive_deferred([mine])
    held.complete(held.receive_deferred([mine])[0].lock_token)
    assert queue.counts().active == 1


def test_session_state_outlives_the_lock_and_is_listed(queue, send_to, clock) -> None:
    send_to("full")
    held = queue.messages.accept("stateful")
    held.set_state(b"state")
    held.close()
    assert queue.messages.list_sessions() == ["full", "stateful"]
    assert queue.messages.list_sessions(clock.now_ms() - 1) == ["stateful"]
    assert queue.messages.list_sessions(clock.now_ms()) == []
    held = queue.messages.accept("stateful")
    assert held.state == b"state"
    held.set_state(None)
    held.close()
    assert queue.messages.list_sessions() == ["full"]


def test_session_state_counts_toward_the_entity_size(namespace, queue) -> None:
    one, other = queue.messages.accept("one"), queue.messages.accept("other")
    one.set_state(b"x" * 100)
    other.set_state(b"y" * 30)
    assert queue.size_bytes == 130
    one.set_state(b"x" * 10)
    other.set_state(None)
    assert queue.size_bytes == 10
    one.close()
    assert queue.size_bytes == 10
    namespace.delete_queue(queue.path)
    assert queue.size_bytes == 0


def test_state_in_a_full_entity_may_shrink_but_not_grow(namespace, queue, monkeypatch) -> None:
    held = queue.messages.accept("s")
    held.set_state(b"x" * 100)
    monkeypatch.setattr(queue, "_max_bytes", 100)

    def set_state(state: bytes | None) -> int:
        body = Map([("session-id", "s"), ("session-state", state)])
        request = AmqpRequest("id", None, "com.microsoft:set-session-state", Map(), body)
        return management_operations.execute(request, namespace.resolve("orders"), lambda _: None).status

    assert [set_state(state) for state in (b"x" * 101, b"y" * 100, None, b"z")] == [403, 200, 200, 200]
    assert held.state == b"z"


def test_expired_messages_leave_their_session(queue, send_to, advance) -> None:
    send_to("a", ttl_ms=1_000)
    send_to("b")
    advance(1_000)
    assert queue.messages.list_sessions() == ["b"]
    assert queue.messages.accept_next(Waiter()).id == "b"


def test_one_session_can_be_peeked(queue, send_to) -> None:
    sent = send_to("a", "b", "a")
    assert numbers(queue.messages.peek_session("a", 0, 9)) == [sent[0], sent[2]]
    assert numbers(queue.messages.peek_session("a", sent[0] + 1, 9)) == [sent[2]]
    assert numbers(queue.messages.peek_session("a", 0, 1)) == [sent[0]]


def test_messages_without_a_session_are_refused(queue, send_to) -> None:
    with pytest.raises(NotAllowed):
        queue.send([StoredMessage(Sections(), 1)])
    with pytest.raises(ArgumentInvalid):
        send_to("x" * 129)
    assert queue.counts().total == 0
    with pytest.raises(NotAllowed):
        queue.messages.receive(1)


def test_expiring_all_locks_releases_every_session(queue, send_to) -> None:
    send_to("a", "b")
    held = [queue.messages.accept(name) for name in ("a", "b")]
    for each in held:
        each.receive(1)
    queue.messages.expire_locks()
    assert queue.messages.locked_count == 0
    assert [queue.messages.accept(name).receive(1)[0].delivery_count for name in ("a", "b")] == [1, 1]


def steps_of(action) -> int:
    """Return how many Python instructions an action takes: the same on every machine, unlike its time."""
    steps = 0

    def count(frame, event, _):
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        action()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_cost_does_not_grow_with_the_number_of_sessions(make_queue, clock, partitioned) -> None:
    described = {"requires_session": True, "enable_partitioning": partitioned}
    few = steps_of_each_use(make_queue("few", **described), 200, clock)
    many = steps_of_each_use(make_queue("many", **described), 20_000, clock)
    assert {use: steps for use, steps in many.items() if steps > 2 * few[use]} == {}


def steps_of_each_use(queue, count: int, clock) -> dict[str, float]:
    """Return the cost of each use of one of `count` sessions, most of them held and two available."""
    messages, names = queue.messages, [f"session-{number}" for number in range(count)]
    for name in names:
        queue.send([StoredMessage(Sections(), 100, session_id=name)])
    held = [messages.accept(name) for name in names[:-2]]
    clock.advance(MINUTE // 2)
    renewed = held[1::2]
    steps: dict[str, float] = {
        "is it used": steps_of(lambda: queue.is_in_use),
        "accept the next": steps_of(lambda: messages.accept_next(Waiter())),
        "receive": steps_of(lambda: held[1].receive(9)),
        "renew": steps_of(lambda: [each.renew() for each in renewed]) / len(renewed),
        "look for what is due": steps_of(lambda: messages.advance(clock.now_ms())),
    }
    clock.advance(MINUTE // 2)
    lost = held[::2]
    steps["run out"] = steps_of(messages.advance_if_due) / len(lost)
    assert all(each.session.holder is None for each in lost)
    assert all(each.session.holder is each for each in renewed)
    steps["give back"] = steps_of(lambda: [each.close() for each in renewed[::2]]) / len(renewed[::2])
    steps["expire"] = steps_of(messages.expire_locks) / len(renewed[1::2])
    assert (messages.locked_count, queue.is_in_use, messages.next_deadline_ms()) == (0, False, NEVER)
    return steps


def test_a_waiter_keeps_a_session_that_another_lost(queue, send_to) -> None:
    send_to("a")
    held, waiter = queue.messages.accept("a"), Waiter()
    assert queue.messages.accept_next(waiter) is None
    queue.messages.expire_locks()
    assert held.session.holder is waiter.held is not None
    assert [message.delivery_count for message in waiter.held.receive(9)] == [0]


def test_a_subscription_can_require_sessions(namespace) -> None:
    topic = namespace.create_topic("topic")
    subscription = topic.create_subscription("sub", SubscriptionDescription(requires_session=True))
    topic.send([StoredMessage(Sections(), 1, session_id="a"), StoredMessage(Sections(), 1)])
    assert len(subscription.messages.accept("a").receive(9)) == 1
    assert [each.dead_letter.reason for each in subscription.dead_letters.receive(9)] == ["Session ID is null"]
