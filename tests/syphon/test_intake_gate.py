"""The gate of a run over real sockets: while it is closed, the run keeps its connections and no message."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.model.retries import Backoff
from sbpair.move import events
from sbpair.move.filter import MessageFilter
from sbpair.move.timings import MoveTimings
from sbpair.syphon.intake_gate import IntakeGate
from tests.kit.moves import HASTY, stored
from tests.kit.moves import peeked as held_in
from tests.kit.stranded import in_session, put
from tests.kit.waiting import until
from tests.syphon.worlds import World, fill, world

POLLING = replace(HASTY, long_poll_seconds=900.0, empty_wait_seconds=900.0)
"""Waits that only an interruption ends within a test."""

SLOW = replace(POLLING, move=MoveTimings(backoff=Backoff(900.0, 900.0)))


def unlocked(queue: QueueEntity) -> list[tuple[str, int]]:
    """The messages that another receiver would get now, with their delivery counts; they are released again."""
    received = queue.messages.receive(1_000)
    found = [(each.sections.read_properties().message_id, each.delivery_count) for each in received]
    for each in received:
        queue.messages.release(each.lock_token)
    return found


def locked_sessions(queue: QueueEntity) -> int:
    assert isinstance(queue.messages, SessionMessages)
    return len(queue.messages._holds)


async def close(gate: IntakeGate, by: str = "test") -> None:
    gate.close(by)
    await gate.wait_quiet()


async def test_a_worker_that_waits_for_room_leaves_at_once() -> None:
    gate = IntakeGate()
    async with world(1, "full") as w:
        fill(w.destination("full"))
        w.strand(*range(20), to="full")
        async with w.watching(gate=gate, max_held=10, timings=POLLING):
            await w.told_of(events.QueueBlocked)
            await close(gate)
            assert len(unlocked(w.backlog())) == 20


async def test_a_gate_that_is_closed_before_the_start_lets_nothing_pass() -> None:
    gate = IntakeGate()
    gate.close("test")
    async with world() as w:
        w.strand(1)
        async with w.watching(gate=gate) as task:
            await w.told_of(events.QueuesFound)
            for _ in range(20):
                await asyncio.sleep(0.01)
            assert not w.of(events.QueueOpened)
        assert (task.result().receipt.received, task.result().stopped) == (0, True)


async def test_a_gate_is_open_once_nobody_keeps_it_closed() -> None:
    gate = IntakeGate()
    gate.close("a")
    gate.close("b")
    gate.open("a")
    assert gate.closed
    gate.open("b")
    assert not gate.closed
    gate.close("a")
    gate.end()
    gate.close("b")
    assert not gate.closed


async def test_once_goes_on_after_the_gate_closes_and_opens_at_any_moment() -> None:
    for turns in range(0, 400, 13):
        gate = IntakeGate()
        async with world() as w:
            w.strand(*range(30))
            running = asyncio.create_task(w.run(gate=gate))
            await _turns(turns)
            await close(gate)
            await _turns(turns % 7)
            gate.open("test")
            receipt = (await running).receipt
            assert (receipt.sent, receipt.remaining, receipt.distinct) == (30, 0, 30)
            assert w.destination().counts().active == 30
            _assert_empty(w)


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _assert_empty(w: World) -> None:
    assert not held_in(w.backlog())


@pytest.mark.parametrize("once", [True, False])
async def test_sessions_are_unlocked_behind_a_closed_gate(once: bool) -> None:
    gate, stop = IntakeGate(), asyncio.Event()
    async with world() as w:
        path, takes, has = w.create("session queue", "from")
        for number in range(30):
            put(takes, in_session(number))
        _, _, there = w.create("queue", "to")
        make_room = fill(there)
        more: dict[str, Any] = {"gate": gate, "stop": stop, "once": once, "where": MessageFilter("number < 20")}
        moving = asyncio.create_task(w.move(path, "to", on_event=w.tell, timings=SLOW, **more))
        await w.told_of(events.DestinationBackingOff)
        await close(gate)
        await until(lambda: not locked_sessions(has))
        make_room()
        gate.open("test")
        await until(lambda: len(stored(has)) == 10)
        stop.set()
        receipt = (await moving).receipt
        assert (receipt.sent, receipt.skipped, receipt.distinct, receipt.remaining) == (20, 10, 30, 0)
        assert {message.delivery_count for message in held_in(has)} == {0}
