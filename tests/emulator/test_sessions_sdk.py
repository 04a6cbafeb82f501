"""Sessions as the official clients see them: lent to one at a time, in order, with a lock and a state of their own."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage, ServiceBusReceiveMode, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityDisabledError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusError,
    SessionCannotBeLockedError,
    SessionLockLostError,
)

from sbpair.emulator.entities.description import QueueDescription

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import QueueEntity

LOCK_SECONDS = 60


@pytest.fixture(scope="module")
def queue(running: Any) -> QueueEntity:
    return running.queue(requires_session=True, max_delivery_count=5)


@pytest.fixture(scope="module")
def sender(official: Any, running: Any, queue: QueueEntity) -> Iterator[Any]:
    with official.sender(running.connection_string, queue.path) as sender:
        yield sender


@pytest.fixture(autouse=True)
def _left_empty(running: Any, queue: QueueEntity) -> Iterator[None]:
    yield
    assert running.do(queue.counts).total == 0


def send(sender: Any, session_id: str, *bodies: str) -> None:
    sender.send_messages([ServiceBusMessage(body, session_id=session_id) for body in bodies])


def texts(messages: list[Any]) -> list[str]:
    return [b"".join(message.body).decode() for message in messages]


def take(receiver: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        more = receiver.receive_messages(count - len(messages), max_wait_time=10)
        assert more
        messages += more
    return messages


def complete(receiver: Any, messages: list[Any]) -> None:
    for message in messages:
        receiver.complete_message(message)


def test_a_session_comes_in_order_and_with_nothing_of_others(
    official: Any, running: Any, queue: QueueEntity, sender
) -> None:
    for number in range(5):
        send(sender, "a", f"a{number}")
        send(sender, "b", f"b{number}")
    for name in ("a", "b"):
        with official.receiver(running.connection_string, queue.path, session_id=name) as receiver:
            first, *rest = take(receiver, 3)
            receiver.abandon_message(first)
            again = take(receiver, 1)[0]
            assert (again.sequence_number, again.delivery_count) == (first.sequence_number, 1)
            assert [each.session_id for each in (again, *rest)] == [name] * 3
            assert texts(receiver.peek_messages(9, sequence_number=1)) == [f"{name}{number}" for number in range(5)]
            complete(receiver, [again, *rest])
            last = take(receiver, 2)
            assert texts([again, *rest, *last]) == [f"{name}{number}" for number in range(5)]
            complete(receiver, last)


def test_the_next_session_that_is_free_is_lent_and_its_lock_is_exclusive(official, running, queue, sender) -> None:
    send(sender, "only", "one")
    where = (running.connection_string, queue.path)
    with official.receiver(*where, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        session = receiver.session
        assert session.session_id == "only"
        now = datetime.fromtimestamp(running.do(running.namespace.clock.now_ms) / 1000, UTC)
        assert timedelta(seconds=LOCK_SECONDS - 10) < session.locked_until_utc - now <= timedelta(seconds=LOCK_SECONDS)
        with pytest.raises(SessionCannotBeLockedError), official.receiver(*where, session_id="only"):
            pass
        complete(receiver, take(receiver, 1))


def test_who_finds_no_session_free_is_told_after_its_time(official, running, queue) -> None:
    options = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 0.2}
    with pytest.raises(OperationTimeoutError), official.receiver(running.connection_string, queue.path, **options):
        pass


def test_a_session_has_a_state_and_is_listed(official, running, queue, sender) -> None:
    send(sender, "listed", "x")
    with official.receiver(running.connection_string, queue.path, session_id="stateful") as receiver:
        assert receiver.session.get_state() is None
        receiver.session.set_state("first")
        assert receiver.session.get_state() == b"first"
        assert official.sessions(running.connection_string, queue.path) == ["listed", "stateful"]
    with official.receiver(running.connection_string, queue.path, session_id="stateful") as receiver:
        assert receiver.session.get_state() == b"first"
        receiver.session.set_state(None)
        assert receiver.session.get_state() is None
    with official.receiver(running.connection_string, queue.path, session_id="listed") as receiver:
        complete(receiver, take(receiver, 1))
    assert official.sessions(running.connection_string, queue.path) == []


def test_a_session_outlives_its_lock_only_if_the_lock_is_renewed(official, running, queue, sender):
    send(sender, "renewed", "one", "two")
    with official.receiver(running.connection_string, queue.path, session_id="renewed") as receiver:
        messages = take(receiver, 1)
        before = receiver.session.locked_until_utc
        running.advance(LOCK_SECONDS - 20)
        assert receiver.session.renew_lock() > before
        running.advance(LOCK_SECONDS - 20)
        complete(receiver, messages)
        (held,) = take(receiver, 1)
        running.advance(LOCK_SECONDS + 1)
        with pytest.raises((SessionLockLostError, ServiceBusConnectionError)):
            receiver.complete_message(held)
    with official.receiver(running.connection_string, queue.path, session_id="renewed") as receiver:
        (again,) = take(receiver, 1)
        assert (again.sequence_number, again.delivery_count) == (held.sequence_number, 1)
        complete(receiver, [again])


def test_a_session_that_is_closed_gives_everything_back_at_once(official, running, queue, sender) -> None:
    send(sender, "closed", "one", "two")
    where = (running.connection_string, queue.path)
    with official.receiver(*where, session_id="closed") as receiver:
        take(receiver, 2)
    with official.receiver(*where, session_id=NEXT_AVAILABLE_SESSION) as receiver:
        messages = take(receiver, 2)
        assert [(text, each.delivery_count) for text, each in zip(texts(messages), messages, strict=True)] == [
            ("one", 0),
            ("two", 0),
        ]
        complete(receiver, messages)


def test_messages_of_a_session_are_deferred_dead_lettered_and_deleted(official, running, queue, sender) -> None:
    send(sender, "mixed", "deferred", "dead", "deleted")
    where = (running.connection_string, queue.path)
    with official.receiver(*where, session_id="mixed") as receiver:
        deferred, dead = take(receiver, 2)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="because")
        (again,) = receiver.receive_deferred_messages(deferred.sequence_number)
        assert texts([again]) == ["deferred"]
        receiver.complete_message(again)
    with official.receiver(*where, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
        # The dead letters of a queue with sessions have none.
        (dead,) = take(receiver, 1)
        assert (dead.session_id, dead.dead_letter_reason) == ("mixed", "because")
        receiver.complete_message(dead)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    with official.receiver(*where, session_id="mixed", receive_mode=mode) as receiver:
        assert texts(take(receiver, 1)) == ["deleted"]


def test_sessions_are_required_where_they_are_and_nowhere_else(official, running, queue, sender) -> None:
    with pytest.raises(ServiceBusError, match="SessionId"):
        sender.send_messages(ServiceBusMessage("without"))
    with pytest.raises(ServiceBusError), official.receiver(running.connection_string, queue.path):
        pass
    plain = running.queue()
    with pytest.raises(ServiceBusError), official.receiver(running.connection_string, plain.path, session_id="s"):
        pass


def test_a_session_link_ends_when_its_queue_is_disabled(official, running) -> None:
    queue = running.queue(requires_session=True)
    with official.receiver(running.connection_string, queue.path, session_id="s") as receiver:
        running.do(lambda: queue.update(QueueDescription(requires_session=True, status="ReceiveDisabled")))
        with pytest.raises(MessagingEntityDisabledError):
            receiver.receive_messages(1, max_wait_time=5)
