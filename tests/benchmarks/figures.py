"""The parts that benchmarks share: slopes between two sizes, their spread over rounds, and the command line."""

import argparse
import json
import platform
import statistics
import sys
import sysconfig
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SCHEMA = "sbpair/benchmark/1"


@dataclass(frozen=True, slots=True)
class Run:
    """One measurement of one size. `instructions` are those in user mode, None where `perf` cannot count them."""

    messages: int
    cpu_s: float
    msg_per_s: float
    rss_mb: float = 0.0
    instructions: int | None = None


Rounds = Sequence[Mapping[int, Run]]
"""Each round's runs, by their size."""


def python_build() -> dict[str, Any]:
    """Return the name of this Python and how it was built: optimised builds cost a third less."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return {
        "version": f"{platform.python_implementation()} {' '.join(sys.version.split())}",
        "pgo": "--enable-optimizations" in options,
        "lto": "--with-lto" in options,
    }


def spread(values: Iterable[float], digits: int = 3) -> dict[str, float]:
    found = sorted(values)
    named = {"min": found[0], "median": statistics.median(found), "max": found[-1]}
    return {name: round(value, digits) for name, value in named.items()}


def slope(runs: Mapping[int, Run], cost: Callable[[Run], float]) -> float:
    """Return the cost of one more message, from the smallest to the largest size: the cost of a start cancels out."""
    small, large = runs[min(runs)], runs[max(runs)]
    return (cost(large) - cost(small)) / (large.messages - small.messages)


def cpu_slopes(rounds: Rounds) -> list[float]:
    return [slope(runs, lambda run: run.cpu_s) for runs in rounds]


def summary(rounds: Rounds) -> dict[str, Any]:
    """Return the figures of one way to move messages. Rates and memory are those of the largest size."""
    largest = [runs[max(runs)] for runs in rounds]
    counted = [slope(runs, lambda run: run.instructions or 0) for runs in rounds if runs[max(runs)].instructions]
    return {
        "cpu_s_per_1k": spread((1000 * each for each in cpu_slopes(rounds)), 6),
        "instructions_per_message": spread(counted, 0) if counted else None,
        "msg_per_s": spread((run.msg_per_s for run in largest), 0),
        "rss_mb": round(max(run.rss_mb for run in largest), 1),
        "rounds": len(rounds),
    }


def ratio(many: Rounds, few: Rounds) -> dict[str, float] | None:
    """Return how many times as much the first costs, round by round; None if a slope was lost in noise."""
    pairs = list(zip(cpu_slopes(many), cpu_slopes(few), strict=True))
    return spread((one / other for one, other in pairs), 2) if all(other > 0 for _, other in pairs) else None


def interleaved(rounds: int, sizes: Sequence[int], ways: Mapping[str, Callable[[int], Run]]) -> dict[str, Rounds]:
    """Measure each way in each size, in turns: a machine's speed changes within minutes. Return the rounds of each."""
    found: dict[str, list[dict[int, Run]]] = {way: [{} for _ in range(rounds)] for way in ways}
    for number in range(rounds):
        for size in sizes:
            for way, measure in ways.items():
                found[way][number][size] = measure(size)
                log(f"round {number + 1} of {rounds}: {way}: {found[way][number][size]}")
    return dict(found)


def parser(
    documentation: str | None, *, messages: tuple[int, int] | None = None, rounds: int | None = None
) -> argparse.ArgumentParser:
    """Return a parser of the common options that a benchmark has."""
    made = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    if messages is not None:
        made.add_argument("--messages", type=int, nargs=2, default=messages, metavar="N", help="two sizes")
    if rounds is not None:
        made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--output", choices=("table", "json"), default="table")
    return made


def emit(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write the document as JSON, or a line for each figure."""
    sizes = {"messages": options.messages} if "messages" in options else {}
    document = {"schema": SCHEMA, "python": python_build(), **sizes, **found}
    if options.output == "json":
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    for part, each in document.items():
        lines = each.items() if isinstance(each, dict) and part != "python" else [("", each)]
        sys.stdout.writelines(f"{part} {name}: {figure}\n" for name, figure in lines)


def log(text: str) -> None:
    sys.stderr.write(f"{text}\n")
