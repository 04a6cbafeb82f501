"""`--ttl remaining` on a machine whose clock is wrong: the time in the backlog is counted by the service's."""

import asyncio

import pytest

from sbpair.backlog import Aliases
from sbpair.move.message.route import TimeToLive
from sbpair.syphon.run_result import SyphonResult
from sbpair.timespan import TICKS_PER_MS
from tests.faults.simulation.stage import Stage, played
from tests.kit.stranded import stranded

HOUR_MS = 3_600_000


def strand(stage: Stage, *hours: int) -> None:
    """A message that lives so long, each."""
    for ttl in hours:
        stage.put(stranded(f"{ttl} h", Aliases("orders", None, ttl * HOUR_MS * TICKS_PER_MS), b"x"))


async def three_messages(stage: Stage) -> None:
    stage.destination()
    strand(stage, 1, 2, 3)
    await asyncio.sleep(1.5 * 3_600)


def check(stage: Stage, result: SyphonResult) -> None:
    assert (result.receipt.sent, result.receipt.expired) == (2, 1)
    assert stage.ids(stage.destination()) == ["2 h", "3 h"]
    for message, hours in zip(stage.destination().messages.peek(0, 10), (0.5, 1.5), strict=True):
        assert message.sections.read_header().ttl == pytest.approx(hours * HOUR_MS, abs=5_000)


@pytest.mark.parametrize("ahead_seconds", [0.0, 90.0, -90.0, 7_200.0, -1_200.0])
@played()
async def test_a_wrong_clock_neither_lets_messages_expire_nor_live_longer(stage: Stage, ahead_seconds: float) -> None:
    await three_messages(stage)
    stage.world.ahead = ahead_seconds
    check(stage, await stage.start(once=True, ttl=TimeToLive.REMAINING))


@pytest.mark.parametrize("ahead_seconds", [7_200.0, -1_200.0])
@played()
async def test_nor_does_one_that_is_set_on_the_way(stage: Stage, ahead_seconds: float) -> None:
    await three_messages(stage)
    running = stage.start(ttl=TimeToLive.REMAINING, max_held=1)
    await stage.opened()
    stage.world.ahead = ahead_seconds
    await stage.until(lambda: len(stage.ids(stage.destination())) == 2)
    stage.stop.set()
    check(stage, await running)
