"""The rest of a message's life as the official clients see it: put aside, sent on, sent twice, deleted, left alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    ServiceBusConnectionError,
    ServiceBusError,
)

if TYPE_CHECKING:
    from sbpair.emulator.queue import Queue

MINUTE = 60


@pytest.fixture(scope="module")
def running(another: Any, official: Any) -> Iterator[Any]:
    """An emulator of its own, since tokens last an hour of a clock that is put forward by much of it."""
    del official
    with another() as running:
        yield running


@pytest.fixture(scope="module")
def queue(running: Any) -> Queue:
    return running.queue(requires_duplicate_detection=True)


@pytest.fixture(scope="module")
def sender(official: Any, running: Any, queue: Queue) -> Iterator[Any]:
    with official.sender(running.connection_string, queue.path) as sender:
        yield sender


@pytest.fixture(scope="module")
def receiver(official: Any, running: Any, queue: Queue) -> Iterator[Any]:
    with official.receiver(running.connection_string, queue.path) as receiver:
        yield receiver


def now_of(running: Any) -> datetime:
    return datetime.fromtimestamp(running.do(running.namespace.clock.now_ms) / 1000, UTC)


def text_of(message: Any) -> str:
    return b"".join(message.body).decode()


def take(receiver: Any) -> Any:
    (message,) = receiver.receive_messages(1, max_wait_time=10)
    return message


def test_what_is_sent_twice_within_the_window_comes_once(running: Any, queue: Queue, sender, receiver) -> None:
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
    queue = running.queue()
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
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
        assert again.delivery_count == 1
        receiver.complete_message(again)
        with pytest.raises(ServiceBusError, match="message-not-found"):
            receiver.receive_deferred_messages(numbers[2])
        counts = running.do(queue.counts)
    assert (counts.active, counts.dead_letter) == (0, 1)


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


def test_links_end_with_the_right_to_use_them(running, official) -> None:
    queue = running.queue()
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
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
    queue = running.queue()
    where = (running.connection_string, queue.path)
    with official.sender(*where) as sender, official.receiver(*where) as receiver:
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
