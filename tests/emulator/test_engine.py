"""Operations of a queue's messages, on a manual clock."""

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import EntityCounts
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.service_errors import ArgumentInvalid, EntityNotFound, MessageLockExpired, MessageTooLarge
from tests.emulator.consumers import CreditConsumer, numbers

MINUTE = 60_000


def test_tokens_look_like_random_guids_and_never_repeat(queue, put) -> None:
    put(50)
    tokens = queue.messages.receive(50)
    assert len({message.lock_token for message in tokens}) == 50
    assert {message.lock_uuid.version for message in tokens} == {4}
    assert tokens[0].lock_uuid.bytes_le == tokens[0].lock_token


def test_an_expired_message_is_dropped_by_default(queue, put, advance) -> None:
    put(ttl_ms=1_000)
    put()
    advance(1_000)
    assert queue.counts() == EntityCounts(active=1, dead_letter=0, scheduled=0)
    assert numbers(queue.messages.receive(9)) == [2]


def test_a_message_larger_than_the_limit_is_refused(queue) -> None:
    with pytest.raises(MessageTooLarge):
        queue.send([StoredMessage(Sections(), 256 * 1024 + 1)])
    with pytest.raises(ArgumentInvalid):
        queue.send([StoredMessage(Sections(), 1) for _ in range(4501)])
    assert queue.counts().total == 0


def test_a_deleted_queue_drops_its_messages_and_notifies_once(namespace, queue, put, advance) -> None:
    put(2, ttl_ms=1_000)
    token = queue.messages.receive(1)[0].lock_token
    errors = []
    namespace.on_refusing[errors.append] = None
    namespace.delete_queue("ORDERS")
    assert [type(error) for error in errors] == [EntityNotFound]
    assert queue.size_bytes == queue.counts().total == 0
    with pytest.raises(MessageLockExpired):
        queue.messages.complete(token)
    advance(MINUTE)
    assert namespace.timers.next_deadline_ms() is None


@pytest.mark.parametrize(
    ("bursts", "credit", "got"),
    [
        pytest.param([1] * 6, [10, 10, 10], [[1, 4], [2, 5], [3, 6]], id="they take turns"),
        pytest.param([5], [2, 5], [[1, 2], [3, 4, 5]], id="a burst goes to the first up to its credit"),
    ],
)
def test_messages_go_to_waiting_consumers(queue, put, bursts, credit, got) -> None:
    receivers = [CreditConsumer(queue.messages, credit=each) for each in credit]
    for receiver in receivers:
        receiver.wake()
    for count in bursts:
        put(count)
    assert [receiver.got for receiver in receivers] == got


def test_a_returned_message_wakes_a_waiting_consumer(queue, put, advance) -> None:
    put(2)
    held = queue.messages.receive(2)
    receiver = CreditConsumer(queue.messages, credit=5)
    receiver.wake()
    queue.messages.abandon(held[1].lock_token)
    assert receiver.got == [2]
    advance(MINUTE)
    assert receiver.got == [2, 1, 2]


def test_dead_letters_wake_their_own_consumers(queue, put) -> None:
    waiting = CreditConsumer(queue.dead_letters, credit=1)
    waiting.wake()
    put()
    queue.messages.dead_letter(queue.messages.receive(1)[0].lock_token)
    assert waiting.got == [1]


def test_a_burst_of_sends_wakes_a_consumer_once(clock) -> None:
    soon = []
    queue = Namespace("contoso", clock, call_soon=soon.append).create_queue("orders")
    receiver = CreditConsumer(queue.messages, credit=10)
    receiver.wake()
    for _ in range(4):
        queue.send([StoredMessage(Sections(), 1)])
    assert receiver.got == []
    assert len(soon) == 1
    soon.pop()()
    assert receiver.got == [1, 2, 3, 4]


def test_a_new_consumer_does_not_overtake_waiting_ones(clock) -> None:
    soon = []
    queue = Namespace("contoso", clock, call_soon=soon.append).create_queue("orders")
    first, newcomer = CreditConsumer(queue.messages, credit=1), CreditConsumer(queue.messages, credit=1)
    first.wake()
    queue.send([StoredMessage(Sections(), 1)])
    newcomer.wake()
    soon.pop()()
    assert (first.got, newcomer.got) == ([1], [])


def test_timers_return_the_next_deadline_of_all_queues(namespace, make_queue, put, clock, advance) -> None:
    slow, fast = make_queue("slow", lock_duration="PT5M"), make_queue("fast", lock_duration="PT10S")
    earlier = []
    namespace.timers.on_earlier = lambda: earlier.append(namespace.timers.next_deadline_ms())
    for queue in (slow, fast):
        put(to=queue)
        queue.messages.receive(1)
    start = clock.now_ms()
    assert earlier == [start + 5 * MINUTE, start + 10_000]
    advance(10_000)
    assert len(fast.messages.receive(1)) == 1
    assert namespace.timers.next_deadline_ms() == clock.now_ms() + 10_000


def test_void_entries_behind_a_long_lived_message_are_swept(queue, put, advance) -> None:
    put()
    for _ in range(100):
        put(50, ttl_ms=10)
        advance(10)
    assert len(queue.messages) == 1
    assert len(queue.messages._ready._new) < 500
    assert len(queue.messages._expiries) < 500


def test_deadlines_of_settled_messages_are_swept(make_queue, put) -> None:
    queue = make_queue("q", default_message_time_to_live="P14D")
    for _ in range(100):
        put(50, to=queue)
        for message in queue.messages.receive(50):
            queue.messages.complete(message.lock_token)
    assert len(queue.messages._expiries) < 500
