"""What the workers of a cluster need: the page that says so, line by line, and each thing that one of two lacks."""

import os
import re
import shlex
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import sbpair
from sbpair import errors
from sbpair.replay import driver
from sbpair.replay.run_description import ReplayOptions
from tests.kit.installed import outside
from tests.kit.running import Running
from tests.replay.cluster import HASTY, Cluster, standalone
from tests.replay.conftest import end_java
from tests.replay.object_store import Store, connector_jars, moto
from tests.replay.replays import all_end, end
from tests.replay.test_job_definitions import bare_python
from tests.replay.world import VARIABLES, World, world

pytestmark = [pytest.mark.java, pytest.mark.slow]

ARCHIVE = "s3://bucket/backlog"
PYTHON = "worker-python"
"""The name by which every worker finds its Python."""

SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": HASTY,
    "spark.executor.extraJavaOptions": HASTY,
    "spark.executor.memory": "512m",
    "spark.pyspark.python": PYTHON,
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
}
HOST = socket.gethostname()
LACKS = {
    "python": f'on worker 127.0.0.1: its Python does not suit: Cannot run program "{PYTHON}"',
    "pyarrow": f"on worker {HOST}: its Python does not suit: No module named 'pyarrow' in ",
    "package": f"on worker {HOST}: sbpair is missing: No module named 'sbpair' in ",
    "bucket": f"on worker {HOST}: the archive cannot be used: ",
    "credential": f"on worker {HOST}: a namespace cannot be used: the environment of this worker has no {VARIABLES[1]}",
}
PAGE = Path(sbpair.__file__).parent / "replay/CLUSTER.md"
CONNECTOR = "spark.jars.packages=org.apache.hadoop:hadoop-aws:3.5.0"
DEFAULTS = """spark.driver.host 127.0.0.1
spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
spark.executor.memory 512m
spark.sql.codegen.wholeStage false
"""
MESSAGES = 40


def python_in(directory: Path, python: str | Path) -> str:
    """Create the program PYTHON, and return a PATH with it and no other Python."""
    directory.mkdir()
    program = directory / PYTHON
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    program.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the environment of a worker that lacks something, by what it lacks."""
    folder = tmp_path_factory.mktemp("workers")
    venv.create(folder / "empty", symlinks=True)
    return {
        "python": {"PATH": "/usr/bin:/bin"},
        "pyarrow": {"PATH": python_in(folder / "a", folder / "empty/bin/python")},
        "package": {"PATH": python_in(folder / "b", bare_python(folder / "no-sbpair"))},
        "bucket": {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        "credential": {VARIABLES[1]: ""},
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Cluster]]:
    """Yield two namespaces, and a cluster with one worker that lacks nothing but the variables of a store."""
    folder = tmp_path_factory.mktemp("cluster")
    with world() as place:
        environment = {**outside(place.shell(folder)), "PATH": python_in(folder / "bin", sys.executable)}
        with standalone(folder / "work", environment, 0) as made:
            yield place, made


@pytest.mark.parametrize("lacking", LACKS)
def test_what_one_worker_lacks_is_named_before_the_drain(
    lacking: str,
    cluster: tuple[World, Cluster],
    environments: dict[str, dict[str, str]],
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place, workers = cluster
    place.strand_many(2)
    left = place.left()
    for name in VARIABLES:
        monkeypatch.setenv(name, place.environment[name])
    own = {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "NO_PROXY"))}
    workers.add_workers(1, **own)
    workers.add_workers(1, **{**own, **environments[lacking]})
    request = replace(place.request(tmp_path, master=workers.url, settings=SETTINGS), archive=ARCHIVE)
    try:
        with pytest.raises(errors.MachineLacks) as ended:
            driver.start_run(request, ReplayOptions(), place.queues, lambda _event: None)
    finally:
        end_java()
        for pid in workers.workers:
            end(pid)
        all_end(workers.workers)
        workers.workers.clear()
    assert ended.value.message.startswith(LACKS[lacking])
    assert ended.value.message.endswith("; nothing was received or sent")
    assert ended.value.hint
    assert (place.left(), place.ids()) == (left, [])
    assert not [name for name, data in store.objects.items() if data], "no run is left"


class TypedPage:
    """The blocks of commands of the page, with the places of this machine in them."""

    def __init__(self, folder: Path, url: str, place: World) -> None:
        self.folder = folder
        keys = " ".join(f"{name}={shlex.quote(place.environment[name])}" for name in VARIABLES)
        self.places = {
            " ".join(f"{name}='Endpoint=sb://...'" for name in VARIABLES): keys,
            "/opt/replay": f"{folder}/opt",
            "/mnt/archive": f"{folder}/mounted",
            "https://store.example": url,
            "=...": "=none",
            CONNECTOR: f"spark.jars={connector_jars()}",
        }
        self.worker, self.driver, self.store, self.run, self.submit = re.findall(
            r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL
        )
        defaults = folder / "conf/spark-defaults.conf"
        defaults.parent.mkdir()
        defaults.write_text(DEFAULTS)
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SPARK_CONF_DIR": str(defaults.parent)}
        self.environment = {**outside(place.shell(folder)), **own}

    def placed(self, block: str) -> str:
        for here, there in self.places.items():
            block = block.replace(here, there)
        return block

    def type(self, block: str, environment: Mapping[str, str] | None = None) -> str:
        """Return what a block prints."""
        words = ["bash", "-euc", self.placed(block)]
        environment = dict(environment or self.environment)
        done = subprocess.run(words, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4_000:]
        return str(done.stdout)

    def worker_environment(self) -> dict[str, str]:
        """Do what the page says for a worker, and return the environment that it is started with."""
        before, _, start = self.worker.rstrip().rpartition("\n")
        assert start == "start-worker.sh spark://host:7077"
        plain = {"PATH": f"{sys.base_prefix}/bin:/usr/bin:/bin", "HOME": str(self.folder)}
        printed = self.type(f"{before}\n{self.store}\nenv -0", plain)
        return dict(line.split("=", 1) for line in printed.split("\0") if line)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[tuple[World, Cluster, TypedPage]]:
    """Yield a cluster of two workers that have what the page says and nothing else, and its blocks."""
    with moto() as url, Running() as running:
        place = World(running, ["orders", "invoices"], 2, lock_seconds=60)
        typed = TypedPage(tmp_path, url, place)
        with standalone(tmp_path / "work", typed.worker_environment(), 2) as made:
            typed.places["spark://host:7077"] = made.url
            yield place, made, typed


def test_each_line_of_the_page_works(page: tuple[World, Cluster, TypedPage]) -> None:
    place, _, typed = page
    place.strand_many(MESSAGES)
    typed.type(f"{typed.driver.rstrip()} --count 2")
    place.check_arrived()
    assert "spark-submit" in typed.type(typed.submit)
