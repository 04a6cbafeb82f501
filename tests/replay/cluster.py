"""Spark on loopback, from the classes of the pip package: a standalone cluster, and a Spark Connect server."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import pytest

from tests.kit.processes import offspring, read

Found = TypeVar("Found")


class ProcessOutput:
    """The lines that a process and its children have written to a pipe. `ended` is whether all have closed it."""

    def __init__(self, pipe: IO[str]) -> None:
        self.lines: list[str] = []
        self.ended = False
        self._changed = threading.Condition()
        threading.Thread(target=self._read, args=(pipe,), name="process output", daemon=True).start()

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def find(self, match: Callable[[str], Found | None], seconds: float) -> Found:
        """Wait for a line that matches, and return its match. Raises AssertionError at the end, or after `seconds`."""
        limit = time.monotonic() + seconds
        number, found = 0, None
        while found is None:
            with self._changed:
                assert self._changed.wait_for(partial(self._is_known, number), limit - time.monotonic()), self.text
            assert number < len(self.lines), self.text
            found = match(self.lines[number])
            number += 1
        return found

    def _is_known(self, number: int) -> bool:
        """Return whether a line has been read, or never will be."""
        return self.ended or number < len(self.lines)

    def wait_end(self, seconds: float) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.ended, seconds), self.text

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
        with self._changed:
            self.ended = True
            self._changed.notify_all()


MASTER, WORKER = "org.apache.spark.deploy.master.Master", "org.apache.spark.deploy.worker.Worker"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
START_SECONDS = 120.0
HASTY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Nothing here runs long enough for Java to compile it twice, or has enough memory to be collected by many."""


def started(words: Sequence[str], environment: Mapping[str, str]) -> tuple[subprocess.Popen[str], ProcessOutput]:
    """Start a process in a session of its own, with this Python for workers."""
    process = subprocess.Popen(
        words,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    return process, ProcessOutput(process.stdout)


def launch(program: str, *words: str, environment: Mapping[str, str]) -> tuple[subprocess.Popen[str], ProcessOutput]:
    """Start a program of the pip package."""
    import pyspark

    home = Path(pyspark.__file__).parent
    own = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
    return started([str(home / "bin" / program), *words], {**environment, **own})


class Cluster:
    """`url` is the master's; `workers` are pids."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = {**environment, "SPARK_DAEMON_JAVA_OPTS": HASTY}
        self._processes: list[subprocess.Popen[str]] = []
        self.url = ""
        self.workers: list[int] = []

    def start(self, workers: int) -> None:
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        output = self._launch(MASTER, *place, environment=self._environment)
        self.url = output.find(lambda line: re.search(r"Starting Spark master at (\S+)", line), START_SECONDS)[1]
        self.add_workers(*[{}] * workers)

    def replace_workers(self, *environments: Mapping[str, str]) -> None:
        """End the workers and all they run, and start others."""
        for process in self._processes[1:]:
            process.kill()
            process.wait()
        self.workers.clear()
        self.add_workers(*environments)

    def add_workers(self, *environments: Mapping[str, str]) -> None:
        """Start workers, each with its environment in addition to that of the cluster."""
        begun = []
        for environment in environments:
            place = (
                "--host",
                "127.0.0.1",
                "--webui-port",
                "0",
                "--work-dir",
                f"{self._directory}/{len(self._processes)}",
            )
            words = (*place, "--cores", "1", "--memory", "1g", self.url)
            begun.append(self._launch(WORKER, *words, environment={**self._environment, **environment}))
            self.workers.append(self._processes[-1].pid)
        for output in begun:
            output.find(lambda line: "Successfully registered with master" in line or None, START_SECONDS)

    def replace_dead(self) -> None:
        alive = {process.pid for process in self._processes if process.poll() is None}
        before, self.workers = self.workers, [pid for pid in self.workers if pid in alive]
        self.add_workers(*[{}] * (len(before) - len(self.workers)))

    def daemons(self) -> list[int]:
        return [process.pid for process in self._processes]

    def executors(self) -> list[int]:
        below = (pid for worker in self.workers for pid in offspring(worker))
        return [pid for pid in below if EXECUTOR in read(Path(f"/proc/{pid}/cmdline"))]

    def stop(self) -> None:
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait()

    def _launch(self, kind: str, *words: str, environment: Mapping[str, str]) -> ProcessOutput:
        process, output = launch("spark-class", kind, *words, environment=environment)
        self._processes.append(process)
        return output


@contextmanager
def standalone(directory: Path, environment: Mapping[str, str], workers: int = 2) -> Iterator[Cluster]:
    """Start a cluster. Its workers and executors have `environment`, with the keys of the namespaces."""
    directory.mkdir(parents=True, exist_ok=True)
    cluster = Cluster(directory, environment)
    try:
        cluster.start(workers)
        yield cluster
    finally:
        cluster.stop()


@contextmanager
def connect_server(environment: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """Start a server that runs tasks itself, in `environment`, and yield its URL and its process id."""
    pytest.importorskip("grpc_status", reason="no client of Spark Connect: pip install 'pyspark[connect]'")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": HASTY,
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    words = ("--class", SERVER, "--master", "local[2,4]", *conf)
    process, output = launch("spark-submit", *words, environment={**os.environ, **environment})
    try:
        found = output.find(lambda line: re.search(r"server started at: \S*:(\d+)", line), START_SECONDS)
        yield f"sc://127.0.0.1:{found[1]}", process.pid
    finally:
        process.kill()
        process.wait()
