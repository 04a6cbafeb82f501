"""The benchmark of the replay measures both modes, and computes its figures from the marks of phases."""

import subprocess
import sys
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.benchmarks.replay import DRIVER, EMULATORS, JVM, MACHINE, WORKERS, Costs, Mark, figures, processes, slopes
from tests.benchmarks.skew import ratios
from tests.benchmarks.test_benchmarks import benchmark
from tests.kit.processes import offspring


def spent(driver: float, jvm: float, workers: float, emulators: float) -> Counter[str]:
    return Counter({DRIVER: driver, JVM: jvm, WORKERS: workers, EMULATORS: emulators})  # type: ignore[dict-item]


MARKS = [
    Mark("begin", 100.0, spent(0, 0, 0, 1.0)),
    Mark("spark", 101.0, spent(1, 0, 0, 1.0)),
    Mark("drain", 110.0, spent(1, 5, 0, 1.0)),
    Mark("plan", 112.0, spent(1, 6, 2, 1.5)),
    Mark("plan", 113.0, spent(1, 6, 2, 1.5)),
    Mark("end", 114.0, spent(1.5, 6.5, 2, 2.0)),
]


def test_a_rate_excludes_the_start_which_is_reported_separately() -> None:
    found = figures(400, MARKS, Costs(0, lambda _driver: iter(())))
    assert (found["start_s"], found["start_cpu_s"]) == (10.0, {DRIVER: 1.0, JVM: 5.0, WORKERS: 0.0})
    assert (found["seconds"], found["msg_per_s"], found["msg_per_cpu_s"]) == (4.0, 100, 100)
    assert (found["jvm_share"], found["cpu_s_emulators"]) == (0.375, 1.0)
    assert found["phases"]["plan"]["seconds"] == 2.0
    assert sum(each["seconds"] for each in found["phases"].values()) == 14.0


def test_a_slope_excludes_what_a_run_costs_at_any_size() -> None:
    def run(messages: int, jvm: float, emulators: float) -> dict[str, Any]:
        cpu_s = {DRIVER: 1.0, JVM: jvm, WORKERS: messages / 50}
        return {"messages": messages, "seconds": 2 + messages / 100, "cpu_s": cpu_s, "cpu_s_emulators": emulators}

    found = slopes([run(100, 7, 1), run(300, 8, 2), run(100, 7, 1), run(300, 8, 2)])
    medians = {name: each["median"] for name, each in found.items()}
    per_1k = {f"{kind}_cpu_s_per_1k": value for kind, value in ((DRIVER, 0), (JVM, 5), (WORKERS, 20), ("emulators", 5))}
    assert medians == {**per_1k, "seconds_per_1k": 10, "msg_per_s": 100, "jvm_share": 0.2}


def test_the_time_of_an_uneven_backlog_is_compared_with_an_even_one() -> None:
    def run(drain: float, send: float) -> dict[str, Any]:
        phases = {"drain": {"seconds": drain}, "send": {"seconds": send}}
        return {"seconds": drain + send, "phases": phases}

    found = ratios({"even": [run(10, 10), run(9, 9), run(20, 40)], "queue": [run(15, 10)] * 3})
    assert found == {"queue": {"all": 1.25, "drain": 1.5, "send": 1.0}}


@pytest.mark.java
@pytest.mark.slow
def test_the_benchmark_replays_uneven_backlogs_whole() -> None:
    found = benchmark("skew", "--messages", "2000", "--answer-ms", "10", "--rounds", "1")
    assert {shape: [*each] for shape, each in found["ratios"].items()} == {
        shape: ["all", "drain", "send"] for shape in ("queue", "session")
    }


def test_each_descendant_of_a_process_is_found() -> None:
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        costs = Costs(process.pid, partial(processes, emulators=()))
        assert {*costs.spent()} == {DRIVER, WORKERS, MACHINE}
        assert len(offspring(process.pid)) == 1
        assert costs.peak_mb(WORKERS) > 1
        process.communicate(b"\n")
