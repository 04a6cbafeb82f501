"""A Spark Connect server on loopback, from the classes of the pip package."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.replay.cluster import HASTY
from tests.replay.process_output import ProcessOutput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
START_SECONDS = 120.0


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
