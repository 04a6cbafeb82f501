"""The benchmark of metrics moves all messages, scraped or not."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
def test_the_benchmark_measures_each_way_of_scraping() -> None:
    found = benchmark("metrics", "--messages", "200", "400", "--rounds", "1")
    assert set(found["ways"]) == {"without", "scraped", "besieged"}
    assert all(figures["msg_per_s"]["min"] > 0 for figures in found["ways"].values())
    assert set(found["ratios"]) == {"scraped_to_without", "besieged_to_without"}
