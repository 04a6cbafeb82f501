"""`kill -9` of each process of a replay, and faults of its connections, once a phase has written some files.

Then all is counted.
It uses a standalone cluster on loopback, two workers of one core, and an archive directory that both see.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.processes import offspring
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
from tests.replay.world import NAMESPACE, OTHER, World

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 4_000
LONG_LOCK_SECONDS = 300  # longer than Spark takes to start
PHASES = {"drain": OTHER, "plan": NAMESPACE, "send": NAMESPACE}
"""Which namespace is worked with in each."""

Pids = list[int]
Kill = Callable[[Ground, Replay, int], tuple[Pids, Pids]]
"""Returns the processes to kill, and those that must end then, by the port of the namespace at work."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def own_ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Yield a ground whose clock a test may advance."""
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


@pytest.mark.parametrize("manages", [True, False], ids=["with Manage", "without Manage"])
@pytest.mark.parametrize("mode", ["archive", "direct"])
def test_the_next_run_after_a_kill_finds_what_is_locked(
    mode: str, manages: bool, own_ground: Ground, tmp_path: Path
) -> None:
    """A new run of a direct replay would not know what the killed one has sent: that one is resumed."""
    place, request = own_ground.world(lock_seconds=LONG_LOCK_SECONDS), own_ground.request()
    place.strand_many(MESSAGES)
    if not manages:
        place.without_manage()
    phase, options = ("drain", OPTIONS) if mode == "archive" else ("move", {**OPTIONS, "mode": mode})
    with replay(place, tmp_path, request=request, options=options) as running:
        strike(driver, phase, place, own_ground, running)
    with replay(place, tmp_path, request=request, options=options, resume=running.run) as again:
        again.until_locked(waiting=True)
        place.running.advance(LONG_LOCK_SECONDS)
        receipt = again.receipt()
    assert receipt is not None
    nothing_is_lost(place, receipt)
    if mode == "archive":
        assert max(deliveries(running.archive)) == 2, "once before the kill, and once after it"


@pytest.mark.parametrize("phase", PHASES)
def test_a_run_whose_driver_is_killed_is_resumed(phase: str, ground: Ground, tmp_path: Path) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with replay(place, tmp_path, request=request) as running:
        strike(driver, phase, place, ground, running)
        assert running.receipt() is None
    with replay(place, tmp_path, request=request, resume=running.run) as again:
        receipt = again.receipt()
    assert receipt is not None
    assert bool(receipt["doubtful"]) == (phase == "send"), "some messages were held"
    nothing_is_lost(place, receipt)


def strike(whom: Kill, phase: str, place: World, ground: Ground, running: Replay) -> None:
    """Kill processes once the run is in a phase, and wait for those that cannot continue alone."""
    with place.during("latency", OTHER, ms=LATENCY_MS):
        running.until(phase, 1 if phase == "move" else 4)  # chunks of a direct run are large
        victims, orphans = whom(ground, running, place.port(PHASES.get(phase, OTHER)))
        for pid in victims:
            end(pid)
        assert running.is_in(phase, MESSAGES), "the kill came too late to prove anything"
    all_end([*victims, *orphans])


WANTED = {
    # The connections that there are, and the first ones that are made in their place.
    "reset": {"count": 3},
    "drop": {"count": 3},
    "throttle": {"count": 3},
    # Silent until they are given up, a minute later.
    "stall": {"count": 2},
    # Accepted without an answer, which is awaited as long.
    "swallow-acks": {"count": 3},
}
STRUCK = {
    "breaks": [
        *(("drain", 2, "reset"), ("drain", 6, "drop"), ("drain", 10, "detach")),
        ("plan", 0, "reset"),
        *(("send", 1, "reset"), ("send", 3, "drop"), ("send", 5, "detach"), ("send", 7, "throttle")),
    ],
    "silence while draining": [("drain", 4, "stall")],
    "silence while sending": [("send", 2, "stall")],
    "sends without an answer": [("send", 2, "swallow-acks")],
}
"""What strikes in which phase, once so many files are there."""


@pytest.mark.parametrize("struck", STRUCK.values(), ids=STRUCK)
def test_connection_faults_in_each_phase_lose_nothing(
    struck: list[tuple[str, int, str]], ground: Ground, tmp_path: Path
) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with contextlib.ExitStack() as faults, replay(place, tmp_path, request=request) as running:
        faults.enter_context(place.during("latency", OTHER, ms=LATENCY_MS))
        for phase, files, kind in struck:
            running.until(phase, files)
            faults.enter_context(place.during(kind, PHASES[phase], **WANTED.get(kind, {})))
            assert running.is_in(phase, MESSAGES), "the fault came too late to prove anything"
        receipt = running.receipt()
    assert receipt is not None, "it goes on by itself"
    if receipt["unsent"] or place.left():
        with replay(place, tmp_path, request=request, resume=running.run) as again:
            receipt = again.receipt()
        assert receipt is not None
    nothing_is_lost(place, receipt)
