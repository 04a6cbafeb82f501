"""A watch and the backlog queues that come and go while it runs, in virtual time."""

import asyncio

import pytest

from sbpair.backlog import queue_path
from sbpair.errors import EntityMissing
from sbpair.move import events
from sbpair.syphon.pool import FIND_QUEUES_SECONDS
from tests.faults.simulation.faults import PRIMARY_NAME, make_backlog
from tests.faults.simulation.stage import Stage, played

A_LOOK = FIND_QUEUES_SECONDS + 1.0


def delete(stage: Stage, index: int = 0) -> None:
    stage.world.secondary.delete_queue(queue_path(PRIMARY_NAME, index))


@played()
async def test_a_watch_finds_a_queue_that_is_made_after_its_start(stage: Stage) -> None:
    stage.destination()
    async with stage.watching():
        await asyncio.sleep(1_000.0)
        make_backlog(stage.world.secondary, 7)
        stage.strand(1, index=7)
        await stage.arrived(1, seconds=A_LOOK)
        first, second = stage.of(events.QueuesFound)
        assert (first.stranded, second.stranded) == ((), (queue_path(PRIMARY_NAME, 7),))
        assert stage.listed <= stage.loop.time() / FIND_QUEUES_SECONDS + 1


@pytest.mark.parametrize("gone_seconds", [0.0, 3.0, 30.0, 1_000.0])
@played()
async def test_a_queue_that_is_deleted_and_made_again_is_picked_up(stage: Stage, gone_seconds: float) -> None:
    stage.destination()
    stage.strand(1)
    watching = stage.start()
    await stage.arrived(1, seconds=A_LOOK)
    delete(stage)
    await asyncio.sleep(gone_seconds)
    make_backlog(stage.world.secondary, 0)
    stage.strand(2)
    await stage.arrived(1, 2, seconds=A_LOOK)
    stage.stop.set()
    result = await watching
    assert (result.exit_code, result.failures, result.receipt.already_sent) == (0, (), 0)


@played(queues=2)
async def test_a_watch_drops_a_deleted_queue_and_keeps_the_others(stage: Stage) -> None:
    stage.destination()
    async with stage.watching():
        await stage.opened(2)
        delete(stage)
        await asyncio.sleep(600.0)
        given_up = [event for event in stage.of(events.QueueFailed) if event.retry_seconds is None]
        assert [event.queue for event in given_up] == [queue_path(PRIMARY_NAME, 0)]
        assert len(stage.network.lines) >= 2
        assert len(stage.connected("backlog")) == len(stage.connected("primary")) == 1
        stage.strand(1, index=1)
        await stage.arrived(1, seconds=A_LOOK)


@played()
async def test_a_watch_outlives_its_last_queue_and_starts_without_any(stage: Stage) -> None:
    stage.destination()
    delete(stage)
    async with stage.watching():
        await asyncio.sleep(1_000.0)
        for number in range(2):
            make_backlog(stage.world.secondary, 0)
            stage.strand(number)
            await stage.arrived(*range(number + 1), seconds=A_LOOK)
            await asyncio.sleep(1.0)
            delete(stage)
            await asyncio.sleep(1_000.0)


@played()
async def test_a_listing_that_fails_for_a_while_harms_nothing(stage: Stage) -> None:
    stage.destination()
    async with stage.watching():
        await stage.opened()
        stage.network.refusing[stage.host("backlog")] = 1
        await asyncio.sleep(10 * FIND_QUEUES_SECONDS)
        stage.restore("backlog")
        make_backlog(stage.world.secondary, 3)
        stage.strand(1, index=3)
        await stage.arrived(1, seconds=A_LOOK)
        assert stage.of(events.QueueFailed) == []


@played(managed=False)
async def test_a_watch_without_manage_lists_once_and_ends_with_its_queues(stage: Stage) -> None:
    watching = stage.start()
    await asyncio.sleep(1_000.0)
    assert stage.listed == 1
    delete(stage)
    with pytest.raises(EntityMissing, match="no backlog queue"):
        await watching
