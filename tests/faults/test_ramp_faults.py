"""Ramps in virtual time: how long they observe, also while the primary is away or throttles; and after a kill."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from sbpair.move.events import RampProgress
from sbpair.move.receipt import RampState
from sbpair.syphon.run_request import RampPlan
from tests.faults.simulation.loop import Process
from tests.faults.simulation.stage import Stage, played
from tests.kit.moves import run_syphon

STEPS = RampPlan((1, 10, 100), 30.0)


def states(stage: Stage) -> list[tuple[int, str, int]]:
    return [(event.step, event.state, event.sent) for event in stage.of(RampProgress)]


def seconds_observed(stage: Stage) -> list[float]:
    times = [(at, event.state) for at, event in stage.told if isinstance(event, RampProgress)]
    began = [at for at, state in times if state == RampState.OBSERVING]
    passed = [at for at, state in times if state == RampState.PASSED]
    return [end - start for start, end in zip(began, passed, strict=False)]


def bury(queue: Any) -> None:
    [message] = queue.messages.receive(1)
    queue.messages.dead_letter(message.lock_token, "Poison", "why")


@played(queues=3)
async def test_each_step_is_observed_for_its_time_and_no_longer(stage: Stage) -> None:
    stage.destination()
    for index in range(3):
        stage.strand(*range(100 * index, 100 * index + 50), index=index)
    result = await stage.start(once=True, ramp=STEPS)
    assert (result.exit_code, result.receipt.sent) == (0, 150)
    assert all(30.0 <= each < 31.0 for each in seconds_observed(stage))
    assert [(step, sent) for step, state, sent in states(stage) if state == RampState.PASSED] == [
        (1, 1),
        (2, 10),
        (3, 100),
    ]


@pytest.mark.parametrize("after", [0.5, 15.0, 29.5])
@played()
async def test_message_that_comes_back_stops_the_ramp_within_seconds(stage: Stage, after: float) -> None:
    stage.destination()
    stage.strand(*range(50))
    running = stage.start(once=True, ramp=STEPS)
    await stage.until(lambda: (2, RampState.OBSERVING, 10) in states(stage))
    await asyncio.sleep(after)
    bury(stage.destination())
    buried = stage.loop.time()
    result = await running
    assert stage.loop.time() - buried < 6.0
    assert (result.exit_code, result.receipt.sent, result.receipt.ramp.came_back_total) == (3, 10, 1)


@pytest.mark.parametrize("back", [True, False])
@played()
async def test_observation_lasts_until_the_primary_answers(stage: Stage, back: bool) -> None:
    stage.destination()
    stage.strand(*range(20))
    running = stage.start(once=False, ramp=STEPS)
    await stage.until(lambda: (2, RampState.OBSERVING, 10) in states(stage))
    stage.cut("primary")
    await asyncio.sleep(120.0)
    assert states(stage)[-1] == (2, RampState.OBSERVING, 10)
    if not back:
        bury(stage.destination())
    stage.restore("primary")
    await stage.until(lambda: len(states(stage)) > 5 and states(stage)[-1][1] != RampState.OBSERVING)
    stage.stop.set()
    result = await running
    assert result.receipt.ramp.came_back_total == (not back)
    assert states(stage)[5][1] == (RampState.PASSED if back else RampState.STOPPED)


@played()
async def test_once_gives_up_a_primary_that_does_not_come_back(stage: Stage) -> None:
    stage.destination()
    stage.strand(*range(20))
    running = stage.start(once=True, ramp=STEPS)
    await stage.until(lambda: (1, RampState.OBSERVING, 1) in states(stage))
    stage.cut("primary")
    result = await running
    assert (result.exit_code, result.receipt.sent) == (6, 1)
    assert len(stage.ids(stage.backlog())) == 19


@played()
async def test_throttled_peeks_are_repeated(stage: Stage) -> None:
    stage.destination()
    stage.strand(*range(20))
    running = stage.start(once=True, ramp=STEPS)
    await stage.until(lambda: (2, RampState.OBSERVING, 10) in states(stage))
    with stage.world.faults.during("throttle", stage.host("primary")):
        await asyncio.sleep(60.0)
    result = await running
    assert (result.exit_code, result.receipt.sent) == (0, 20)


@played(queues=2)
async def test_destination_that_is_full_for_a_while_keeps_the_step_exact(stage: Stage) -> None:
    orders = stage.destination()
    for index in range(2):
        stage.strand(*range(100 * index, 100 * index + 20), index=index)
    restore = stage.fill(orders)
    running = stage.start(once=False, ramp=STEPS)
    await asyncio.sleep(100.0)
    assert stage.ids(orders) == []
    restore()
    await stage.until(lambda: (2, RampState.OBSERVING, 10) in states(stage), seconds=3_600.0)
    assert len(stage.ids(orders)) == 10
    stage.stop.set()
    assert (await running).receipt.sent == 10


@played()
async def test_run_after_a_kill_in_an_observation_begins_again_and_loses_nothing(stage: Stage, tmp_path: Path) -> None:
    orders = stage.destination()
    stage.strand(*range(20))
    killed, terms = Process("killed"), {"once": True, "state": tmp_path, "lease": False}
    killed.start(stage.loop, run_syphon(stage.world.pair, ramp=RampPlan((5, 10), 3_600.0), **terms))
    await stage.until(lambda: len(stage.ids(orders)) == 5)
    await asyncio.sleep(10.0)
    stage.network.kill(killed)
    bury(orders)
    result = await stage.start(ramp=RampPlan((1, 5, 10), 1.0), **terms)
    assert (result.exit_code, result.receipt.sent, result.receipt.already_sent) == (0, 15, 0)
    assert [(each.total, each.sent) for each in result.receipt.ramp.steps] == [(1, 1), (5, 5), (10, 10)]
    assert stage.ids(orders) == [f"m{number}" for number in range(1, 20)]
    await killed.bury(stage.loop)
