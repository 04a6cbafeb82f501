"""The benchmark of moves measures its ways, and its check finds what is missing."""

from __future__ import annotations

import pytest

from tests.benchmarks.kit import benchmark
from tests.benchmarks.move import COMPARED


@pytest.mark.slow
def test_the_benchmark_measures_moves_beside_a_syphon() -> None:
    ways = ("syphon", "move", "move_bare", "move_sessions")
    found = benchmark("move", "--messages", "100", "300", "--rounds", "1", "--way", *ways)
    assert set(found["ways"]) == set(ways)
    assert set(found["ratios"]) == {f"{many}_to_{few}" for many, few in COMPARED if "sdk" not in many}
