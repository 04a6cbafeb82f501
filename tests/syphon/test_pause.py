"""Pause, resume and cancel over real sockets: a run in another thread's words, and what the namespaces show."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import runs
from sbpair.move import events
from sbpair.move.filter import MessageFilter
from sbpair.move.receipt import RampState
from sbpair.runs import RunRecord
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import all_runs
from sbpair.runs.run_record import RunOutcome
from sbpair.syphon.run_request import RampPlan
from sbpair.syphon.run_result import SyphonResult
from tests.kit.moves import peeked as held_in
from tests.kit.waiting import until
from tests.syphon.test_intake_gate import POLLING, SLOW, unlocked
from tests.syphon.worlds import World, fill, world

EFFECT_SECONDS = 2.0


async def ask(w: World, act: Callable[..., RunRecord], state: Path) -> RunRecord:
    """Request something of the only live run, as another process does."""
    with RunDatabase(state, w.pair.ends) as database:
        [run] = [each.id for each in all_runs(database) if each.ended_ms is None]
    return await asyncio.to_thread(act, w.pair, run, state=state)


def connections_of(w: World) -> set[Any]:
    return {each for namespace in w.emulator.namespaces.values() for each in namespace.fault_points.connections}


@asynccontextmanager
async def moving(w: World, state: Path, **terms: Any) -> AsyncIterator[asyncio.Task[SyphonResult]]:
    task = asyncio.create_task(w.run(state=state, **{"timings": SLOW, **terms}))
    try:
        yield task
    finally:
        w.stop.set()
        await task


async def test_a_long_poll_is_interrupted_and_the_connection_stays(tmp_path: Path) -> None:
    async with world() as w, moving(w, tmp_path, once=False) as task:
        await w.told_of(events.QueueOpened)
        assert (await ask(w, runs.pause, tmp_path)).outcome is RunOutcome.PAUSED
        w.strand(1)
        assert len(unlocked(w.backlog())) == 1
        assert (await ask(w, runs.pause, tmp_path)).outcome is RunOutcome.PAUSED
        assert (await ask(w, runs.resume, tmp_path)).outcome is RunOutcome.RUNNING
        await until(lambda: w.destination().counts().active == 1)
        assert (await ask(w, runs.resume, tmp_path)).outcome is RunOutcome.RUNNING
        ended = await ask(w, runs.cancel, tmp_path)
        assert (ended.outcome, ended.exit_code, task.done()) == (RunOutcome.STOPPED, 0, True)
        assert len(w.of(events.QueueOpened)) == 1
    kinds = [type(event).__name__ for event in w.told if isinstance(event, events.RunEvent)]
    assert kinds == ["RunPausing", "RunPaused", "RunResumed", "RunCancelled"]


async def test_connections_that_end_in_a_pause_are_replaced_unseen(tmp_path: Path) -> None:
    """The service ends links after ten minutes without use, and a connection five minutes after its last link."""
    async with world() as w:
        async with moving(w, tmp_path, once=False):
            w.strand(1)
            await until(lambda: w.destination().counts().active == 1)
            await ask(w, runs.pause, tmp_path)
            before = connections_of(w)
            for seconds in (600, 300):
                w.emulator.advance(seconds * 1000)
            await until(lambda: not connections_of(w) & before)
            w.strand(2)
            await ask(w, runs.resume, tmp_path)
            await until(lambda: w.destination().counts().active == 2)
        assert not w.of(events.QueueFailed)


async def test_connections_without_links_in_a_watch_are_replaced_unseen(tmp_path: Path) -> None:
    """The destination has no link before the first message: the service ends the connection after a minute."""
    async with world() as w, moving(w, tmp_path, once=False):
        await w.told_of(events.QueueOpened)
        for _ in range(3):
            before = connections_of(w)
            w.emulator.advance(60_000)
            await until(lambda before=before: len(connections_of(w) - before) == 1)
        w.strand(1)
        await until(lambda: w.destination().counts().active == 1)
        assert not w.of(events.QueueFailed)


@pytest.mark.parametrize("once", [True, False])
async def test_a_pause_during_a_throttle_gives_everything_back(once: bool, tmp_path: Path) -> None:
    async with world() as w:
        w.strand(*range(500))
        fault = w.emulator.faults.throttle("contoso", "orders")
        async with moving(w, tmp_path, once=once):
            await w.told_of(events.DestinationBackingOff)
            paused = await ask(w, runs.pause, tmp_path)
            assert paused.receipt is not None
            assert paused.receipt["received"] == paused.receipt["released"]
            found = unlocked(w.backlog())
            assert (len(found), {count for _, count in found}) == (500, {0})
            w.emulator.faults.end(fault)
            await ask(w, runs.resume, tmp_path)
            await until(lambda: w.destination().counts().active == 500)


async def test_a_cancelled_pause_ends_with_a_receipt_that_balances(tmp_path: Path) -> None:
    async with world(2, "orders", "full") as w:
        fill(w.destination("full"))
        w.strand(*range(100), to="full")
        w.strand(*range(100, 150), index=1)
        async with moving(w, tmp_path, once=True, where=MessageFilter("number >= 50")) as task:
            await w.told_of(events.QueueProgress, lambda at: (at.held, at.skipped) == (50, 50))
            await until(lambda: w.destination().counts().active == 50)
            await ask(w, runs.pause, tmp_path)
            ended = await ask(w, runs.cancel, tmp_path)
        receipt = task.result().receipt
        assert (receipt.sent, receipt.released, receipt.skipped, receipt.balanced) == (50, 50, 50, True)
        assert (ended.outcome, task.result().stopped) == (RunOutcome.STOPPED, True)
        assert {message.delivery_count for message in held_in(w.backlog())} == {0}


async def test_a_pause_ends_a_wait_for_locks(tmp_path: Path) -> None:
    async with world() as w:
        w.strand(1)
        [locked] = w.backlog().messages.receive(1)
        timings = replace(POLLING, count_wait_seconds=(0.01, 900.0))
        async with moving(w, tmp_path, once=True, timings=timings) as task:
            await until(lambda: task.done() or any(isinstance(each, events.QueueProgress) for each in w.told))
            await ask(w, runs.pause, tmp_path)
            w.backlog().messages.release(locked.lock_token)
            assert len(unlocked(w.backlog())) == 1
            await ask(w, runs.resume, tmp_path)
            await until(lambda: w.destination().counts().active == 1)


async def test_a_ramp_observes_while_paused_and_sends_no_further_step(tmp_path: Path) -> None:
    async with world() as w:
        w.strand(*range(10))
        async with moving(w, tmp_path, once=True, ramp=RampPlan((2, 5), 0.5)) as task:
            await w.told_of(events.RampProgress, lambda at: at.state == RampState.OBSERVING)
            assert (await ask(w, runs.pause, tmp_path)).outcome is RunOutcome.PAUSED
            await w.told_of(events.RampProgress, lambda at: (at.step, at.state) == (2, RampState.SENDING))
            assert (len(unlocked(w.backlog())), w.destination().counts().active) == (8, 2)
            await ask(w, runs.resume, tmp_path)
            result = await task
        assert (result.exit_code, result.receipt.sent, result.receipt.ramp.state) == (0, 10, RampState.PASSED)
        assert [(each.total, each.sent) for each in result.receipt.ramp.steps] == [(2, 2), (5, 5)]


async def test_a_pause_does_not_prolong_the_last_observation_of_a_ramp(tmp_path: Path) -> None:
    async with world() as w:
        w.strand(*range(3))
        async with moving(w, tmp_path, once=True, ramp=RampPlan((10,), 0.5)) as task:
            await w.told_of(events.RampProgress, lambda at: at.state == RampState.OBSERVING)
            await ask(w, runs.pause, tmp_path)
            result = await task
        assert (result.exit_code, result.receipt.sent, result.stopped) == (0, 3, False)
