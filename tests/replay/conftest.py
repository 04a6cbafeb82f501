"""Fixtures of the replay tests, and the skip of Spark tests without Java."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from sbpair.replay.spark import find_java
from tests.replay import object_store
from tests.replay.object_store import Store
from tests.replay.tasks import local_tasks  # noqa: F401  a fixture
from tests.replay.world import World, exported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="no Java on this machine: install Java 17, 21 or 25 to run the Spark tests")
    from_pyspark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")
    for item in items:
        if item.get_closest_marker("java") is not None:
            item.add_marker(from_pyspark if find_java(os.environ) else missing)


def end_java() -> None:
    """End Java, if it runs."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture
def own_java() -> Iterator[None]:
    """End Java with the test: workers get the environment that it was started with."""
    yield
    end_java()


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Yield two namespaces and two backlog queues, or the WORLD of a module, whose keys are in the environment."""
    if request.node.get_closest_marker("java") is not None:
        request.getfixturevalue("own_java")
    wanted = {"queues": 2, **getattr(request.module, "WORLD", {}), **getattr(request, "param", {})}
    with exported(monkeypatch, **wanted) as made:
        yield made


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with object_store.running() as found:
        for name, value in object_store.environment(found.url).items():
            monkeypatch.setenv(name, value)
        yield found
