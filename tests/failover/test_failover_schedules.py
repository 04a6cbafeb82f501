"""The first of the seeded fault schedules of a paired client, that a seed replays one, and that the checks can fail.

The rest: python -m tests.faults.schedules --kinds failover --seeds 0:500
"""

from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.failover.failover_send import FailoverSend
from sbpair.failover.pinger import Pinger
from tests.failover.simulation.failover_plan import failover_plan
from tests.failover.simulation.failover_run import simulate_failover
from tests.faults.schedules import failure

SEEDS_A_TEST = 10
ENOUGH_TO_CATCH = range(60)

ONCE_WRONG = (246,)
"""Seeds that have found something: a bare TimeoutError, which is not an error of the SDK."""


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(10, 200, SEEDS_A_TEST))]
)
def test_what_a_send_accepts_is_kept_under_seeded_faults(first: int) -> None:
    assert not failure("failover", range(first, first + SEEDS_A_TEST))


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_what_a_failover_schedule_has_found_once_stays_mended(seed: int) -> None:
    assert not failure("failover", [seed])


@pytest.mark.parametrize("seed", [6, 22])
def test_a_seed_repeats_the_whole_failover(seed: int) -> None:
    once, again = simulate_failover(failover_plan(seed)), simulate_failover(failover_plan(seed))
    assert once.lines == again.lines
    assert len(once.lines) > 20


def caught(complaint: str) -> bool:
    found = (simulate_failover(failover_plan(seed)).wrong for seed in ENOUGH_TO_CATCH)
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
    async def run(_: Pinger) -> None:
        """Return at once."""

    monkeypatch.setattr(Pinger, "run", run)
    assert caught("is failed over after")
