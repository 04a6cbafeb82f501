"""Fixtures of the replay tests, and the skip of Spark tests without Java."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sbpair.replay.spark import SETTINGS
from tests.replay.world import HASTY, World, exported

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    """End Java: workers get the environment that it was started with, and the next test may have another."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def own_java() -> Iterator[None]:
    end_java()
    yield
    end_java()


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Yield two namespaces and two backlog queues, whose keys are in the environment."""
    if request.node.get_closest_marker("java") is not None:
        request.getfixturevalue("own_java")
    with exported(monkeypatch, queues=2) as made:
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
