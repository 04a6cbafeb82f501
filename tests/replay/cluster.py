"""A standalone cluster on loopback: a master and workers, from the classes of the pip package."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.replay.process_output import ProcessOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
