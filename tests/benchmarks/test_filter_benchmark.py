"""The benchmark of filters counts what was moved and what stayed."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
def test_the_benchmark_compares_filters_with_a_receive_and_release() -> None:
    found = benchmark("filter", "--messages", "200", "400", "--rounds", "1")
    assert set(found["ways"]) == {"loop", "property", "several", "none"}
    ratios = {f"{way}_to_none" for way in ("property", "several")}
    assert set(found["ratios"]) == ratios | {f"{way}_to_loop" for way in ("property", "several", "none")}
