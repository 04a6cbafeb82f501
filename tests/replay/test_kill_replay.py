"""`kill -9` of each process of a replay, once a phase has written some files. Then all is counted.

It uses a standalone cluster on loopback, two workers of one core, and an archive directory that both see.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

from sbpair.replay.archive import LEDGER
from tests.kit.processes import offspring
from tests.kit.running import Running
from tests.replay.replays import (
    LATENCY_MS,
    OPTIONS,
    Ground,
    Replay,
    all_end,
    deliveries,
    end,
    is_connected,
    nothing_is_lost,
    python_workers,
    replay,
)
from tests.replay.segments import rows_of
from tests.replay.world import NAMESPACE, OTHER, World

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 4_000
PHASES = {"drain": OTHER, "plan": NAMESPACE, "send": NAMESPACE}
"""Which namespace is worked with in each."""

Pids = list[int]
Kill = Callable[[Ground, Replay, int], tuple[Pids, Pids]]
"""Returns the processes to kill, and those that must end then, by the port of the namespace at work."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def driver(ground: Ground, running: Replay, _port: int) -> tuple[Pids, Pids]:
    """Return the driver's Python process; its Java and the executors have to notice."""
    return [running.process.pid], [*offspring(running.process.pid), *executors(ground)]


def executor(ground: Ground, _running: Replay, port: int) -> tuple[Pids, Pids]:
    chosen = at_work(ground.cluster.executors(), port)
    return [chosen], offspring(chosen)


def python_worker(ground: Ground, _running: Replay, port: int) -> tuple[Pids, Pids]:
    return python_workers(at_work(ground.cluster.executors(), port)), []


def worker_node(ground: Ground, _running: Replay, port: int) -> tuple[Pids, Pids]:
    chosen = at_work(ground.cluster.workers, port)
    return [chosen], offspring(chosen)


def at_work(pids: Pids, port: int) -> int:
    """Return a process with a descendant connected to the namespace, or any if there is none."""
    return next((pid for pid in pids if any(is_connected(child, port) for child in offspring(pid))), pids[0])


def executors(ground: Ground) -> Pids:
    return [pid for each in ground.cluster.executors() for pid in (each, *offspring(each))]


@pytest.mark.parametrize("whom", [executor, python_worker, worker_node])
def test_a_run_survives_kills_in_each_of_its_phases(whom: Kill, ground: Ground, tmp_path: Path) -> None:
    """Spark starts new processes, which run the tasks again."""
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with replay(place, tmp_path, request=request) as running:
        for phase in PHASES:
            strike(whom, phase, place, ground, running)
            ground.cluster.replace_dead()
        receipt = running.receipt()
    assert receipt is not None
    assert receipt["doubtful"], "some messages were held"
    nothing_is_lost(place, receipt)
    assert max(deliveries(running.archive)) == 2, "once before the kill, and once after it"


@pytest.mark.parametrize("phase", [*PHASES, "move"])
def test_a_run_whose_driver_is_killed_is_resumed(phase: str, ground: Ground, tmp_path: Path) -> None:
    place, request = ground.world(), ground.request()
    options = {**OPTIONS, "mode": "direct" if phase == "move" else "archive"}
    place.strand_many(MESSAGES)
    with replay(place, tmp_path, request=request, options=options) as running:
        strike(driver, phase, place, ground, running)
        assert running.receipt() is None
    with replay(place, tmp_path, request=request, options=options, resume=running.run) as again:
        receipt = again.receipt()
    assert receipt is not None
    assert bool(receipt["doubtful"]) == (phase in ("send", "move")), "some messages were held"
    nothing_is_lost(place, receipt)


def test_a_part_sent_to_the_primary_and_a_kill_on_the_way_to_the_secondary(ground: Ground, tmp_path: Path) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    for name in place.destinations:
        place.running.do(lambda name=name: place.running.other.create_queue(name))  # type: ignore[misc]
    with replay(place, tmp_path, request=request) as running:
        strike(driver, "send", place, ground, running)
    by_primary = {row["message_id"] for row in rows_of(running.archive, LEDGER)}
    assert 0 < len(by_primary) < MESSAGES
    again = {"request": request, "resume": running.run, "to": True}
    with replay(place, tmp_path, **again, delivery={"to": "secondary", "include_acknowledged": True}) as killed:
        strike(driver, "send", place, ground, killed, killed.files(LEDGER), len(by_primary))
        assert killed.receipt() is None
    with replay(place, tmp_path, **again) as last:
        receipt = last.receipt()

    assert receipt is not None
    in_primary, place.running = {*place.ids()}, cast("Running", SwappedSides(place.running))
    nothing_is_lost(place, receipt)
    reasons = {each["message_id"]: each.get("reason", "") for each in receipt["doubtful"]}
    assert in_primary <= {*reasons}
    assert by_primary == {name for name, reason in reasons.items() if reason == f"also accepted by {NAMESPACE}"}


class SwappedSides:
    """The emulated pair, with the secondary as the namespace that messages arrive in."""

    def __init__(self, running: Running) -> None:
        self.do, self.namespace, self.other = running.do, running.other, running.other


def strike(
    whom: Kill, phase: str, place: World, ground: Ground, running: Replay, files: int = 0, messages: int = 0
) -> None:
    """Kill processes once the run is in a phase, and wait for those that cannot continue alone.

    Earlier attempts wrote so many files of the phase, with so many messages.
    """
    with place.during("latency", OTHER, ms=LATENCY_MS):
        running.until(phase, files + (1 if phase == "move" else 4))  # chunks of a direct run are large
        victims, orphans = whom(ground, running, place.port(PHASES.get(phase, OTHER)))
        for pid in victims:
            end(pid)
        assert running.is_in(phase, MESSAGES + messages), "the kill came too late to prove anything"
    all_end([*victims, *orphans])
