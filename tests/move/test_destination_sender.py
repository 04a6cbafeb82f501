"""The queue of a destination keeps the order of its messages, and its rounds start when they should."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair.move.context import DEFAULT_BATCH_LIMITS, MoveContext
from sbpair.move.destination_sender import (
    MAX_ROUND,
    UNORDERED_ROUNDS,
    DestinationQueue,
    DestinationSender,
    DestinationSenders,
)
from sbpair.move.failure_latch import FailureLatch
from sbpair.move.interface import RoutedMessage
from sbpair.move.message.route import Facts, Send
from sbpair.move.timings import MoveTimings
from tests.kit.waiting import PATIENCE_SECONDS
from tests.move.memory import FakeMessage


def order(ordinal: int, session_id: str | None = None, partition_key: str | None = None) -> RoutedMessage:
    facts = Facts("q", ordinal, 0, f"m{ordinal}", "orders", session_id)
    return RoutedMessage(FakeMessage(facts, 1_000.0, partition_key), Send("orders", session_id, None, None), ordinal)


def queue_with(*orders: RoutedMessage, ordered: bool = True) -> DestinationQueue:
    queue = DestinationQueue(ordered=ordered)
    for each in orders:
        queue.add([each])
    return queue


def ordinals(groups: list[list[RoutedMessage]]) -> list[list[int]]:
    return [[each.ordinal for each in group] for group in groups]


def refuse_in_turn(queue: DestinationQueue, group: list[RoutedMessage], bad: set[int]) -> None:
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


def keyed(first: int, keys: str) -> list[RoutedMessage]:
    """Return messages of these sessions, of none at a dot, and with a partition key where it is in upper case."""
    return [
        order(at, partition_key=key.lower()) if key.isupper() else order(at, None if key == "." else key)
        for at, key in enumerate(keys, first)
    ]


@pytest.mark.parametrize(
    ("refused", "bad", "then", "credit", "rounds", "left"),
    [
        ("aba", set(), "aba.B", 10, [[[4, 6], [5, 8], [7]]], []),
        ("..", set(), "..", 10, [[[3]], [[4]]], []),
        ("a.b", {2}, "ab", 10, [[[4, 5]]], []),
        ("ab", set(), "abca", 2, [[[3, 6], [4]]], [5]),
    ],
    ids=["keys were mixed", "a key was one", "a message was bad", "credit"],
)
def test_batches_after_a_refused_one_are_those_that_it_allows(
    refused: str, bad: set[int], then: str, credit: int, rounds: list[list[list[int]]], left: list[int]
) -> None:
    queue = queue_with(*keyed(1, refused))
    [group] = queue.next_round(MAX_ROUND, 10)
    refuse_in_turn(queue, group, bad)
    for each in keyed(1 + len(refused), then):
        queue.add([each])
    for expected in rounds:
        assert ordinals(queue.next_round(MAX_ROUND, credit)) == expected
    assert [each.ordinal for each in queue] == left


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


# Many messages are sent at once, few wait for others, and no round starts once the mover is stopping.


MIN_ROUND = DEFAULT_BATCH_LIMITS.min_round


class FakeSender:
    """Each round takes at most `limit` messages off the queue and records how many those were."""

    is_due = DestinationSender.is_due

    def __init__(self, destination: str, rig: Rig) -> None:
        self.destination, self.queue = destination, DestinationQueue()
        self.rounds, self.failures, self.backoff_reason = 0, 0, None
        self._rig = rig

    async def send_round(self) -> None:
        self._rig.rounds.append((self.destination, len(self.queue.take(self._rig.limit))))
        await self._rig.may_end.wait()


class Rig:
    def __init__(
        self, tasks: asyncio.TaskGroup, *, limit: int = 1_000, ordered: bool = True, gather_seconds: float = 0.02
    ) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.limit = limit
        self.latch, self.may_end = FailureLatch(lambda: None), asyncio.Event()
        self.may_end.set()
        context = MoveContext("ns", ordered=ordered, timings=MoveTimings(gather_seconds=gather_seconds))
        self.senders = DestinationSenders(
            lambda destination: cast("DestinationSender", FakeSender(destination, self)), tasks, context, self.latch
        )

    def send(self, count: int, destination: str = "orders") -> DestinationSender:
        nothing: Any = None
        self.senders.send(destination, [RoutedMessage(nothing, nothing, ordinal) for ordinal in range(count)])
        return self.senders.to(destination)

    async def empty(self) -> None:
        while any(len(sender.queue) or sender.rounds for sender in self.senders):
            await self.latch.wait_changed(10.0)


def play(scene: Any, **options: Any) -> list[tuple[str, int]]:
    async def main() -> list[tuple[str, int]]:
        async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as tasks:
            rig = Rig(tasks, **options)
            await scene(rig)
        return rig.rounds

    return asyncio.run(main())


def test_many_messages_are_sent_at_once() -> None:
    async def scene(rig: Rig) -> None:
        assert rig.send(MIN_ROUND).rounds == 1
        await rig.empty()

    assert play(scene) == [("orders", MIN_ROUND)]


def test_few_messages_are_sent_with_those_that_follow() -> None:
    async def scene(rig: Rig) -> None:
        for destination in ("orders", "invoices", "ORDERS"):
            assert rig.send(2, destination).rounds == 0
        assert [task.get_name() for task in asyncio.all_tasks()].count("gather") == 1
        await rig.empty()

    assert play(scene) == [("orders", 4), ("invoices", 2)]


def test_the_few_left_after_a_round_are_sent_too() -> None:
    async def scene(rig: Rig) -> None:
        rig.send(MIN_ROUND + 25)
        await rig.empty()

    assert play(scene, limit=20) == [("orders", 20)] * 3 + [("orders", 15)]


def test_a_destination_that_backs_off_is_tried_again_at_once() -> None:
    async def scene(rig: Rig) -> None:
        rig.senders.to("orders").backoff_reason = "away"
        rig.send(3)
        await rig.empty()

    assert play(scene, limit=1, gather_seconds=1_000.0) == [("orders", 1)] * 3


@pytest.mark.parametrize(("ordered", "rounds"), [(True, 1), (False, UNORDERED_ROUNDS)])
def test_several_rounds_overlap_only_without_an_order(ordered: bool, rounds: int) -> None:
    async def scene(rig: Rig) -> None:
        rig.may_end.clear()
        for _ in range(rounds + 2):
            sender = rig.send(MIN_ROUND)
        assert sender.rounds == rounds
        rig.may_end.set()
        await rig.empty()

    play(scene, limit=MIN_ROUND, ordered=ordered)


async def test_a_halt_ends_a_wait_for_changes() -> None:
    latch = FailureLatch(lambda: None)
    waiting = asyncio.create_task(latch.wait_changed(1_000.0))
    await asyncio.sleep(0)
    latch.halt()
    await waiting


def test_no_round_starts_once_the_mover_is_stopping() -> None:
    async def scene(rig: Rig) -> None:
        rig.send(2)
        rig.latch.stopping.set()
        rig.send(MIN_ROUND, "invoices")

    assert play(scene, gather_seconds=0.0) == []
