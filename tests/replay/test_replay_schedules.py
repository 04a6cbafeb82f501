"""The first of the seeded fault schedules of replays, and that the checks can fail.

The rest: python -m tests.faults.schedules --kinds replay --seeds 0:500
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sbpair.move.raw_destination import RawDestinationLink
from sbpair.replay.ledger import Ledger
from sbpair.replay.queue_task import QueueDrain
from tests.faults.schedules import failure
from tests.faults.simulation.faults import CRASHES
from tests.faults.simulation.harness import carry_out
from tests.faults.simulation.plan import Plan, Step
from tests.replay.simulation.replay_run import ReplaySimulation, replay_plan

pytestmark = pytest.mark.odd_messages

SEEDS_A_TEST = 10
ENOUGH_TO_CATCH = range(10)


@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(10, 100, SEEDS_A_TEST))]
)
def test_a_replay_loses_nothing_under_seeded_faults(first: int) -> None:
    assert not failure("replay", range(first, first + SEEDS_A_TEST))


def crashing(seed: int) -> Plan:
    """A plan with nothing but a crash, when the primary has a message, and nobody knows."""
    crash = Step(at_ms=0, lasts_ms=60_000, kind="crash", primary=True, number=CRASHES.index("arrived"))
    return replace(replay_plan(seed), steps=(crash,))


def caught(complaint: str, plans: Callable[[int], Plan] = replay_plan) -> bool:
    found = (carry_out(plans(seed), ReplaySimulation).wrong for seed in ENOUGH_TO_CATCH)
    return any(line.startswith(complaint) for lines in found for line in lines)


def test_a_killed_task_leaves_doubt_and_loses_nothing() -> None:
    verdicts = [carry_out(crashing(seed), ReplaySimulation) for seed in range(5)]
    assert not [line for each in verdicts for line in each.wrong]
    assert any(each.again for each in verdicts)


def test_a_replay_that_drops_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accepted() -> None:
        """The outcome of a batch that was never sent."""

    monkeypatch.setattr(RawDestinationLink, "send", lambda *_: accepted)
    assert caught("lost")


def test_a_replay_that_completes_before_it_archives_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    really = QueueDrain._add

    async def add(drain: Any, source: Any, segment: Any, messages: Any) -> None:
        await really(drain, source, segment, messages)
        await source.complete(messages)

    monkeypatch.setattr(QueueDrain, "_add", add)
    assert caught("lost")


def test_a_replay_that_forgets_held_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ledger, "hold", lambda *_: None)
    assert caught("arrived 2 times", crashing)
