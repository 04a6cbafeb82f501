"""The benchmark of scaling measures a cluster, and names the limit of each phase."""

import os
from collections import Counter
from typing import Any

import pytest

from tests.benchmarks.replay import MACHINE, Mark, spans
from tests.benchmarks.replay_scaling import PHASES, bound, cpu_per_1k, figures, speedups
from tests.benchmarks.test_benchmarks import benchmark

EMULATED, PYTHON, JAVA = "emulator of contoso", "Python of executor 0", "executors' Java"
TWO = {"there": 2, "used": 1.0, "used_by_emulators": 0.25, "used_by_others": 0.0}


def spent(emulated: float, python: float, java: float, machine: float) -> Counter[str]:
    return Counter({EMULATED: emulated, PYTHON: python, JAVA: java, MACHINE: machine})  # type: ignore[dict-item]


MARKS = [
    Mark("check", 90.0, spent(0, 0, 0, 90)),
    Mark("drain", 100.0, spent(0, 0, 1, 100)),
    Mark("plan", 104.0, spent(1, 2, 2, 108)),
    Mark("plan", 105.0, spent(1, 2, 3, 109)),
    Mark("send", 106.0, spent(1, 2, 4, 110)),
    Mark("verify", 110.0, spent(3, 4, 5, 115)),
]


def test_a_phase_lasts_until_the_next_and_costs_the_cpu_spent_within_it() -> None:
    found = {name: figures(400, *span) for name, span in spans(MARKS).items()}
    assert (found["drain"]["seconds"], found["drain"]["msg_per_s"]) == (4.0, 100)
    assert found["drain"]["cpu_s"] == {EMULATED: 1.0, PYTHON: 2.0, JAVA: 1.0}
    assert found["plan"]["seconds"] == 2.0
    cores = {"used": 1.0, "used_by_emulators": 0.25, "used_by_others": 1.0}
    assert found["drain"]["cores"] == {"there": os.cpu_count(), **cores}


@pytest.mark.parametrize(
    ("cost", "cores", "answer_ms", "said"),
    [
        ({PYTHON: 9, JAVA: 10}, {}, 0, f"{PYTHON}: each can use one core at most"),
        ({PYTHON: 0.5, JAVA: 6}, {}, 0, f"{JAVA} 60% of the time busy; the rest is waits for other processes"),
        (
            {PYTHON: 2, JAVA: 6},
            {},
            250,
            f"{JAVA} 60%, {PYTHON} 20% of the time busy; the rest is waits for answers after 250 ms",
        ),
        ({PYTHON: 8}, {"used": 1.8}, 250, "CPU: the 2 cores of this machine, 0.25 by the emulators"),
        ({PYTHON: 8}, {"used_by_others": 0.9}, 0, "0.9 of them used by others"),
    ],
)
def test_a_phase_is_bound_by_what_is_used_up(
    cost: dict[str, float], cores: dict[str, float], answer_ms: int, said: str
) -> None:
    assert said in bound(10.0, Counter(cost), {**TWO, **cores}, answer_ms)


def took(*seconds: float) -> dict[str, Any]:
    return {name: {"seconds": each} for name, each in zip(PHASES, seconds, strict=True)}


def test_the_speedup_compares_the_most_workers_with_the_fewest() -> None:
    large = {"1": took(12, 4, 14), "2": took(8, 4, 8)}
    alone = {"drain": 1.5, "plan": 1.0, "send": 1.75, "all": 1.5}
    assert speedups(large, large) == {"speedup": alone}
    small = {"1": took(4, 4, 6), "2": took(4, 4, 4)}
    assert speedups(small, large) == {
        "speedup": alone,
        "slopes": {"drain": 2.0, "plan": None, "send": 2.0, "all": 2.0},
    }


def test_the_cpu_of_more_messages_is_that_of_all_phases_by_kind() -> None:
    small, large = ({"2": {phase: {"cpu_s": {PYTHON: cpu, JAVA: 1.0}} for phase in PHASES}} for cpu in (1.0, 3.0))
    assert cpu_per_1k(small, large, 2_000) == {"2": {"Python": 3.0, JAVA: 0.0}}
    assert cpu_per_1k(large, large, 0) == {}


@pytest.mark.java
@pytest.mark.slow
def test_the_benchmark_measures_a_cluster_near_and_far() -> None:
    found = benchmark("replay_scaling", "--messages", "200", "400", "--workers", "1", "--answer-ms", "0", "10")
    assert (found["messages"], found["cores"]) == ([200, 400], os.cpu_count())
    assert set(found["answer_ms"]) == {"0", "10"}
    for each in found["answer_ms"].values():
        assert each["speedup"] == dict.fromkeys((*PHASES, "all"), 1.0)
        phases = each["largest"]["1"]
        assert min(phases.pop("peak_mb").values()) > 0
        assert set(phases) == set(PHASES)
        assert all(found["cores"]["used"] > 0 and found["bound_by"] for found in phases.values())
        assert each["cpu_s_per_1k"].keys() == {"1"}
        assert phases["send"]["cpu_s"]["emulator of contoso"] > 0
