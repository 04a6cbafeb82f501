"""The gain of a second worker for a replay: a standalone cluster on this machine, and the limit of each phase.

python -m tests.benchmarks.replay_scaling [--messages SMALL LARGE] [--workers 1 2] [--answer-ms 0 100]

Each worker has one core, and the work is split alike for any number of them. Each namespace is emulated by a process of
its own, with one thread. All share this machine: where its CPU is used up, two workers cannot be twice as fast.
--answer-ms repeats the run with namespaces that answer later: then a worker waits. `speedup` is that of the largest
size, Java's warm-up and each phase's first and last waits included; `slopes` is that of the messages between the sizes.
A rate is messages over the time of a phase; CPU is user and system of every process, by kind, within the phase.
`cpu_s_per_1k` is the CPU of a thousand more messages, `peak_mb` the memory of the largest process, both by kind.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.figures import emit, log, parser
from tests.benchmarks.processes import emulated_environment, endpoints, far_away
from tests.benchmarks.replay import MACHINE, namespaces, spans, watched
from tests.benchmarks.stranded import Stranded
from tests.kit.processes import offspring
from tests.replay.cluster import HASTY, Cluster, standalone
from tests.replay.replays import is_java

PHASES = ("drain", "plan", "send")
SAMPLE_SECONDS = 0.5
"""Rarely: to sample every process costs CPU that the run needs."""
USED_UP = 0.85
"""Share of its limit from which a process holds up the rest."""
MIN_SHARE = 0.1
"""Share of the time from which a process is named."""
MAX_SECONDS = 480.0
"""A longer run hangs."""

EMULATOR = "emulator of "
SPARK = (
    "spark.executor.memory=768m",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    f"spark.driver.extraJavaOptions={HASTY}",
    f"spark.executor.extraJavaOptions={HASTY}",
)


def processes(driver: int, cluster: Cluster, emulators: dict[str, int]) -> Iterator[tuple[str, int]]:
    yield "driver", driver
    yield from (("driver's Java" if is_java(pid) else "driver", pid) for pid in offspring(driver))
    for number, executor in enumerate(sorted(cluster.executors())):
        yield "executors' Java", executor
        yield from ((f"Python of executor {number}", pid) for pid in offspring(executor))
    yield from (("cluster's Java", pid) for pid in cluster.daemons())
    yield from ((f"{EMULATOR}{name}", pid) for name, pid in emulators.items())


def measured(count: int, workers: int, tasks: int, answer_ms: int) -> dict[str, Any]:
    """Return the phases of one run with `tasks` at once on `workers`. Raises RuntimeError if a message is wrong."""
    stranded = Stranded(count, int(time.time() * 1000))
    with TemporaryDirectory() as directory, namespaces() as (both, ready):
        pids, sides = dict(zip(ready, both, strict=True)), endpoints(ready)
        asyncio.run(stranded.create(*sides))
        asyncio.run(stranded.fill(sides[1]))
        environment = emulated_environment(ready, directory) | {"PYSPARK_PYTHON": sys.executable}
        with standalone(Path(directory, "cluster"), environment, workers) as cluster, far_away(sides, answer_ms):
            marks, costs, _ = watched(
                command(cluster.url, tasks, directory),
                environment,
                partial(processes, cluster=cluster, emulators=pids),
                sample_seconds=SAMPLE_SECONDS,
                max_seconds=MAX_SECONDS,
            )
        asyncio.run(stranded.check(*sides))
    found = spans(marks)
    peaks = {kind: round(costs.peak_mb(kind)) for kind in sorted(marks[-1].spent) if kind != MACHINE}
    return {phase: figures(count, *found[phase], answer_ms=answer_ms) for phase in PHASES} | {"peak_mb": peaks}


def command(master: str, tasks: int, directory: str) -> list[str]:
    settings = [word for each in SPARK for word in ("--conf", each)]
    place = ("--archive", f"{directory}/archive", "--shared-archive", "--master", master, "--parallelism", str(tasks))
    output = ("--log-format", "json", "--output", "json")
    return [sys.executable, "-m", "sbpair", "replay", "run", *place, *settings, *output]


def figures(count: int, seconds: float, spent: Counter[str], *, answer_ms: int = 0) -> dict[str, Any]:
    """Return the figures of a phase. `cores` are CPU seconds a second: all of them, and those in use."""
    cost = Counter(spent)
    machine = cost.pop(MACHINE)
    own = sum(cost.values())
    emulated = sum(value for kind, value in cost.items() if kind.startswith(EMULATOR))
    cores = {"there": os.cpu_count() or 1, "used": round(own / seconds, 2)}
    cores |= {
        "used_by_emulators": round(emulated / seconds, 2),
        "used_by_others": round(max(0.0, machine - own) / seconds, 2),
    }
    return {
        "seconds": round(seconds, 2),
        "msg_per_s": round(count / seconds),
        "cpu_s": {kind: round(value, 2) for kind, value in sorted(cost.items())},
        "cores": cores,
        "bound_by": bound(seconds, cost, cores, answer_ms),
    }


def bound(seconds: float, cost: Counter[str], cores: dict[str, float], answer_ms: int) -> str:
    """Return the limit of a phase."""
    alone = [kind for kind, value in cost.items() if "Java" not in kind and value / seconds >= USED_UP]
    if alone:
        return f"{', '.join(sorted(alone))}: each can use one core at most"
    if cores["used"] + cores["used_by_others"] >= USED_UP * cores["there"]:
        others = f", {cores['used_by_others']} of them used by others" if cores["used_by_others"] >= 1 - USED_UP else ""
        return f"CPU: the {cores['there']} cores of this machine{others}, {cores['used_by_emulators']} by the emulators"
    shares = {kind: value / seconds for kind, value in cost.most_common() if value / seconds >= MIN_SHARE}
    busy = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items()) or "nothing"
    waits = f"answers after {answer_ms} ms, " if answer_ms else ""
    return f"no core: {busy} of the time busy; the rest is waits for {waits}other processes and the disk"


def document(sizes: list[int], workers: list[int], answers_ms: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {"cores": os.cpu_count(), "answer_ms": {}}
    for answer_ms in answers_ms:
        runs: list[dict[str, Any]] = []
        for count in sizes:
            runs.append({str(number): measured(count, number, max(workers), answer_ms) for number in workers})
            log(f"{count} messages, answers after {answer_ms} ms: {json.dumps(runs[-1])}")
        costs = cpu_per_1k(runs[0], runs[-1], sizes[-1] - sizes[0])
        found["answer_ms"][str(answer_ms)] = {"largest": runs[-1], "cpu_s_per_1k": costs, **speedups(runs[0], runs[-1])}
    return found


def cpu_per_1k(small: dict[str, Any], large: dict[str, Any], more: int) -> dict[str, dict[str, float]]:
    """Return the CPU seconds of a thousand more messages, by the number of workers and by kind. {} for one size."""
    found: dict[str, dict[str, float]] = {}
    for number in large if more else ():
        cost: Counter[str] = Counter()
        for phase in PHASES:
            for each, sign in ((large, 1), (small, -1)):
                for kind, seconds in each[number][phase]["cpu_s"].items():
                    cost[kind.partition(" of executor")[0]] += sign * seconds  # type: ignore[assignment]
        found[number] = {kind: round(1000 * seconds / more, 4) for kind, seconds in sorted(cost.items())}
    return found


def speedups(small: dict[str, Any], large: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return how many times as fast the most workers are as the fewest, by phase, and None for no time."""
    fewest, *_, most = (*large, *large)
    seconds = {name: {phase: large[name][phase]["seconds"] for phase in PHASES} for name in (fewest, most)}
    more = {
        name: {phase: of[phase] - small[name][phase]["seconds"] for phase in PHASES} for name, of in seconds.items()
    }
    return {
        "speedup": ratios(seconds[fewest], seconds[most]),
        **({} if small is large else {"slopes": ratios(more[fewest], more[most])}),
    }


def ratios(fewest: dict[str, float], most: dict[str, float]) -> dict[str, float | None]:
    """Return the ratio of the seconds, by phase and for all of them."""
    pairs = {phase: (fewest[phase], most[phase]) for phase in PHASES}
    pairs["all"] = sum(fewest.values()), sum(most.values())
    return {phase: round(one / other, 2) if min(one, other) > 0 else None for phase, (one, other) in pairs.items()}


def main() -> None:
    options_of = parser(__doc__)
    options_of.add_argument("--messages", type=int, nargs="+", default=[50_000, 200_000])
    options_of.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    options_of.add_argument("--answer-ms", nargs="+", type=int, default=[0])
    options = options_of.parse_args()
    emit(options, document(options.messages, options.workers, options.answer_ms))


if __name__ == "__main__":
    main()
