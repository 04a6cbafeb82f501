"""Writes that are killed: all rows arrive unaltered, and those that may have come twice are named."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from sbpair.replay.archive import LEDGER, Archive
from tests.kit.running import Running
from tests.replay.cluster import HASTY, connect_server, standalone, started
from tests.replay.replays import PATIENCE_SECONDS, end, end_all, is_connected, python_workers
from tests.replay.world import World
from tests.spark.sessions import environment

pytestmark = [pytest.mark.slow, pytest.mark.java]

ROWS, BYTES, PARTITIONS = 24_000, 300, 4
ATTEMPTS = 20
EXPECTED = {f"m{n}": (b"body %d " % n).ljust(BYTES, b"x") for n in range(ROWS)}


class Write:
    """A running write of ROWS to a queue."""

    def __init__(self, place: World, directory: Path, environ: dict[str, str], **changes: Any) -> None:
        options = {"destination": "orders", "ledger": str(directory / "ledger"), "run": "r1"}
        document = {"directory": str(directory), "rows": ROWS, "bytes": BYTES, "partitions": PARTITIONS}
        document |= {"options": options, **changes}
        self.archive = Archive(str(directory / "ledger"), "r1")
        self._port = place.port("contoso")
        words = [sys.executable, "-m", "tests.spark.write_process", json.dumps(document)]
        self.process, self._output = started(words, environ)

    def until_sending(self, files: int = 3) -> None:
        before = len(self.archive.files(LEDGER))
        self.until(lambda: len(self.archive.files(LEDGER)) >= before + files)

    def until(self, holds: Callable[[], object]) -> None:
        """Wait until a condition holds. Fails if the process ends before."""
        while not holds():
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
                pytest.fail(self.text())

    def senders(self, spark: int | None = None) -> list[int]:
        """Return the workers below this process, or below that of Spark, that are connected to the namespace."""
        workers = python_workers(spark or self.process.pid)
        return [pid for pid in workers if is_connected(pid, self._port)]

    def kill_sender(self, spark: int | None = None) -> None:
        """Kill a worker that is connected to the namespace, as soon as there is one."""
        found: list[int] = []
        self.until(lambda: found.extend(self.senders(spark)) or found)
        os.kill(found[0], signal.SIGKILL)

    def text(self) -> str:
        """Wait for the end, and return the last output."""
        self.process.wait(PATIENCE_SECONDS)
        self._output.wait_end(PATIENCE_SECONDS)
        return self._output.text[-4_000:]

    def ends(self) -> bool:
        """Wait for the end, and return whether it succeeded."""
        print(self.text())  # noqa: T201  shown where the test fails
        return self.process.returncode == 0

    def receipt(self, name: str = "receipt") -> dict[str, Any]:
        [path] = [each for each in self.archive.sizes("report") if each.endswith(f"/{name}.json")]
        return self.archive.read_json(path)


@contextmanager
def writing(place: World, directory: Path, **changes: Any) -> Iterator[Write]:
    write = Write(place, directory, environment(place.running, directory), **changes)
    try:
        yield write
    finally:
        end_all(write.process)


@pytest.fixture
def place() -> Iterator[World]:
    with Running() as running:
        yield World(running, ["orders"], 1)


def all_is_there(place: World, receipt: dict[str, Any]) -> int:
    """Check that nothing is lost or altered, and return how many messages came twice: all of them are named."""
    found = [message.sections for message in place.arrived()["orders"]]
    arrived, twice = set(), set()
    for each in found:
        [(_, body)] = each.read_body()
        name = f"m{body.split()[1].decode()}"
        assert body == EXPECTED[name]
        if name in arrived:
            twice.add(name)
        arrived.add(name)
    assert arrived == EXPECTED.keys()
    assert receipt["balanced"]
    assert len(twice) <= receipt["doubtful_total"] <= PARTITIONS * 1_500
    if receipt["doubtful_total"] == len(receipt["doubtful"]) and receipt["batch"] is None:
        assert twice <= {each["message_id"] for each in receipt["doubtful"]}
    return len(twice)


def sent_in_parts(place: World, receipt: dict[str, Any]) -> int:
    """Check that several jobs have sent all, and return how many messages came twice."""
    assert receipt["rows"] == ROWS == receipt["acknowledged_before"] + receipt["acknowledged"]
    assert receipt["acknowledged_before"] > 0
    return all_is_there(place, receipt)


@pytest.mark.parametrize(
    ("connect", "function"), [(False, False), (True, False), (True, True)], ids=["local", "connect", "function"]
)
def test_a_killed_worker_is_replaced_and_sends_the_rest(
    connect: bool, function: bool, place: World, tmp_path: Path
) -> None:
    server = connect_server(environment(place.running, tmp_path)) if connect else nullcontext((None, None))
    with server as (url, pid), writing(place, tmp_path, remote=url, function=function) as write:
        write.until_sending()
        write.kill_sender(pid)
        assert write.ends()
        receipt = write.receipt()
    assert (receipt["rows"], receipt["acknowledged"]) == (ROWS, ROWS)
    all_is_there(place, receipt)


@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_a_killed_driver_is_run_again_and_sends_the_rest(stream: bool, place: World, tmp_path: Path) -> None:
    for _ in range(2 - stream):
        with writing(place, tmp_path, stream=stream) as write:
            write.until_sending()
    with writing(place, tmp_path, stream=stream) as write:
        assert write.ends()
        sent_in_parts(place, write.receipt("0" if stream else "receipt"))


def written_once_it_may(place: World, directory: Path, url: str) -> dict[str, Any]:
    """Write until no task of an earlier job is alive, and return the receipt."""
    for _ in range(ATTEMPTS):
        with writing(place, directory, remote=url) as write:
            if write.ends():
                return write.receipt()
            assert "run r1 is still going" in write.text()
    pytest.fail("the tasks of the earlier job did not end")


@pytest.mark.parametrize("killed", ["client", "server"])
def test_a_killed_side_of_spark_connect_is_replaced_and_sends_the_rest(
    killed: str, place: World, tmp_path: Path
) -> None:
    """A server's tasks run on without their client, and the next job is refused until they have ended."""
    environ = environment(place.running, tmp_path)
    with ExitStack() as servers:
        url, pid = servers.enter_context(connect_server(environ))
        with writing(place, tmp_path, remote=url) as write:
            write.until_sending()
            end(write.process.pid if killed == "client" else pid)
        assert len(set(place.ids())) < ROWS, "the kill came too late to prove anything"
        if killed == "server":
            url, _ = servers.enter_context(connect_server(environ))
        twice = sent_in_parts(place, written_once_it_may(place, tmp_path, url))
    assert killed == "server" or twice == 0, "no task was killed"


def test_an_executor_of_a_cluster_may_die(place: World, tmp_path: Path) -> None:
    settings = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": HASTY}
    with (
        standalone(tmp_path / "cluster", environment(place.running, tmp_path), 2) as cluster,
        writing(place, tmp_path, settings=settings, master=cluster.url) as write,
    ):
        write.until_sending()
        end(cluster.executors()[0])
        assert write.ends()
        receipt = write.receipt()
    assert receipt["rows"] == receipt["acknowledged"] == ROWS
    all_is_there(place, receipt)
