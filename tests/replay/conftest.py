"""Fixtures of the replay tests, and the skip of Spark tests without Java."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbpair.replay import spark as spark_module
from sbpair.replay.spark import SETTINGS
from tests.replay.tasks import local_tasks  # noqa: F401  a fixture
from tests.replay.world import HASTY, World, exported

OF_PYTEST = ("PYTEST_CURRENT_TEST",)
"""Variables of no interest to workers."""


def java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    candidate = Path(home, "bin", "java") if home else None
    if candidate is not None and candidate.exists():
        return str(candidate)
    return shutil.which("java")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="no Java on this machine: install Java 17, 21 or 25 to run the Spark tests")
    from_pyspark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
    for item in items:
        if item.get_closest_marker("java") is not None:
            item.add_marker(from_pyspark if java() else missing)


def end_java() -> None:
    """End Java, if it runs: workers get the environment that it was started with."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


def forget_java(conf: Any) -> None:
    """End Java, if it runs, and take the settings along: a SparkConf that was made while Java ran keeps them there."""
    settings = dict(conf.getAll())
    end_java()
    conf._jconf, conf._conf = None, settings


@pytest.fixture
def own_java() -> Iterator[None]:
    """Start Java within the test, and end it with the test. One that tests share is put aside meanwhile."""
    from pyspark import SparkContext

    shared = SparkContext._gateway, SparkContext._jvm
    SparkContext._gateway = SparkContext._jvm = None
    yield
    end_java()
    SparkContext._gateway, SparkContext._jvm = shared


@pytest.fixture(scope="session")
def _java_of_the_session() -> Iterator[dict[str, str]]:
    """Yield the environment that the Java of `shared_java` was started with. Empty before its first test."""
    yield {}
    end_java()


@pytest.fixture
def shared_java(_java_of_the_session: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the Java of earlier tests: to start it takes longer than a short replay.

    Workers get the environment that Java was started with, and with it the variables that differ now.
    """
    start, began_with = spark_module._start_java, _java_of_the_session

    def start_or_share(conf: Any) -> None:
        now = {name: value for name, value in os.environ.items() if name not in OF_PYTEST}
        if not began_with.keys() <= now.keys():
            forget_java(conf)
        if java_runs() and began_with:
            conf.setAll([(f"spark.executorEnv.{name}", now[name]) for name in now if began_with.get(name) != now[name]])
        else:
            forget_java(conf)
            began_with.clear()
            began_with.update(now)
        start(conf)

    monkeypatch.setattr(spark_module, "_start_java", start_or_share)
    if java_runs():
        forget_settings()


def java_runs() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def forget_settings() -> None:
    """Remove the settings of the first session from Java, which has them as defaults of the later ones."""
    from pyspark import SparkContext

    system = SparkContext._jvm.System
    for name in [*system.getProperties().stringPropertyNames()]:
        if name.startswith("spark.") and not name.startswith("spark.submit."):
            system.clearProperty(name)


@pytest.fixture
def java_if_needed(request: pytest.FixtureRequest) -> None:
    """Prepare Java for a test with the mark. A slow one has its own, which it may end or configure."""
    if request.node.get_closest_marker("java") is not None:
        request.getfixturevalue("own_java" if request.node.get_closest_marker("slow") else "shared_java")


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, java_if_needed: None) -> Iterator[World]:
    """Yield two namespaces and two backlog queues, or the WORLD of a module, whose keys are in the environment."""
    del java_if_needed
    wanted = {"queues": 2, **getattr(request.module, "WORLD", {}), **getattr(request, "param", {})}
    with exported(monkeypatch, **wanted) as made:
        yield made


@pytest.fixture
def spark(tmp_path_factory: pytest.TempPathFactory, own_java: None) -> Iterator[Any]:  # noqa: ARG001  # it is there for what it does
    from pyspark.sql import SparkSession

    # Workers would take whatever python3 is first on the PATH.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.ansi.enabled": SETTINGS["spark.sql.ansi.enabled"],
        **HASTY,
    }
    session = SparkSession.builder.master("local[2]").appName("sbpair tests").config(map=settings).getOrCreate()
    yield session
    session.stop()
