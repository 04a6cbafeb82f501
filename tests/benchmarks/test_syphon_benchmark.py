"""The syphon's benchmark runs, and says what it promises to say. What the figures are is nobody's business here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import stranded
from tests.integration.node import install

ROOT = Path(__file__).parents[2]
MESSAGES = 200
FIGURES = {"cpu_s_per_1k", "msg_per_s", "rss_mb", "start_cpu_s", "rounds"}


def benchmark(*engines: str) -> dict[str, Any]:
    words = ["--messages", str(MESSAGES), "--rounds", "1", "--backlog", str(MESSAGES), "--output", "json"]
    command = [sys.executable, "-m", "tests.benchmarks.syphon", *words, "--engine", *engines]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_the_benchmark_measures_the_engines_and_the_relays() -> None:
    told = benchmark("wire", "relay", "relay_protocol")
    assert (told["schema"], told["messages"]) == ("sbpair/benchmark/1", MESSAGES)
    assert set(told["engines"]) == {"wire", "relay", "relay_protocol"}
    measured = [*told["engines"].values(), told["latency"]["wire"], told["backlogs"][str(MESSAGES)]]
    assert all(figures >= FIGURES for figures in map(set, measured))
    assert told["latency"]["round_trip_ms"] == 10.0
    assert set(told["ratios"]) == {"wire_to_relay", "wire_to_relay_protocol"}


def test_the_benchmark_measures_the_client_for_javascript() -> None:
    try:
        install.node(), install.modules()
    except install.NotHere as error:
        pytest.skip(str(error))
    told = benchmark("node")
    assert set(told["engines"]["node"]) >= FIGURES
    assert told["ratios"] == {}


@pytest.mark.slow
def test_the_benchmark_measures_the_official_client_for_python() -> None:
    told = benchmark("sdk_loop")
    assert set(told["engines"]["sdk_loop"]) >= FIGURES
    assert told["ratios"] == {}


def found(*numbers: int, count: int, early: int = 0) -> stranded.Found:
    """What the check makes of a primary that holds these of `count` messages."""
    made = stranded.Stranded(count, 0)
    seen = stranded.Found(made, early)
    for number in numbers:
        seen.see(stranded.destination(number), made.restore(number, enqueued_at=1_000 * number))
    return seen


def test_a_run_counts_only_when_every_message_is_there_once() -> None:
    assert found(0, 1, 2, count=3).rate() == 1.5
    assert found(0, 1, 2, count=3, early=1).rate() == 2.0
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 0 did twice"):
        found(0, 2, count=3).rate()
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 0 did twice"):
        found(1, 2, count=3, early=1).rate()
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 1 did twice"):
        found(0, 2, 2, count=3).rate()


def test_a_misrouted_or_altered_message_fails_the_run() -> None:
    made = stranded.Stranded(20, 0)
    for number in range(20):
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).see("elsewhere", made.restore(number, enqueued_at=1))
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).see(stranded.destination(number), made.sections(number))
