"""Duplicates, forwarding, deletion and idleness, on a manual clock."""

from dataclasses import replace

import pytest

from sbpair.amqp.message import Properties, Sections
from sbpair.amqp.performatives import Error, Modified, Rejected
from sbpair.amqp.types import Array
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.stored_message import DEFERRED, StoredMessage
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.link_endpoints import AmqpRequest
from sbpair.emulator.frontends.amqp.message_links import settle_all
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityFull,
    EntityNotFound,
    MessageTooLarge,
    NotAllowed,
    OperationTimedOut,
    ServiceUnavailable,
)
from tests.emulator.consumers import CreditConsumer

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


@pytest.mark.parametrize(
    ("target", "reason"),
    [(None, "EntityNotFound"), ({"status": "Disabled"}, "EntityDisabled"), ({"requires_session": True}, "NotAllowed")],
)
def test_refused_messages_go_to_the_transfer_dead_letters(make_queue, target, reason) -> None:
    if target is not None:
        make_queue("target", **target)
    queue = make_queue(forward_to="target")
    queue.send(named("a"))
    (transferred,) = queue.transfer_dead_letters.peek(0, 9)
    assert (transferred.dead_letter.reason, transferred.dead_letter.source) == (reason, "orders")


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
    ("error", "reason"),
    [
        (EntityFull, "QuotaExceeded"),
        (EntityDisabled, "EntityDisabled"),
        (MessageTooLarge, "MessageTooLarge"),
        (OperationTimedOut, "TimedOut"),
        (ServiceUnavailable, "Unavailable"),
    ],
)
def test_a_forwarding_error_becomes_the_dead_letter_reason(make_queue, monkeypatch, error, reason) -> None:
    target, queue = make_queue("target"), make_queue(forward_to="target")

    def failing(_messages) -> None:
        raise error("text")

    monkeypatch.setattr(target, "send", failing)
    queue.send(named("a"))
    [message] = queue.transfer_dead_letters.receive(1)
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
    down = faults.entity_down("contoso", "last")
    send("a", "c", "b", "b")
    assert (last.counts().active, first.counts().transfer) == (3, 4)
    faults.end(down)
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


def test_the_transfer_dead_letters_have_an_address(namespace, make_queue) -> None:
    queue = make_queue(forward_to="nowhere")
    target = namespace.resolve("amqps://h:1/Orders/$Transfer/$DeadLetterQueue/$management")
    assert (target.messages, target.management, target.is_dead_letters) == (queue.transfer_dead_letters, True, True)
    target.check_receive()
    with pytest.raises(NotAllowed):
        namespace.resolve("orders").check_receive()


# Modify, delete, disable


CHANGES = service_envelope.Map([("note", "x" * 50)])


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
        tokens = Array([message.lock_uuid])
        pairs = [("disposition-status", outcome), ("lock-tokens", tokens), ("properties-to-modify", CHANGES)]
        request = AmqpRequest(
            "id", None, "com.microsoft:update-disposition", service_envelope.Map(), service_envelope.Map(pairs)
        )
        assert management_operations.execute(request, namespace.resolve("orders"), lambda _: None).status == 200
    else:
        assert settle_all(source, [message.lock_token], outcome, settled=False) == {}
    grown = 100 + len(message.sections.application_properties)
    assert (queue.size_bytes, grown > 150) == (grown, True)
    source = queue.dead_letters if queue.dead_letters.active_count else source
    deferred = message.reported_state == DEFERRED
    (again,) = source.receive_deferred([1]) if deferred else source.receive(1)
    assert again.size == grown
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


def test_ready_messages_are_deleted_in_batches(queue, put, clock) -> None:
    put(5)
    put(1, scheduled_at_ms=clock.now_ms() + MINUTE)
    queue.messages.receive(1)
    clock.advance(1_000)
    put(1)
    assert queue.messages.delete(2, clock.now_ms()) == 2
    assert queue.messages.delete(9, clock.now_ms()) == 2
    assert queue.messages.delete(9, clock.now_ms()) == 0
    assert [message.sequence_number for message in queue.messages.receive(9)] == [7]
    assert queue.size_bytes == 300


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


def test_a_waiting_receiver_keeps_an_entity(namespace, make_queue, advance) -> None:
    queue = make_queue(auto_delete_on_idle="PT5M")
    waiting = CreditConsumer(queue.messages, credit=1)
    waiting.wake()
    advance(60 * MINUTE)
    assert namespace.find_queue("orders") is queue
    queue.messages.remove_consumer(waiting)
    advance(5 * MINUTE)
    assert namespace.find_queue("orders") is None
