"""The first of the seeded fault schedules of a paired client, and that the checks can fail.

The rest: python -m tests.faults.schedules --kinds failover --seeds 0:500
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sbpair.failover.failover_send import FailoverSend
from sbpair.failover.timer_runner import TimerRunner
from tests.failover.simulation.failover_plan import PlannedSend, failover_plan
from tests.failover.simulation.failover_run import FailoverSimulation
from tests.faults.schedules import failure
from tests.faults.simulation.harness import carry_out
from tests.faults.simulation.network import Weather
from tests.faults.simulation.plan import Step
from tests.kit.failover_rig import PAIRED_CLIENTS

pytestmark = PAIRED_CLIENTS

SEEDS_A_TEST = 10
ENOUGH_TO_CATCH = range(60)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(10, 200, SEEDS_A_TEST))]
)
def test_what_a_send_accepts_is_kept_under_seeded_faults(first: int) -> None:
    assert not failure("failover", range(first, first + SEEDS_A_TEST))


def test_a_send_into_silence_raises_an_error_of_the_sdk() -> None:
    """The SDK does not end it in time: it waits until what it has written is sent."""
    plan = failover_plan(0)
    name = plan.entities[0].name
    sends = (PlannedSend("m0", 1.0, name, 1_000, 60.0), PlannedSend("m1", 10.0, name, 100_000, 3.0))
    silence = Step(at_ms=5_000, lasts_ms=0, kind="silence", primary=True, number=1)
    weather = Weather(pieces=0.0)
    quiet = replace(plan, sends=sends, steps=(silence,), weather=weather, on_failure="raise", retries=0, outbox=False)
    verdict = carry_out(quiet, FailoverSimulation)
    assert not verdict.wrong
    assert any("m1 raised TimedOut: " in line and "no answer from" in line for line in verdict.lines)


def caught(complaint: str) -> bool:
    found = (carry_out(failover_plan(seed), FailoverSimulation).wrong for seed in ENOUGH_TO_CATCH)
    return any(complaint in line for lines in found for line in lines)


def test_a_client_that_loses_what_goes_to_the_backlog_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any) -> Iterator[Any]:
        yield from ()

    monkeypatch.setattr(FailoverSend, "_to_backlog", lose)
    assert caught("lost: ")


def test_a_client_that_names_no_possible_duplicate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FailoverSend, "_report_doubt", lambda *_: None)
    assert caught("times, and no event says so")


def test_a_client_that_never_pings_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(_: TimerRunner) -> None:
        """Return at once."""

    monkeypatch.setattr(TimerRunner, "run", run)
    assert caught("is failed over after")
