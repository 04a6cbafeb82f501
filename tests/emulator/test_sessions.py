"""Operations of sessions, on a manual clock."""

import sys

import pytest

from sbpair.amqp.message import Sections
from sbpair.amqp_server.refusals import NotAllowed
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.service_errors import SessionCannotBeLocked, SessionLockExpired
from tests.emulator.consumers import CreditConsumer, SessionWaiter, ask, numbers

MINUTE = 60_000


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


def test_a_message_for_a_held_session_wakes_its_consumer(queue, send_to) -> None:
    held = queue.messages.accept("a")
    receiver = CreditConsumer(held, credit=3)
    receiver.wake()
    sent = send_to("a", "b", "a")
    held.remove_consumer(CreditConsumer(held, credit=1))
    sent += send_to("a", "a")
    assert receiver.got == [sent[0], sent[2], sent[3]]
    receiver.credit = 5
    receiver.wake()
    held.remove_consumer(receiver)
    send_to("a")
    assert receiver.got == [sent[0], *sent[2:]]


def test_ids_of_sessions_ignore_case(queue, send_to) -> None:
    sent = send_to("Red", "RED", "blue", "red")
    held = queue.messages.accept("rED")
    with pytest.raises(SessionCannotBeLocked):
        queue.messages.accept("red")
    assert queue.messages.held_session("RED") is held
    assert numbers(queue.messages.peek_session("reD", 0, 9)) == sorted([*sent[:2], sent[3]])
    first, *others = held.receive(9)
    assert numbers([first, *others]) == [*sent[:2], sent[3]]
    queue.messages.defer(others[0].lock_token)
    assert numbers(held.receive_deferred([others[0].sequence_number])) == [sent[1]]
    held.close(failed=False)
    assert queue.messages.list_sessions() == ["Red", "blue"]


def test_a_session_whose_lock_expires_goes_to_one_waiter(queue, send_to) -> None:
    send_to("a")
    held, waiter = queue.messages.accept("a"), SessionWaiter()
    assert queue.messages.accept_next(waiter) is None
    held.receive(1)
    queue.messages.expire_locks()
    assert waiter.held is not None
    assert queue.messages.accept_next(SessionWaiter()) is None


@pytest.mark.parametrize(
    ("use", "found"),
    [
        (lambda messages: messages.accept("a").id, "a"),
        (lambda messages: messages.accept_next(SessionWaiter()).id, "a"),
        (lambda messages: [each.delivery_count for each in messages.peek_session("a", 0, 9)], [1]),
        (lambda messages: messages.locks(), [("a", None, 0, "")]),
        (lambda messages: messages.held_session("a"), SessionLockExpired),
        (lambda messages: messages.held_session("b"), SessionLockExpired),
    ],
)
def test_a_lock_has_run_out_at_the_next_use(queue, send_to, clock, use, found) -> None:
    """No timer has run before it."""
    send_to("a")
    held = queue.messages.accept("a")
    held.owner = "client"
    held.receive(1)
    assert queue.messages.locks() == [("a", clock.now_ms() + MINUTE, 1, "client")]
    clock.advance(MINUTE)
    if found is SessionLockExpired:
        with pytest.raises(SessionLockExpired):
            use(queue.messages)
    else:
        assert use(queue.messages) == found
    with pytest.raises(SessionLockExpired):
        held.receive(1)


def test_locks_of_sessions_that_are_renewed_are_swept(queue, clock) -> None:
    held, renewed = queue.messages.accept("b"), queue.messages.accept("a")
    for _ in range(1_000):
        clock.advance(1)
        until_ms = renewed.renew()
    assert len(queue.messages._hold_ends) < 500
    clock.advance(MINUTE - 1_000)
    with pytest.raises(SessionLockExpired):
        held.checked()
    assert (renewed.checked(), until_ms) == (queue.messages, clock.now_ms() + 1_000)
    clock.advance(1_000)
    with pytest.raises(SessionLockExpired):
        renewed.checked()


def test_sessions_are_listed_whose_state_changed_after_a_time(namespace, queue, send_to, clock) -> None:
    send_to("full")
    queue.messages.accept("stateful").set_state(b"state")
    assert queue.messages.list_sessions(clock.now_ms() - 1) == ["stateful"]
    assert queue.messages.list_sessions(clock.now_ms()) == []
    namespace.delete_queue(queue.path)
    assert queue.size_bytes == 0


def test_state_in_a_full_entity_may_shrink_but_not_grow(namespace, queue, monkeypatch) -> None:
    held = queue.messages.accept("s")
    held.set_state(b"x" * 100)
    monkeypatch.setattr(queue, "_max_bytes", 100)

    for state, status in ((b"x" * 101, 403), (b"y" * 100, 200), (None, 200), (b"z", 200)):
        reply = ask(namespace, "orders", "set-session-state", {"session-id": "s", "session-state": state})
        assert reply.status == status
    assert held.state == b"z"


def test_expired_messages_leave_their_session(queue, send_to, clock) -> None:
    held = queue.messages.accept("stateful")
    held.set_state(b"state")
    held.close()
    send_to("a", "stateful", ttl_ms=1_000)
    send_to("b")
    clock.advance(1_000)
    assert queue.messages.list_sessions() == ["b", "stateful"]
    assert queue.messages.accept_next(SessionWaiter()).id == "b"


def test_messages_of_sessions_have_no_receiver_without_one(queue, send_to) -> None:
    send_to("x" * 128)
    with pytest.raises(NotAllowed):
        queue.messages.receive(1)


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
    many = steps_of_each_use(make_queue("many", **described), 5_000, clock)
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
        "accept the next": steps_of(lambda: messages.accept_next(SessionWaiter())),
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


def test_a_subscription_can_require_sessions(namespace) -> None:
    topic = namespace.create_topic("topic")
    subscription = topic.create_subscription("sub", SubscriptionDescription(requires_session=True))
    topic.send([StoredMessage(Sections(), 1, session_id="a"), StoredMessage(Sections(), 1)])
    assert len(subscription.messages.accept("a").receive(9)) == 1
    dead = [(each.session_id, each.dead_letter.reason) for each in subscription.dead_letters.receive(9)]
    assert dead == [(None, "Session ID is null")]
