"""Many leave at once, few wait for others, and once it is time to stop nothing sets out any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.move import dispatch
from sbpair.move.batch_limits import DEFAULT_BATCH_LIMITS
from sbpair.move.destination_queues import DestinationQueues
from sbpair.move.dispatch import Dispatcher
from sbpair.move.interface import RoutedMessage
from sbpair.move.wrong_primary import WrongPrimaryBreaker

if TYPE_CHECKING:
    from sbpair.move.destination_queue import DestinationQueue


class Rig:
    """A lane's roads; each round takes `most` messages off its road and tells how many those were."""

    def __init__(
        self, tasks: asyncio.TaskGroup, *, limit: int = 1_000, ordered: bool = True, gather_seconds: float = 0.02
    ) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.roads = DestinationQueues(WrongPrimaryBreaker(), ordered=ordered)
        self.stopping, self.changed, self.may_land = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_land.set()
        self._limit = limit
        self.departures = Dispatcher(
            self.roads,
            tasks,
            self._advance,
            stopping=self.stopping,
            changed=self.changed,
            ordered=ordered,
            gather_seconds=gather_seconds,
        )

    async def _advance(self, road: DestinationQueue) -> None:
        self.rounds.append((road.destination, len(road.take(self._limit))))
        await self.may_land.wait()

    def come(self, count: int, destination: str = "orders") -> DestinationQueue:
        road = self.roads.to(destination)
        nothing: Any = None
        road.add([RoutedMessage(nothing, nothing, turn) for turn in range(count)])
        self.departures.schedule(road)
        return road

    async def empty(self) -> None:
        while any(len(road) or road.workers for road in self.roads):
            self.changed.clear()
            await self.changed.wait()


def play(scene: Any, **options: Any) -> list[tuple[str, int]]:
    async def main() -> list[tuple[str, int]]:
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            rig = Rig(tasks, **options)
            await scene(rig)
        return rig.rounds

    return asyncio.run(main())


def test_many_leave_at_once() -> None:
    async def scene(rig: Rig) -> None:
        assert rig.come(DEFAULT_BATCH_LIMITS.min_round).workers == 1
        await rig.empty()

    assert play(scene) == [("orders", DEFAULT_BATCH_LIMITS.min_round)]


def test_few_leave_with_those_that_come_meanwhile() -> None:
    async def scene(rig: Rig) -> None:
        for destination in ("orders", "invoices", "ORDERS"):
            assert rig.come(2, destination).workers == 0
        await rig.empty()

    assert play(scene) == [("orders", 4), ("invoices", 2)]


def test_the_few_that_are_left_after_a_round_leave_too() -> None:
    async def scene(rig: Rig) -> None:
        rig.come(DEFAULT_BATCH_LIMITS.min_round + 25)
        await rig.empty()

    assert play(scene, limit=20) == [("orders", 20)] * 3 + [("orders", 15)]


def test_a_road_that_rests_goes_on_at_once() -> None:
    async def scene(rig: Rig) -> None:
        rig.roads.to("orders").resting = "away"
        rig.come(3)
        await rig.empty()

    assert play(scene, limit=1, gather_seconds=1_000.0) == [("orders", 1)] * 3


@pytest.mark.parametrize(("ordered", "workers"), [(True, 1), (False, dispatch.UNORDERED_ROUNDS)])
def test_only_where_nobody_minds_the_order_there_are_several_rounds_at_a_time(ordered: bool, workers: int) -> None:
    async def scene(rig: Rig) -> None:
        rig.may_land.clear()
        for _ in range(workers + 2):
            road = rig.come(DEFAULT_BATCH_LIMITS.min_round)
        assert road.workers == workers
        rig.may_land.set()
        await rig.empty()

    play(scene, limit=DEFAULT_BATCH_LIMITS.min_round, ordered=ordered)


def test_nothing_sets_out_once_it_is_time_to_stop() -> None:
    async def scene(rig: Rig) -> None:
        rig.come(2)
        rig.stopping.set()
        rig.come(DEFAULT_BATCH_LIMITS.min_round, "invoices")

    assert play(scene, gather_seconds=0.0) == []
