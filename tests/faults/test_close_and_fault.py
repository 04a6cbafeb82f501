"""One side of a lane goes: the other is ended within five seconds, and both are made anew, or the run ends with 6."""

import asyncio
from typing import Any

import pytest

from sbpair.amqp.connection import IDLE_SECONDS
from sbpair.errors import ConnectionFaulted
from sbpair.move import events
from sbpair.move.filter import MessageFilter
from sbpair.syphon.worker import RELEASE_SECONDS
from sbpair.syphon.worker_connections import FAULT_SECONDS
from tests.faults.simulation.stage import Stage, played

OTHER = {"primary": "backlog", "backlog": "primary"}
SIDES = pytest.mark.parametrize("side", ["primary", "backlog"])
A_LITTLE = 0.1


def fall_silent(stage: Stage, side: str, *, server: bool) -> None:
    for line in stage.connected(side):
        (line.server if server else line.client).out.silent = True


async def both_ended(stage: Stage, since: float) -> float:
    """How long it took until no connection was left."""
    ended = await stage.until(lambda: not (stage.connected("primary") or stage.connected("backlog")), seconds=900.0)
    return ended - since


@SIDES
@played()
async def test_a_lost_side_ends_the_other_and_a_watch_goes_on(stage: Stage, side: str) -> None:
    async with stage.watching() as watching:
        await stage.opened()
        stage.cut(side)
        assert await both_ended(stage, stage.loop.time()) <= FAULT_SECONDS + A_LITTLE
        await asyncio.sleep(60.0)
        assert not watching.done()
    first = stage.of(events.QueueFailed)[0]
    assert f"the connection to the {side} was lost" in first.reason
    assert first.retry_seconds is not None


@SIDES
@played(queues=3)
async def test_without_reconnecting_a_side_that_breaks_ends_a_watch_with_6(stage: Stage, side: str) -> None:
    stage.destination()
    watching = stage.start(reconnect=False)
    await stage.opened(3)
    stage.strand(1)
    await stage.until(lambda: stage.ids(stage.destination()) == ["m1"] and not stage.backlog().counts().active)
    await asyncio.sleep(A_LITTLE)
    at = stage.loop.time()
    stage.cut(side)
    result = await watching
    assert stage.loop.time() - at <= FAULT_SECONDS + A_LITTLE
    assert (result.exit_code, result.receipt.sent) == (6, 1)
    assert {type(error) for _, error in result.failures} == {ConnectionFaulted}
    assert stage.connected("primary") + stage.connected("backlog") == []


@SIDES
@played()
async def test_a_side_that_is_back_within_the_time_is_a_matter_of_its_own(stage: Stage, side: str) -> None:
    async with stage.watching(reconnect=side == "backlog"):
        await stage.opened()
        stage.cut(side)
        await asyncio.sleep(FAULT_SECONDS / 2)
        stage.restore(side)
        stage.strand(1)
        await stage.arrived(1)
        assert bool(stage.of(events.QueueFailed)) == (side == "backlog")


@SIDES
@played()
async def test_once_exits_6_if_a_side_stays_away(stage: Stage, side: str) -> None:
    orders = stage.destination()
    stage.fill(orders)
    stage.strand(*range(5))
    going = stage.start(once=True)
    await stage.until(lambda: stage.of(events.DestinationBackingOff))
    stage.cut(side)
    result = await going
    assert result.exit_code == 6
    assert (result.receipt.remaining, result.receipt.balanced) == (5, True)
    # Where it is the backlog that breaks, nothing can be given back: the locks run out, and that counts as a delivery.
    assert stage.backlog().messages.locked_count == (0 if side == "primary" else 5)
    await asyncio.sleep(61.0)
    counts = {message.delivery_count for message in stage.backlog().messages.peek(0, 10)}
    assert counts == ({0} if side == "primary" else {1})


@SIDES
@pytest.mark.parametrize("server", [False, True])
@played()
async def test_a_silent_connection_is_noticed_and_both_are_ended(stage: Stage, side: str, server: bool) -> None:
    async with stage.watching():
        await stage.opened()
        at = stage.loop.time()
        stage.network.swallowing[stage.host(side)] = 1
        fall_silent(stage, side, server=server)
        taken = await both_ended(stage, at)
        assert taken <= IDLE_SECONDS + FAULT_SECONDS + RELEASE_SECONDS + A_LITTLE
        stage.network.swallowing[stage.host(side)] = 0
        stage.strand(1)
        await stage.arrived(1, seconds=300.0)


@played()
async def test_pending_sends_get_five_seconds_when_the_backlog_is_lost(stage: Stage) -> None:
    stage.destination()
    watching = stage.start()
    await stage.opened()
    stage.strand(1)
    await stage.until(lambda: stage.ids(stage.destination()) == ["m1"] and not stage.ids(stage.backlog()))
    fall_silent(stage, "primary", server=True)
    stage.strand(2)
    await stage.arrived(1, 2)
    at = stage.loop.time()
    stage.cut("backlog")
    assert FAULT_SECONDS <= await both_ended(stage, at) <= FAULT_SECONDS + A_LITTLE
    stage.stop.set()
    receipt = (await watching).receipt
    assert (receipt.sent, receipt.in_doubt) == (1, 1)
    assert [named.message_id for named in receipt.doubtful] == ["m2"]


@played()
async def test_held_messages_are_released_when_the_primary_is_lost(stage: Stage) -> None:
    engine: Any = stage.backlog().messages
    let = stage.fill(stage.destination())
    stage.strand(*range(20))
    async with stage.watching():
        await stage.until(lambda: engine.locked_count == 20)
        stage.cut("primary")
        await stage.until(lambda: stage.of(events.QueueFailed))
        for _ in range(60):
            await asyncio.sleep(1.0)
            assert engine.locked_count == 0
        let()
        stage.restore("primary")
        await stage.arrived(*range(20))


@played()
async def test_a_second_signal_ends_it_within_seconds_without_one_side(stage: Stage) -> None:
    engine: Any = stage.backlog().messages
    stage.destination()
    stage.fill(stage.destination("full"))
    stage.strand(8)
    watching = stage.start()
    await stage.until(lambda: not stage.backlog().counts().active)
    stage.strand(*range(5), to="full")
    await stage.until(lambda: stage.of(events.DestinationBackingOff))
    fall_silent(stage, "primary", server=True)
    stage.strand(9)
    await stage.arrived(8, 9)
    stage.stop.set()
    await asyncio.sleep(1.0)
    stage.hurry.set()
    await stage.until(lambda: engine.locked_count <= 1, seconds=1.0)
    result = await asyncio.wait_for(watching, RELEASE_SECONDS + A_LITTLE)
    receipt = result.receipt
    assert (result.hurried, receipt.received, receipt.released, receipt.in_doubt) == (True, 7, 5, 1)
    assert receipt.balanced
    assert [named.message_id for named in receipt.doubtful] == ["m9"]
    assert stage.connected("primary") + stage.connected("backlog") == []


@played()
async def test_a_second_signal_unlocks_what_the_filter_left(stage: Stage) -> None:
    engine: Any = stage.backlog().messages
    stage.destination()
    watching = stage.start(where=MessageFilter("sys.MessageId IN ('m3', 'm4', 'm5')"))
    stage.strand(3)
    await stage.until(lambda: stage.ids(stage.destination()) == ["m3"] and not stage.ids(stage.backlog()))
    fall_silent(stage, "primary", server=True)
    stage.strand(*range(3), *range(4, 10))
    await stage.until(lambda: len(stage.ids(stage.destination())) == 3 and engine.locked_count == 9)
    stage.stop.set()
    await stage.until(lambda: engine.locked_count == 2, seconds=1.0)  # before the pending sends have ended
    stage.hurry.set()
    receipt = (await asyncio.wait_for(watching, RELEASE_SECONDS + A_LITTLE)).receipt
    assert (receipt.sent, receipt.in_doubt, receipt.skipped, engine.locked_count) == (1, 2, 7, 0)
    assert {message.delivery_count for message in engine.peek(0, 10)} == {0}


@played()
async def test_a_second_signal_ends_it_within_seconds_without_both_sides(stage: Stage) -> None:
    stage.fill(stage.destination())
    stage.strand(*range(5))
    watching = stage.start()
    await stage.until(lambda: stage.of(events.DestinationBackingOff))
    fall_silent(stage, "primary", server=True)
    fall_silent(stage, "backlog", server=False)
    stage.stop.set()
    stage.hurry.set()
    result = await asyncio.wait_for(watching, RELEASE_SECONDS + A_LITTLE)
    assert (result.receipt.received, result.receipt.balanced) == (5, True)
