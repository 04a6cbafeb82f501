"""Many messages are sent at once, few wait for others, and no round starts once the mover is stopping."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sbpair.move.context import DEFAULT_BATCH_LIMITS, MoveContext, MoveTimings
from sbpair.move.destination_queue import DestinationQueue
from sbpair.move.destination_sender import DestinationSender
from sbpair.move.destination_senders import UNORDERED_ROUNDS, DestinationSenders
from sbpair.move.failure_latch import FailureLatch
from sbpair.move.interface import RoutedMessage

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
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
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


def test_no_round_starts_once_the_mover_is_stopping() -> None:
    async def scene(rig: Rig) -> None:
        rig.send(2)
        rig.latch.stopping.set()
        rig.send(MIN_ROUND, "invoices")

    assert play(scene, gather_seconds=0.0) == []
