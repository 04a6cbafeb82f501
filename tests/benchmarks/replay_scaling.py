"""How a replay gets faster with a second worker: a standalone cluster on this machine, and what bounded it.

Run it by hand: python -m tests.benchmarks.replay_scaling [--messages N] [--workers 1 2] [--output json]

Each worker has one core. Each namespace is emulated by a process of its own, with a core at most: it has one thread.
All of them share this machine: where its CPU is used up, two workers cannot be twice as fast, and the figures say so.
A rate is messages over the time of a phase; CPU is user and system of every process, by what it is, within the phase.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.model import endpoint_from_connection_string
from tests.benchmarks.processes import cpu_seconds, emulated_environment, emulator
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded
from tests.spark.cluster import Cluster, standalone
from tests.spark.replays import is_java, offspring

SCHEMA = "sbpair/benchmark/1"
PHASES = ("drain", "plan", "send")
LOOK_SECONDS = 0.5
"""Rarely: to look at every process costs CPU that is then missing elsewhere."""
USED_UP = 0.85
"""From which share of what it may have on something is what the rest waits for."""

TICKS = os.sysconf("SC_CLK_TCK")
SPARK = ("spark.executor.memory=768m", "spark.driver.host=127.0.0.1", "spark.driver.bindAddress=127.0.0.1")


@dataclass
class Costs:
    """CPU seconds so far, by what a process is. Of one that has ended, what it had spent when it was last looked at."""

    driver: int
    cluster: Cluster
    emulators: dict[str, int]
    _of: dict[int, tuple[str, float]] = field(default_factory=dict)

    def look(self) -> None:
        for kind, pids in self._kinds():
            for pid in pids:
                with contextlib.suppress(OSError):
                    self._of[pid] = (kind, cpu_seconds(pid))

    def spent(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for kind, seconds in self._of.values():
            found[kind] += seconds  # type: ignore[assignment]
        found["everything on this machine"] = busy_seconds()  # type: ignore[assignment]
        return found

    def _kinds(self) -> Iterator[tuple[str, list[int]]]:
        started = offspring(self.driver)
        yield "driver", [self.driver, *(pid for pid in started if not is_java(pid))]
        yield "driver's Java", [pid for pid in started if is_java(pid)]
        for number, pid in enumerate(sorted(self.cluster.executors())):
            yield "executors' Java", [pid]
            yield f"Python of executor {number}", offspring(pid)
        for name, pid in self.emulators.items():
            yield f"emulator of {name}", [pid]


def busy_seconds() -> float:
    """What all CPUs have worked so far, for whomever."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a phase: when, and what had been spent by then."""

    phase: str
    at: float
    spent: Counter[str]


@contextmanager
def namespaces() -> Iterator[tuple[dict[str, int], dict[str, Any]]]:
    """Both, each by a process of its own: (their pids, what they say of themselves)."""
    with emulator(PRIMARY) as (first, primary), emulator(SECONDARY) as (second, secondary):
        yield {PRIMARY: first, SECONDARY: second}, {**primary, **secondary}


def measured(count: int, workers: int) -> dict[str, Any]:
    """One run on so many workers. Raises RuntimeError where a message did not arrive as it should."""
    stranded = Stranded(count, int(time.time() * 1000))
    with TemporaryDirectory() as directory, namespaces() as (pids, said):
        sides = [endpoint_from_connection_string(said[name]["connection_string"]) for name in (PRIMARY, SECONDARY)]
        asyncio.run(stranded.create(*sides))
        asyncio.run(stranded.fill(sides[1]))
        environment = emulated_environment(said, directory)
        with standalone(Path(directory, "cluster"), environment, workers) as cluster:
            marks = watched(command(cluster.url, workers, directory), environment, cluster, pids)
        asyncio.run(stranded.check(*sides))
    return {"phases": {name: figures(count, *span) for name, span in spans(marks).items()}}


def command(master: str, workers: int, directory: str) -> list[str]:
    settings = [word for each in SPARK for word in ("--conf", each)]
    place = ("--archive", f"{directory}/archive", "--shared-archive", "--master", master, "--parallelism", str(workers))
    told = ("--log-format", "json", "--output", "json")
    return [sys.executable, "-m", "sbpair", "replay", "run", *place, *settings, *told]


def watched(words: list[str], environment: dict[str, str], cluster: Cluster, pids: dict[str, int]) -> list[Mark]:
    """Run a replay to its end. Raises RuntimeError, with what it said, where it fails."""
    said: list[str] = []
    marks: list[Mark] = []
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        costs = Costs(process.pid, cluster, pids)

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "phase":
                        marks.append(Mark(event["phase"], time.monotonic(), costs.spent()))

        listener = threading.Thread(target=listen)
        listener.start()
        while process.poll() is None:
            costs.look()
            time.sleep(LOOK_SECONDS)
        listener.join()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{''.join(said)}")
    return marks


def spans(marks: list[Mark]) -> dict[str, tuple[float, Counter[str]]]:
    """The seconds and the CPU of each phase, of whatever it consisted."""
    found: dict[str, tuple[float, Counter[str]]] = {}
    for mark, after in pairwise(marks):
        if mark.phase in PHASES:
            seconds, spent = found.get(mark.phase, (0.0, Counter()))
            found[mark.phase] = seconds + after.at - mark.at, spent + (after.spent - mark.spent)
    return found


def figures(count: int, seconds: float, spent: Counter[str]) -> dict[str, Any]:
    machine = spent.pop("everything on this machine")
    cores = os.cpu_count() or 1
    own = sum(spent.values())
    return {
        "seconds": round(seconds, 2),
        "msg_per_s": round(count / seconds),
        "cpu_s": {kind: round(value, 2) for kind, value in sorted(spent.items())},
        "own_share_of_machine": round(own / seconds / cores, 2),
        "others_share_of_machine": round(max(0.0, machine - own) / seconds / cores, 2),
        "bound_by": bound(seconds, spent, machine / seconds / cores),
    }


def bound(seconds: float, spent: Counter[str], busy: float) -> str:
    """What had nothing left to give."""
    alone = [kind for kind, value in spent.items() if "Java" not in kind and value / seconds >= USED_UP]
    if alone:
        return f"{', '.join(sorted(alone))}: a core each is all that they can use"
    if busy >= USED_UP:
        return f"CPU: the {os.cpu_count()} cores of this machine"
    return "nothing for long: it waits, by turns, for one another and for the disk"


def document(count: int, workers: list[int]) -> dict[str, Any]:
    told: dict[str, Any] = {"schema": SCHEMA, "messages": count, "cores": os.cpu_count(), "workers": {}}
    for number in workers:
        told["workers"][str(number)] = measured(count, number)
        sys.stderr.write(f"{number}: {told['workers'][str(number)]}\n")
    first, last = (told["workers"][str(number)]["phases"] for number in (workers[0], workers[-1]))
    told["speedup"] = {phase: round(first[phase]["seconds"] / last[phase]["seconds"], 2) for phase in PHASES}
    return told


def table(told: dict[str, Any]) -> Iterator[str]:
    for number, each in told["workers"].items():
        for phase, found in each["phases"].items():
            ours, others = found["own_share_of_machine"], found["others_share_of_machine"]
            shares = f"{ours:.0%} of the machine, others {others:.0%}"
            yield f"{number} workers, {phase}: {found['msg_per_s']} messages a second; {shares}; {found['bound_by']}"
            yield f"    {found['cpu_s']}"
    yield f"so many times as fast: {told['speedup']}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    told = document(options.messages, options.workers)
    lines = [json.dumps(told, indent=2)] if options.output == "json" else table(told)
    for line in lines:
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
