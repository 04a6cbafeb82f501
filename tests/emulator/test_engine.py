"""Operations of a queue's messages, on a manual clock."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.service_errors import EntityDisabled, EntityNotFound, MessageLockExpired
from sbpair.timespan import TICKS_PER_SECOND
from tests.emulator.consumers import CreditConsumer

MINUTE = 60_000


def test_tokens_look_like_random_guids_and_never_repeat(queue, put) -> None:
    put(50)
    tokens = queue.messages.receive(50)
    assert len({message.lock_token for message in tokens}) == 50
    assert {message.lock_uuid.version for message in tokens} == {4}
    assert tokens[0].lock_uuid.bytes_le == tokens[0].lock_token


@pytest.mark.parametrize(
    ("status", "allows"),
    [("Active", "send receive"), ("SendDisabled", "receive"), ("ReceiveDisabled", "send"), ("Disabled", "")],
)
def test_a_status_disables_sends_receives_or_both(make_queue, status, allows) -> None:
    queue = make_queue(status=status)
    for name in ("send", "receive"):
        with nullcontext() if name in allows.split() else pytest.raises(EntityDisabled):
            getattr(queue, f"check_{name}")()


@pytest.mark.parametrize(
    ("fields", "size", "stored"),
    [
        ({}, 256 * 1024, True),
        ({}, 256 * 1024 + 1, False),
        ({"max_size_in_megabytes": 0}, 1, False),
        ({"requires_session": True}, 1, False),
        ({"requires_duplicate_detection": True}, 1, False),
        ({"enable_partitioning": True}, 1, False),
        ({"status": "SendDisabled"}, 1, False),
    ],
)
def test_messages_that_need_no_check_are_stored_together(make_queue, fields, size, stored) -> None:
    queue = make_queue(**fields)
    assert queue.try_send_each([StoredMessage(Sections(), each) for each in (1, size)]) is stored
    assert queue.counts().active == (2 if stored else 0)


def test_a_deleted_queue_drops_its_messages_and_notifies_once(namespace, queue, put, advance) -> None:
    put(3, ttl_ms=1_000)
    held = queue.messages.receive(1)
    queue.update(replace(queue.description, lock_duration=TICKS_PER_SECOND))
    held += queue.messages.receive(1)
    errors = []
    namespace.on_refusing[errors.append] = None
    namespace.delete_queue("ORDERS")
    assert [type(error) for error in errors] == [EntityNotFound]
    assert queue.size_bytes == queue.counts().total == 0
    for message in held:
        with pytest.raises(MessageLockExpired):
            queue.messages.complete(message.lock_token)
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


def test_locks_keep_their_end_when_the_lock_duration_changes(queue, put, clock) -> None:
    put(4)
    ended, renewed, abandoned = queue.messages.receive(3)
    queue.update(replace(queue.description, lock_duration=10 * TICKS_PER_SECOND))
    (later,) = queue.messages.receive(1)
    queue.update(replace(queue.description, lock_duration=20 * TICKS_PER_SECOND))
    assert queue.messages.locked_count == 4
    clock.advance(10_000)
    with pytest.raises(MessageLockExpired):
        queue.messages.complete(later.lock_token)
    assert queue.messages.get_locked(ended.lock_token) is ended
    queue.messages.abandon(abandoned.lock_token)
    assert queue.messages.renew(renewed.lock_token).locked_until_ms == clock.now_ms() + 20_000
    assert queue.messages.next_deadline_ms() == renewed.locked_until_ms
    clock.advance(50_000)
    taken = queue.messages.receive(9)
    assert [(each.sequence_number, each.delivery_count) for each in taken] == [(1, 1), (2, 1), (3, 1), (4, 1)]


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


def complete(queue, sent) -> None:
    for message in queue.messages.receive(len(sent)):
        queue.messages.complete(message.lock_token)


def cancel(queue, sent) -> None:
    queue.cancel_scheduled([message.sequence_number for message in sent])


@pytest.mark.parametrize(
    ("field", "end", "deadlines"),
    [("ttl_ms", complete, "_expiries"), ("scheduled_at_ms", cancel, "_schedule")],
)
def test_deadlines_of_messages_that_are_gone_are_swept(queue, put, clock, field, end, deadlines) -> None:
    put(ttl_ms=1_000)
    queue.messages.receive(1)
    put(scheduled_at_ms=clock.now_ms() + 1_000)
    for _ in range(100):
        end(queue, put(50, **{field: clock.now_ms() + MINUTE}))
    assert len(getattr(queue.messages, deadlines)) < 500
    clock.advance(1_000)
    assert len(queue.messages.receive(9)) == 1
    queue.messages.expire_locks()
    assert queue.counts().total == 1
