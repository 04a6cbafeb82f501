"""What moving a backlog costs: the syphon, the loops that people write today, and a relay that only copies bytes.

Run it by hand: python -m tests.benchmarks.syphon [--messages N] [--engine NAME …] [--backlog N …] [--output json]

All take turns, round after round, since a machine's speed changes within minutes; figures are medians over the rounds,
and ratios are of medians. CPU is that of the process that moves, user and system. What it costs to start is measured
with some hundred messages, told, and taken off, for every engine alike; the relay measures itself, without its start.
Messages a second are counted by the primary, from the first one that it enqueued to the last.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from typing import Any

from tests.benchmarks.engines import ENGINES, NotHere, Run, measure

SCHEMA = "sbpair/benchmark/1"
ROUND_TRIP_MS = 10.0
ONCE_FROM = 500_000
"""A backlog as large as that is moved once, and not in every round."""

Key = tuple[str, int, float]
"""(engine, messages, round trip in ms)"""


def figures(runs: list[Run], start_s: float) -> dict[str, float]:
    """`start_s` is what is taken off: the median of what starting cost."""
    costs = [1000 * (run.cpu_s - start_s) / run.messages for run in runs]
    return {
        "cpu_s_per_1k": round(statistics.median(costs), 6),
        "cpu_s_per_1k_least": round(min(costs), 6),
        "msg_per_s": round(statistics.median(run.msg_per_s for run in runs)),
        "msg_per_s_most": round(max(run.msg_per_s for run in runs)),
        "rss_mb": round(max(run.rss_mb for run in runs), 1),
        "start_cpu_s": round(start_s, 3),
        "rounds": len(runs),
    }


def keys(count: int, engines: list[str], backlogs: list[int]) -> list[Key]:
    """What a round measures, in turn."""
    plain: list[Key] = [(engine, count, 0.0) for engine in engines]
    if "wire" not in engines:
        return plain
    return [*plain, ("wire", count, ROUND_TRIP_MS), *(("wire", level, 0.0) for level in backlogs if level != count)]


def rounds(number: int, wanted: list[Key]) -> tuple[dict[Key, list[Run]], dict[str, str]]:
    """All runs, and why there are none of some engines."""
    runs: dict[Key, list[Run]] = {}
    absent: dict[str, str] = {}
    for turn in range(number):
        for key in wanted:
            engine, count, round_trip_ms = key
            if engine in absent or (turn and count >= ONCE_FROM):
                continue
            try:
                runs.setdefault(key, []).append(measure(engine, count, round_trip_ms=round_trip_ms))
            except NotHere as error:
                del runs[key]
                absent[engine] = str(error)
            _say(f"round {turn + 1} of {number}: {engine}, {count} messages: {absent.get(engine) or runs[key][-1]}")
    return runs, absent


def document(count: int, engines: list[str], backlogs: list[int], number: int) -> dict[str, Any]:
    runs, absent = rounds(number, keys(count, engines, backlogs))
    starts = {engine: _start(runs, engine) for engine in engines if engine not in absent}
    found = {key: figures(each, starts[key[0]]) for key, each in runs.items()}
    costs = {engine: found[engine, count, 0.0]["cpu_s_per_1k"] for engine in starts}
    told: dict[str, Any] = {
        "schema": SCHEMA,
        "messages": count,
        "engines": {engine: found.get((engine, count, 0.0)) or {"absent": absent[engine]} for engine in engines},
        "ratios": dict(_ratios(costs)),
    }
    if "wire" in starts:
        told["latency"] = {"round_trip_ms": ROUND_TRIP_MS, "wire": found["wire", count, ROUND_TRIP_MS]}
        told["backlogs"] = {str(level): found["wire", level, 0.0] for level in backlogs}
    return told


def _start(runs: dict[Key, list[Run]], engine: str) -> float:
    return statistics.median(run.start_s for key, each in runs.items() if key[0] == engine for run in each)


def _ratios(costs: dict[str, float]) -> Iterable[tuple[str, float]]:
    for many, few in (("sdk_loop", "wire"), ("node", "wire"), ("wire", "relay"), ("wire", "relay_protocol")):
        if many in costs and few in costs:
            yield f"{many}_to_{few}", round(costs[many] / costs[few], 2)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engine", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument(
        "--backlog", type=int, nargs="*", default=[10_000, 100_000], help="add 1000000 if there is time"
    )
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    told = document(options.messages, options.engine, options.backlog, options.rounds)
    if options.output == "json":
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    for part in ("engines", "ratios", "latency", "backlogs"):
        for name, figure in told.get(part, {}).items():
            sys.stdout.write(f"{part} {name}: {figure}\n")


if __name__ == "__main__":
    main()
