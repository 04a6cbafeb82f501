"""What a replay costs, by either mode: how fast, on whose CPU, how much memory; and the loop that people write today.

Run it by hand: python -m tests.benchmarks.replay [--messages N] [--mode archive direct] [--output json]

Each namespace is emulated by a process of its own, whose CPU is told beside, for it takes part in using up the machine.
A rate is messages over the time from the first phase after Spark's start to the end of the last; what came before it is
told apart. CPU is taken of every process, user and system, at the beginning of each phase.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
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
from typing import TYPE_CHECKING, Any

from sbpair.model.connection_string import endpoint_from_connection_string
from tests.benchmarks.engines import command
from tests.benchmarks.processes import cpu_seconds, emulated_environment, emulator, peak_mb, spent_by
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

SCHEMA = "sbpair/benchmark/1"
MODES = ("archive", "direct")
STARTING = ("begin", "check", "spark")
LOOK_SECONDS = 0.2
DRIVER, JVM, WORKERS = "driver", "jvm", "workers"
MAX_PLAIN = 5_000
"""The plain loop needs no more than so many messages to show what it does."""


@dataclass
class Tree:
    """A process and all that it starts: what each kind has cost so far, and the most that a worker has held."""

    root: int
    cpu: dict[int, float] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    peaks: dict[tuple[int, str], float] = field(default_factory=dict)

    def look(self) -> None:
        for pid in (self.root, *offspring(self.root)):
            with contextlib.suppress(OSError):
                # Anew each time: one that was forked is what it was forked from until it is another program.
                self.kinds[pid] = self._kind(pid)
                self.cpu[pid] = cpu_seconds(pid)
                program = pid, self.kinds[pid]
                self.peaks[program] = max(self.peaks.get(program, 0.0), peak_mb(pid) or 0.0)

    def _kind(self, pid: int) -> str:
        if pid == self.root:
            return DRIVER
        # Not by the name of the process, which is that of the thread that forked it.
        program = Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
        if not program:  # it has ended
            return self.kinds.get(pid, WORKERS)
        return JVM if Path(program).name == "java" else WORKERS

    def spent(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for pid, seconds in self.cpu.items():
            found[self.kinds[pid]] += seconds  # type: ignore[assignment]
        return found

    def worker_mb(self) -> float:
        return max((mb for (_pid, kind), mb in self.peaks.items() if kind == WORKERS), default=0.0)


def offspring(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, path.read_text().split()):
                found += (child, *offspring(child))
    return found


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a phase: when, and what had been spent by then."""

    phase: str
    at: float
    spent: Counter[str]
    emulated: float


@contextmanager
def namespaces() -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Both, each by a process of its own: (their pids, what they say of themselves)."""
    with emulator(PRIMARY) as (first, primary), emulator(SECONDARY) as (second, secondary):
        yield (first, second), {**primary, **secondary}


def replayed(mode: str, count: int, words: list[str]) -> dict[str, Any]:
    """One run. Raises RuntimeError where a message did not arrive as it should."""
    stranded = Stranded(count, int(time.time() * 1000))
    with namespaces() as (pids, said), TemporaryDirectory() as directory:
        primary, secondary = endpoints(said)
        asyncio.run(prepare(stranded, primary, secondary))
        environment = emulated_environment(said, directory)
        run = [sys.executable, "-m", "sbpair", "replay", "run", "--archive", f"{directory}/archive"]
        chosen = [] if mode == "archive" else ["--mode", mode]
        marks, tree = watched([*run, *chosen, "--log-format", "json", "--output", "json", *words], environment, pids)
        asyncio.run(stranded.check(primary, secondary))
    return figures(count, marks, tree)


def endpoints(said: dict[str, Any]) -> tuple[Endpoint, Endpoint]:
    primary, secondary = (endpoint_from_connection_string(said[name]["connection_string"]) for name in said)
    return primary, secondary


async def prepare(stranded: Stranded, primary: Endpoint, secondary: Endpoint) -> None:
    await stranded.create(primary, secondary)
    await stranded.fill(secondary)


def watched(words: list[str], environment: dict[str, str], pids: tuple[int, int]) -> tuple[list[Mark], Tree]:
    """Run a replay to its end. Raises RuntimeError, with what it said, where it fails."""
    said: list[str] = []
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        tree = Tree(process.pid)
        marks: list[Mark] = []

        def mark(phase: str) -> None:
            marks.append(Mark(phase, time.monotonic(), tree.spent(), sum(map(cpu_seconds, pids))))

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "phase":
                        mark(event["phase"])

        mark("begin")
        listener = threading.Thread(target=listen)
        listener.start()
        while process.poll() is None:
            tree.look()
            time.sleep(LOOK_SECONDS)
        listener.join()
        mark("end")
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{''.join(said)}")
    return marks, tree


def figures(count: int, marks: list[Mark], tree: Tree) -> dict[str, Any]:
    begins = next(mark for mark in marks if mark.phase not in STARTING)
    last = marks[-1]
    seconds, spent = last.at - begins.at, last.spent - begins.spent
    own = sum(spent.values())
    return {
        "messages": count,
        "seconds": round(seconds, 2),
        "msg_per_s": round(count / seconds),
        "msg_per_cpu_s": round(count / own),
        "cpu_s": rounded(spent),
        "cpu_s_emulators": round(last.emulated - begins.emulated, 2),
        "jvm_share": round(spent[JVM] / own, 3),
        "worker_peak_mb": round(tree.worker_mb(), 1),
        "start_s": round(begins.at - marks[0].at, 2),
        "start_cpu_s": rounded(begins.spent),
        "phases": phases(marks),
    }


def phases(marks: list[Mark]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for mark, after in pairwise(marks):
        here = found.setdefault(mark.phase, {"seconds": 0.0, "cpu_s": Counter(), "emulators": 0.0})
        here["seconds"] += after.at - mark.at
        here["cpu_s"] += after.spent - mark.spent
        here["emulators"] += after.emulated - mark.emulated
    return {
        name: {
            "seconds": round(each["seconds"], 2),
            "cpu_s": rounded(each["cpu_s"]),
            "cpu_s_emulators": round(each["emulators"], 2),
        }
        for name, each in found.items()
    }


def rounded(spent: Counter[str]) -> dict[str, float]:
    return {kind: round(spent[kind], 2) for kind in (DRIVER, JVM, WORKERS)}


def plain_loop(count: int) -> dict[str, Any]:
    """The loop with the official client, by itself."""
    stranded = Stranded(count, int(time.time() * 1000))
    words, wants = command("sdk_loop")
    with namespaces() as (pids, said), TemporaryDirectory() as directory:
        primary, secondary = endpoints(said)
        asyncio.run(prepare(stranded, primary, secondary))
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        spent = spent_by(words, emulated_environment(said, directory) | wants)
        seconds = time.monotonic() - began
        emulated = sum(map(cpu_seconds, pids)) - before
        rate = asyncio.run(stranded.check(primary, secondary))
    return {
        "messages": count,
        "msg_per_s": round(rate),
        "msg_per_cpu_s": round(count / spent.cpu_s),
        "cpu_s": round(spent.cpu_s, 2),
        "cpu_s_emulators": round(emulated, 2),
        "seconds": round(seconds, 2),
    }


def document(count: int, modes: list[str], words: list[str], *, plain: bool, small: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"schema": SCHEMA, "messages": count, "modes": {}}
    for mode in modes:
        told["modes"][mode] = replayed(mode, count, words)
        say(f"{mode}: {told['modes'][mode]}")
        if small:
            told["modes"][mode] |= beyond(told["modes"][mode], replayed(mode, count // 4, words))
    if plain:
        loop = told["sdk_loop"] = plain_loop(min(count, MAX_PLAIN))
        told["ratios"] = {
            f"{mode}_to_sdk_loop": round(each["msg_per_s"] / loop["msg_per_s"], 2)
            for mode, each in told["modes"].items()
        }
    return told


def beyond(whole: dict[str, Any], quarter: dict[str, Any]) -> dict[str, Any]:
    """What the other three quarters cost: without what a run costs however little there is, as plans and first jobs."""
    messages = whole["messages"] - quarter["messages"]
    cpu = {kind: round(whole["cpu_s"][kind] - quarter["cpu_s"][kind], 2) for kind in whole["cpu_s"]}
    own, seconds = sum(cpu.values()), whole["seconds"] - quarter["seconds"]
    return {
        "worker_peak_mb_of_a_quarter": quarter["worker_peak_mb"],
        "beyond_a_quarter": {
            "messages": messages,
            "msg_per_s": round(messages / seconds) if seconds > 0 else None,
            "msg_per_cpu_s": round(messages / own) if own > 0 else None,
            "cpu_s": cpu,
            "cpu_s_emulators": round(whole["cpu_s_emulators"] - quarter["cpu_s_emulators"], 2),
            "jvm_share": round(cpu[JVM] / own, 3) if own > 0 else None,
        },
    }


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--without-loop", action="store_true", help="leave the plain loop out")
    parser.add_argument("--without-quarter", action="store_true", help="measure at one size only")
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options, words = parser.parse_known_args()
    told = document(
        options.messages, options.mode, words, plain=not options.without_loop, small=not options.without_quarter
    )
    if options.output == "json":
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
        return
    for name, each in (
        *told["modes"].items(),
        *((part, told[part]) for part in ("sdk_loop", "ratios") if part in told),
    ):
        sys.stdout.write(f"{name}: {each}\n")


if __name__ == "__main__":
    main()
