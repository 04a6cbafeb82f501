"""A road keeps the order of what goes along it, whatever its destination takes or refuses."""

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


def road_with(*orders: RoutedMessage, ordered: bool = True) -> DestinationQueue:
    road = DestinationQueue(ordered=ordered)
    for each in orders:
        road.add([each])
    return road


def turns(groups: list[list[RoutedMessage]]) -> list[list[int]]:
    return [[each.ordinal for each in group] for group in groups]


def refuse_in_turn(road: DestinationQueue, group: list[RoutedMessage], guilty: set[int] = frozenset()) -> None:  # type: ignore[assignment]
    """What a mover does when a batch is refused for good: each goes alone."""
    road.batch_refused(group)
    road.put_back(group)
    for _ in group:
        [[alone]] = road.next_round(MAX_ROUND, 10)
        road.sent_alone(alone, accepted=alone.ordinal not in guilty)


def test_all_that_waits_leaves_together_whatever_its_keys() -> None:
    road = road_with(order(1, "a"), order(2, "b"), order(3, partition_key="k"), order(4))
    assert turns(road.next_round(MAX_ROUND, 10)) == [[1, 2, 3, 4]]
    assert len(road) == 0


def test_what_did_not_get_through_waits_in_front_again() -> None:
    road = road_with(*map(order, (1, 2, 3, 4)))
    [group] = road.next_round(3, 10)
    road.put_back(reversed(group))
    assert [each.ordinal for each in road] == [1, 2, 3, 4]


def test_a_message_that_comes_again_has_its_old_place() -> None:
    road = road_with(*map(order, (2, 4, 5)))
    road.add([order(3)])
    assert [each.ordinal for each in road] == [2, 3, 4, 5]
    assert road.drop(next(each.message for each in road if each.ordinal == 4))
    assert not road.drop(order(9).message)
    assert [each.ordinal for each in road] == [2, 3, 5]


def test_a_batch_of_mixed_keys_that_none_is_to_blame_for_is_not_made_again() -> None:
    road = road_with(order(1, "a"), order(2, "b"), order(3, "a"))
    [group] = road.next_round(MAX_ROUND, 10)
    refuse_in_turn(road, group)
    for each in (order(4, "a"), order(5, "b"), order(6, "a"), order(7), order(8, partition_key="b")):
        road.add([each])
    assert turns(road.next_round(MAX_ROUND, 10)) == [[4, 6], [5, 8], [7]]


def test_a_batch_of_one_key_that_none_is_to_blame_for_means_no_batches() -> None:
    road = road_with(*map(order, (1, 2)))
    [group] = road.next_round(MAX_ROUND, 10)
    refuse_in_turn(road, group)
    road.add([order(3)])
    road.add([order(4)])
    assert turns(road.next_round(MAX_ROUND, 10)) == [[3]]
    assert turns(road.next_round(MAX_ROUND, 10)) == [[4]]


def test_a_batch_with_one_to_blame_teaches_nothing() -> None:
    road = road_with(order(1, "a"), order(2), order(3, "b"))
    [group] = road.next_round(MAX_ROUND, 10)
    refuse_in_turn(road, group, guilty={2})
    for each in (order(4, "a"), order(5, "b")):
        road.add([each])
    assert turns(road.next_round(MAX_ROUND, 10)) == [[4, 5]]


def test_there_are_no_more_groups_than_there_is_room_for() -> None:
    road = road_with(order(1, "a"), order(2, "b"))
    [group] = road.next_round(MAX_ROUND, 10)
    refuse_in_turn(road, group)
    for each in (order(3, "a"), order(4, "b"), order(5, "c"), order(6, "a")):
        road.add([each])
    assert turns(road.next_round(MAX_ROUND, 2)) == [[3, 6], [4]]
    assert [each.ordinal for each in road] == [5]


def test_without_an_order_those_that_go_alone_go_at_the_same_time() -> None:
    road = road_with(*map(order, (1, 2, 3)), ordered=False)
    [group] = road.next_round(MAX_ROUND, 10)
    road.batch_refused(group)
    road.put_back(group)
    assert turns(road.next_round(MAX_ROUND, 10)) == [[1], [2], [3]]


KEYS = st.sampled_from([None, "a", "b"])


@settings(max_examples=300)
@given(
    st.lists(KEYS, min_size=1, max_size=30),
    st.booleans(),
    st.sets(st.integers(0, 30)),
    st.lists(st.sampled_from(["accept", "part", "away"]), max_size=60),
    st.integers(1, 8),
)
def test_what_is_accepted_keeps_its_order(
    keys: list[str | None], partitioned: bool, guilty: set[int], answers: list[str], batch: int
) -> None:
    """The destination refuses mixed batches where it is partitioned, and the guilty ones always."""
    road = road_with(*(order(turn, key) for turn, key in enumerate(keys)))
    accepted: list[RoutedMessage] = []
    moves: Any = iter(answers)
    for _ in range(10 * len(keys) + len(answers)):
        flown = road.next_round(batch, 3)
        for group in flown:
            how = next(moves, "accept")
            mixed = len({each.send.session_id for each in group}) > 1
            if how == "away":
                road.put_back(group)
            elif (partitioned and mixed) or any(each.ordinal in guilty for each in group):
                if len(group) > 1:
                    road.batch_refused(group)
                    road.put_back(group)
                else:
                    road.sent_alone(group[0], accepted=False)
            else:
                gone = group[: max(1, len(group) // 2)] if how == "part" else group
                road.put_back(group[len(gone) :])
                accepted += gone
                if len(gone) == 1:
                    road.sent_alone(gone[0], accepted=True)
        if not len(road):
            break
    assert not len(road)
    assert sorted(each.ordinal for each in accepted) == [turn for turn in range(len(keys)) if turn not in guilty]
    for key in (None, "a", "b"):
        of_key = [each.ordinal for each in accepted if each.send.session_id == key]
        assert of_key == sorted(of_key)
    if not partitioned:
        assert [each.ordinal for each in accepted] == sorted(each.ordinal for each in accepted)
