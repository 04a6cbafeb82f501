"""The order of tasks in simulated schedules: what it may change, what it finds beside plain order, and its stories."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import pytest

from sbpair.amqp_client.raw_links import RawReceiver
from sbpair.errors import Throttled
from sbpair.move.destination_sender import DestinationQueue
from sbpair.move.raw_destination import RawDestination, RawDestinationLink
from sbpair.move.raw_source import ACCEPTED
from tests.faults.simulation.harness import carry_out
from tests.faults.simulation.loop import PROCESS, Process, VirtualLoop
from tests.faults.simulation.order import PLAIN, Decisions, Deviation, Order
from tests.faults.simulation.plan import Plan, move_plan, plan
from tests.faults.simulation.run import SyphonSimulation
from tests.faults.simulation.shrinking import Shrunk, kind_of, shrunk

pytestmark = pytest.mark.odd_messages

simulated = partial(carry_out, kind=SyphonSimulation)
OFTEN = Order(7, 0.5)
SEEDS = range(4, 8)
MAX_RUNS = 150


def run_in(order: Order, scene: Callable[[VirtualLoop, list[str]], None]) -> list[str]:
    """Return what a scene notes while its callbacks run in some order."""
    loop, noted = VirtualLoop(order), list[str]()
    scene(loop, noted)
    loop.run_until_complete(asyncio.sleep(10.0))
    loop.close()
    return noted


def orders(scene: Callable[[VirtualLoop, list[str]], None]) -> set[tuple[str, ...]]:
    return {tuple(run_in(Order(seed, 0.5), scene)) for seed in range(1, 50)}


class Arrival:
    """Bytes of a connection."""

    def __init__(self, source: str, noted: list[str]) -> None:
        self.source = source
        self._noted = noted

    def come(self) -> None:
        self._noted.append(self.source)


def scene_of_callbacks(loop: VirtualLoop, noted: list[str]) -> None:
    for number in range(5):
        loop.call_soon(noted.append, f"soon {number}")


def scene_of_timers(loop: VirtualLoop, noted: list[str]) -> None:
    for number in range(5):
        loop.call_at(1.0 + number * 1e-7, noted.append, f"timer {number}")


def scene_of_connections(loop: VirtualLoop, noted: list[str]) -> None:
    for source in "ab":
        loop.call_at(1.0, Arrival(source, noted).come)


def scene_of_processes(loop: VirtualLoop, noted: list[str]) -> None:
    for name in "ab":
        Process(name).start(loop, work(noted))


async def work(noted: list[str]) -> None:
    process = PROCESS.get()
    assert process is not None
    for _ in range(2):
        noted.append(process.name)
        await asyncio.sleep(0)


def scene_of_slow_callbacks(loop: VirtualLoop, noted: list[str]) -> None:
    loop.call_at(0.01, noted.append, "timer")
    loop.call_soon(lambda: loop.call_soon(noted.append, "soon"))


def scene_of_threads(loop: VirtualLoop, noted: list[str]) -> None:
    loop.run_in_executor(None, noted.append, "thread")
    loop.call_soon(noted.append, "soon")


@pytest.mark.parametrize("scene", [scene_of_callbacks, scene_of_timers])
def test_what_asyncio_promises_holds_in_every_order(scene: Callable[[VirtualLoop, list[str]], None]) -> None:
    assert orders(scene) == {tuple(run_in(PLAIN, scene))}


@pytest.mark.parametrize(
    ("scene", "expected"),
    [
        (scene_of_connections, {("a", "b"), ("b", "a")}),
        (scene_of_processes, {("a", "b", "a", "b"), ("a", "a", "b", "b"), ("b", "b", "a", "a"), ("b", "a", "b", "a")}),
        (scene_of_slow_callbacks, {("soon", "timer"), ("timer", "soon")}),
        (scene_of_threads, {("thread", "soon"), ("soon", "thread")}),
    ],
)
def test_what_no_loop_promises_happens_in_any_order(
    scene: Callable[[VirtualLoop, list[str]], None], expected: set[tuple[str, ...]]
) -> None:
    assert orders(scene) >= expected


def test_the_deviations_of_a_run_repeat_it() -> None:
    drawn = replace(plan(4), order=OFTEN)
    once = simulated(drawn)
    again = simulated(replace(drawn, order=Order(deviations=once.deviations)))

    assert len(once.deviations) > 100
    assert (again.lines, again.deviations) == (once.lines, once.deviations)


def test_plain_order_has_no_deviations() -> None:
    assert not simulated(replace(plan(4), order=PLAIN)).deviations


# The shrinker


@dataclass(frozen=True)
class SmallPlan:
    """A plan that fails with the things 3 and 7 if the 20th decision deviates from plain order.

    With noise, it fails in another way otherwise.
    """

    things: tuple[int, ...]
    order: Order
    noise: int = 9
    steps: tuple[Any, ...] = ()

    PARTS: ClassVar = ("things",)
    PLAINEST: ClassVar = {"noise": 0}

    def told(self) -> Iterator[str]:
        yield f"things: {self.things}"


@dataclass(frozen=True)
class SmallVerdict:
    wrong: tuple[str, ...]
    deviations: tuple[Deviation, ...]


def carry_out(given: SmallPlan) -> SmallVerdict:
    decisions = Decisions(given.order)
    late = [decisions.is_late("connection", number / 10, "waits a turn") for number in range(40)]
    failed = {3, 7} <= set(given.things) and late[19]
    wrong = (f"lost: {given.things}",) if failed else ("another failure",) if given.noise else ()
    return SmallVerdict(wrong, tuple(decisions.made))


def test_a_failing_plan_is_shrunk_to_what_it_needs() -> None:
    order = next(each for each in (Order(seed, 0.5) for seed in range(1, 9)) if carry_out(small(each)).wrong[0] > "l")
    found = shrunk(carry_out, small(order), carry_out(small(order)))

    assert found.plan.things == (3, 7)
    assert found.plan.noise == 0
    assert [each.number for each in found.verdict.deviations] == [20]
    assert found.runs < MAX_RUNS
    assert found.story == [
        f"shrunk in {found.runs} runs to 2 of 30 things, 1 of {found.before['deviations']} deviations",
        "things: (3, 7)",
        "order: at 1.900000 s, connection waits a turn",
        "wrong: lost: (3, 7)",
    ]


def test_a_shrink_ends_after_so_many_runs() -> None:
    carried_out: list[SmallPlan] = []

    def run(given: SmallPlan) -> SmallVerdict:
        carried_out.append(given)
        return carry_out(given)

    order = Order(deviations=(Deviation("connection", 20, 1.9, ""),))
    found = shrunk(run, small(order), carry_out(small(order)), 10)
    assert 5 < found.runs == len(carried_out) <= 10
    assert found.verdict.wrong[0].startswith("lost")


def small(order: Order) -> SmallPlan:
    return SmallPlan(tuple(range(30)), order)


# Defects that no schedule in plain order shows


async def is_interrupted() -> bool:
    """Return whether something has come between two turns."""
    before = asyncio.get_running_loop().time()
    await asyncio.sleep(0)
    return asyncio.get_running_loop().time() != before


def plant_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Complete what comes in the turn after other messages."""
    really = RawReceiver.take

    async def take(receiver: Any, limit: int, *, seconds: float) -> Any:
        taken = await really(receiver, limit, seconds=seconds)
        known = len(receiver._arrived)
        await asyncio.sleep(0)
        if taken and len(receiver._arrived) > known:
            await receiver.settle_each([receiver._arrived.pop()], ACCEPTED)
        return taken

    monkeypatch.setattr(RawReceiver, "take", take)


def plant_duplicate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take an outcome for a refusal if it is late by a turn."""
    really = RawDestinationLink._outcome

    async def outcome(link: Any, settlement: Any) -> None:
        await really(link, settlement)
        if await is_interrupted():
            raise Throttled("busy")

    monkeypatch.setattr(RawDestinationLink, "_outcome", outcome)


def plant_other_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send a round of messages backwards if something came while its link became ready."""
    really, in_order = RawDestination.ready, DestinationQueue.next_round
    interrupted = False

    async def ready(primary: Any, destination: str) -> Any:
        nonlocal interrupted
        link = await really(primary, destination)
        interrupted = await is_interrupted()
        return link

    def next_round(*arguments: Any) -> Any:
        return [group[:: -1 if interrupted else 1] for group in in_order(*arguments)]

    monkeypatch.setattr(RawDestination, "ready", ready)
    monkeypatch.setattr(DestinationQueue, "next_round", next_round)


def first_failure(seeds: range, make: Callable[[int], Plan], **changes: Any) -> Shrunk[Plan] | None:
    for seed in seeds:
        drawn = replace(make(seed), **changes)
        verdict = simulated(drawn)
        if verdict.wrong:
            return shrunk(simulated, drawn, verdict, MAX_RUNS)
    return None


@pytest.mark.parametrize(
    ("plant", "make", "kind"),
    [
        (plant_other_order, move_plan, "out of order"),
        pytest.param(plant_loss, plan, "completed before it was accepted", marks=pytest.mark.slow),
        pytest.param(plant_duplicate, move_plan, "arrived times, and no receipt says so", marks=pytest.mark.slow),
    ],
)
def test_what_fails_in_no_plain_order_has_a_small_story(
    plant: Callable[[pytest.MonkeyPatch], None],
    make: Callable[[int], Plan],
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)

    assert first_failure(SEEDS, make, order=PLAIN) is None

    found = first_failure(SEEDS, make)
    assert found is not None
    assert kind in map(kind_of, found.verdict.wrong)
    assert 1 <= len(found.plan.messages) <= 3
    assert len(found.plan.steps) <= 1
    assert 1 <= len(found.plan.order.deviations) <= 4
    assert len(found.story) < 15
