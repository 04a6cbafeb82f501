"""Many leave at once, few wait for others, and once it is time to stop nothing sets out any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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

    def __init__(self, tasks: asyncio.TaskGroup, *, limit: int = 1_000, ordered: bool = True) -> None:
        self.rounds: list[tuple[str, int]] = []
        self.roads = DestinationQueues(WrongPrimaryBreaker(), ordered=ordered)
        self.stopping, self.changed, self.may_land = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_land.set()
        self._limit = limit
        self.departures = Dispatcher(
            self.roads, tasks, self._advance, stopping=self.stopping, changed=self.changed, ordered=ordered
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


@asynccontextmanager
async def open_rig(**options: Any) -> AsyncIterator[Rig]:
    async with asyncio.TaskGroup() as tasks:
        yield Rig(tasks, **options)


async def test_many_leave_at_once() -> None:
    async with open_rig() as rig:
        assert rig.come(DEFAULT_BATCH_LIMITS.min_round).workers == 1
        await rig.empty()
    assert rig.rounds == [("orders", DEFAULT_BATCH_LIMITS.min_round)]


async def test_few_leave_with_those_that_come_meanwhile() -> None:
    async with open_rig() as rig:
        for destination in ("orders", "invoices", "ORDERS"):
            assert rig.come(2, destination).workers == 0
        await rig.empty()
    assert rig.rounds == [("orders", 4), ("invoices", 2)]


async def test_the_few_that_are_left_after_a_round_leave_too() -> None:
    async with open_rig(limit=20) as rig:
        rig.come(DEFAULT_BATCH_LIMITS.min_round + 25)
        await rig.empty()
    assert rig.rounds == [("orders", 20)] * 3 + [("orders", 15)]


async def test_a_road_that_rests_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GATHER_SECONDS", 1_000.0)

    async with open_rig(limit=1) as rig:
        rig.roads.to("orders").resting = "away"
        rig.come(3)
        await rig.empty()
    assert rig.rounds == [("orders", 1)] * 3


@pytest.mark.parametrize(("ordered", "workers"), [(True, 1), (False, dispatch.UNORDERED_ROUNDS)])
async def test_only_where_nobody_minds_the_order_there_are_several_rounds_at_a_time(
    ordered: bool, workers: int
) -> None:
    async with open_rig(limit=DEFAULT_BATCH_LIMITS.min_round, ordered=ordered) as rig:
        rig.may_land.clear()
        for _ in range(workers + 2):
            road = rig.come(DEFAULT_BATCH_LIMITS.min_round)
        assert road.workers == workers
        rig.may_land.set()
        await rig.empty()


async def test_nothing_sets_out_once_it_is_time_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "GATHER_SECONDS", 0.0)

    async with open_rig() as rig:
        rig.come(2)
        rig.stopping.set()
        rig.come(DEFAULT_BATCH_LIMITS.min_round, "invoices")
    assert rig.rounds == []
