"""`kill -9` of what takes part in a replay, when so many files of a phase are there; then resume, and a count."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.replay.archive import LEDGER, SEGMENTS
from tests.spark.cluster import standalone
from tests.spark.world import World, world

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 2_000
CHUNK_MOST = 2_000
PATIENCE_SECONDS = 240.0
OPTIONS = {"segment_messages": 100, "empty_seconds": 0.5, "rate": 400.0}
Kill = Callable[[subprocess.Popen[str]], None]


@contextmanager
def replay(place: World, directory: Path, **said: Any) -> Iterator[subprocess.Popen[str]]:
    """One that runs, in a process group of its own; none of it is left behind."""
    told = {"directory": str(directory), "queues": place.queues, "options": OPTIONS, **said}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.replay_process", json.dumps(told)],
        env=place.shell(directory),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for child in offspring(process.pid):
            end(child)
        end(process.pid)
        process.communicate()


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def offspring(pid: int) -> list[int]:
    """All that a process has started, and what those have."""
    try:
        children = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    threads = [int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in read(path).split()]
    return [each for child in dict.fromkeys([*children, *threads]) for each in (child, *offspring(child))]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def python_workers(process: subprocess.Popen[str]) -> list[int]:
    """Those that Spark has forked for its tasks: the daemon's children."""
    return [
        pid
        for pid in offspring(process.pid)
        if "pyspark" in read(Path(f"/proc/{pid}/cmdline")) and not offspring(pid) and not is_java(pid)
    ]


def is_java(pid: int) -> bool:
    return read(Path(f"/proc/{pid}/comm")).strip() == "java"


def kill_driver(process: subprocess.Popen[str]) -> None:
    process.kill()


def kill_java(process: subprocess.Popen[str]) -> None:
    """The driver's, which is the executor of a local master too."""
    for pid in filter(is_java, offspring(process.pid)):
        end(pid)


def kill_workers(process: subprocess.Popen[str]) -> None:
    for pid in python_workers(process):
        end(pid)


def until(directory: Path, kind: str, files: int, process: subprocess.Popen[str]) -> None:
    """Wait until so many files of a kind are there."""
    limit = time.monotonic() + PATIENCE_SECONDS
    while len([*directory.glob(f"archive/*/{kind}/**/*.parquet")]) < files:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < limit, f"{kind} never came to {files} files"
        time.sleep(0.02)


def receipt_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = process.communicate(timeout=PATIENCE_SECONDS)
    found = [line for line in out.splitlines() if line.startswith("receipt ")]
    assert found, out
    return dict(json.loads(found[0].removeprefix("receipt ")))


@pytest.mark.parametrize("kind", [SEGMENTS, LEDGER])
@pytest.mark.parametrize("kill", [kill_driver, kill_java, kill_workers])
def test_after_a_kill_the_run_goes_on_and_nothing_is_lost(kill: Kill, kind: str, tmp_path: Path) -> None:
    with world() as place:
        place.strand_many(MESSAGES)
        with replay(place, tmp_path) as process:
            until(tmp_path, kind, 4, process)
            kill(process)
            if kill is kill_workers:
                told = receipt_of(process)  # Spark tries those tasks again
            else:
                process.wait(PATIENCE_SECONDS)
        [run] = [path.name for path in (tmp_path / "archive").iterdir()]
        # What was taken and not settled comes back when its locks are over.
        place.running.advance(120)
        if kill is not kill_workers or told["left"] or place.left():
            with replay(place, tmp_path, resume=run) as process:
                told = receipt_of(process)
        nothing_is_lost(place, told)


def nothing_is_lost(place: World, told: dict[str, Any]) -> None:
    assert told["balanced"], told
    assert told["archived"] == told["acknowledged"] == MESSAGES
    assert place.left() == 0
    arrived = Counter(place.ids())
    assert set(arrived) == set(place.sent)
    assert place.altered() == []
    twice = {name for name, count in arrived.items() if count > 1}
    assert len(twice) <= CHUNK_MOST
    assert twice <= {each["message_id"] for each in told["doubtful"]}, "what came twice is named"


@pytest.mark.parametrize("kind", [SEGMENTS, LEDGER])
@pytest.mark.parametrize("whom", ["executor", "worker"])
def test_a_cluster_that_loses_a_part_goes_on_and_nothing_is_lost(whom: str, kind: str, tmp_path: Path) -> None:
    """Two workers on loopback; the archive is a directory that both have, and that is tried first."""
    with world() as place, standalone(tmp_path / "cluster", place.shell(tmp_path)) as cluster:
        place.strand_many(MESSAGES)
        settings = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
        request = {"master": cluster.url, "shared_archive": True, "tasks": 2, "settings": settings}
        with replay(place, tmp_path, request=request) as process:
            until(tmp_path, kind, 4, process)
            end(cluster.executors()[0] if whom == "executor" else cluster.workers[0])
            told = receipt_of(process)
        place.running.advance(120)
        if told["left"] or place.left():
            with replay(place, tmp_path, request=request, resume=told["run"]) as process:
                told = receipt_of(process)
        nothing_is_lost(place, told)
