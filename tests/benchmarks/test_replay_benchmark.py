"""The benchmark of the replay runs, and reckons as it says. What the figures are is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.benchmarks.replay import DRIVER, JVM, WORKERS, Mark, Tree, beyond, figures, offspring

ROOT = Path(__file__).parents[2]


def spent(driver: float, jvm: float, workers: float) -> Counter[str]:
    return Counter({DRIVER: driver, JVM: jvm, WORKERS: workers})  # type: ignore[dict-item]


MARKS = [
    Mark("begin", 100.0, spent(0, 0, 0), 1.0),
    Mark("spark", 101.0, spent(1, 0, 0), 1.0),
    Mark("drain", 110.0, spent(1, 5, 0), 1.0),
    Mark("plan", 112.0, spent(1, 6, 2), 1.5),
    Mark("plan", 113.0, spent(1, 6, 2), 1.5),
    Mark("end", 114.0, spent(1.5, 6.5, 2), 2.0),
]


def test_a_rate_leaves_the_start_out_and_the_start_is_told() -> None:
    told = figures(400, MARKS, Tree(0))
    assert (told["start_s"], told["start_cpu_s"]) == (10.0, {DRIVER: 1.0, JVM: 5.0, WORKERS: 0.0})
    assert (told["seconds"], told["msg_per_s"], told["msg_per_cpu_s"]) == (4.0, 100, 100)
    assert (told["jvm_share"], told["cpu_s_emulators"]) == (0.375, 1.0)
    assert told["phases"]["plan"]["seconds"] == 2.0
    assert sum(each["seconds"] for each in told["phases"].values()) == 14.0


def test_what_more_messages_cost_is_told_without_what_any_run_costs() -> None:
    whole, quarter = figures(400, MARKS, Tree(0)), {**figures(100, MARKS, Tree(0)), "seconds": 2.5}
    quarter["cpu_s"] = {DRIVER: 0.5, JVM: 1.0, WORKERS: 0.5}
    told = beyond(whole, quarter)["beyond_a_quarter"]
    assert (told["messages"], told["msg_per_s"], told["msg_per_cpu_s"], told["jvm_share"]) == (300, 200, 150, 0.25)


def test_all_that_a_process_starts_is_found() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        tree = Tree(process.pid)
        tree.look()
        assert len(offspring(process.pid)) == 1
        assert [*tree.kinds.values()] == [DRIVER, WORKERS]
        assert tree.worker_mb() > 1
        process.communicate(b"\n")


@pytest.mark.java
@pytest.mark.slow
def test_the_benchmark_measures_both_modes_and_the_plain_loop() -> None:
    words = ["--messages", "400", "--without-quarter", "--output", "json"]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.replay", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    assert told["schema"] == "sbpair/benchmark/1"
    assert set(told["modes"]) == {"archive", "direct"}
    assert set(told["modes"]["archive"]["phases"]) >= {"drain", "plan", "send", "verify"}
    assert set(told["modes"]["direct"]["phases"]) >= {"move", "verify"}
    assert set(told["ratios"]) == {"archive_to_sdk_loop", "direct_to_sdk_loop"}
