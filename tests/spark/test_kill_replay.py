"""`kill -9` of what takes part in a replay, once so many files of a phase are there; then a count.

A standalone cluster on loopback, two workers of one core; the archive is a directory that both have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.spark.replays import (
    LATENCY_MS,
    Ground,
    Replay,
    all_end,
    end,
    is_java,
    nothing_is_lost,
    offspring,
    python_workers,
    replay,
)
from tests.spark.world import OTHER

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 2_000
Pids = list[int]
Kill = Callable[[Ground, Replay], tuple[Pids, Pids]]
"""Answers whom to kill, and who has to end for want of them."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with Ground.prepared(tmp_path_factory.mktemp("cluster")) as made:
        yield made


def driver(ground: Ground, running: Replay) -> tuple[Pids, Pids]:
    """The Python of it: its Java and the executors have to notice."""
    return [running.process.pid], [*offspring(running.process.pid), *executors(ground)]


def driver_java(ground: Ground, running: Replay) -> tuple[Pids, Pids]:
    return [*filter(is_java, offspring(running.process.pid))], executors(ground)


def executor(ground: Ground, _running: Replay) -> tuple[Pids, Pids]:
    first = ground.cluster.executors()[0]
    return [first], offspring(first)


def python_worker(ground: Ground, _running: Replay) -> tuple[Pids, Pids]:
    """Of one executor, also where it waits for a task."""
    return next(found for each in ground.cluster.executors() if (found := python_workers(each))), []


def worker_node(ground: Ground, _running: Replay) -> tuple[Pids, Pids]:
    first = ground.cluster.workers[0]
    return [first], offspring(first)


def executors(ground: Ground) -> Pids:
    return [pid for each in ground.cluster.executors() for pid in (each, *offspring(each))]


@pytest.mark.parametrize("phase", ["drain", "plan", "send"])
@pytest.mark.parametrize("whom", [driver, driver_java, executor, python_worker, worker_node])
def test_after_a_kill_the_run_goes_on_and_nothing_is_lost(
    whom: Kill, phase: str, ground: Ground, tmp_path: Path
) -> None:
    place, request = ground.world(), ground.request()
    place.strand_many(MESSAGES)
    with replay(place, tmp_path, request=request) as running:
        with place.during("latency", OTHER, ms=LATENCY_MS):
            running.until(phase)
            victims, orphans = whom(ground, running)
            for pid in victims:
                end(pid)
            assert running.is_in(phase, MESSAGES), "the kill came too late to prove anything"
        all_end([*victims, *orphans])
        if whom is worker_node:
            ground.cluster.replace_worker()
        told = running.receipt()
    assert (told is None) == (whom in (driver, driver_java)), running.said
    if told is None or told["left"] or place.left():
        with replay(place, tmp_path, request=request, resume=running.run) as again:
            told = again.receipt()
        assert told is not None, again.said
    nothing_is_lost(place, told)
