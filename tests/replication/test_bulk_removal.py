"""Duplicates removed in bulk: fast, without touching other messages, and as activity of a receive."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage

from sbpair.replication import receivers, side_receiver
from sbpair.replication.events import DuplicateCompleted, SideLost
from sbpair.replication.side_receiver import (
    BACKOFF_FACTOR,
    MAX_STREAK,
    MIN_BULK,
    MIN_STREAK,
    Removed,
    SideReceiver,
    remove_duplicates,
)
from tests.kit.failover_rig import PAIRED_CLIENTS, SECONDARY, SYNC_FIRST
from tests.replication.both import Both, drained, twins

pytestmark = PAIRED_CLIENTS

NAMES = [f"m{number:02}" for number in range(20)]


def number_key(message: ServiceBusReceivedMessage) -> str | None:
    """Return the id of a message whose id begins with m: the duplicates of these tests."""
    name = str(message.message_id)
    return name if name.startswith("m") else None


def removed_from(both: Both, side: str = "secondary", key: Any = number_key) -> Removed:
    return remove_duplicates(both.pair, getattr(both.pair, side), "orders", key)


def delivery_counts(both: Both) -> list[int]:
    return [each.delivery_count for each in both.do(lambda: both.copy.messages.peek(0, 1_000))]


@SYNC_FIRST
def test_a_message_behind_duplicates_is_given_within_the_wait(
    both: Both, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "TURN_SECONDS", 0.5)
    both.put("primary", *NAMES)
    both.put("secondary", *NAMES, "single")
    with both.receiver(kind, max_wait_time=3) as (receiver, log):
        found: list[str] = []
        while len(found) < len(NAMES):
            firsts = receiver.receive_messages(len(NAMES))
            found += [each.message_id for each in firsts]
            for each in firsts:
                receiver.complete_message(each)
        while messages := receiver.receive_messages():
            for each in messages:
                receiver.complete_message(each)
                found.append(each.message_id)
        assert sorted(found) == sorted([*NAMES, "single"])
        assert sorted(event.key for event in log.of(DuplicateCompleted)) == NAMES
    assert both.held == ([], [])


def test_iteration_ends_after_the_wait_that_follows_the_last_duplicate(both: Both) -> None:
    both.put("primary", *NAMES)
    with both.receiver(max_wait_time=0.6) as (receiver, log):
        assert sorted(drained(both, receiver)) == NAMES
        both.put("secondary", *NAMES)
        assert list(receiver) == []
        assert sorted(event.key for event in log.of(DuplicateCompleted)) == NAMES
    assert both.held == ([], [])


def test_bulk_removal_leaves_other_messages_with_their_delivery_count(both: Both) -> None:
    both.put("secondary", *NAMES[:5], "other", *NAMES[5:], "last")
    removed = removed_from(both)
    assert [key for key, _number in removed.duplicates] == NAMES
    assert not removed.more
    assert both.held[1] == ["other", "last"]
    assert delivery_counts(both) == [0, 0]


def test_bulk_removal_stops_at_its_turn_and_says_that_more_follow(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_receiver, "BULK_SECONDS", 0.0)
    both.put("secondary", *NAMES)
    assert removed_from(both) == Removed([], more=True)
    assert both.held[1] == NAMES


def test_a_key_that_fails_leaves_its_message(both: Both) -> None:
    def failing(message: ServiceBusReceivedMessage) -> str:
        raise KeyError(message.message_id)

    both.put("secondary", *NAMES)
    assert removed_from(both, key=failing) == Removed([], more=False)
    assert (both.held[1], set(delivery_counts(both))) == (NAMES, {0})


@pytest.mark.parametrize("fault", ["namespace_down", "reset"])
def test_bulk_removal_survives_a_lost_connection(both: Both, fault: str) -> None:
    both.put("secondary", *NAMES)
    with both.broken(fault, SECONDARY):
        assert removed_from(both).duplicates == []
    both.running.advance(61)
    assert {key for key, _number in removed_from(both).duplicates} == set(NAMES)


def test_a_side_that_refuses_bulk_removal_is_emptied_one_by_one(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_receiver, "MIN_STREAK", 1)
    twins(both, *NAMES[:6])
    with both.receiver() as (receiver, log):
        for side in receiver._sides.values():
            side.remove_duplicates = lambda _key: Removed([], more=False)
        assert drained(both, receiver) == NAMES[:6]
        assert log.of(SideLost) == []
    assert both.held == ([], [])


def test_bulk_removal_is_tried_less_often_where_it_finds_little() -> None:
    side = SideReceiver("primary", lambda _side: None, lambda _key: Removed([], more=False))
    many = [("m", number) for number in range(MIN_BULK)]

    def receives_until_bulk() -> int:
        for count in range(1, 10 * MAX_STREAK):
            side.note_received(1, 1, 0.0)
            if side.expects_duplicates:
                return count
        raise AssertionError

    found = []
    for _ in range(10):
        found.append(receives_until_bulk())
        side.note_removed(Removed([], more=False))
    assert found == [MIN_STREAK * 2**power for power in range(7)] + [MAX_STREAK] * 2 + [MAX_STREAK]
    side.note_removed(Removed(many, more=True))
    assert side.expects_duplicates
    side.note_removed(Removed(many, more=False))
    assert receives_until_bulk() == MIN_STREAK


def test_a_first_copy_among_duplicates_ends_a_streak() -> None:
    side = SideReceiver("primary", lambda _side: None, lambda _key: Removed([], more=False))
    for _ in range(MAX_STREAK):
        side.note_received(1, 1, 0.0)
        side.note_received(2, 1, 0.0)
        assert not side.expects_duplicates


def test_a_side_that_fails_pauses_longer_each_time_until_it_answers() -> None:
    side = SideReceiver("primary", lambda _side: None, lambda _key: Removed([], more=False))
    assert not side.recover()
    pauses = []
    for took_seconds in (0.0, 0.0, 5.0):
        is_first = side.back_off(TimeoutError(), 100.0, took_seconds)
        pauses.append((is_first, side.backs_off_until))
    assert pauses == [(True, 100.2), (False, 100.4), (False, 100.0 + 5.0 * BACKOFF_FACTOR)]
    assert [side.recover(), side.error] == [True, None]
    assert side.back_off(TimeoutError(), 200.0, 0.0)
    assert side.recover()
