"""The benchmark of the paired sender runs, and says what it promises to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_both_kinds_of_client() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.sender", "--messages", "40", "--rounds", "1", "--output", "json"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["schema"] == "sbpair/benchmark/1"
    assert set(told["sender"]) == {"sync", "aio"}
    assert all(set(each) == {"plain_ms", "paired_ms", "ratio", "worst_ratio"} for each in told["sender"].values())
