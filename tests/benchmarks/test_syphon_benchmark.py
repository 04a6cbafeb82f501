"""The syphon's benchmark measures its engines, and its check finds each lost or altered message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks import stranded
from tests.benchmarks.kit import benchmark
from tests.integration.node import install

SIZES = ("200", "400")
FIGURES = {"cpu_s_per_1k", "instructions_per_message", "msg_per_s", "rss_mb", "rounds"}


def syphon(*engines: str, round_trip_ms: str = "0") -> dict[str, Any]:
    words = ("--messages", *SIZES, "--rounds", "1", "--round-trip-ms", round_trip_ms, "--engine", *engines)
    return benchmark("syphon", *words)


@pytest.mark.slow
def test_the_benchmark_measures_the_engines_and_the_relays() -> None:
    found = syphon("wire", "relay", "relay_protocol", round_trip_ms="5")
    assert (found["messages"], found["round_trip_ms"]) == ([200, 400], 5.0)
    assert set(found["engines"]) == {"wire", "wire_distant", "relay", "relay_protocol"}
    assert all(set(figures) == FIGURES for figures in found["engines"].values())
    assert set(found["ratios"]) == {"wire_to_relay", "wire_to_relay_protocol"}


@pytest.mark.slow
def test_the_benchmark_measures_the_client_for_javascript() -> None:
    try:
        install.node(), install.modules()
    except install.NotHere as error:
        pytest.skip(str(error))
    found = syphon("node")
    assert set(found["engines"]["node"]) == FIGURES
    assert found["ratios"] == {}


@pytest.mark.slow
def test_the_benchmark_measures_the_official_client_for_python() -> None:
    found = syphon("sdk_loop")
    assert set(found["engines"]["sdk_loop"]) == FIGURES
    assert found["ratios"] == {}


def found(*numbers: int, count: int) -> stranded.Found:
    """Check a primary that holds these of `count` messages."""
    made = stranded.Stranded(count, 0)
    arrived = stranded.Found(made)
    for number in numbers:
        arrived.add(stranded.destination(number), made.restore(number, enqueued_at=1_000 * number))
    return arrived


def test_a_run_counts_only_when_every_message_is_there_once() -> None:
    assert found(0, 1, 2, count=3).rate() == 1.5
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 0 did twice"):
        found(0, 2, count=3).rate()
    with pytest.raises(RuntimeError, match="1 messages did not arrive, 1 did twice"):
        found(0, 2, 2, count=3).rate()


def test_a_misrouted_or_altered_message_fails_the_run() -> None:
    made = stranded.Stranded(20, 0)
    for number in range(20):
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).add("elsewhere", made.restore(number, enqueued_at=1))
        with pytest.raises(RuntimeError, match=f"message {number} arrived as"):
            stranded.Found(made).add(stranded.destination(number), made.sections(number))
