"""The benchmark of provisioning measures both ways and a metered namespace."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
def test_the_benchmark_measures_both_ways_and_a_metered_namespace() -> None:
    found = benchmark("provision", "--queues", "6", "--latency", "1", "--rounds", "1", "--metered", "3")
    figures = {"queues", "latency_ms", "rounds", "concurrency", "sequential_s", "concurrent_s", "ratio"}
    assert set(found["provision"]) == figures
    assert (found["provision"]["queues"], found["provision"]["latency_ms"]) == (6, 1)
    assert found["metered"]["throttled"] == 0
