"""The benchmark of starts measures each command; its figures are not judged here."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark
from tests.benchmarks.startup import COMMANDS


@pytest.mark.slow
def test_the_benchmark_measures_the_start_of_each_command() -> None:
    found = benchmark("startup", "--rounds", "1")
    assert set(found["cpu_s"]) == {"python", *COMMANDS, "emulator"}
    assert all(0 < each["min"] <= each["median"] <= each["max"] for each in found["cpu_s"].values())
