"""Duplicates, forwarding, deletion and idleness, on a manual clock."""

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import Mock

import pytest

from sbpair import timespan
from sbpair.amqp.message import Properties, Sections
from sbpair.amqp.performatives import Error, Modified, Rejected
from sbpair.amqp.types import Array, Map
from sbpair.amqp_server.refusals import ArgumentInvalid, NotAllowed, ServiceUnavailable
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.description import SubscriptionDescription
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import DEFERRED, StoredMessage
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.frontends.amqp.message_links import settle_all
from sbpair.emulator.service_errors import EntityNotFound, OperationTimedOut
from tests.emulator.consumers import CreditConsumer, SessionWaiter, ask

MINUTE = 60_000


def named(*ids: str | None, **fields: object) -> list[StoredMessage]:
    return [StoredMessage(Sections(), 10, message_id=each, **fields) for each in ids]


# Duplicates


def test_an_id_is_accepted_again_after_the_window(make_queue, clock) -> None:
    queue = make_queue(requires_duplicate_detection=True, duplicate_detection_history_time_window="PT1M")
    for _ in range(3):
        queue.send(named("a", "b"))
        clock.advance(MINUTE - 1)
        queue.send(named("a"))
        clock.advance(1)
    assert queue.counts().active == 6
    queue.send(named("c"))
    assert len(queue._duplicates.seen) == 1
    clock.advance(MINUTE // 2)
    queue.send(named("d"))
    clock.advance(MINUTE // 2)
    queue.send(named("c", "d"))
    assert queue.counts().active == 6 + len("cdc")


# Forwarding


def chain(make_queue, length: int) -> list:
    queues = [make_queue(f"q{n}", forward_to=f"sb://host:1/q{n + 1}") for n in range(length - 1)]
    return [*queues, make_queue(f"q{length - 1}")]


def test_a_message_goes_four_hops_and_no_further(make_queue) -> None:
    queues = chain(make_queue, 6)
    queues[0].send(named(None))
    queues[1].send(named(None))
    assert [queue.counts().total for queue in queues] == [0, 0, 0, 0, 1, 1]
    transferred = queues[4].transfer_dead_letters.receive(9)
    assert [each.dead_letter.reason for each in transferred] == ["MaxTransferHopCountExceeded"]
    assert queues[4].counts().transfer_dead_letter == 1


def test_a_forwarding_loop_ends(make_queue) -> None:
    queue = make_queue(forward_to="orders")
    queue.send(named(*[None] * 250))
    assert queue.counts().transfer_dead_letter == 250
    assert queue.size_bytes == 2_500


@pytest.mark.parametrize("down", ["q1", "q0"])
def test_forwarding_waits_in_order_until_both_entities_are_up(make_queue, faults, down) -> None:
    first, second = chain(make_queue, 2)
    with faults.during("entity-down", "contoso", entity=down):
        first.send(named("a"))
        first.send(named("b", "c"))
        with faults.during("entity-down", "contoso", entity=down):
            assert (first.counts().transfer, second.counts().total) == (3, 0)
        assert (first.counts().transfer, second.counts().total) == (3, 0)
    assert [message.message_id for message in second.messages.receive(9)] == ["a", "b", "c"]
    assert [message.delivery_count for message in second.messages.peek(0, 9)] == [0, 0, 0]
    assert first.counts().total == first.size_bytes == 0


def test_a_target_deleted_while_down_receives_nothing(namespace, make_queue, faults) -> None:
    first, _ = chain(make_queue, 2)
    with faults.during("entity-down", "contoso", entity="q1"):
        first.send(named("a"))
        namespace.delete_queue("q1")
    assert (first.counts().transfer, first.counts().transfer_dead_letter) == (0, 1)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (None, "EntityNotFound"),
        ({"requires_session": True}, "NotAllowed"),
        ({"status": "Disabled"}, "EntityDisabled"),
        ({"max_size_in_megabytes": 0}, "QuotaExceeded"),
        ({"max_message_size_in_kilobytes": 0}, "MessageTooLarge"),
        (OperationTimedOut, "TimedOut"),
        (ServiceUnavailable, "Unavailable"),
    ],
)
def test_a_refused_message_is_a_transfer_dead_letter_with_the_reason(make_queue, monkeypatch, target, reason) -> None:
    if target is not None:
        made = make_queue("target", **(target if isinstance(target, dict) else {}))
        if not isinstance(target, dict):
            monkeypatch.setattr(made, "send", Mock(side_effect=target("text")))
    queue = make_queue(forward_to="target")
    queue.send(named("a"))
    (message,) = queue.transfer_dead_letters.receive(1)
    assert (message.dead_letter.reason, message.dead_letter.source) == (reason, "orders")
    properties = Sections.split(service_envelope.encode_delivery(message)).read_application_properties()
    assert properties["DeadLetterReason"] == reason


@pytest.mark.parametrize("detects", [True, False])
def test_forwarding_to_a_partition_that_is_down_waits_in_order(make_queue, faults, detects) -> None:
    target = make_queue("target", enable_partitioning=True, requires_duplicate_detection=detects)
    queue = make_queue(forward_to="target")
    down = target.partitions.for_key("a")
    keyed = [
        StoredMessage(
            Sections(properties=Properties(message_id=key).encode()), 10, partition_key=None if detects else key
        )
        for key in ("b", "a", "b")
    ]
    assert target.partitions.for_key("b") != down
    with faults.during("partition-down", "contoso", entity="target", partition=down):
        queue.send(keyed[:1])
        for message in keyed[1:]:
            queue.send([message])
        assert (queue.counts().transfer, target.counts().active) == (2, 1)
    assert (queue.counts().total, target.counts().active) == (0, 2 if detects else 3)


def test_forwarding_can_begin_and_end_later(make_queue) -> None:
    target = make_queue("target")
    queue = make_queue()
    queue.send(named(None))
    errors = []
    queue.namespace.on_refusing[errors.append] = None
    queue.update(replace(queue.description, forward_to="target"))
    assert (queue.counts().total, target.counts().active, len(errors)) == (0, 1, 1)
    with pytest.raises(NotAllowed):
        queue.check_not_forwarding("receiver")
    queue.update(replace(queue.description, forward_to=None))
    queue.send(named(None))
    assert (queue.counts().active, target.counts().active) == (1, 1)


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_queue_with_sessions_forwards_each_session_in_order(make_queue, faults, partitioned: bool) -> None:
    last = make_queue("last")
    first = make_queue("first", requires_session=True, forward_to="last", enable_partitioning=partitioned)

    def send(*sessions: str) -> None:
        for session in sessions:
            first.send([StoredMessage(Sections(), 1, session_id=session)])

    send("a", "b", "a")
    first_outage, second_outage = (faults.entity_down("contoso", "last") for _ in range(2))
    send("a", "c", "b", "b")
    faults.end(first_outage)
    assert (last.counts().active, first.counts().transfer) == (3, 4)
    faults.end(second_outage)
    received = last.messages.receive(10)
    assert sorted(message.session_id for message in received) == ["a", "a", "a", "b", "b", "b", "c"]
    for session in "abc":
        numbers = [each.enqueued_sequence_number for each in received if each.session_id == session]
        assert numbers == sorted(numbers)
    assert {message.delivery_count for message in received} == {0}
    assert first.counts().total == 0


def test_sessions_are_forwarded_once_their_receiver_is_gone(make_queue) -> None:
    last = make_queue("last")
    first = make_queue("first", requires_session=True)
    first.send([StoredMessage(Sections(), 1, session_id="held"), StoredMessage(Sections(), 1, session_id="free")])
    held = first.messages.accept("held")
    held.receive(1)
    first.update(replace(first.description, forward_to="last"))
    assert [message.session_id for message in last.messages.peek(0, 9)] == ["free"]
    held.close()
    assert [message.session_id for message in last.messages.peek(0, 9)] == ["free", "held"]
    first.update(replace(first.description, forward_to=None))
    first.send([StoredMessage(Sections(), 1, session_id="stays")])
    assert (first.counts().active, len(last.messages)) == (1, 2)


# Modify, delete, disable


CHANGES = Map([("note", "x" * 50)])


@pytest.mark.parametrize("requires_session", [True, False])
@pytest.mark.parametrize(
    "outcome",
    [
        Modified(delivery_failed=True, message_annotations=CHANGES),
        Modified(undeliverable_here=True, message_annotations=CHANGES),
        Rejected(Error("com.microsoft:dead-letter", "", CHANGES)),
        "abandoned",
        "defered",
        "suspended",
    ],
)
def test_the_size_follows_modified_properties(namespace, make_queue, outcome, requires_session) -> None:
    queue = make_queue(requires_session=requires_session)
    queue.send([StoredMessage(Sections(), 100, session_id="s")])
    source = queue.messages.accept("s") if requires_session else queue.messages
    (message,) = source.receive(1)
    if isinstance(outcome, str):
        arguments = {"disposition-status": outcome, "lock-tokens": Array([message.lock_uuid])}
        reply = ask(namespace, "orders", "update-disposition", {**arguments, "properties-to-modify": CHANGES})
        assert reply.status == 200
    else:
        assert settle_all(source, [message.lock_token], outcome, settled=False) == {}
    grown = 100 + len(message.sections.application_properties)
    assert (queue.size_bytes, grown > 150) == (grown, True)
    source = queue.dead_letters if queue.dead_letters.active_count else source
    deferred = message.reported_state == DEFERRED
    (again,) = source.receive_deferred([1]) if deferred else source.receive(1)
    assert again.size == grown
    assert dict(again.sections.read_application_properties().pairs) == dict(CHANGES.pairs)
    source.checked().complete(again.lock_token)
    assert queue.size_bytes == 0


BROKEN = b"\x00St\xc1\x02\x02\x40"
"""Application properties of one key without a value."""


def test_unreadable_properties_stay_unchanged(queue) -> None:
    queue.send(service_envelope.read_delivery(BROKEN + b"\x00Sw\x40", 0))
    token = queue.messages.receive(1)[0].lock_token
    refused = settle_all(queue.messages, [token], Modified(message_annotations=CHANGES), settled=False)
    assert refused is not None
    assert isinstance(refused[token], ArgumentInvalid)
    queue.messages.dead_letter(token, "bad", "very")
    assert BROKEN in service_envelope.encode_delivery(queue.dead_letters.receive(1)[0])


# Idle entities


def test_an_idle_entity_is_deleted(namespace, make_queue, advance) -> None:
    queue = make_queue(auto_delete_on_idle="PT5M")
    for use in (lambda: queue.send(named("a")), lambda: queue.messages.peek(0, 1), lambda: queue.messages.receive(1)):
        advance(4 * MINUTE)
        use()
    advance(5 * MINUTE - 1)
    assert namespace.find_queue("orders") is queue
    advance(1)
    assert namespace.find_queue("orders") is None
    with pytest.raises(EntityNotFound):
        namespace.queue("orders")


def a_consumer(part: SubQueue) -> Callable[[], None]:
    consumer = CreditConsumer(part, credit=1)
    consumer.wake()
    return lambda: part.remove_consumer(consumer)


def a_waiter(queue: QueueEntity) -> Callable[[], None]:
    waiter = SessionWaiter()
    assert queue.messages.accept_next(waiter) is None
    return lambda: queue.messages.remove_waiter(waiter)


def a_schedule(queue: QueueEntity) -> Callable[[], None]:
    (number,) = queue.schedule(named("a", scheduled_at_ms=NEVER - 1))
    return lambda: queue.cancel_scheduled([number])


@pytest.mark.parametrize(
    ("use", "sessions"),
    [
        (lambda queue: a_consumer(queue.messages), False),
        (lambda queue: a_consumer(queue.dead_letters), False),
        (a_schedule, False),
        (a_waiter, True),
        (lambda queue: queue.messages.accept("s").close, True),
    ],
)
def test_an_entity_in_use_is_kept(namespace, make_queue, advance, use, sessions) -> None:
    """By a receiver that waits, a session under lock, or a scheduled message."""
    queue = make_queue(auto_delete_on_idle="PT5M", requires_session=sessions, lock_duration="PT5M")
    end = use(queue)
    for _ in range(2):
        advance(4 * MINUTE)
        if sessions and queue.messages.locks():
            queue.messages.held_session("s").renew()
    assert namespace.find_queue("orders") is queue
    end()
    advance(10 * MINUTE)
    assert namespace.find_queue("orders") is None


def test_a_subscription_is_used_by_its_readers(namespace, advance) -> None:
    """Messages from its topic are no use."""
    topic = namespace.create_topic("news")
    subscription = topic.create_subscription("s", SubscriptionDescription(auto_delete_on_idle=timespan.parse("PT5M")))
    for use in (
        lambda: subscription.messages.receive(1),
        lambda: subscription.dead_letters.peek(0, 1),
        lambda: subscription.update(subscription.description),
        lambda: topic.send(named("a")),
    ):
        advance(4 * MINUTE)
        use()
    assert namespace.find("news/subscriptions/s") is subscription
    advance(MINUTE)
    assert (namespace.find("news/subscriptions/s"), topic.subscriptions) == (None, [])
