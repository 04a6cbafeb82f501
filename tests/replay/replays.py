"""A replay in a process of its own, its child processes and its progress by files, for tests that kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.move.context import DEFAULT_BATCH_LIMITS
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import DRAINED_FILE, LEDGER, SEGMENTS
from sbpair.replay.shard_source import MAX_CHUNK
from tests.kit.running import Running
from tests.replay.cluster import HASTY, Cluster, standalone
from tests.replay.world import World, shell

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_SECONDS = 240.0
OPTIONS = {"segment_messages": 100, "empty_seconds": 0.5, "rate": 800.0}
TASKS = 2
LOCK_SECONDS = 15
LATENCY_MS = 100
"""For the drain to last as long as it takes to do something in it."""


class Ground:
    """Two emulated namespaces and a standalone cluster of two workers, for many replays in turn."""

    def __init__(self, running: Running, cluster: Cluster) -> None:
        self.running = running
        self.cluster = cluster
        self._worlds = 0

    @classmethod
    @contextmanager
    def prepared(cls, directory: Path) -> Iterator[Ground]:
        with Running() as running, standalone(directory, shell(running, directory), TASKS) as cluster:
            yield cls(running, cluster)

    def world(self) -> World:
        """Create unused queues. Their locks are short, so that messages of a killed task come back soon."""
        self._worlds += 1
        names = [f"{name}-{self._worlds}" for name in ("orders", "invoices")]
        return World(self.running, names, TASKS, first=TASKS * self._worlds, lock_seconds=LOCK_SECONDS)

    def request(self) -> dict[str, Any]:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": HASTY,
            "spark.executor.extraJavaOptions": HASTY,
            "spark.executor.memory": "512m",
            "spark.sql.codegen.wholeStage": "false",
        }
        return {"master": self.cluster.url, "shared_archive": True, "tasks": TASKS, "settings": settings}


class Replay:
    """A running replay. `run` is its id, once there is one."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path, log: Path) -> None:
        self.process = process
        self._directory = directory
        self._log = log

    @property
    def run(self) -> str:
        [run] = [path.name for path in (self._directory / "archive").iterdir()]
        return run

    @property
    def archive(self) -> Archive:
        return Archive(str(self._directory / "archive"), self.run)

    def until(self, phase: str, files: int = 4) -> None:
        looks = {"drain": lambda: self.files(SEGMENTS) >= files, "plan": self.is_drained}
        is_there = looks.get(phase, lambda: self.files(LEDGER) >= files)
        limit = time.monotonic() + PATIENCE_SECONDS
        while not is_there():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < limit, f"it never came to {phase}"
            time.sleep(0.01)

    def is_in(self, phase: str, messages: int) -> bool:
        if phase == "drain":
            return not self.is_drained()
        if phase == "plan":
            return not self.files(LEDGER)
        archive = self.archive
        return sum(archive.row_count(path) for path in archive.files(LEDGER)) < messages

    def is_drained(self) -> bool:
        return any(self._directory.glob(f"archive/*/{DRAINED_FILE}"))

    @property
    def output(self) -> str:
        """The output so far."""
        return self._log.read_text()

    def files(self, kind: str) -> int:
        return len([*self._directory.glob(f"archive/*/{kind}/**/[!.]*.parquet")])

    def receipt(self) -> dict[str, Any] | None:
        """Wait for the end, and return the receipt, or None without one."""
        self.process.wait(PATIENCE_SECONDS)
        print(self.output)  # noqa: T201  shown where the test fails
        found = [line for line in self.output.splitlines() if line.startswith("receipt ")]
        return dict(json.loads(found[0].removeprefix("receipt "))) if found else None


@contextmanager
def replay(place: World, directory: Path, **parameters: Any) -> Iterator[Replay]:
    """Start a replay in a process group, and kill all of it at the end."""
    document = {"directory": str(directory), "queues": place.queues, "options": OPTIONS, **parameters}
    log = directory / f"output-{time.monotonic_ns()}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.replay.replay_process", json.dumps(document)],
            env=place.shell(directory),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Replay(process, directory, log)
    finally:
        for child in offspring(process.pid):
            end(child)
        end(process.pid)
        process.wait()


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def offspring(pid: int) -> list[int]:
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        if fields := read(path).rpartition(")")[2].split():
            children[int(fields[1])].append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found[1:]


def read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def python_workers(pid: int) -> list[int]:
    """Return the Python workers that the daemon of a Java process has forked for tasks."""
    return [
        child
        for child in offspring(pid)
        if "pyspark" in read(Path(f"/proc/{child}/cmdline")) and not offspring(child) and not is_java(child)
    ]


def is_connected(pid: int, port: int) -> bool:
    rows = [line.split() for line in read(Path("/proc/net/tcp")).splitlines()[1:]]
    sockets = {f"socket:[{row[9]}]" for row in rows if int(row[2].rpartition(":")[2], 16) == port}
    return any(link in sockets for link in map(pointed, Path(f"/proc/{pid}/fd").glob("*")))


def pointed(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


def is_java(pid: int) -> bool:
    return read(Path(f"/proc/{pid}/comm")).strip() == "java"


def all_end(pids: list[int]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while left := [pid for pid in pids if is_running(pid)]:
        assert time.monotonic() < limit, f"{left} outlive what they worked for"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process runs; one of which only the exit status remains does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def nothing_is_lost(place: World, receipt: dict[str, Any]) -> None:
    assert receipt["balanced"], receipt
    assert receipt["archived"] == receipt["acknowledged"] == len(place.sent)
    assert place.left() == 0
    arrived = Counter(place.ids())
    assert set(arrived) == set(place.sent)
    assert place.altered() == []
    twice = {name for name, count in arrived.items() if count > 1}
    assert len(twice) <= TASKS * (MAX_CHUNK + DEFAULT_BATCH_LIMITS.prefetch), "no more than what each task had in hand"
    assert twice <= {each["message_id"] for each in receipt["doubtful"]}, "what came twice is named"
    # Of each, when it first came.
    order = {key: [*dict.fromkeys(numbers)] for key, numbers in place.by_session().items()}
    assert all(numbers == sorted(numbers) for numbers in order.values())
