"""Locks that outlive their link: what a lost connection held is settled over the next one, not a minute later."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED, RawReceiver, dead_letter
from sbpair.amqp_server.refusals import ServiceError
from sbpair.emulator.faults.fault_kinds import Faults
from sbpair.errors import MessageLockLost
from sbpair.move import events
from sbpair.move.raw_source import RawSource
from tests.amqp_client.peers import QUEUE, emulated
from tests.faults.simulation.stage import Stage, played
from tests.kit.waiting import until

SOON = 10.0


@pytest.mark.parametrize("once", [True, False])
@played()
async def test_what_a_lost_backlog_held_is_unlocked_over_the_next_connection(stage: Stage, once: bool) -> None:
    engine: Any = stage.backlog().messages
    let = stage.fill(stage.destination())
    stage.strand(*range(20))
    running = stage.start(once=once)
    await stage.until(lambda: stage.of(events.DestinationBackingOff) and engine.locked_count == 20)
    stage.cut("backlog")
    stage.strand(20)
    lost_at = await stage.until(lambda: stage.of(events.QueueFailed))
    assert engine.locked_count == 20
    let()
    stage.restore("backlog")
    # In order: none was locked for long enough to be overtaken.
    done_at = await stage.arrived(*range(21))
    assert done_at - lost_at < SOON
    stage.stop.set()
    result = await running
    assert (result.receipt.sent, result.receipt.released) == (21, 20)
    assert not stage.of(events.MessagesLocked)


@played()
async def test_what_the_primary_accepted_is_completed_over_the_next_connection(stage: Stage) -> None:
    engine: Any = stage.backlog().messages
    stage.destination()
    stage.strand(*range(20))
    complete, delivered = engine.complete_all, []
    receive = engine.receive

    def cut(tokens: Any) -> Any:
        engine.complete_all = complete
        stage.cut("backlog")
        stage.loop.call_later(0.5, stage.restore, "backlog")
        return {token: ServiceError("not completed: the connection breaks") for token in tokens}

    def counted(*arguments: Any) -> Any:
        taken = receive(*arguments)
        delivered.extend(taken)
        return taken

    engine.complete_all, engine.receive = cut, counted
    result = await stage.start(once=True)
    assert stage.ids(stage.destination()) == [f"m{number}" for number in range(20)]
    assert (result.exit_code, result.receipt.sent, result.receipt.already_sent) == (0, 20, 0)
    assert (len(delivered), result.receipt.received, result.receipt.doubtful) == (20, 20, ())
    assert stage.backlog().counts().total == 0


@played()
async def test_what_was_prefetched_from_a_lost_backlog_is_unlocked_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine: Any = stage.backlog().messages
    let = stage.fill(stage.destination())
    stage.strand(0)
    running = stage.start()
    await stage.until(lambda: stage.of(events.DestinationBackingOff))
    take = RawReceiver.take

    async def late(receiver: Any, _limit: int, *, seconds: float) -> Any:
        # Eighteen more arrive before the connection is lost, and five of them are taken.
        monkeypatch.setattr(RawReceiver, "take", take)
        stage.strand(*range(2, 20))
        await stage.until(lambda: engine.locked_count == 20 and len(receiver._arrived) == 18)
        stage.cut("backlog")
        await stage.until(lambda: receiver.error is not None)
        return await take(receiver, 5, seconds=seconds)

    monkeypatch.setattr(RawReceiver, "take", late)
    stage.strand(1)
    lost_at = await stage.until(lambda: stage.of(events.QueueFailed))
    assert engine.locked_count == 20
    let()
    stage.restore("backlog")
    done_at = await stage.arrived(*range(20))
    assert done_at - lost_at < SOON
    stage.stop.set()
    assert (await running).receipt.received < 40


@asynccontextmanager
async def held(count: int, *, prefetched: int = 0) -> AsyncIterator[tuple[Any, RawSource, list[Any], Faults]]:
    """A queue whose messages a source has received over a real socket, or just prefetched."""
    async with emulated() as (emulator, endpoint), connect(endpoint) as wire:
        sender = await wire.sender(QUEUE)
        for _ in range(count + prefetched):
            await sender.send(b"\x00\x53\x75\xa0\x01x")
        source = await RawSource.open(wire, QUEUE)
        source.grant(count + prefetched)
        messages: list[Any] = []
        while len(messages) < count:
            messages += await source.receive(count - len(messages), seconds=5.0)
        await until(lambda: len(source._receiver._arrived) == prefetched)
        yield emulator.namespaces["contoso"].queue(QUEUE), source, messages, emulator.faults


@pytest.mark.parametrize(
    ("outcome", "active", "dead"),
    [(ACCEPTED, 0, 0), (RELEASED, 3, 0), (dead_letter("Why", "because"), 0, 3)],
    ids=["completed", "released", "dead-lettered"],
)
async def test_messages_of_a_link_that_is_gone_are_settled(outcome: Any, active: int, dead: int) -> None:
    async with held(3) as (queue, source, messages, _):
        source._receiver.close()
        assert queue.messages.locked_count == 3
        assert await source._settle(messages, outcome) == []
        assert (queue.messages.locked_count, queue.counts().active, queue.counts().dead_letter) == (0, active, dead)
        again = await source._settle(messages, outcome)
        assert {type(error) for _, error in again} == {MessageLockLost}
        assert len(again) == 3


async def test_prefetched_messages_of_a_lost_link_are_unlocked_at_the_end() -> None:
    async with held(1, prefetched=3) as (queue, source, messages, faults):
        faults.detach("contoso", QUEUE)
        await until(lambda: source.error is not None)
        assert queue.messages.locked_count == 4
        await source.stop()
        assert (queue.messages.locked_count, list(source.lost), source.returned) == (1, [], 0)
        assert await source.complete(messages) == []
        assert queue.counts().total == 3


async def test_one_lost_lock_does_not_keep_the_others_from_being_settled() -> None:
    async with held(10) as (queue, source, messages, _):
        assert await source.complete(messages[3:5]) == []
        source._receiver.close()
        failures = await source.settle_by_token(messages, ACCEPTED)
        assert [message for message, _ in failures] == messages[3:5]
        assert queue.counts().total == 0
