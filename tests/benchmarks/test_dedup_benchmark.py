"""The benchmark of the deduplicating receiver measures both kinds of client."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
def test_the_benchmark_measures_both_kinds_of_client() -> None:
    found = benchmark("dedup", "--messages", "60", "--rounds", "1")
    assert set(found["dedup"]) == {"sync", "aio"}
    for kind in ("sync", "aio"):
        assert set(found["dedup"][kind]) == {"removed_per_s", "sdk_per_s", "ratio"}
