"""The first of the seeded fault schedules of the relay, and single schedules.

The rest: python -m tests.relay.schedules --seeds 0:500
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest

from sbpair.relay.relay_endpoint import SIDES
from tests.faults.simulation.network import Weather
from tests.relay.simulation.relay_plan import PlannedBody, RelayPlan, RelayStep, relay_plan
from tests.relay.simulation.relay_run import simulate_relay

SEEDS_A_TEST = 8
ONE = 3
"""A seed with answers of all kinds."""

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
    wrong = {seed: simulate_relay(seed).wrong for seed in range(first, first + SEEDS_A_TEST)}
    assert not {seed: lines for seed, lines in wrong.items() if lines}, "python -m tests.relay.schedules --seeds N -v"


def test_no_object_of_the_relay_outlives_a_schedule() -> None:
    assert not simulate_relay(ONE, counts_objects=True).wrong


def posting(body: PlannedBody, steps: Iterable[RelayStep], *, every: float = 0.001) -> RelayPlan:
    """Return a plan whose requests are posted from second 5 on, one `every` so many seconds."""
    drawn = relay_plan(ONE)
    requests = [
        replace(
            each,
            at=each.at if each.at == math.inf else 5.0 + each.number * every,
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
    return replace(drawn, listeners=1, weather=weather, steps=tuple(steps), requests=tuple(requests), sockets=())


def test_a_day_passes_with_renewed_tokens_and_one_restart() -> None:
    """Tokens last for an hour. Control channels end once a day, and not with a token."""
    drops = (RelayStep(80_000.0, 1.0, "drop-listeners", side, 0) for side in SIDES)
    verdict = simulate_relay(posting(SMALL, drops, every=7_200.0))
    begun = [float(line.split()[0]) for line in verdict.lines if line.endswith("by service-1") and " line " in line]
    assert not verdict.wrong
    assert verdict.counts["answered"] == len(verdict.plan.requests)
    assert begun[:4] == pytest.approx([0, 0, 80_000, 80_000], abs=5)


def test_a_request_whose_repetition_is_refused_stays_in_doubt() -> None:
    """aiohttp repeats a request, and by then the key is refused."""
    assert not simulate_relay(REPEATED).wrong


@pytest.mark.parametrize("seconds", [0.3, 0.56])
def test_a_listener_that_stops_while_it_connects_loses_no_request(seconds: float) -> None:
    """The service takes the new channel for ready, and sends requests, before the listener knows of it."""
    drops = [RelayStep(5.5, 1.0, "drop-listeners", side, 0) for side in SIDES]
    stop = RelayStep(5.5 + seconds, 5.0, "restart", "primary", 0)
    assert not simulate_relay(posting(SMALL, [*drops, stop], every=0.05)).wrong


def test_a_client_that_pauses_gets_the_end_of_an_answer() -> None:
    """The listener has sent all of it, and waits for the service to read the last part."""
    drawn = posting(PlannedBody("", 1_000_000, 1, 0.0), ())
    requests = [replace(each, pause=12.0, sent=replace(each.sent, size=10)) for each in drawn.requests]
    assert not simulate_relay(replace(drawn, requests=tuple(requests))).wrong
