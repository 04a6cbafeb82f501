"""The first of the seeded fault schedules, that a seed replays all of one, and that the checker can fail.

Two of three seeds have an order of tasks of their own; what was found in plain order is repeated in it.

The rest: python -m tests.faults.schedules --seeds 0:2000 --real 200
"""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sbpair.move.destination_sender import DestinationQueue
from sbpair.move.message import route
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.fast_decode import TemplateMessage
from sbpair.move.raw_primary import RawDestinationLink, RawPrimary
from sbpair.move.raw_source import RawSource
from sbpair.move.receipt import Tally
from sbpair.runs.journal import Journal
from sbpair.syphon import runner
from tests.faults.schedules import failure, parsed
from tests.faults.simulation.faults import CRASHES
from tests.faults.simulation.order import PLAIN
from tests.faults.simulation.plan import Plan, Step, move_plan, plan
from tests.faults.simulation.run import Verdict, simulated
from tests.faults.simulation.world import BEGAN_MS

pytestmark = pytest.mark.odd_messages

QUICK, MORE = range(10), range(10, 100)
SEEDS_A_TEST = 10
ENOUGH_TO_CATCH = range(30)

ONCE_WRONG = (16, 23, 88, 100, 322, 334, 1393, 1551, 2137, 3043, 3926)
"""Seeds that have found something, such as a link that was gone, copies of a message that wait for each other, or a
clock that was read too late."""


@pytest.mark.parametrize(
    "first",
    [*QUICK[::SEEDS_A_TEST], *(pytest.param(first, marks=pytest.mark.slow) for first in MORE[::SEEDS_A_TEST])],
)
def test_nothing_is_lost_altered_or_overtaken_under_seeded_faults(first: int) -> None:
    assert not failure("syphon", range(first, first + SEEDS_A_TEST))


@pytest.mark.parametrize(
    "first",
    [*QUICK[::SEEDS_A_TEST], *(pytest.param(first, marks=pytest.mark.slow) for first in MORE[::10])],
)
def test_nothing_is_lost_by_moves_and_redrives_under_seeded_faults(first: int) -> None:
    assert not failure("move", range(first, first + SEEDS_A_TEST))


def simulate(seed: int) -> Verdict:
    return simulated(plan(seed, now_ms=BEGAN_MS))


def simulate_move(seed: int) -> Verdict:
    return simulated(move_plan(seed, now_ms=BEGAN_MS))


def test_a_move_that_dead_letters_what_is_refused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "MoveContext", partial(dead_lettering, runner.MoveContext))
    assert any(line.startswith("dead-lettered for") for seed in range(0, 40, 2) for line in simulate_move(seed).wrong)


def dead_lettering(really: Any, **options: Any) -> Any:
    return really(**options | {"keeps_refused": False})


def test_a_move_that_drops_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawDestinationLink, "send", lambda *_: accepted)
    assert any(line.startswith("lost") for seed in range(4) for line in simulate_move(seed).wrong)


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_what_a_schedule_has_found_once_stays_mended(seed: int) -> None:
    assert not simulated(replace(plan(seed, now_ms=BEGAN_MS), order=PLAIN)).wrong


def test_a_seed_replays_the_whole_run() -> None:
    for seed in range(200, 203):
        once, again = simulate(seed), simulate(seed)
        assert once.lines == again.lines
        assert once.digest == again.digest
        assert len(once.lines) > 5


def test_another_seed_is_another_run() -> None:
    assert len({simulate(seed).digest for seed in range(5)}) == 5


# The checker has to catch a syphon that is wrong


def caught(complaint: str) -> bool:
    return any(line.startswith(complaint) for seed in ENOUGH_TO_CATCH for line in simulate(seed).wrong)


async def accepted() -> None:
    """The outcome of a batch, before anybody has asked."""


def test_a_syphon_that_drops_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RawDestinationLink, "send", lambda *_: accepted)
    assert caught("lost")


def test_a_syphon_that_settles_before_acceptance_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = RawDestinationLink.send

    def post(*arguments: Any) -> Any:
        leave(*arguments)
        return accepted

    monkeypatch.setattr(RawDestinationLink, "send", post)
    assert caught("completed before it was accepted")


def test_a_syphon_that_sends_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    once = RawDestinationLink.send

    def post(*arguments: Any) -> Any:
        once(*arguments)
        return once(*arguments)

    monkeypatch.setattr(RawDestinationLink, "send", post)
    assert caught("arrived 2 times")


def test_a_syphon_that_changes_the_order_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    in_order = DestinationQueue.next_round

    def next_round(*arguments: Any) -> Any:
        return [group[::-1] for group in in_order(*arguments)]

    monkeypatch.setattr(DestinationQueue, "next_round", next_round)
    assert caught("overtaken in hand")
    assert caught("out of order")


def test_a_syphon_that_alters_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (TemplateMessage, GenericMessage):
        monkeypatch.setattr(kind, "restore", altering(kind.restore))
    assert caught("altered")


def altering(exact: Any) -> Any:
    def restore(*arguments: Any) -> tuple[int, tuple[bytes, ...]]:
        size, (*parts, last) = exact(*arguments)
        return size, (*parts, last[:-1] + b"?")

    return restore


def test_a_syphon_that_does_not_count_released_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "ended", lambda *_: None)
    assert caught("a receipt does not balance")


def is_waited_for(drawn: Plan) -> bool:
    return drawn.remaining and any(step.messages for step in drawn.steps)


def test_a_syphon_that_ignores_the_time_in_the_backlog_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "waited_ms", lambda *_: 0)
    remaining = [seed for seed in range(200) if is_waited_for(plan(seed, now_ms=0))]
    assert any(line.endswith("ms to live") for seed in remaining for line in simulate(seed).wrong)


def test_a_syphon_that_sends_before_the_journal_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def flush(_: Journal) -> None:
        return

    monkeypatch.setattr(Journal, "flush", flush)
    assert caught("sent before that was written down")


def test_a_syphon_that_forgets_accepted_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "was_accepted", lambda *_: False)
    crashed = (simulated(crashing(seed, "known to have arrived")) for seed in range(20))
    assert any("sends again what it knew the primary to have" in line for each in crashed for line in each.wrong)


def test_a_syphon_that_hides_earlier_doubts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_possible_duplicates", lambda *_: [])
    assert any("no receipt says so" in line for seed in range(20) for line in simulated(crashing(seed)).wrong)


def crashing(seed: int, moment: str = "arrived") -> Plan:
    """A schedule with nothing but a crash: by default when the primary has a message, and nobody knows."""
    crash = Step(at_ms=0, lasts_ms=10_000, kind="crash", primary=True, number=CRASHES.index(moment))
    drawn = plan(seed, now_ms=BEGAN_MS)
    return replace(drawn, span_ms=20_000, steps=(crash,))


def test_after_a_crash_no_message_known_as_accepted_is_resent() -> None:
    verdicts = [simulated(crashing(seed, "known to have arrived")) for seed in range(10)]
    assert not [line for verdict in verdicts for line in verdict.wrong]
    assert any("'already_sent': 1" in line for verdict in verdicts for line in verdict.lines)


def test_after_a_crash_only_pending_messages_are_resent() -> None:
    verdicts = [simulated(crashing(seed)) for seed in range(10)]
    assert not [line for verdict in verdicts for line in verdict.wrong]
    assert any(verdict.again for verdict in verdicts)


def test_a_syphon_that_never_ends_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def close(_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RawPrimary, "close", close)
    assert any("did not end" in line for seed in range(3) for line in simulate(seed).wrong)


def test_a_syphon_in_a_busy_loop_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take(*_: Any, **__: Any) -> Any:
        await asyncio.sleep(0)
        return []

    monkeypatch.setattr(RawSource, "receive", take)
    watching = next(seed for seed in range(100) if not plan(seed, now_ms=0).once)
    assert any("busy loop" in line for line in simulate(watching).wrong)


# The arguments of the command


@pytest.mark.parametrize("option", ["--seeds", "--real-seeds"])
@pytest.mark.parametrize("text", ["0:0", "5:5", "9:3", "x", "", ":", "3:", "-1", "1:2:3"])
def test_seeds_that_name_no_schedule_are_refused(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed([f"{option}={text}"])
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err


def test_seeds_are_one_or_a_range() -> None:
    assert parsed(["--seeds", "7"]).seeds == range(7, 8)
    assert parsed(["--seeds", "0:2000"]).seeds == range(2000)
