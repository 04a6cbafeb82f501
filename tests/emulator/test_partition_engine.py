"""Partitioned entities: the partition of a message, and the effects of a partition that is down."""

import pytest

from sbpair.amqp.message import data_body
from sbpair.amqp_server.refusals import NotAllowed
from sbpair.emulator.entities.description import PREMIUM, QueueDescription
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.partitions import partition_of
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.transaction import SendVia
from sbpair.emulator.faults.fault_kinds import Faults
from sbpair.emulator.service_errors import MessageLockExpired, OperationTimedOut
from tests.emulator.consumers import CreditConsumer, SessionWaiter

MINUTE = 60_000


@pytest.fixture
def queue(make_queue):
    return make_queue(enable_partitioning=True, max_delivery_count=3)


def message(**fields) -> StoredMessage:
    return StoredMessage(data_body(b"x"), 10, **fields)


def partitions(messages) -> list[int]:
    return [partition_of(each.sequence_number) for each in messages]


def drain(queue) -> list[StoredMessage]:
    taken = []
    while more := queue.messages.receive(7):
        for each in more:
            queue.messages.complete(each.lock_token)
        taken += more
    return taken


def test_a_batch_without_a_key_stays_together_in_its_order(queue) -> None:
    sent = [message() for _ in range(5)]
    queue.send(sent)
    assert len(set(partitions(sent))) == 1
    assert queue.messages.receive(10) == sent


@pytest.mark.parametrize(
    "batch",
    [
        [{"session_id": "a", "partition_key": "b"}],
        [{"session_id": "a"}, {"session_id": "b"}],
        [{"partition_key": "a"}, {"partition_key": "b"}],
        [{"partition_key": "a"}, {}],
    ],
)
def test_keys_that_contradict_each_other_are_refused(queue, make_queue, batch) -> None:
    with pytest.raises(NotAllowed, match="InvalidOperation") as refused:
        queue.send([message(**fields) for fields in batch])
    assert refused.value.condition == "amqp:not-allowed"
    assert queue.counts().total == 0
    if len(batch) > 1:
        make_queue("plain").send([message(**fields) for fields in batch])
        return
    with pytest.raises(NotAllowed, match="PartitionKey 'b' of a message must be its SessionId 'a'"):
        make_queue("plain").send([message(**fields) for fields in batch])


def test_nothing_can_be_sent_with_all_partitions_down(queue, make_queue, faults) -> None:
    for number in range(16):
        faults.partition_down("contoso", number)
    with pytest.raises(OperationTimedOut, match="no partition"):
        queue.send([message()])
    with pytest.raises(OperationTimedOut):
        SendVia(queue, make_queue("destination")).send([message(partition_key="k")])
    faults.end_all()
    queue.send([message()])


def test_a_message_in_a_partition_that_is_down_cannot_be_settled(queue, faults) -> None:
    for _ in range(2):
        queue.send([message()])
    (held,) = queue.messages.peek(0, 9)
    queue.messages.receive(2)
    with faults.during("partition-down", "contoso", partition=partition_of(held.sequence_number)):
        for act in ("complete", "renew", "get_locked", "dead_letter"):
            with pytest.raises(OperationTimedOut):
                getattr(queue.messages, act)(held.lock_token)
        with pytest.raises(OperationTimedOut):
            queue.messages.receive_deferred([held.sequence_number])
        assert partitions(queue.messages.peek(0, 1)) == [partition_of(held.sequence_number) + 1]
    assert queue.messages.renew(held.lock_token) is held
    queue.messages.complete(held.lock_token)
    with pytest.raises(MessageLockExpired):
        queue.messages.complete(held.lock_token)


def test_a_waiting_consumer_is_woken_when_the_partition_is_up(queue, faults) -> None:
    queue.send([message(partition_key="k")])
    (there,) = queue.messages.peek(0, 1)
    down = faults.partition_down("contoso", partition_of(there.sequence_number), "orders")
    waiter = CreditConsumer(queue.messages, credit=1)
    waiter.wake()
    assert waiter.got == []
    faults.end(faults.partition_down("contoso", partition_of(there.sequence_number), "orders"))
    assert waiter.got == []
    faults.end(down)
    assert waiter.got == [there.sequence_number]


def test_peeks_return_at_most_the_limit_and_miss_nothing(queue) -> None:
    for _ in range(40):
        queue.send([message()])
    seen, first, calls = [], 0, 0
    while found := queue.messages.peek(first, 10):
        assert len(set(partitions(found))) == 1
        seen += found
        first = found[-1].sequence_number + 1
        calls += 1
    assert (len(seen), calls) == (40, 16)


def test_a_scheduled_message_stays_in_its_partition(queue, clock) -> None:
    later = [message(scheduled_at_ms=clock.now_ms() + 1_000) for _ in range(20)]
    for each in later:
        queue.schedule([each])
    before = partitions(later)
    assert len(set(before)) == 16
    queue.cancel_scheduled([later[0].sequence_number])
    clock.advance(1_000)
    queue.send([message()])
    assert partitions(later[1:]) == before[1:]
    numbers = [each.sequence_number for each in drain(queue)]
    assert len(numbers) == len(set(numbers)) == 20


def test_messages_expire_in_every_partition(queue, clock) -> None:
    for _ in range(100):
        queue.send([message(ttl_ms=1_000)])
    queue.send([message()])
    clock.advance(1_000)
    assert queue.counts().total == 1
    assert len(queue.messages.receive(100)) == 1


def test_management_fails_while_one_partition_is_down(namespace, queue, faults, clock) -> None:
    with faults.during("partition-down", "contoso", partition=3):
        for act in (
            queue.check_all_partitions,
            lambda: namespace.delete_queue("orders"),
            lambda: namespace.create_queue("another", QueueDescription(enable_partitioning=True)),
        ):
            with pytest.raises(OperationTimedOut, match="partition 3"):
                act()
        namespace.create_queue("plain")
    namespace.delete_queue("orders")
    premium = Namespace("contoso", clock, tier=PREMIUM, partitions=2)
    Faults({"contoso": premium}, clock.advance).partition_down("contoso", 1)
    with pytest.raises(OperationTimedOut, match="partition 1"):
        premium.create_queue("orders")


def test_an_idle_entity_is_deleted_once_its_partitions_are_up(namespace, make_queue, faults, advance) -> None:
    make_queue("idle", enable_partitioning=True, auto_delete_on_idle="PT5M")
    with faults.during("partition-down", "contoso", partition=3):
        advance(5 * MINUTE)
        assert namespace.find_queue("idle") is not None
    advance(5 * MINUTE)
    assert namespace.find_queue("idle") is None


def test_a_session_in_a_partition_that_is_down_is_not_locked(make_queue, faults) -> None:
    queue = make_queue("sessions", enable_partitioning=True, requires_session=True)
    queue.send([message(session_id="a")])
    down = queue.partitions.for_key("a")
    up = next(name for name in "bcdefgh" if queue.partitions.for_key(name) != down)
    with faults.during("partition-down", "contoso", partition=down):
        with pytest.raises(OperationTimedOut):
            queue.messages.accept("a")
        first, second = SessionWaiter(), SessionWaiter()
        assert queue.messages.accept_next(first) is None
        queue.send([message(session_id=up)])
        assert first.held.id == up
        assert queue.messages.accept_next(second) is None
    assert (first.held.id, second.held.id) == (up, "a")


def test_a_held_session_continues_when_its_partition_is_up(make_queue, faults) -> None:
    queue = make_queue("sessions", enable_partitioning=True, requires_session=True)
    waiter = CreditConsumer(queue.messages.accept("a"), credit=1)
    queue.send([message(session_id="a")])
    with faults.during("partition-down", "contoso", partition=queue.partitions.for_key("a")):
        waiter.wake()
        assert waiter.got == []
    assert len(waiter.got) == 1
