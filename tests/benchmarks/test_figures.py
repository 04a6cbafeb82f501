"""Slopes leave out the cost of a start, and instructions are counted only where `perf` can."""

import os
from pathlib import Path

import pytest

from tests.benchmarks import processes
from tests.benchmarks.figures import Run, ratio, spread, summary
from tests.kit.waiting import until


def rounds(*costs: float, start: float = 1.0, instructions: int | None = None) -> list[dict[int, Run]]:
    """Return rounds of two sizes, in which a message costs that many CPU seconds."""
    return [
        {size: Run(size, start + cost * size, 100.0, 20.0, instructions and instructions * size) for size in (100, 300)}
        for cost in costs
    ]


def test_a_slope_leaves_out_what_a_start_costs() -> None:
    found = summary(rounds(0.001, 0.003, 0.002, start=9.0, instructions=65_000))
    assert found["cpu_s_per_1k"] == {"min": 1.0, "median": 2.0, "max": 3.0}
    assert found["instructions_per_message"] == {"min": 65_000, "median": 65_000, "max": 65_000}
    assert summary(rounds(0.001))["instructions_per_message"] is None


def test_a_ratio_compares_the_runs_of_each_round() -> None:
    assert ratio(rounds(0.002, 0.009), rounds(0.001, 0.003)) == {"min": 2.0, "median": 2.5, "max": 3.0}
    assert ratio(rounds(0.002), rounds(0.0)) is None
    assert spread([3.14159, 1.0, 2.0], 1) == {"min": 1.0, "median": 2.0, "max": 3.1}


@pytest.mark.parametrize(("line", "counted"), [("4711,,instructions:u,9,100.00,,", [4711]), ("<not supported>,,", [])])
async def test_instructions_are_counted_only_where_perf_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, counted: list[int]
) -> None:
    perf, written = tmp_path / "perf", tmp_path / "written"
    script = f'[ "$5" = -o ] && {{ echo "{line}" > "$6"; echo > {written}; }} || echo "{line}" >&2'
    perf.write_text(f"#!/bin/sh\n{script}\n")
    perf.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    processes.counts_instructions.cache_clear()
    try:
        with processes.user_instructions(os.getpid()) as found:
            assert found == []
            await until(lambda: written.exists() or not counted)
        assert found == counted
    finally:
        processes.counts_instructions.cache_clear()
