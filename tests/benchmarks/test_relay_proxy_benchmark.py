"""The benchmark of requests through the relay counts both ways, and each of their processes."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark


@pytest.mark.slow
@pytest.mark.parametrize("body", ["1024", "70000"])
def test_the_benchmark_measures_the_relay_and_the_proxy(body: str) -> None:
    found = benchmark("relay_proxy", "--messages", "200", "400", "--rounds", "1", "--body", body)
    assert set(found["ways"]) == {"relay", "emulator", "listener", "passed_on", "proxy", "proxy_and_server"}
    assert all(figures["msg_per_s"]["min"] > 0 for figures in found["ways"].values())
    assert set(found["ratios"]) == {"relay_to_proxy", "passed_on_to_proxy", "relay_to_proxy_and_server"}
