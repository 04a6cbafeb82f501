"""Pings on request: their results, their limits, and the exit code of all together."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from sbpair.azure import data_plane
from sbpair.backlog import PING_TYPE
from sbpair.emulator.entities.description import QueueDescription
from sbpair.errors import (
    EntityMissing,
    MachineLacks,
    NotAuthenticated,
    SbpairError,
    ServiceRefused,
    TimedOut,
    UsageError,
)
from sbpair.failover.ping_on_request import (
    MAX_CONCURRENT_PINGS,
    Health,
    PingResult,
    ping_all,
    ping_exit_code,
    send_ping,
)
from tests.failover.test_states import a_pair
from tests.faults.simulation.loop import in_virtual_time
from tests.kit.failover_rig import PRIMARY, Rig

MISSING, WRONG_KEY, AWAY = EntityMissing("no such queue"), NotAuthenticated("a wrong key"), TimedOut("no answer")


async def test_pings_distinguish_up_down_and_broken(rig: Rig) -> None:
    rig.do(lambda: rig.running.namespace.create_queue("down"))
    rig.do(lambda: rig.running.namespace.create_queue("sessions", QueueDescription(requires_session=True)))
    with rig.broken("entity_down", PRIMARY, "down"):
        names = ["orders", "down", "sessions", "nowhere"]
        answers = await ping_all(rig.pair.primary, names, seconds=20)
    assert [each.health for each in answers] == [Health.UP, Health.DOWN, Health.UP, Health.BROKEN]
    # Nobody is given a ping.
    assert rig.do(rig.orders.counts).active <= 1
    rig.with_key("primary", "d3Jvbmc=")
    answers = await ping_all(rig.pair.primary, ["orders"], seconds=20)
    assert (answers[0].health, ping_exit_code(answers)) == (Health.BROKEN, 5)


async def test_a_ping_is_a_message_in_a_new_session(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[Any, float]] = []

    async def send(message: Any, seconds: float) -> None:
        sent.append((message.properties, seconds))

    monkeypatch.setattr(data_plane, "open_sender", lambda *_: nullcontext(SimpleNamespace(send=send)))
    for _ in range(2):
        await send_ping(a_pair().primary, "orders", 5.0)
    assert [(each.content_type, seconds) for each, seconds in sent] == [(PING_TYPE, 5.0)] * 2
    assert len({each.group_id for each, _ in sent}) == 2


@in_virtual_time
async def test_pings_have_their_time_each_and_run_so_many_at_once() -> None:
    loop, primary, running, events = asyncio.get_running_loop(), a_pair().primary, set[Any](), list[PingResult]()

    async def ping(endpoint: Any, entity: str, seconds: float) -> None:
        assert (endpoint, seconds) == (primary, 5)
        running.add(asyncio.current_task())
        assert len(running) <= MAX_CONCURRENT_PINGS
        try:
            await asyncio.sleep(float(entity))
        finally:
            running.remove(asyncio.current_task())
        if entity == "1":
            raise MISSING

    names = ["2", "1", "9", *["3"] * (MAX_CONCURRENT_PINGS + 1)]
    answers = await ping_all(primary, names, seconds=5, ping=ping, on_event=events.append, clock=loop.time)
    assert [each.name for each in answers] == names
    found = [(each.health, round(each.seconds, 1)) for each in (*answers[:3], answers[-1])]
    assert found == [(Health.UP, 2), (Health.BROKEN, 1), (Health.DOWN, 5), (Health.UP, 3)]
    assert [answers[0].error, answers[1].error, type(answers[2].error)] == [None, MISSING, TimedOut]
    assert "5 s" in str(answers[2].error)
    assert (events[:2], len(events)) == ([answers[1], answers[0]], len(names))
    assert loop.time() == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize(
    ("errors", "code"),
    [
        ([None, None], 0),
        ([None, AWAY], 6),
        ([MISSING, AWAY, WRONG_KEY], 6),
        ([WRONG_KEY, None, WRONG_KEY], 5),
        ([WRONG_KEY, MISSING], 3),
        ([MISSING], 3),
        ([UsageError("a wrong proxy", hint="mend it")], 2),
        ([MachineLacks("no sockets")], 7),
        ([ServiceRefused("no", condition="amqp:not-allowed")], 3),
        ([SbpairError("a defect")], 3),
    ],
)
def test_the_exit_code_of_pings_is_that_of_all_errors(errors: list[SbpairError | None], code: int) -> None:
    assert ping_exit_code([PingResult("orders", Health.UP, 0.0, error) for error in errors]) == code
