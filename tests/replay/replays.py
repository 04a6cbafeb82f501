"""A replay in a process of its own, its child processes and its progress by files, for tests that kill."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sbpair.amqp.message import Sections
from sbpair.move.context import DEFAULT_BATCH_LIMITS
from sbpair.replay.archive import DRAINED_FILE, LEDGER, SEGMENTS, Archive
from sbpair.replay.queue_task import MAX_HELD
from sbpair.replay.send_task import MAX_CHUNK
from tests.kit.processes import offspring, read
from tests.kit.running import Running
from tests.replay.cluster import HASTY, Cluster, standalone, started
from tests.replay.world import World, shell

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

    def world(self, lock_seconds: int = LOCK_SECONDS) -> World:
        """Create unused queues. Their locks are short, so that messages of a killed task come back soon."""
        self._worlds += 1
        names = [f"{name}-{self._worlds}" for name in ("orders", "invoices")]
        return World(self.running, names, TASKS, first=TASKS * self._worlds, lock_seconds=lock_seconds)

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

    def __init__(self, place: World, directory: Path, parameters: dict[str, Any]) -> None:
        document = {"directory": str(directory), "queues": place.queues, "options": OPTIONS, **parameters}
        words = [sys.executable, "-m", "tests.replay.replay_process", json.dumps(document)]
        self.process, self._output = started(words, place.shell(directory))
        self._directory = directory

    @property
    def run(self) -> str:
        [run] = [path.name for path in (self._directory / "archive").iterdir()]
        return run

    @property
    def archive(self) -> Archive:
        return Archive(str(self._directory / "archive"), self.run)

    def until(self, phase: str, files: int = 4) -> None:
        """Wait until the plan begins, or another phase has written so many files."""

        def is_there(line: str) -> bool | None:
            event = json.loads(line.removeprefix("event ")) if line.startswith("event ") else {}
            begun = event.get("name") == phase == "plan"
            return begun or (event.get("phase") == phase and event.get("files", 0) >= files) or None

        self._output.find(is_there, PATIENCE_SECONDS)

    def is_in(self, phase: str, messages: int) -> bool:
        if phase in ("drain", "move"):
            return not self.is_drained()
        if phase == "plan":
            return not self.files(LEDGER)
        archive = self.archive
        return sum(archive.row_count(path) for path in archive.files(LEDGER)) < messages

    def is_drained(self) -> bool:
        return any(self._directory.glob(f"archive/*/{DRAINED_FILE}"))

    def files(self, kind: str) -> int:
        return len([*self._directory.glob(f"archive/*/{kind}/**/[!.]*.parquet")])

    def receipt(self) -> dict[str, Any] | None:
        """Wait for the end, and return the receipt, or None without one."""
        self.process.wait(PATIENCE_SECONDS)
        self._output.wait_end(PATIENCE_SECONDS)
        print(self._output.text)  # noqa: T201  shown where the test fails
        found = [line for line in self._output.lines if line.startswith("receipt ")]
        return dict(json.loads(found[0].removeprefix("receipt "))) if found else None


@contextmanager
def replay(place: World, directory: Path, **parameters: Any) -> Iterator[Replay]:
    """Start a replay, and kill all of it at the end."""
    running = Replay(place, directory, parameters)
    try:
        yield running
    finally:
        end_all(running.process)


def end_all(process: subprocess.Popen[str]) -> None:
    """Kill a process and its descendants."""
    for pid in (*offspring(process.pid), process.pid):
        end(pid)
    process.wait()


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


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
    """Return whether a process runs Java. Its name would be that of the thread that forked it."""
    return Path(read(Path(f"/proc/{pid}/cmdline")).partition("\0")[0]).name == "java"


def all_end(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            ended, _, _ = select.select([process], [], [], PATIENCE_SECONDS)
            os.close(process)
            assert ended, f"{pid} outlives what it worked for"


def deliveries(archive: Archive) -> Counter[int]:
    """Return how many archived messages were delivered how often."""
    rows = [row for path in archive.files(SEGMENTS) for row in archive.read_table(path, ["message"]).to_pylist()]
    return Counter(1 + (Sections.split(row["message"]).read_header().delivery_count or 0) for row in rows)


def nothing_is_lost(place: World, receipt: dict[str, Any]) -> None:
    assert receipt["balanced"], receipt
    received = receipt["received" if receipt["mode"] == "direct" else "archived"]
    assert received == receipt["acknowledged"] == len(place.sent)
    assert (receipt["locked"], receipt["remaining_in_queues"]) == (0, {})
    held = MAX_HELD if receipt["mode"] == "direct" else MAX_CHUNK + DEFAULT_BATCH_LIMITS.prefetch
    place.check_arrived(
        (each["message_id"] for each in receipt["doubtful"]), max_twice=TASKS * held
    )  # what each task had in hand
    if receipt["mode"] == "direct":
        return  # what a killed task had locked comes after the messages behind it
    # Of each, when it first came.
    order = {key: [*dict.fromkeys(numbers)] for key, numbers in place.by_session().items()}
    assert all(numbers == sorted(numbers) for numbers in order.values())
