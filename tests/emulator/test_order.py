"""The orders of messages and their costs."""

from hypothesis import given
from hypothesis import strategies as st

from sbpair.amqp.message import Sections
from sbpair.emulator.entities.message_order import MessageStore, ReadyQueue
from sbpair.emulator.entities.stored_message import REMOVED, StoredMessage


def numbered(number: int) -> StoredMessage:
    message = StoredMessage(Sections(), 1)
    message.sequence_number = number
    return message


@given(st.lists(st.integers(0, 5_000), unique=True), st.sets(st.integers(0, 5_000)), st.integers(0, 5_001))
def test_a_message_store_reads_in_order_from_any_number(added, removed, start) -> None:
    store = MessageStore()
    for number in added:
        store.add(numbered(number))
    for number in removed & set(added):
        store.remove(number)
    left = sorted(set(added) - removed)
    assert [message.sequence_number for message in store.read_from(start)] == [n for n in left if n >= start]
    assert len(store) == len(left)
    assert all(store.get(number).sequence_number == number for number in left)
    assert all(store.get(number) is None for number in removed)


def test_reading_from_the_middle_reads_one_page() -> None:
    class Counting(dict):
        looked_at = 0

        def __iter__(self):
            Counting.looked_at += 1
            return super().__iter__()

    store = MessageStore()
    for number in range(10_240):
        store.add(numbered(number))
    store._pages = {number: Counting(page) for number, page in store._pages.items()}
    assert next(store.read_from(5_000)).sequence_number == 5_000
    assert Counting.looked_at == 1


@given(st.lists(st.integers(0, 200), unique=True), st.sets(st.integers(0, 200)), st.integers(1, 7))
def test_a_ready_queue_returns_the_lowest_first_and_skips_void(numbers, left, step) -> None:
    ready, messages = ReadyQueue(), [numbered(number) for number in numbers]
    for message in messages:
        ready.put(message)
    for message in messages:
        if message.sequence_number in left:
            message.state = REMOVED
            ready.add_void(message)
    out = []
    while len(ready):
        out += ready.take(step)
    assert [message.sequence_number for message in out] == sorted(set(numbers) - left)
    assert ready.take(step) == []
