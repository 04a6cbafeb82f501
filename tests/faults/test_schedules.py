"""The first of the seeded fault schedules, that a seed replays all of one, and that the checker can fail.

Two of three seeds have an order of tasks of their own; what was found in plain order is repeated in it.

The rest: python -m tests.faults.schedules --seeds 0:2000 --real 200
"""

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sbpair.move.destination_sender import DestinationQueue
from sbpair.move.message import route
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.fast_decode import TemplateMessage
from sbpair.move.raw_destination import RawDestination, RawDestinationLink
from sbpair.move.raw_source import RawSource
from sbpair.move.receipt import Tally
from sbpair.runs.journal import Journal
from sbpair.syphon import runner
from tests.faults.schedules import failure, parsed
from tests.faults.schedules import simulated as simulate
from tests.faults.simulation.faults import CRASHES
from tests.faults.simulation.harness import Verdict, carry_out
from tests.faults.simulation.order import PLAIN
from tests.faults.simulation.plan import Plan, Step, move_plan, plan
from tests.faults.simulation.run import SyphonSimulation
from tests.kit.failover_rig import PAIRED_CLIENTS

pytestmark = pytest.mark.odd_messages

simulated = partial(carry_out, kind=SyphonSimulation)
QUICK, MORE = range(10), range(10, 100)
SEEDS_A_TEST = 10

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


def is_waited_for(drawn: Plan) -> bool:
    return drawn.remaining and any(step.messages for step in drawn.steps)


@pytest.mark.parametrize("seed", ONCE_WRONG)
def test_what_a_schedule_has_found_once_stays_mended(seed: int) -> None:
    assert not simulated(replace(plan(seed), order=PLAIN)).wrong


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *(("syphon", 200), ("syphon", 201), ("move", 1), ("replay", 3), ("replay", 4)),
        *(pytest.param("failover", seed, marks=PAIRED_CLIENTS) for seed in (6, 22)),
        *(("relay", 0), ("relay", 3)),
    ],
)
def test_a_seed_replays_the_whole_schedule(kind: str, seed: int) -> None:
    once, again = (simulate(seed, kind=kind, verbose=True) for _ in range(2))
    assert once.lines == again.lines
    assert len(once.lines) > 5


def crashing(seed: int, moment: str = "arrived") -> Plan:
    """A schedule with nothing but a crash: by default when the primary has a message, and nobody knows."""
    crash = Step(at_ms=0, lasts_ms=10_000, kind="crash", primary=True, number=CRASHES.index(moment))
    return replace(plan(seed), span_ms=20_000, steps=(crash,))


known_crash = partial(crashing, moment="known to have arrived")


@pytest.mark.parametrize(
    ("make", "holds"),
    [
        (known_crash, lambda verdict: any("'already_sent': 1" in line for line in verdict.lines)),
        (crashing, lambda verdict: verdict.again),
    ],
    ids=["what is known to have arrived is not", "what is in doubt is"],
)
def test_after_a_crash_messages_are_resent(make: Callable[[int], Plan], holds: Callable[[Verdict], bool]) -> None:
    verdicts = [simulated(make(seed)) for seed in range(10)]
    assert not [line for verdict in verdicts for line in verdict.wrong]
    assert any(map(holds, verdicts))


# The checker has to catch a mover that is wrong.

leave, in_order = RawDestinationLink.send, DestinationQueue.next_round


async def accepted() -> None:
    """The outcome of a batch, before anybody has asked."""


def settled_early(*arguments: Any) -> Any:
    leave(*arguments)
    return accepted


def sent_twice(*arguments: Any) -> Any:
    leave(*arguments)
    return leave(*arguments)


def altered(exact: Any) -> Any:
    def restore(*arguments: Any) -> tuple[int, tuple[bytes, ...]]:
        size, (*parts, last) = exact(*arguments)
        return size, (*parts, last[:-1] + b"?")

    return restore


def dead_lettering(really: Any, **options: Any) -> Any:
    return really(**options | {"keeps_refused": False})


async def written_later(_: Journal) -> None:
    return


async def never(_: Any) -> None:
    await asyncio.Event().wait()


async def nothing(*_: Any, **__: Any) -> list[Any]:
    await asyncio.sleep(0)
    return []


MANY = range(30)
WATCHES = (seed for seed in range(100) if not plan(seed).once)
REMAINING = (seed for seed in range(200) if is_waited_for(plan(seed)))
DEFECTS: dict[str, tuple[list[tuple[Any, str, Any]], Callable[[int], Plan], Iterable[int], tuple[str, ...]]] = {
    "drops messages": ([(RawDestinationLink, "send", lambda *_: accepted)], plan, MANY, ("^lost",)),
    "drops messages of a move": ([(RawDestinationLink, "send", lambda *_: accepted)], move_plan, range(4), ("^lost",)),
    "dead-letters what a move keeps": (
        [(runner, "MoveContext", partial(dead_lettering, runner.MoveContext))],
        *(move_plan, range(0, 40, 2), ("^dead-lettered for",)),
    ),
    "settles before acceptance": (
        [(RawDestinationLink, "send", settled_early)],
        *(plan, MANY, ("^completed before it was accepted",)),
    ),
    "sends twice": ([(RawDestinationLink, "send", sent_twice)], plan, MANY, ("^arrived 2 times",)),
    "changes the order": (
        [(DestinationQueue, "next_round", lambda *given: [group[::-1] for group in in_order(*given)])],
        *(plan, MANY, ("^overtaken in hand", "^out of order")),
    ),
    "alters messages": (
        [(kind, "restore", altered(kind.restore)) for kind in (TemplateMessage, GenericMessage)],
        *(plan, MANY, ("^altered",)),
    ),
    "counts no released messages": (
        [(Tally, "ended", lambda *_: None)],
        *(plan, MANY, ("^a receipt does not balance",)),
    ),
    "ignores the time in the backlog": ([(route, "waited_ms", lambda *_: 0)], plan, REMAINING, ("ms to live$",)),
    "sends before the journal": (
        [(Journal, "flush", written_later)],
        *(plan, MANY, ("^sent before that was written down",)),
    ),
    "forgets accepted messages": (
        [(Journal, "was_accepted", lambda *_: False)],
        *(known_crash, range(20), ("sends again what it knew the primary to have",)),
    ),
    "hides earlier doubts": (
        [(runner, "_name_possible_duplicates", lambda *_: None)],
        *(crashing, range(20), ("no receipt says so",)),
    ),
    "never ends": ([(RawDestination, "close", never)], plan, range(3), ("did not end",)),
    "is a busy loop": ([(RawSource, "receive", nothing)], plan, WATCHES, ("busy loop",)),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_mover_with_a_defect_is_caught(defect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, make, seeds, complaints = DEFECTS[defect]
    for owner, name, changed in changes:
        monkeypatch.setattr(owner, name, changed)
    for complaint in complaints:
        assert any(re.search(complaint, line) for seed in seeds for line in simulated(make(seed)).wrong)


# The arguments of the command


@pytest.mark.parametrize("option", ["--seeds", "--real-seeds"])
@pytest.mark.parametrize("text", ["0:0", "5:5", "9:3", "x", "", ":", "3:", "-1", "1:2:3"])
def test_seeds_that_name_no_schedule_are_refused(option: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed([f"{option}={text}"])
    assert ended.value.code == 2
    assert f"argument {option}: " in capsys.readouterr().err
