"""The benchmark of the paired sender measures both kinds of client."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
def test_the_benchmark_measures_both_kinds_of_client() -> None:
    found = benchmark("sender", "--messages", "40", "80", "--rounds", "1")
    assert set(found["sender"]) == {"relay_ms", "sync", "aio"}
    for kind in ("sync", "aio"):
        assert set(found["sender"][kind]) == {"plain_ms", "paired_ms", "ratio"}
