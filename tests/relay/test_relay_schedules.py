"""The first of the seeded fault schedules of the relay, and that the checks can fail.

The rest: python -m tests.faults.schedules --kinds relay --seeds 0:500
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sbpair.emulator.relay.hybrid_connection import HybridConnections
from sbpair.emulator.relay.listener_channel import ListenerChannel
from sbpair.model.pair import SIDES
from sbpair.relay import relay_client
from sbpair.relay.answer_verdicts import AnswerVerdict
from sbpair.relay.body_parts import RequestBody
from sbpair.relay.handled_request import ControlChannel
from sbpair.relay.relay_listener import ListenerSide
from tests.faults.schedules import failure
from tests.faults.simulation.harness import carry_out
from tests.faults.simulation.network import Weather
from tests.faults.simulation.order import PLAIN
from tests.relay.simulation.relay_plan import ROUGH, PlannedBody, RelayPlan, RelayStep, relay_plan
from tests.relay.simulation.relay_run import RelaySimulation

carried_out = partial(carry_out, kind=RelaySimulation)

SEEDS_A_TEST = 8
ENOUGH_TO_CATCH = range(60)
ONE = 3
"""A seed with answers of all kinds."""

HELD = 30028
"""A seed in which a listener is closed while the body of its answer waits for the network."""

REPEATED = 91
"""A seed in which a request is executed, loses its connection, and is repeated with a token that is refused."""

SMALL = PlannedBody("", 10, 1, 0.0)


@pytest.mark.parametrize(
    "first",
    [
        *range(0, 24, SEEDS_A_TEST),
        *(pytest.param(first, marks=pytest.mark.slow) for first in range(24, 504, SEEDS_A_TEST)),
    ],
)
def test_each_request_is_answered_once_or_named_under_seeded_faults(first: int) -> None:
    assert not failure("relay", range(first, first + SEEDS_A_TEST))


@pytest.mark.parametrize("seed", [ONE, HELD])
def test_no_object_of_the_relay_outlives_a_schedule(seed: int) -> None:
    assert not carried_out(relay_plan(seed), thorough=True).wrong


def test_each_kind_of_fault_request_and_body_is_in_many_schedules() -> None:
    plans = [relay_plan(seed) for seed in range(500)]
    kinds = [step.kind for plan in plans for step in plan.steps]
    methods = [request.method for plan in plans for request in plan.requests]
    assert all(kinds.count(kind) > 50 for kind in ROUGH), kinds
    assert min(methods.count(method) for method in set(methods)) > 500
    assert sum(plan.is_gentle for plan in plans) > 50
    assert sum(len(plan.sockets) for plan in plans) > 500


def test_a_day_passes_with_renewed_tokens_and_one_restart() -> None:
    """Tokens last for an hour. Control channels end once a day, and not with a token."""
    drops = (RelayStep(80_000.0, 1.0, "drop-listeners", side, 0) for side in SIDES)
    verdict = carried_out(posting(SMALL, drops, every=7_200.0))
    begun = [float(line.split()[0]) for line in verdict.lines if line.endswith("by service-1") and " line " in line]
    assert not verdict.wrong
    assert sum("ends: RequestOutcome(kind='answered'" in line for line in verdict.lines) == verdict.messages
    assert begun[:4] == pytest.approx([0, 0, 80_000, 80_000], abs=5)


def test_a_request_whose_repetition_is_refused_stays_in_doubt() -> None:
    """aiohttp repeats a request, and by then the key is refused."""
    assert not carried_out(relay_plan(REPEATED)).wrong


@pytest.mark.parametrize("seconds", [0.3, 0.56])
def test_a_listener_that_stops_while_it_connects_loses_no_request(seconds: float) -> None:
    """The service takes the new channel for ready, and sends requests, before the listener knows of it."""
    drops = [RelayStep(5.5, 1.0, "drop-listeners", side, 0) for side in SIDES]
    stop = RelayStep(5.5 + seconds, 5.0, "restart", "primary", 0)
    assert not carried_out(posting(SMALL, [*drops, stop], every=0.05)).wrong


def test_a_client_that_pauses_gets_the_end_of_an_answer() -> None:
    """The listener has sent all of it, and waits for the service to read the last part."""
    drawn = posting(PlannedBody("", 1_000_000, 1, 0.0), ())
    requests = [replace(each, pause=12.0, sent=replace(each.sent, size=10)) for each in drawn.requests]
    assert not carried_out(replace(drawn, requests=tuple(requests))).wrong


# The checks have to catch a relay that is wrong


def caught(complaint: str) -> bool:
    """Return whether one of the first schedules is found wrong in this way."""
    return any(complaint in line for seed in ENOUGH_TO_CATCH for line in carried_out(relay_plan(seed)).wrong)


def posting(body: PlannedBody, steps: Iterable[RelayStep], *, every: float = 0.001) -> RelayPlan:
    """Return a plan whose requests are posted from second 5 on, one `every` so many seconds."""
    drawn = relay_plan(ONE)
    requests = [
        replace(
            each,
            at=5.0 + each.number * every,
            method="POST",
            always=False,
            work=0.1,
            early=False,
            abandoned=False,
            timeout=None,
            pause=0.0,
            sent=replace(body, name=each.sent.name),
            answer=replace(body, name=each.answer.name),
        )
        for each in drawn.requests
    ]
    weather = Weather(slow=0.05, jitter=0.3)
    changes = {"steps": tuple(steps), "requests": tuple(requests), "sockets": (), "order": PLAIN}
    return replace(drawn, listeners=1, weather=weather, **changes)


def wrong_of(body: PlannedBody, *steps: RelayStep) -> str:
    """Return the complaints about faults while many requests, each a POST with such a body, are on their way."""
    return "; ".join(carried_out(posting(body, steps)).wrong)


def test_a_client_that_takes_silence_for_no_execution_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_client, "judged_silence", lambda **_: AnswerVerdict.NOT_EXECUTED)
    assert "was executed 2 times" in wrong_of(SMALL, RelayStep(5.4, 1.0, "outage", "primary", 0))


def test_a_client_that_names_no_doubt_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    really = relay_client.AsyncRelayClient._both_failed

    def certain(client: Any, failures: Any) -> Any:
        error = really(client, failures)
        error.in_doubt = ()
        return error

    monkeypatch.setattr(relay_client.AsyncRelayClient, "_both_failed", certain)
    found = failure("relay", [2])
    assert any("which is not named as in doubt" in line for line in found)
    assert any("to 1 of 17 requests, 0 of 4 sockets, 0 of 15 steps" in line for line in found)


def test_a_body_that_is_reissued_in_part_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rest(_body: Any, parts: Any) -> Any:
        while (part := await parts.next()) is not None:
            yield part

    monkeypatch.setattr(RequestBody, "_stream", rest)
    hidden = RelayStep(0.0, 90.0, "no-listeners", "primary", 0)
    assert "has another body than was sent" in wrong_of(PlannedBody("", 1_000, 3, 0.3), hidden)


def test_a_relay_that_swaps_two_answers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    really = ListenerChannel._finish

    def finish(channel: Any, head: Any, body: bytes) -> None:
        others = [each for each in channel.requests if each != head.request_id]
        really(channel, replace(head, request_id=others[0]) if others else head, body)

    monkeypatch.setattr(ListenerChannel, "_finish", finish)
    assert caught("got the answer of request")


def test_a_listener_that_forgets_unconfirmed_answers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(channel: Any) -> None:
        channel._unconfirmed.clear()

    monkeypatch.setattr(ControlChannel, "leave", leave)
    drops = (RelayStep(5.4, 1.0, "drop-listeners", side, 0) for side in SIDES)
    assert "lost its answer although no fault takes one" in wrong_of(SMALL, *drops)


def test_a_listener_that_does_not_connect_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def pause(side: Any, _seconds: float) -> None:
        await side._stopping.wait()

    monkeypatch.setattr(ListenerSide, "_pause", pause)
    assert "not all services listen" in wrong_of(SMALL, RelayStep(0.0, 1.0, "drop-listeners", "primary", 0))


def test_a_relay_that_keeps_senders_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kept(dict[str, Any]):
        def pop(self, key: str, *default: Any) -> Any:
            return self.get(key, *default)

    really = HybridConnections.__init__

    def keeping(entities: Any, namespace: Any) -> None:
        really(entities, namespace)
        entities.waiting = Kept()

    monkeypatch.setattr(HybridConnections, "__init__", keeping)
    assert caught("senders wait")
