"""What the workers of a cluster need: the page that says so, line by line, and each thing that one of two lacks."""

import json
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
from sbpair.replay.archive import run_ids
from sbpair.replay.run_description import ReplayOptions
from tests.kit.installed import outside
from tests.kit.running import Running
from tests.replay.cluster import HASTY, Cluster, standalone, started
from tests.replay.conftest import end_java
from tests.replay.object_store import connector_jars, environment, moto
from tests.replay.replays import PATIENCE_SECONDS, end, end_all, nothing_is_lost
from tests.replay.test_job_definitions import READ, bare_python
from tests.replay.world import VARIABLES, World, shell

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
MESSAGES = 40  # as many as READ wants
DESTINATIONS = ("orders", "invoices"), ("orders-2", "invoices-2"), ("unsent",)
"""Of one world each. A command of the page counts queues from the first."""
SENT = re.compile(r'"phase": "send", "destination": null, "messages": ([1-9]\d*)')


def python_in(directory: Path, python: str | Path) -> str:
    """Create the program PYTHON, and return a PATH with it and no other Python."""
    directory.mkdir()
    program = directory / PYTHON
    program.write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
    program.chmod(0o755)
    return f"{directory}:/usr/bin:/bin"


class TypedPage:
    """The blocks of commands of the page, with the places of this machine in them."""

    cluster: Cluster  # once it is started

    def __init__(self, folder: Path, url: str, running: Running) -> None:
        self.folder, self.url = folder, url
        self.worlds = [World(running, names, 2, first=2 * n, lock_seconds=60) for n, names in enumerate(DESTINATIONS)]
        environ = shell(running, folder)
        keys = " ".join(f"{name}={shlex.quote(environ[name])}" for name in VARIABLES)
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
        self.environment = {**outside(environ), **own}

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


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TypedPage]:
    """Yield the page's blocks, and a cluster whose workers have what it says, and nothing else."""
    folder = tmp_path_factory.mktemp("page")
    with moto() as url, Running() as running:
        typed = TypedPage(folder, url, running)
        with standalone(folder / "work", typed.worker_environment(), 0) as typed.cluster:
            typed.places["spark://host:7077"] = typed.cluster.url
            yield typed


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the environment of a worker that lacks something, or "nothing", by what it lacks."""
    folder = tmp_path_factory.mktemp("workers")
    venv.create(folder / "empty", symlinks=True)
    nothing = {"PATH": python_in(folder / "c", sys.executable)}
    return {
        "nothing": nothing,
        "python": {"PATH": "/usr/bin:/bin"},
        "pyarrow": {"PATH": python_in(folder / "a", folder / "empty/bin/python")},
        "package": {"PATH": python_in(folder / "b", bare_python(folder / "no-sbpair"))},
        "bucket": {**nothing, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"},
        "credential": {**nothing, VARIABLES[1]: ""},
    }


@pytest.fixture(scope="module")
def driver_here(page: TypedPage) -> Iterator[World]:
    """Yield queues for drivers in this process, which has what a driver needs, and one Java for all."""
    with pytest.MonkeyPatch.context() as patch:
        place = page.worlds[2]
        for name, value in {**place.environment, **environment(page.url), "PYSPARK_PYTHON": PYTHON}.items():
            patch.setenv(name, value)
        yield place
        end_java()


@pytest.mark.parametrize("lacking", LACKS)
def test_what_one_worker_lacks_is_named_before_the_drain(
    lacking: str, page: TypedPage, driver_here: World, environments: dict[str, dict[str, str]], tmp_path: Path
) -> None:
    place = driver_here
    place.strand_many(2)
    left = place.left()
    page.cluster.replace_workers(environments["nothing"], environments[lacking])
    request = replace(place.request(tmp_path, master=page.cluster.url, settings=SETTINGS), archive=ARCHIVE)
    with pytest.raises(errors.MachineLacks) as ended:
        driver.start_run(request, ReplayOptions(), place.queues, lambda _event: None)
    assert ended.value.message.startswith(LACKS[lacking])
    assert ended.value.message.endswith("; nothing was received or sent")
    assert ended.value.hint
    assert (place.left(), place.ids(), run_ids(ARCHIVE)) == (left, [], [])


def test_each_line_of_the_page_works(page: TypedPage) -> None:
    place = page.worlds[0]
    place.strand_many(MESSAGES)
    page.cluster.replace_workers({}, {})
    page.type(page.driver.replace("sbpair replay run", "sbpair replay run --count 2"))
    place.check_arrived()
    assert "spark-submit" in page.type(page.submit)


def test_a_store_serves_a_run_whose_worker_and_driver_are_killed(page: TypedPage) -> None:
    """Executors read by s3a what pyarrow has written. The data source then reads and writes there, and gc removes."""
    place = page.worlds[1]
    place.strand_many(MESSAGES)
    page.cluster.replace_workers({}, {})
    package, _, _ = page.driver.partition("sbpair replay run")
    page.type(package)
    python = package.partition("\n")[0]
    script = f"{python}\n{page.store}{page.run.rstrip()} --log-format json --output json"
    run = script.replace("sbpair replay run", "exec sbpair replay run --count 4 --rate 3")
    process, output = started(["bash", "-euc", f"cd {page.folder}\n{page.placed(run)}"], page.environment)
    try:
        sent = output.find(SENT.search, PATIENCE_SECONDS)[1]
        end(page.cluster.workers[0])
        output.find(lambda line: (more := SENT.search(line)) and more[1] != sent, PATIENCE_SECONDS)
    finally:
        end_all(process)
    archive = "--archive s3://bucket/backlog --output json"
    [found] = json.loads(page.type(f"{page.store}sbpair replay list {archive}"))["runs"]
    assert found["phase"] == "send"
    resumed = page.type(script.replace("sbpair replay run", f"sbpair replay resume {found['run'][:-1]}"))
    nothing_is_lost(place, json.loads(resumed))

    (page.folder / "read.py").write_text(READ)
    arguments = f"--master {page.cluster.url} --py-files sbpair.zip pyspark-shell"
    where = f"s3://bucket/backlog/{found['run']} orders-2 s3://bucket/ledger"
    page.type(
        f"{python}\n{page.store}export PYSPARK_SUBMIT_ARGS='{arguments}' PYTHONPATH=sbpair.zip\npython read.py {where}"
    )
    assert {name for name in place.ids() if name.startswith("again-")} == {f"again-{name}" for name in place.sent}
    for command in ("verify --full", "gc --yes"):
        assert json.loads(page.type(f"{page.store}sbpair replay {command} {found['run']} {archive}"))
