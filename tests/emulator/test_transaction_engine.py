"""Transactions on the engine: what is visible when, the rules of entities and partitions, and failing commits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sbpair.amqp.message import Sections, data_body, encode_map
from sbpair.amqp.types import Map, Symbol
from sbpair.amqp_server.refusals import EntityFull, MessageTooLarge, NotAllowed
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities.description import MEGABYTE
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.transaction import MAX_MESSAGES, SendVia, Transaction
from sbpair.emulator.faults.fault_kinds import Faults
from sbpair.emulator.service_errors import EntityDisabled, SessionLockExpired, TransactionRolledBack
from sbpair.timespan import parse

MINUTE = 60_000
MakeQueue = Callable[..., QueueEntity]


def a_message(size: int = 100, *, via: str | None = None, **fields: Any) -> StoredMessage:
    annotations = encode_map(0x72, Map([(Symbol("x-opt-via-partition-key"), via)])) if via else b""
    return StoredMessage(Sections(message_annotations=annotations, body=data_body(b"x")), size, **fields)


def completing(messages: Any, token: bytes) -> None:
    messages.complete(token)


@pytest.fixture
def begin(namespace: Namespace) -> Callable[[], Transaction]:
    return partial(Transaction, namespace, b"txn-1")


@pytest.fixture
def transaction(begin: Callable[[], Transaction]) -> Transaction:
    return begin()


def complete_in(transaction: Transaction, entity: QueueEntity, *received: StoredMessage) -> None:
    transaction.settle(entity, entity.messages, [each.lock_token for each in received], completing)


# What is visible


def test_dead_letters_are_settled_in_the_transaction_of_their_queue(queue, put, transaction) -> None:
    put(2)
    first, second = queue.messages.receive(2)
    queue.messages.dead_letter(first.lock_token)
    (dead,) = queue.dead_letters.receive(1)
    with pytest.raises(NotAllowed):
        transaction.settle(queue, queue.dead_letters, [dead.lock_token], lambda on, token: on.dead_letter(token))
    transaction.settle(queue, queue.dead_letters, [dead.lock_token], completing)
    transaction.settle(queue, queue.messages, [second.lock_token], lambda on, token: on.dead_letter(token))
    transaction.commit()
    assert (len(queue.messages), len(queue.dead_letters)) == (0, 1)


# Duplicates, forwarding, expiry, schedules


def test_a_schedule_that_is_due_at_the_commit_is_sent(make_queue, clock, transaction, advance) -> None:
    """In partitions too: the model of transactions has none."""
    queue = make_queue("q", enable_partitioning=True)
    transaction.schedule(queue, [a_message(scheduled_at_ms=clock.now_ms() + 1, partition_key="k")])
    advance(MINUTE)
    transaction.commit()
    assert len(queue.messages.receive(2)) == 1


def test_schedules_of_different_partitions_are_not_cancelled_at_once(partitioned, clock, transaction) -> None:
    at = clock.now_ms() + MINUTE
    numbers = [partitioned.schedule([a_message(partition_key=key, scheduled_at_ms=at)])[0] for key in "abcdef"]
    with pytest.raises(NotAllowed, match="cannot span"):
        transaction.cancel_scheduled(partitioned, numbers)
    transaction.cancel_scheduled(partitioned, numbers[:1])
    transaction.cancel_scheduled(partitioned, [])
    transaction.commit()
    assert partitioned.counts().scheduled == 5


# Failing commits


class TickingClock(ManualClock):
    """A clock that goes on whenever it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.step_ms = 0

    def now_ms(self) -> int:
        self.advance(self.step_ms)
        return super().now_ms()


@pytest.mark.parametrize("left_ms", range(0, 60, 3))
def test_locks_that_run_out_during_a_commit_do_not_split_it(left_ms) -> None:
    """Wherever in the commit the locks run out, all of it happens or nothing."""
    clock = TickingClock()
    queue = Namespace("contoso", clock).create_queue("orders")
    queue.send([a_message() for _ in range(5)])
    received = queue.messages.receive(5)
    transaction = Transaction(queue.namespace, b"txn")
    complete_in(transaction, queue, *received)
    transaction.send(queue, [a_message(ttl_ms=0), a_message()])
    clock.advance(queue.description.lock_ms - left_ms)
    clock.step_ms = 1
    try:
        transaction.commit()
        expected = 1
    except TransactionRolledBack:
        expected = 5
    clock.step_ms = 0
    clock.advance(1_000)
    assert queue.counts().active == expected


def test_a_session_that_is_lost_fails_the_commit(make_queue, transaction, clock) -> None:
    """Also if no timer has run before it."""
    queue = make_queue("q", requires_session=True)
    queue.send([a_message(session_id="s")])
    held = queue.messages.accept("s")
    (message,) = held.receive(1)
    transaction.settle(queue, held, [message.lock_token], completing)
    clock.advance(queue.description.lock_ms)
    with pytest.raises(TransactionRolledBack):
        transaction.commit()
    with pytest.raises(SessionLockExpired):
        held.checked()
    assert len(queue.messages) == 1


def test_an_entity_that_was_disabled_or_deleted_fails_the_commit(namespace, queue, make_queue, begin) -> None:
    first, second = begin(), begin()
    first.send(queue, [a_message()])
    queue.update(replace(queue.description, status="SendDisabled"))
    with pytest.raises(EntityDisabled):
        second.send(queue, [a_message()])
    with pytest.raises(TransactionRolledBack, match="disabled"):
        first.commit()
    gone = make_queue("gone")
    second.send(gone, [a_message()])
    namespace.delete_queue("gone")
    again = make_queue("gone")
    with pytest.raises(TransactionRolledBack, match="not be found"):
        second.commit()
    assert len(again.messages) == len(gone.messages) == 0


def test_a_quota_counts_what_the_transaction_has(make_queue, transaction, begin) -> None:
    queue = make_queue("small", max_size_in_megabytes=1)
    queue.update(replace(queue.description, max_message_size_in_kilobytes=1024))
    transaction.send(queue, [a_message(MEGABYTE // 2)])
    with pytest.raises(EntityFull):
        transaction.send(queue, [a_message(MEGABYTE // 2 + 1)])
    other = begin()
    other.send(queue, [a_message(MEGABYTE // 4)])
    transaction.send(queue, [a_message(MEGABYTE // 2)])
    other.commit()
    with pytest.raises(TransactionRolledBack, match="size"):
        transaction.commit()
    assert len(queue.messages) == 1


# Time


def test_a_hundred_messages_may_be_sent(queue, transaction) -> None:
    transaction.send(queue, [a_message() for _ in range(MAX_MESSAGES - 1)])
    text = "^Cannot send more than 100 messages in a single transaction.$"
    with pytest.raises(EntityFull, match=text):
        transaction.send(queue, [a_message(), a_message()])
    transaction.send(queue, [a_message()])
    with pytest.raises(EntityFull, match=text):
        transaction.send(queue, [a_message()])
    transaction.commit()
    assert len(queue.messages) == MAX_MESSAGES


# One entity and one partition


@pytest.fixture
def partitioned(make_queue: MakeQueue) -> QueueEntity:
    return make_queue("partitioned", enable_partitioning=True)


def test_settlements_of_different_partitions_are_refused(partitioned, transaction) -> None:
    assert partitioned.partitions is not None
    by_partition = {partitioned.partitions.for_key(str(n)): str(n) for n in range(100)}
    for key in list(by_partition.values())[:2]:
        partitioned.send([a_message(partition_key=key)])
    first, second = partitioned.messages.receive(2)
    with pytest.raises(NotAllowed, match="cannot span"):
        complete_in(transaction, partitioned, first, second)
    complete_in(transaction, partitioned, first)
    with pytest.raises(NotAllowed, match="cannot span"):
        complete_in(transaction, partitioned, second)
    with pytest.raises(NotAllowed, match="cannot span"):
        transaction.send(partitioned, [a_message(partition_key=second.partition_key)])
    transaction.send(partitioned, [a_message(partition_key=first.partition_key)])
    place = partitioned.partitions.for_key(first.partition_key)
    other = next(key for key in map(str, range(100, 200)) if partitioned.partitions.for_key(key) == place)
    with pytest.raises(NotAllowed, match="cannot span"):
        transaction.send(partitioned, [a_message(partition_key=other)])
    transaction.commit()
    assert len(partitioned.messages) == 2


def test_the_state_of_a_session_is_in_the_partition_of_the_session(make_queue, begin, transaction) -> None:
    queue = make_queue("q", enable_partitioning=True, requires_session=True)
    held, state = queue.messages.accept("a"), b"state"
    other = next(name for name in "bcdef" if queue.partitions.for_key(name) != queue.partitions.for_key("a"))
    transaction.set_state(queue, held, state)
    with pytest.raises(NotAllowed, match="cannot span"):
        transaction.set_state(queue, queue.messages.accept(other), state)
    transaction.send(queue, [a_message(session_id="a")])
    assert held.state is None
    transaction.commit()
    assert (held.state, len(held.receive(9))) == (state, 1)
    queue.update(replace(queue.description, max_size_in_megabytes=0))
    with pytest.raises(EntityFull):
        begin().set_state(queue, held, state * 2)


# Transfers


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"status": "SendDisabled"}, EntityDisabled),
        ({"max_size_in_megabytes": 0}, EntityFull),
        ({"max_message_size_in_kilobytes": 0}, MessageTooLarge),
    ],
)
def test_an_entity_refuses_transfers_that_it_would_refuse_as_sends(make_queue, fields, error) -> None:
    via = make_queue(**fields)
    with pytest.raises(error):
        SendVia(via, make_queue("destination")).send([a_message()])
    assert via.counts().total == 0


@pytest.mark.parametrize("partitioned", [False, True])
def test_refused_forwards_and_transfers_are_all_kept(make_queue, partitioned) -> None:
    refusing = [make_queue(f"refusing-{number}", requires_session=True) for number in range(2)]
    via = make_queue(forward_to="refusing-0", enable_partitioning=partitioned)
    for key in "abcd":
        via.send([a_message(via=key)])
    SendVia(via, refusing[1]).send([a_message(via="a")])
    dead = via.transfer_dead_letters
    received = dead.receive(9)
    assert ([each.sequence_number for each in received], via.size_bytes) == ([1, 2, 3, 4, 5], 500)
    for message in received:
        dead.complete(message.lock_token)
    assert (via.counts().total, via.size_bytes) == (0, 0)


def test_an_update_applies_to_transfers_and_those_that_failed(make_queue, faults: Faults, advance) -> None:
    via, down, refusing = make_queue(), make_queue("down"), make_queue("refusing", requires_session=True)
    faults.entity_down("contoso", "down")
    SendVia(via, down).send([a_message(ttl_ms=1_000)])
    SendVia(via, refusing).send([a_message()])
    changed = {"dead_lettering_on_message_expiration": True, "default_message_time_to_live": parse("PT2S")}
    via.update(replace(via.description, **changed, lock_duration=parse("PT5S")))
    SendVia(via, down).send([a_message()])
    advance(1_000)
    assert (via.counts().transfer, via.counts().transfer_dead_letter) == (1, 2)
    advance(1_000)
    assert (via.counts().transfer, via.counts().transfer_dead_letter) == (0, 3)
    first, *_ = via.transfer_dead_letters.receive(3)
    assert first.locked_until_ms == via.transfer_dead_letters.accessed_at_ms + 5_000


def test_transfers_through_a_topic(namespace, faults: Faults) -> None:
    via, destination = namespace.create_topic("via"), namespace.create_topic("to")
    subscription = destination.create_subscription("s")
    via.create_subscription("s")
    fault = faults.entity_down("contoso", "to")
    SendVia(via, destination).send([a_message()])
    assert (via.size_bytes, via.subscriptions[0].messages.receive(1)) == (100, [])
    faults.end(fault)
    assert (via.size_bytes, len(subscription.messages)) == (0, 1)
    namespace.delete_topic("to")
    SendVia(via, destination).send([a_message()])
    target = namespace.resolve("amqps://h:1/Via/$Transfer/$DeadLetterQueue/$management")
    target.check_receive()
    assert (target.management, len(target.messages.receive(1))) == (True, 1)
