"""The official clients, unmodified, on the emulator over real sockets: what they can send, receive, settle and look at.

Opening one costs half a second and closing it up to more than one, so most tests share a sender and a receiver and
leave their queue as empty as they found it.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageState, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)

from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from tests.kit.sas import sign

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

LOCK_SECONDS = 60
LONG = 2**40 + 1


@dataclass
class Lane:
    """A queue with a sender and receivers that stay open."""

    queue: QueueEntity
    sender: Any
    receiver: Any
    dead: Any

    def send(self, *bodies: str | bytes, **properties: Any) -> None:
        self.sender.send_messages([ServiceBusMessage(body, **properties) for body in bodies])

    def receive(self, count: int = 1) -> list[Any]:
        """Exactly as many as there are: credit that is left over would draw the next test's messages."""
        messages: list[Any] = []
        while len(messages) < count:
            more = self.receiver.receive_messages(count - len(messages), max_wait_time=10)
            assert more, f"{len(messages)} of {count} messages came"
            messages += more
        return messages

    def receive_dead(self) -> Any:
        (message,) = self.dead.receive_messages(1, max_wait_time=10)
        return message

    def complete(self, *messages: Any) -> None:
        for message in messages:
            self.receiver.complete_message(message)


@pytest.fixture(scope="module")
def open_lane(running: Any, official: Any) -> Iterator[Lane]:
    queue = running.queue(max_delivery_count=3, dead_lettering_on_message_expiration=True)
    where = (running.connection_string, queue.path)
    with ExitStack() as stack:
        sender = stack.enter_context(official.sender(*where))
        receiver = stack.enter_context(official.receiver(*where))
        dead = stack.enter_context(official.receiver(*where, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
        yield Lane(queue, sender, receiver, dead)


@pytest.fixture
def lane(running: Any, open_lane: Lane) -> Iterator[Lane]:
    yield open_lane
    assert running.do(open_lane.queue.counts).total == 0


def text_of(message: Any) -> str:
    return b"".join(message.body).decode()


def test_a_message_comes_back_with_what_the_service_adds(lane: Lane) -> None:
    before = datetime.now(UTC)
    lane.send(
        "hello",
        subject="label",
        message_id="m-1",
        correlation_id="c-1",
        content_type="text/plain",
        reply_to="there",
        to="here",
        session_id="s",
        partition_key="s",
        time_to_live=timedelta(hours=2),
    )
    (message,) = lane.receive()
    locked_for = message.locked_until_utc - message.enqueued_time_utc
    assert timedelta(seconds=LOCK_SECONDS) <= locked_for < timedelta(seconds=2 * LOCK_SECONDS)
    assert isinstance(message.lock_token, uuid.UUID)
    lane.complete(message)
    assert text_of(message) == "hello"
    assert (message.subject, message.message_id, message.correlation_id) == ("label", "m-1", "c-1")
    assert (message.content_type, message.reply_to, message.to) == ("text/plain", "there", "here")
    assert (message.session_id, message.partition_key) == ("s", "s")
    assert message.time_to_live == timedelta(hours=2)
    assert message.delivery_count == 0
    assert message.sequence_number > 0
    assert message.state is ServiceBusMessageState.ACTIVE
    assert abs(message.enqueued_time_utc - before) < timedelta(hours=1)


def test_application_properties_keep_their_values(lane: Lane) -> None:
    sent = {
        "string": "text",
        "empty": "",
        "int": -5,
        "long": {"TYPE": "LONG", "VALUE": LONG},
        "double": 1.5,
        "yes": True,
        "no": False,
        "uuid": uuid.UUID(int=7),
        "many": "x" * 1000,
    }
    lane.send("with properties", application_properties=dict(sent))
    (message,) = lane.receive()
    lane.complete(message)
    got = {key.decode(): value for key, value in message.application_properties.items()}
    assert got == {**sent, "string": b"text", "empty": b"", "many": b"x" * 1000, "long": LONG}


def test_a_batch_arrives_in_order(lane: Lane) -> None:
    batch = lane.sender.create_message_batch()
    assert batch.max_size_in_bytes == 262_144
    for number in range(100):
        batch.add_message(ServiceBusMessage(f"message {number}"))
    lane.sender.send_messages(batch)
    messages = lane.receive(100)
    lane.complete(*messages)
    assert [text_of(message) for message in messages] == [f"message {number}" for number in range(100)]
    numbers = [message.sequence_number for message in messages]
    assert numbers == sorted(set(numbers))


def test_an_abandoned_message_comes_again_and_counts(lane: Lane) -> None:
    lane.send("again")
    (first,) = lane.receive()
    lane.receiver.abandon_message(first)
    (second,) = lane.receive()
    assert first.lock_token != second.lock_token
    lane.complete(second)
    assert second.sequence_number == first.sequence_number
    assert (first.delivery_count, second.delivery_count) == (0, 1)


def test_a_message_that_fails_too_often_is_dead_lettered(lane: Lane) -> None:
    lane.send("poison")
    for _ in range(3):
        (message,) = lane.receive()
        lane.receiver.abandon_message(message)
    dead = lane.receive_dead()
    lane.dead.complete_message(dead)
    assert dead.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert text_of(dead) == "poison"


def test_a_dead_letter_says_why_and_keeps_the_rest(lane: Lane) -> None:
    lane.send("dead", application_properties={"mine": "kept"}, message_id="d-1")
    (message,) = lane.receive()
    lane.receiver.dead_letter_message(message, reason="because", error_description="of this")
    dead = lane.receive_dead()
    lane.dead.complete_message(dead)
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("because", "of this")
    assert dead.dead_letter_source == lane.queue.path
    assert dead.application_properties[b"mine"] == b"kept"
    assert (dead.message_id, dead.sequence_number) == ("d-1", message.sequence_number)


def test_an_expired_message_is_dead_lettered(lane: Lane, running: Any) -> None:
    lane.send("short-lived", time_to_live=timedelta(seconds=5))
    running.advance(6)
    dead = lane.receive_dead()
    lane.dead.complete_message(dead)
    assert dead.dead_letter_reason == "TTLExpiredException"


def test_a_renewed_lock_outlives_the_first(lane: Lane, running: Any) -> None:
    lane.send("renewed")
    (message,) = lane.receive()
    first = message.locked_until_utc
    running.advance(LOCK_SECONDS - 20)
    assert lane.receiver.renew_message_lock(message) > first
    running.advance(LOCK_SECONDS - 20)
    lane.complete(message)


def test_a_lock_that_ran_out_is_lost(lane: Lane, running: Any) -> None:
    lane.send("late")
    (message,) = lane.receive()
    running.advance(LOCK_SECONDS + 1)
    with pytest.raises(MessageLockLostError):
        lane.receiver.complete_message(message)
    with pytest.raises(MessageLockLostError):
        lane.receiver.renew_message_lock(message)
    (again,) = lane.receive()
    lane.complete(again)
    assert again.delivery_count == 1


def test_peeking_changes_nothing(lane: Lane) -> None:
    lane.send("one", "two", "three")
    peeked = lane.receiver.peek_messages(10, sequence_number=1)
    assert [text_of(message) for message in peeked] == ["one", "two", "three"]
    assert lane.receiver.peek_messages(10, sequence_number=peeked[-1].sequence_number + 1) == []
    messages = lane.receive(3)
    lane.complete(*messages)
    assert [message.sequence_number for message in messages] == [message.sequence_number for message in peeked]
    assert {message.delivery_count for message in messages} == {0}


def test_a_scheduled_message_waits_for_its_time(lane: Lane, running: Any) -> None:
    at = datetime.fromtimestamp(running.do(running.namespace.clock.now_ms) / 1000, UTC) + timedelta(minutes=2)
    (number,) = lane.sender.schedule_messages(ServiceBusMessage("later"), at)
    (peeked,) = lane.receiver.peek_messages(1, sequence_number=number)
    assert peeked.state is ServiceBusMessageState.SCHEDULED
    running.advance(121)
    (message,) = lane.receive()
    lane.complete(message)
    assert text_of(message) == "later"
    assert abs(message.scheduled_enqueue_time_utc - at) < timedelta(milliseconds=2)
    assert message.enqueued_time_utc >= message.scheduled_enqueue_time_utc


def test_scheduled_messages_can_be_cancelled_once(lane: Lane) -> None:
    at = datetime.now(UTC) + timedelta(days=1)
    numbers = lane.sender.schedule_messages([ServiceBusMessage("never"), ServiceBusMessage("ever")], at)
    lane.sender.cancel_scheduled_messages(numbers)
    with pytest.raises(ServiceBusError, match="message-not-found"):
        lane.sender.cancel_scheduled_messages(numbers)


def test_a_message_can_be_scheduled_by_its_own_property(lane: Lane, running: Any) -> None:
    now = datetime.fromtimestamp(running.do(running.namespace.clock.now_ms) / 1000, UTC)
    lane.send("by itself", scheduled_enqueue_time_utc=now + timedelta(minutes=1))
    assert running.do(lane.queue.counts).scheduled == 1
    running.advance(61)
    (message,) = lane.receive()
    assert message.state is ServiceBusMessageState.SCHEDULED
    lane.complete(message)


def test_a_deferred_message_is_received_by_its_number(lane: Lane) -> None:
    lane.send("put aside")
    (message,) = lane.receive()
    lane.receiver.defer_message(message)
    (deferred,) = lane.receiver.receive_deferred_messages(message.sequence_number)
    assert deferred.state is ServiceBusMessageState.DEFERRED
    assert text_of(deferred) == "put aside"
    lane.complete(deferred)


def test_a_large_message_arrives_whole(lane: Lane) -> None:
    body = bytes(range(256)) * 800
    lane.send(body)
    (message,) = lane.receive()
    lane.complete(message)
    assert b"".join(message.body) == body


def test_a_message_that_is_too_large_is_refused(lane: Lane) -> None:
    with pytest.raises(MessageSizeExceededError):
        lane.sender.send_messages(ServiceBusMessage(b"x" * 300_000))
    lane.send("the sender goes on")
    lane.complete(*lane.receive())


def test_pings_are_accepted_and_never_delivered(lane: Lane) -> None:
    lane.send("", content_type="application/vnd.ms-servicebus-ping", time_to_live=timedelta(seconds=1), session_id="p")


def test_settlements_and_renewals_do_without_their_link(lane: Lane, official: Any, running: Any) -> None:
    """The client falls back on the management node where the link is gone."""
    lane.send(*"abcd")
    with official.receiver(running.connection_string, lane.queue.path) as receiver:
        messages: list[Any] = []
        while len(messages) < 4:
            messages += receiver.receive_messages(4 - len(messages), max_wait_time=10)
        # Nothing public takes the link away; the client's own published tests do it like this.
        receiver._handler._link.detach()
        completed, abandoned, deferred, dead = messages
        assert receiver.renew_message_lock(completed) > abandoned.locked_until_utc
        receiver.complete_message(completed)
        receiver.abandon_message(abandoned)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="late")
    (again,) = lane.receive()
    (put_aside,) = lane.receiver.receive_deferred_messages(deferred.sequence_number)
    assert [text_of(each) for each in (again, put_aside)] == ["b", "c"]
    assert [each.delivery_count for each in (again, put_aside)] == [1, 1]
    lane.complete(again, put_aside)
    letter = lane.receive_dead()
    assert (text_of(letter), letter.dead_letter_reason) == ("d", "late")
    lane.dead.complete_message(letter)


def test_five_thousand_messages_are_received_and_deleted(lane: Lane, official: Any, running: Any) -> None:
    for start in range(0, 5000, 500):
        batch = lane.sender.create_message_batch()
        for number in range(start, start + 500):
            batch.add_message(ServiceBusMessage(f"{number}"))
        lane.sender.send_messages(batch)
    got: list[str] = []
    where = (running.connection_string, lane.queue.path)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with official.receiver(*where, receive_mode=mode, prefetch_count=1000) as receiver:
        while len(got) < 5000:
            messages = receiver.receive_messages(1000, max_wait_time=10)
            assert messages
            got += map(text_of, messages)
    assert got == [str(number) for number in range(5000)]


def test_messages_of_a_closed_receiver_stay_locked(lane: Lane, official: Any, running: Any) -> None:
    """The client releases what it has prefetched, and nothing that it has returned."""
    lane.send("received", "prefetched")
    with official.receiver(running.connection_string, lane.queue.path, prefetch_count=10) as receiver:
        (held,) = receiver.receive_messages(1, max_wait_time=10)
    assert lane.queue.messages.locked_count == 1
    running.advance(61)
    messages = lane.receive(2)
    lane.complete(*messages)
    assert messages[0].sequence_number == held.sequence_number
    assert [message.delivery_count for message in messages] == [1, 0]


# Refusals


def test_a_wrong_key_is_not_accepted(official: Any, running: Any, lane: Lane) -> None:
    wrong = AuthorizationRule("RootManageSharedAccessKey", "wrong", "wrong")
    with (
        pytest.raises(ServiceBusAuthenticationError),
        official.sender(running.connection_string_with(wrong), lane.queue.path),
    ):
        pass


def test_an_expired_token_is_not_accepted(official: Any, running: Any, lane: Lane) -> None:
    now = int(time.time())
    token = sign(running.namespace.keys[0], f"sb://127.0.0.1/{lane.queue.path}", now + 120)
    running.advance(180)
    with (
        pytest.raises(ServiceBusAuthenticationError) as caught,
        official.sender(running.connection_string_with_token(token), lane.queue.path),
    ):
        pass
    assert "ExpiredToken" in str(caught.value.inner_exception)


def test_links_end_with_their_token(official: Any, running: Any, lane: Lane) -> None:
    now = running.do(running.namespace.clock.now_ms) // 1000
    token = sign(running.namespace.keys[0], f"sb://127.0.0.1/{lane.queue.path}", now + 100)
    with official.sender(running.connection_string_with_token(token), lane.queue.path) as sender:
        sender.send_messages(ServiceBusMessage("in time"))
        running.advance(101)
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
        with pytest.raises(ServiceBusAuthenticationError):
            sender.send_messages(ServiceBusMessage("and the same token again"))
    lane.complete(*lane.receive())


def test_a_namespace_rule_without_the_claim_is_not_enough(official: Any, listen_only: str, lane: Lane) -> None:
    with pytest.raises(ServiceBusAuthorizationError), official.sender(listen_only, lane.queue.path):
        pass
    lane.send("can be heard")
    with official.receiver(listen_only, lane.queue.path) as receiver:
        (message,) = receiver.receive_messages(1, max_wait_time=10)
        receiver.complete_message(message)


def test_an_entity_rule_grants_what_it_says(official: Any, running: Any) -> None:
    rule = AuthorizationRule("send", "send-key", "send-key-2", frozenset({AccessRight.SEND}))
    queue = running.queue(authorization_rules=(rule,))
    where = (running.connection_string_with(rule), queue.path)
    with official.sender(*where) as sender:
        sender.send_messages(ServiceBusMessage("allowed"))
    with pytest.raises(ServiceBusAuthorizationError), official.receiver(*where):
        pass
    assert running.do(queue.counts).active == 1


def test_an_entity_that_does_not_exist_is_not_found(official: Any, running: Any) -> None:
    # The client puts its token first, and calls whatever is answered to that a matter of authentication.
    with pytest.raises(ServiceBusAuthenticationError) as caught, official.sender(running.connection_string, "nowhere"):
        pass
    assert "Status code: 404" in str(caught.value.inner_exception)
    endpoint = running.namespace.endpoint
    with (
        pytest.raises(ServiceBusAuthenticationError) as caught,
        official.subscription_receiver(running.connection_string, "Topic", "Name"),
    ):
        pass
    assert f"'{endpoint}/Topic/Subscriptions/Name' could not be found" in str(caught.value.inner_exception)


def test_a_disabled_entity_takes_no_messages(official: Any, running: Any) -> None:
    queue = running.queue(status="SendDisabled")
    with pytest.raises(MessagingEntityDisabledError), official.sender(running.connection_string, queue.path):
        pass


def test_a_full_entity_takes_no_messages(official: Any, running: Any) -> None:
    queue = running.queue(max_size_in_megabytes=1)
    with official.sender(running.connection_string, queue.path) as sender:
        for _ in range(5):
            sender.send_messages(ServiceBusMessage(b"x" * 200_000))
        with pytest.raises(ServiceBusQuotaExceededError):
            sender.send_messages(ServiceBusMessage(b"x" * 200_000))


def test_a_deleted_entity_lets_go_of_its_links(official: Any, running: Any) -> None:
    queue = running.queue()
    with official.sender(running.connection_string, queue.path) as sender:
        running.do(lambda: running.namespace.delete_queue(queue.path))
        with pytest.raises(ServiceBusError):
            sender.send_messages(ServiceBusMessage("too late"))
        with pytest.raises(ServiceBusAuthenticationError) as caught:
            sender.send_messages(ServiceBusMessage("nowhere to go"))
        assert "Status code: 404" in str(caught.value.inner_exception)


@pytest.fixture
def collected() -> Iterator[None]:
    """Finds at once what the test has left to the garbage collector."""
    yield
    gc.collect()


# The clients do not close the socket of a connection that broke under them.
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("collected")
def test_an_outage_breaks_connections_and_refuses_new_ones(official: Any, running: Any) -> None:
    queue = running.do(lambda: running.other.create_queue(f"broken-{uuid.uuid4()}"))
    with official.sender(running.other.connection_string, queue.path) as sender:
        outage = running.do(lambda: running.emulator.faults.namespace_down(running.other.name))
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("lost"))
        with pytest.raises(ServiceBusConnectionError):
            sender.send_messages(ServiceBusMessage("refused"))
        running.do(lambda: running.emulator.faults.end(outage))
        sender.send_messages(ServiceBusMessage("after all"))
    assert running.do(queue.counts).active == 1
