"""A queue keeps the order of what goes along it, whatever its destination takes or refuses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.model.message_key import NO_KEY, Key
from sbpair.move.destination_queue import MAX_ROUND, DestinationQueue
from sbpair.move.interface import RoutedMessage
from sbpair.move.message.route import Facts, Send


@dataclass(eq=False)
class Arrival:
    facts: Facts
    lock_until: float = 1_000.0
    partition_key: str | None = None
    key: Key = NO_KEY


def order(ordinal: int, session_id: str | None = None, partition_key: str | None = None) -> RoutedMessage:
    facts = Facts("q", ordinal, 0, f"m{ordinal}", "orders", session_id)
    return RoutedMessage(Arrival(facts, partition_key=partition_key), Send("orders", session_id, None, None), ordinal)


def queue_with(*orders: RoutedMessage, ordered: bool = True) -> DestinationQueue:
    queue = DestinationQueue(ordered=ordered)
    for each in orders:
        queue.add([each])
    return queue


def ordinals(groups: list[list[RoutedMessage]]) -> list[list[int]]:
    return [[each.ordinal for each in group] for group in groups]


def refuse_in_turn(queue: DestinationQueue, group: list[RoutedMessage], bad: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """What a mover does when a batch is refused for good: each goes alone."""
    queue.batch_refused(group)
    queue.put_back(group)
    for _ in group:
        [[alone]] = queue.next_round(MAX_ROUND, 10)
        queue.sent_alone(alone, accepted=alone.ordinal not in bad)


def test_waiting_messages_form_one_group_regardless_of_keys() -> None:
    queue = queue_with(order(1, "a"), order(2, "b"), order(3, partition_key="k"), order(4))
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[1, 2, 3, 4]]
    assert len(queue) == 0


def test_messages_put_back_keep_their_place() -> None:
    queue = queue_with(*map(order, (1, 2, 3, 4)))
    [group] = queue.next_round(3, 10)
    queue.put_back(reversed(group))
    assert [each.ordinal for each in queue] == [1, 2, 3, 4]


def test_a_redelivery_gets_its_old_place() -> None:
    queue = queue_with(*map(order, (2, 4, 5)))
    queue.add([order(3)])
    assert [each.ordinal for each in queue] == [2, 3, 4, 5]
    assert queue.drop(next(each.message for each in queue if each.ordinal == 4))
    assert not queue.drop(order(9).message)
    assert [each.ordinal for each in queue] == [2, 3, 5]


def test_mixed_batches_end_after_one_without_a_bad_message() -> None:
    queue = queue_with(order(1, "a"), order(2, "b"), order(3, "a"))
    [group] = queue.next_round(MAX_ROUND, 10)
    refuse_in_turn(queue, group)
    for each in (order(4, "a"), order(5, "b"), order(6, "a"), order(7), order(8, partition_key="b")):
        queue.add([each])
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[4, 6], [5, 8], [7]]


def test_batches_end_after_one_key_is_refused_without_a_bad_message() -> None:
    queue = queue_with(*map(order, (1, 2)))
    [group] = queue.next_round(MAX_ROUND, 10)
    refuse_in_turn(queue, group)
    queue.add([order(3)])
    queue.add([order(4)])
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[3]]
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[4]]


def test_a_refused_batch_with_a_bad_message_changes_nothing() -> None:
    queue = queue_with(order(1, "a"), order(2), order(3, "b"))
    [group] = queue.next_round(MAX_ROUND, 10)
    refuse_in_turn(queue, group, bad={2})
    for each in (order(4, "a"), order(5, "b")):
        queue.add([each])
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[4, 5]]


def test_groups_are_limited_by_credit() -> None:
    queue = queue_with(order(1, "a"), order(2, "b"))
    [group] = queue.next_round(MAX_ROUND, 10)
    refuse_in_turn(queue, group)
    for each in (order(3, "a"), order(4, "b"), order(5, "c"), order(6, "a")):
        queue.add([each])
    assert ordinals(queue.next_round(MAX_ROUND, 2)) == [[3, 6], [4]]
    assert [each.ordinal for each in queue] == [5]


def test_unordered_suspects_are_sent_at_the_same_time() -> None:
    queue = queue_with(*map(order, (1, 2, 3)), ordered=False)
    [group] = queue.next_round(MAX_ROUND, 10)
    queue.batch_refused(group)
    queue.put_back(group)
    assert ordinals(queue.next_round(MAX_ROUND, 10)) == [[1], [2], [3]]


KEYS = st.sampled_from([None, "a", "b"])


@settings(max_examples=300)
@given(
    st.lists(KEYS, min_size=1, max_size=30),
    st.booleans(),
    st.sets(st.integers(0, 30)),
    st.lists(st.sampled_from(["accept", "part", "away"]), max_size=60),
    st.integers(1, 8),
)
def test_accepted_messages_keep_their_order(
    keys: list[str | None], partitioned: bool, bad: set[int], answers: list[str], batch: int
) -> None:
    """The destination refuses mixed batches where it is partitioned, and the bad ones always."""
    queue = queue_with(*(order(turn, key) for turn, key in enumerate(keys)))
    accepted: list[RoutedMessage] = []
    moves: Any = iter(answers)
    for _ in range(10 * len(keys) + len(answers)):
        groups = queue.next_round(batch, 3)
        for group in groups:
            how = next(moves, "accept")
            mixed = len({each.send.session_id for each in group}) > 1
            if how == "away":
                queue.put_back(group)
            elif (partitioned and mixed) or any(each.ordinal in bad for each in group):
                if len(group) > 1:
                    queue.batch_refused(group)
                    queue.put_back(group)
                else:
                    queue.sent_alone(group[0], accepted=False)
            else:
                gone = group[: max(1, len(group) // 2)] if how == "part" else group
                queue.put_back(group[len(gone) :])
                accepted += gone
                if len(gone) == 1:
                    queue.sent_alone(gone[0], accepted=True)
        if not len(queue):
            break
    assert not len(queue)
    assert sorted(each.ordinal for each in accepted) == [turn for turn in range(len(keys)) if turn not in bad]
    for key in (None, "a", "b"):
        of_key = [each.ordinal for each in accepted if each.send.session_id == key]
        assert of_key == sorted(of_key)
    if not partitioned:
        assert [each.ordinal for each in accepted] == sorted(each.ordinal for each in accepted)
