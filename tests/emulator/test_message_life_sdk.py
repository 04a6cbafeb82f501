"""The rest of a message's life as the official clients see it: put aside, sent on, sent twice, deleted, left alone."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus._common.mgmt_handlers import default
from azure.servicebus._pyamqp.types import TYPE, VALUE, AMQPTypes
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusConnectionError, ServiceBusError

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

MINUTE = 60


@pytest.fixture(scope="module")
def running(another: Any, official: Any) -> Iterator[Any]:
    """An emulator of its own, since tokens last an hour of a clock that is put forward by much of it."""
    del official
    with another() as running:
        yield running


@pytest.fixture(scope="module")
def queue(running: Any) -> QueueEntity:
    return running.queue(requires_duplicate_detection=True)


@pytest.fixture(scope="module")
def sender(official: Any, running: Any, queue: QueueEntity) -> Iterator[Any]:
    with official.sender(running.connection_string, queue.path) as sender:
        yield sender


@pytest.fixture(scope="module")
def receiver(official: Any, running: Any, queue: QueueEntity) -> Iterator[Any]:
    with official.receiver(running.connection_string, queue.path) as receiver:
        yield receiver


def now_of(running: Any) -> datetime:
    return datetime.fromtimestamp(running.do(running.namespace.clock.now_ms) / 1000, UTC)


def text_of(message: Any) -> str:
    return b"".join(message.body).decode()


@contextmanager
def opened(running: Any, official: Any) -> Iterator[tuple[QueueEntity, Any, Any]]:
    """Open a new queue with a sender and a receiver."""
    queue = running.queue()
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
        yield queue, sender, receiver


def take(receiver: Any) -> Any:
    (message,) = receiver.receive_messages(1, max_wait_time=10)
    return message


def test_what_is_sent_twice_within_the_window_comes_once(running: Any, queue: QueueEntity, sender, receiver) -> None:
    batch = [ServiceBusMessage("first", message_id="same"), ServiceBusMessage("again", message_id="same")]
    sender.send_messages(batch)
    sender.send_messages(ServiceBusMessage("and again", message_id="same"))
    numbers = sender.schedule_messages(ServiceBusMessage("later", message_id="same"), now_of(running) + timedelta(1))
    message = take(receiver)
    receiver.complete_message(message)
    assert (text_of(message), numbers) == ("first", [message.sequence_number])
    assert running.do(queue.counts).total == 0
    running.advance(11 * MINUTE)


def test_an_id_that_has_left_the_window_is_new_again(running, queue, official) -> None:
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
        sender.send_messages(ServiceBusMessage("one", message_id="rare"))
        running.advance(9 * MINUTE)
        sender.send_messages(ServiceBusMessage("two", message_id="rare"))
        receiver.complete_message(take(receiver))
        running.advance(2 * MINUTE)
        sender.send_messages(ServiceBusMessage("three", message_id="rare"))
        message = take(receiver)
        receiver.complete_message(message)
        assert text_of(message) == "three"
    assert running.do(queue.counts).total == 0


def test_a_deferred_message_has_its_state_and_is_settled_in_every_way(running, official) -> None:
    with opened(running, official) as (queue, sender, receiver):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(3)])
        numbers = []
        for _ in range(3):
            message = take(receiver)
            receiver.defer_message(message)
            numbers.append(message.sequence_number)
        abandoned, dead, completed = receiver.receive_deferred_messages(numbers)
        assert {each.state for each in (abandoned, dead, completed)} == {ServiceBusMessageState.DEFERRED}
        receiver.abandon_message(abandoned)
        receiver.dead_letter_message(dead, reason="deferred too long")
        receiver.complete_message(completed)
        (again,) = receiver.receive_deferred_messages(numbers[0])
        assert (dead.delivery_count, again.delivery_count) == (1, 2)
        receiver.complete_message(again)
        with pytest.raises(ServiceBusError, match="message-not-found"):
            receiver.receive_deferred_messages(numbers[2])
        counts = running.do(queue.counts)
    assert (counts.active, counts.dead_letter) == (0, 1)


def test_a_queue_with_sessions_is_created_with_a_target_and_forwards(running, official) -> None:
    last = running.queue()
    name = f"{last.path}-first"
    with official.admin(running.connection_string) as admin:
        created = admin.create_queue(name, requires_session=True, forward_to=last.path)
        assert created.forward_to == f"{running.namespace.endpoint}/{last.path}"
        with official.sender(running.connection_string, name) as sender:
            sender.send_messages([ServiceBusMessage(str(number), session_id="s") for number in range(3)])
        with official.receiver(running.connection_string, last.path) as receiver:
            messages = [take(receiver) for _ in range(3)]
            for message in messages:
                receiver.complete_message(message)
        assert [(text_of(each), each.session_id) for each in messages] == [("0", "s"), ("1", "s"), ("2", "s")]
        admin.delete_queue(name)


def test_delivery_annotations_of_the_sender_arrive(running, official) -> None:
    with opened(running, official) as (_, sender, receiver):
        sender.send_messages(AmqpAnnotatedMessage(data_body=b"x", delivery_annotations={b"mine": 7}))
        message = take(receiver)
        annotations = message.raw_amqp_message.delivery_annotations
        assert annotations[b"mine"] == 7
        assert set(annotations) == {b"mine", b"x-opt-lock-token"}
        receiver.complete_message(message)


def test_a_forwarded_message_keeps_its_first_number(running, official) -> None:
    last = running.queue()
    first = running.queue(forward_to=last.path, forward_dead_lettered_messages_to=last.path)
    with official.sender(running.connection_string, first.path) as sender:
        sender.send_messages([ServiceBusMessage("on", session_id="key", partition_key="key")])
    with pytest.raises(ServiceBusError), official.receiver(running.connection_string, first.path):
        pass
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with official.receiver(running.connection_string, last.path, receive_mode=mode) as receiver:
        message = take(receiver)
    assert (text_of(message), message.session_id, message.partition_key) == ("on", "key", "key")
    assert message.enqueued_sequence_number == 1
    assert (running.do(first.counts).total, running.do(last.counts).total) == (0, 0)


def test_what_cannot_be_forwarded_is_in_the_transfer_dead_letter_queue(running, official) -> None:
    queue = running.queue(forward_to="nowhere")
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender:
        sender.send_messages(ServiceBusMessage("stranded"))
    assert running.do(queue.counts).transfer_dead_letter == 1
    with official.receiver(*where, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER) as receiver:
        message = take(receiver)
        receiver.complete_message(message)
    assert (text_of(message), message.dead_letter_reason) == ("stranded", "EntityNotFound")
    assert running.do(queue.counts).total == 0


def test_a_message_is_forwarded_through_a_topic_to_a_queue(running, official) -> None:
    last = running.queue()
    with official.admin(running.connection_string) as admin:
        admin.create_topic("crossing")
        options = {"forward_to": last.path, "forward_dead_lettered_messages_to": last.path}
        admin.create_subscription("crossing", "onwards", **options)
        admin.create_subscription("crossing", "stays")
        first = running.queue(forward_to="crossing")
        with official.topic_sender(running.connection_string, "crossing") as sender:
            sender.send_messages(ServiceBusMessage("to the topic"))
        with official.sender(running.connection_string, first.path) as sender:
            sender.send_messages(ServiceBusMessage("through it", message_id="id", application_properties={"n": 1}))
        with official.receiver(running.connection_string, last.path) as receiver:
            direct, through = take(receiver), take(receiver)
            assert (text_of(direct), text_of(through)) == ("to the topic", "through it")
            # The number in the entity that it was sent to: the topic, and the queue before it.
            assert (direct.enqueued_sequence_number, through.enqueued_sequence_number) == (1, 1)
            assert (through.sequence_number, through.message_id) == (2, "id")
            assert through.application_properties == {b"n": 1}
            receiver.complete_message(direct)
            receiver.complete_message(through)
        with official.subscription_receiver(running.connection_string, "crossing", "stays") as receiver:
            kept = [take(receiver), take(receiver)]
            assert [(each.sequence_number, each.enqueued_sequence_number) for each in kept] == [(1, 1), (2, 1)]
        counts = admin.get_subscription_runtime_properties("crossing", "onwards")
        assert (counts.total_message_count, counts.transfer_message_count) == (0, 0)
        assert running.do(first.counts).total == running.do(last.counts).total == 0


def test_what_waits_to_be_forwarded_is_told_while_its_target_is_down(running, official) -> None:
    last = running.queue()
    first = running.queue(forward_to=last.path)
    faults = running.emulator.faults
    down = running.do(lambda: faults.entity_down("contoso", last.path))
    with (
        official.admin(running.connection_string) as admin,
        official.sender(running.connection_string, first.path) as sender,
    ):
        sender.send_messages(ServiceBusMessage("patient"))
        counts = admin.get_queue_runtime_properties(first.path)
        assert (counts.transfer_message_count, counts.transfer_dead_letter_message_count) == (1, 0)
        running.do(lambda: faults.end(down))
        assert admin.get_queue_runtime_properties(first.path).transfer_message_count == 0
    with official.receiver(running.connection_string, last.path) as receiver:
        receiver.complete_message(take(receiver))


def test_properties_are_changed_by_settlements(running, official) -> None:
    with opened(running, official) as (queue, sender, receiver):
        sender.send_messages(ServiceBusMessage("changing", application_properties={"kept": 1, "changed": 1}))
        size = running.do(lambda: queue.size_bytes)
        modify(receiver, take(receiver), {"changed": 2, "note": "abandoned"})
        message = take(receiver)
        assert message.application_properties == {b"kept": 1, b"changed": 2, b"note": b"abandoned"}
        assert message.delivery_count == 1
        assert running.do(lambda: queue.size_bytes) == size + len(b"\xa1\x04note\xa1\x09abandoned")
        modify(receiver, message, {"note": "deferred"}, undeliverable_here=True)
        (deferred,) = receiver.receive_deferred_messages(message.sequence_number)
        assert deferred.application_properties == {b"kept": 1, b"changed": 2, b"note": b"deferred"}
        receiver.complete_message(deferred)
    assert running.do(lambda: queue.size_bytes) == 0


def modify(receiver: Any, message: Any, properties: dict[str, Any], *, undeliverable_here: bool = False) -> None:
    """Abandons or defers. Only the client's transport lets properties be changed in doing so, not its public face."""
    handler = receiver._handler
    settle = getattr(handler, "settle_messages_async", None) or handler.settle_messages
    options = {"undeliverable_here": undeliverable_here, "message_annotations": properties}
    settle(message._delivery_id, message._delivery_tag, "modified", delivery_failed=True, **options)


def test_what_waits_is_deleted_in_batches(running, official) -> None:
    with opened(running, official) as (queue, sender, receiver):
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
        held = take(receiver)
        running.advance(1)
        before = now_of(running)
        sender.send_messages(ServiceBusMessage("too young"))
        assert [delete(receiver, 3, before), delete(receiver, 3, before), delete(receiver, 3, before)] == [3, 1, 0]
        receiver.complete_message(held)
        young = take(receiver)
        assert text_of(young) == "too young"
        receiver.complete_message(young)
        with pytest.raises(ServiceBusError, match="message-count"):
            delete(receiver, 4_001, before)
    assert running.do(queue.counts).total == 0


def delete(receiver: Any, limit: int, before: datetime) -> int:
    """By the client's link to the management node, since it has no method for this."""
    asked = {
        "message-count": {TYPE: AMQPTypes.int, VALUE: limit},
        "enqueued-time-utc": {TYPE: AMQPTypes.timestamp, VALUE: int(before.timestamp() * 1000)},
    }

    def read(status: int, message: Any, description: str, amqp_transport: Any) -> int:
        return 0 if status == 204 else default(status, message, description, amqp_transport)[b"message-count"]

    return receiver._mgmt_request_response_with_retry(b"com.microsoft:batch-delete-messages", asked, read)


def test_an_entity_that_nobody_uses_is_deleted(another, official) -> None:
    limit = timedelta(minutes=6)
    with another() as running, official.admin(running.connection_string) as admin:
        queue = admin.create_queue("idle-queue", auto_delete_on_idle=limit)
        admin.create_topic("idle")
        admin.create_subscription("idle", "unread", auto_delete_on_idle=limit)
        with official.sender(running.connection_string, queue.name) as sender:
            put_forward(running, 5)
            sender.send_messages(ServiceBusMessage("used"))
            put_forward(running, 5)
        assert admin.get_queue(queue.name).auto_delete_on_idle == limit
        with pytest.raises(ResourceNotFoundError):
            admin.get_subscription("idle", "unread")
        put_forward(running, 1)
        with pytest.raises(ResourceNotFoundError):
            admin.get_queue(queue.name)


def put_forward(running: Any, minutes: int) -> None:
    """Advance the clock through the control API, as programs in other languages do."""
    asked = urllib.request.Request(  # of the emulator
        f"http://{running.namespace.authority}/$control/clock",
        json.dumps({"advance_ms": minutes * 60_000}).encode(),
        method="POST",
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:  # noqa: S310  # as above
        assert answer.status == 200


def test_links_end_with_the_right_to_use_them(running, official) -> None:
    with opened(running, official) as (queue, sender, receiver):
        sender.send_messages(ServiceBusMessage("in time"))
        held = take(receiver)
        running.do(lambda: queue.update(replace(queue.description, status="SendDisabled")))
        # A sender learns that its link is gone, and why when it asks for another.
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
        with pytest.raises(MessagingEntityDisabledError):
            sender.send_messages(ServiceBusMessage("nor now"))
        receiver.complete_message(held)
        running.do(lambda: queue.update(replace(queue.description, status="Disabled")))
        with pytest.raises(MessagingEntityDisabledError):
            receiver.receive_messages(1, max_wait_time=5)


def test_idle_links_are_detached_and_used_ones_are_not(running, official) -> None:
    with opened(running, official) as (_, sender, receiver):
        for _ in range(2):
            running.advance(9 * MINUTE)
            sender.send_messages(ServiceBusMessage("used"))
            receiver.complete_message(take(receiver))
        running.advance(10 * MINUTE + 1)
        with pytest.raises(ServiceBusConnectionError, match="IdleTimerExpired"):
            receiver.receive_messages(1, max_wait_time=5)
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("too late"))
        sender.send_messages(ServiceBusMessage("again"))
        receiver.complete_message(take(receiver))
