"""A namespace that goes away during a watch and comes back: every backlog queue goes on soon after."""

import asyncio

import pytest

from sbpair.move import events
from tests.faults.simulation.stage import Stage, played

QUEUES = 10


@pytest.mark.parametrize("away_seconds", [3.0, 120.0])
@pytest.mark.parametrize("side", ["primary", "secondary"])
@played(queues=QUEUES)
async def test_every_queue_goes_on_within_two_seconds(stage: Stage, side: str, away_seconds: float) -> None:
    destination = stage.destination()
    async with stage.watching():
        await stage.opened(QUEUES)
        stage.cut(side)
        for index in range(QUEUES):
            stage.strand(index, index=index)
        await asyncio.sleep(away_seconds)
        stage.restore(side)
        await stage.until(lambda: len(stage.ids(destination)) == QUEUES, seconds=2.0)


@played(queues=QUEUES)
async def test_an_away_namespace_is_tried_once_a_second_and_since_when_is_told(stage: Stage) -> None:
    async with stage.watching():
        await stage.opened(QUEUES)
        lost_ms = int(stage.tool_time() * 1000)
        stage.cut("secondary")
        await asyncio.sleep(60.0)
        before = len(stage.of(events.QueueFailed))
        await asyncio.sleep(60.0)
        failed = stage.of(events.QueueFailed)
        assert 50 <= len(failed) - before <= 61
        assert {each.away_since_ms for each in failed[before:]} == {failed[-1].away_since_ms}
        assert 0 <= failed[-1].away_since_ms - lost_ms <= 2_000


@played(queues=1)
async def test_a_destination_that_backs_off_is_tried_when_the_primary_is_back(stage: Stage) -> None:
    stage.destination()
    async with stage.watching():
        await stage.opened()
        stage.cut("primary")
        stage.strand(1)
        await asyncio.sleep(3.2)
        assert stage.of(events.DestinationBackingOff)
        stage.restore("primary")
        await stage.arrived(1, seconds=1.2)
