"""The benchmark of provisioning runs, and says what it promises to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_benchmark_measures_both_ways_and_a_metered_namespace() -> None:
    words = ["--queues", "6", "--latency", "1", "--rounds", "1", "--metered", "3", "--output", "json"]
    command = [sys.executable, "-m", "tests.benchmarks.provision", *words]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["schema"] == "sbpair/benchmark/1"
    figures = {"queues", "latency_ms", "rounds", "concurrency", "sequential_s", "concurrent_s", "ratio", "worst_ratio"}
    assert set(told["provision"]) == figures
    assert (told["provision"]["queues"], told["provision"]["latency_ms"]) == (6, 1)
    assert told["metered"]["throttled"] == 0
