"""The task that pings, probes and delivers, in virtual time: its contacts, and the states that answers lead to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from sbpair.azure import data_plane
from sbpair.errors import EntityMissing, Unreachable
from sbpair.failover import timer_runner
from sbpair.failover.entity_states import State
from sbpair.failover.events import OutboxStuck
from sbpair.failover.ping_on_request import PING_TIMEOUT_SECONDS
from sbpair.failover.simulated_outage import SimulatedOutage
from sbpair.failover.timer_runner import TimerRunner
from tests.failover.test_states import a_pair, new_state
from tests.faults.simulation.loop import in_virtual_time

SILENCE: Any = object()


def missing() -> EntityMissing:
    error = EntityMissing("no such queue")
    error.__cause__ = MessagingEntityNotFoundError(message="no such queue")
    return error


class Contacts:
    """A runner and its contacts, each with its second. `answer` is the error of each contact, or SILENCE."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Exception | None = None, **options: Any) -> None:
        self.answer, self.made = answer, list[tuple[str, int]]()
        self.loop, self.pair = asyncio.get_running_loop(), a_pair()
        self.events: list[Any] = []
        self.state = new_state(self.events.append, failover_interval=0, ping_interval=60)
        monkeypatch.setattr(timer_runner, "send_ping", self._ping)
        monkeypatch.setattr(data_plane, "open_sender", self._open)
        self.runner = TimerRunner(self.pair, self.state, self.loop.time, self._deliver, **options)
        self.state.timers.on_earlier = self.runner.wake
        self._task = asyncio.create_task(self.runner.run())

    async def _contact(self, what: str) -> None:
        self.made.append((what, round(self.loop.time())))
        if self.answer is SILENCE:
            await asyncio.Event().wait()
        if self.answer is not None:
            raise self.answer

    async def _ping(self, endpoint: Any, entity: str) -> None:
        assert endpoint is self.pair.primary
        await self._contact(entity)

    @asynccontextmanager
    async def _open(self, endpoint: Any, queue: str) -> AsyncIterator[None]:
        assert endpoint is self.pair.secondary
        await self._contact(queue)
        yield

    async def _deliver(self, entity: str) -> None:
        await self._contact(f"outbox of {entity}")
        self.state.outbox_emptied(entity)

    async def until(self, seconds: float) -> None:
        await asyncio.sleep(seconds - self.loop.time())

    async def end(self) -> None:
        assert not self._task.done()
        self._task.cancel()
        await asyncio.wait((self._task,))


@pytest.mark.parametrize(
    ("answer", "times", "entity"),
    [
        (None, [60], State.HEALTHY),
        (Unreachable("away"), [60, 120, 180, 240, 300], State.FAILED_OVER),
        (ZeroDivisionError(), [60, 120, 180, 240, 300], State.FAILED_OVER),
        (SILENCE, [60, 60 + 60 + round(PING_TIMEOUT_SECONDS)], State.FAILED_OVER),
        (missing(), [60, 120, 180, 240, 300], State.BROKEN),
    ],
    ids=["accepted", "unreachable", "unexpected", "silence", "missing"],
)
@in_virtual_time
async def test_an_entity_is_pinged_until_it_accepts(
    monkeypatch: pytest.MonkeyPatch, answer: Any, times: list[int], entity: State
) -> None:
    contacts = Contacts(monkeypatch, answer)
    contacts.state.primary_failed("orders", TimeoutError(), 0.0)
    await contacts.until(310)
    assert contacts.made == [("orders", time) for time in times]
    assert contacts.state.states()["orders"] is entity
    if entity is State.BROKEN:
        with pytest.raises(MessagingEntityNotFoundError) as raised:
            contacts.state.side_for("orders", 310)
        assert raised.value is answer.__cause__
        contacts.answer = None
        await contacts.until(370)
        assert contacts.state.states()["orders"] is State.HEALTHY
    await contacts.end()


@in_virtual_time
async def test_a_queue_is_probed_until_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts = Contacts(monkeypatch, missing())
    queue, _ = contacts.state.pick_queue(None)
    contacts.state.queue_failed(queue, TimeoutError(), 0.0)
    await contacts.until(130)
    assert contacts.state.queues_out == {queue}
    contacts.answer = None
    await contacts.until(400)
    assert (contacts.made, contacts.state.queues_out) == ([(queue, 60), (queue, 120), (queue, 180)], set())
    await contacts.end()


@in_virtual_time
async def test_an_outbox_is_delivered_until_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    contacts = Contacts(monkeypatch, ZeroDivisionError())
    await contacts.until(5)
    contacts.state.outbox_stored("orders", None, 5.0)
    await contacts.until(70)
    contacts.answer = None
    await contacts.until(400)
    assert contacts.made == [("outbox of orders", time) for time in (5, 65, 125)]
    await contacts.end()


@in_virtual_time
async def test_a_simulated_outage_reaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    outage = SimulatedOutage()
    contacts = Contacts(monkeypatch, outage=outage)
    queue, _ = contacts.state.pick_queue(None)
    outage.begin("primary", "ORDERS")
    outage.begin("backlog", queue)
    for name in ("orders", "news"):
        contacts.state.primary_failed(name, TimeoutError(), 0.0)
    contacts.state.queue_failed(queue, TimeoutError(), 0.0)
    contacts.state.outbox_stored("news", None, 0.0)
    await contacts.until(130)
    assert (contacts.made.pop(), contacts.made, contacts.state.queues_out) == (("news", 60), [], {queue})
    assert contacts.state.states()["orders"] is State.FAILED_OVER
    outage.end()
    await contacts.until(400)
    assert sorted(contacts.made) == sorted([("orders", 180), (queue, 180), ("outbox of news", 180)])
    assert not any(isinstance(event, OutboxStuck) for event in contacts.events)
    await contacts.end()


@in_virtual_time
async def test_a_slot_of_the_runner_is_free_after_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_runner, "MAX_CONCURRENT_TASKS", 1)
    contacts = Contacts(monkeypatch)
    for name in ("orders", "news"):
        contacts.state.primary_failed(name, TimeoutError(), 0.0)
        contacts.state.outbox_stored(name, TimeoutError(), 0.0)
    await contacts.until(70)
    assert sorted({name for name, _ in contacts.made}) == ["news", "orders", "outbox of news", "outbox of orders"]
    await contacts.end()
