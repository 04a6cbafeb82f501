"""Stops of a syphon that has no worker yet, because a namespace does not answer: it ends at once, with a receipt."""

import asyncio

import pytest

from tests.faults.simulation.stage import Stage, played


@pytest.mark.parametrize("side", ["primary", "backlog"])
@pytest.mark.parametrize("once", [True, False])
@played()
async def test_a_stop_does_not_wait_for_a_side_that_says_nothing(stage: Stage, once: bool, side: str) -> None:
    stage.strand(1)
    stage.network.hold(stage.host(side))
    running = stage.start(once=once)
    await asyncio.sleep(1.0)
    assert not running.done()
    stage.stop.set()
    result = await asyncio.wait_for(running, 1.0)
    assert (result.stopped, result.receipt.received, result.failures) == (True, 0, ())
    assert (stage.ids(stage.backlog()), stage.backlog().messages.locked_count) == (["m1"], 0)


@played()
async def test_a_stop_that_was_asked_for_before_the_start_moves_nothing(stage: Stage) -> None:
    stage.destination()
    stage.strand(1)
    stage.stop.set()
    result = await stage.start(once=True)
    assert (result.stopped, result.receipt.received, result.failures) == (True, 0, ())
    assert stage.ids(stage.backlog()) == ["m1"]
