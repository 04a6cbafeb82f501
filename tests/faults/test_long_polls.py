"""A watch over hours of virtual time: how often it asks, and that nothing runs out meanwhile."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from sbpair.amqp_server.claims import Claims
from sbpair.move import events
from tests.faults.simulation.stage import Asked, Stage, played

HOUR = 3_600.0
DETACHES_AN_HOUR = 6
UNUSED_AN_HOUR = 60


@pytest.mark.parametrize("hours", [2, pytest.param(24, marks=pytest.mark.slow)])
@played(queues=10)
async def test_ten_idle_queues_call_receive_forty_times_an_hour(
    stage: Stage, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Asked(monkeypatch)
    async with stage.watching():
        await stage.until(lambda: asked.counted["receives"] == 10)
        made = len(stage.network.lines)
        await asyncio.sleep(hours * HOUR - 1.0)
        counted = Counter(asked.counted)
        assert counted["receives"] == 40 * hours
        assert counted["taken away"] == counted["resumed"] >= 10 * (DETACHES_AN_HOUR * hours - 1)
        # Connections to the destination have no link, and the service ends them after a minute.
        assert len(stage.network.lines) - made <= 10 * hours * UNUSED_AN_HOUR
        assert sum(line.open for line in stage.network.lines) >= made - 10
        assert stage.of(events.QueueFailed) == []
        stage.strand(1, index=7)
        await stage.arrived(1, seconds=1.0)


@played()
async def test_a_day_with_few_messages_renews_tokens_and_breaks_nothing(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, tokens = Claims.put, Counter[str]()

    def counted(claims: Claims, name: str | None, token: object) -> None:
        tokens["put"] += 1
        put(claims, name, token)

    monkeypatch.setattr(Claims, "put", counted)
    async with stage.watching():
        for number in range(24):
            stage.strand(number)
            await stage.arrived(*range(number + 1), seconds=5.0)
            await asyncio.sleep(HOUR)
        # For the backlog queue, signed for an hour, and renewed when 40 minutes old; for the destination, whose
        # connection ends when it has had no link for a while, with each message.
        assert tokens["put"] >= 36 + 24
        assert sum(line.open for line in stage.network.lines) == 2
        assert stage.of(events.QueueFailed) == stage.of(events.DestinationBackingOff) == []


@played()
async def test_messages_held_for_hours_keep_locks_and_order_until_released(stage: Stage) -> None:
    orders, engine = stage.destination(), stage.backlog().messages
    stage.destination("invoices")
    let = stage.fill(orders)
    lost: list[Any] = []
    fail = engine._delivery_failed
    engine._delivery_failed = lambda message: (lost.append(message), fail(message))
    stage.strand(*range(50))
    watching = stage.start(max_held=30)
    await stage.until(lambda: engine.locked_count == 30)
    for _ in range(2 * 60):
        await asyncio.sleep(60.0)
        assert engine.locked_count >= 29
    assert (lost, stage.of(events.QueueFailed), sum(line.open for line in stage.network.lines)) == ([], [], 2)
    assert all("quota" in event.reason for event in stage.of(events.DestinationBackingOff))
    let()
    await stage.arrived(*range(50))
    stage.fill(orders)
    stage.strand(*range(50, 60))
    await stage.until(lambda: engine.locked_count == 10)
    await asyncio.sleep(2 * HOUR)
    stage.stop.set()
    at = stage.loop.time()
    assert await stage.until(lambda: engine.locked_count == 0) - at < 0.1
    result = await watching
    assert (result.receipt.sent, result.receipt.remaining, result.receipt.balanced) == (50, 10, True)
    assert {message.delivery_count for message in engine.peek(0, 100)} == {0}
    assert lost == []
