"""Spark on loopback, from the classes of the pip package: a standalone cluster, and a Spark Connect server."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, TypeVar

import pytest

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
REGISTERED = r"Successfully registered with master (\S+)"
START_SECONDS = 120.0
HASTY = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Nothing here runs long enough for Java to compile it twice, or has enough memory to be collected by many."""


class Cluster:
    """`url` is the master's; `workers` are pids."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_JAVA_OPTS": HASTY}
        self._environment = {**environment, **own}
        self._processes: list[subprocess.Popen[str]] = []
        self._outputs: dict[str, ProcessOutput] = {}
        self.url = ""
        self.workers: list[int] = []

    def start(self, workers: int) -> None:
        self._launch("master", MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = self._wait_for("master", r"Starting Spark master at (\S+)")
        for name in [self._begin_worker() for _ in range(workers)]:
            self._wait_for(name, REGISTERED)

    def add_worker(self) -> None:
        self._wait_for(self._begin_worker(), REGISTERED)

    def _begin_worker(self) -> str:
        name = f"worker-{len(self._processes)}"
        place = ("--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._directory / name))
        process = self._launch(name, WORKER, *place, "--cores", "1", "--memory", "1g", self.url)
        self.workers.append(process.pid)
        return name

    def replace_dead(self) -> None:
        alive = {process.pid for process in self._processes if process.poll() is None}
        dead = [pid for pid in self.workers if pid not in alive]
        self.workers = [pid for pid in self.workers if pid in alive]
        for _ in dead:
            self.add_worker()

    def daemons(self) -> list[int]:
        return [process.pid for process in self._processes]

    def executors(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words and self._is_mine(words):
                    found.append(int(path.parent.name))
        return found

    def stop(self) -> None:
        for pid in self.executors():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()
            process.wait()

    def _is_mine(self, words: list[bytes]) -> bool:
        ports = [word.rpartition(b":")[2] for word in words if word.startswith(b"spark://Worker@")]
        return any(port.decode() in self._ports() for port in ports)

    def _ports(self) -> set[str]:
        texts = [output.text for output in self._outputs.values()]
        return {port for text in texts for port in re.findall(r"Starting Spark worker 127\.0\.0\.1:(\d+)", text)}

    def _launch(self, name: str, kind: str, *words: str) -> subprocess.Popen[str]:
        import pyspark

        home = Path(pyspark.__file__).parent
        process = subprocess.Popen(
            [str(home / "bin" / "spark-class"), kind, *words],
            env={**self._environment, "SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        self._processes.append(process)
        self._outputs[name] = ProcessOutput(process.stdout)
        return process

    def _wait_for(self, name: str, pattern: str) -> str:
        """Wait until a process writes a line that matches, and return the first group."""
        return self._outputs[name].find(lambda line: re.search(pattern, line), START_SECONDS)[1]


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


SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


class ConnectServer:
    """One that runs tasks itself. `process` is its Java."""

    def __init__(self, environment: Mapping[str, str], port: int = 0, **settings: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        given = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": HASTY,
            **settings,
        }
        conf = [word for name, value in given.items() for word in ("--conf", f"{name}={value}")]
        own = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(home)}
        self.process = subprocess.Popen(
            [str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2,4]", *conf],
            env={**os.environ, **environment, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert self.process.stdout is not None
        self._output = ProcessOutput(self.process.stdout)

    def wait_started(self) -> str:
        """Wait until the server accepts connections, and return its URL."""
        found = self._output.find(lambda line: re.search(r"server started at: \S*:(\d+)", line), START_SECONDS)
        return f"sc://127.0.0.1:{found[1]}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def connect_server(environment: Mapping[str, str], port: int = 0, **settings: str) -> Iterator[tuple[str, int]]:
    """Start a server whose tasks have `environment`, and yield its URL and its process id."""
    pytest.importorskip("grpc_status", reason="no client of Spark Connect: pip install 'pyspark[connect]'")
    server = ConnectServer(environment, port, **settings)
    try:
        yield server.wait_started(), server.process.pid
    finally:
        server.stop()
