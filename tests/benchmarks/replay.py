"""The cost of a replay in either mode: CPU by process, memory and rate, beside the plain loop and a relay.

python -m tests.benchmarks.replay [--messages SMALL LARGE] [--mode archive direct] [--output json] [OPTION OF REPLAY …]

Each namespace is emulated by a process of its own, whose CPU is reported separately: it shares the machine.
A cost is a slope between two sizes; `slopes` has it by kind of process, without Java's start and warm-up.
`largest` is the last run of the largest size; its rate starts with the first phase after Spark's start, which is
reported separately. CPU of every process, user and system, is read as each phase begins.
"""

import asyncio
import contextlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.engines import measure, relayed
from tests.benchmarks.figures import Run, emit, interleaved, parser, ratio, spread, summary
from tests.benchmarks.processes import (
    cpu_seconds,
    emulated_environment,
    emulator,
    endpoints,
    far_away,
    peak_mb,
    user_instructions,
)
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded
from tests.kit.processes import offspring
from tests.replay.replays import is_java

MODES = ("archive", "direct")
STARTING = ("begin", "check", "spark")
DRIVER, JVM, WORKERS, EMULATORS, MACHINE = "driver", "jvm", "workers", "emulators", "everything on this machine"
OWN = (DRIVER, JVM, WORKERS)
TICKS = os.sysconf("SC_CLK_TCK")
PLAIN_SHARE = 8
"""The plain loop moves that many times fewer messages: it is slow, and as slow with many."""


Processes = Callable[[int], Iterator[tuple[str, int]]]
"""Returns the processes of the run of a driver, each with its kind."""


@dataclass
class Costs:
    """The CPU so far and the peak memory, by kind of process. Of one that has ended, those of the last sample."""

    driver: int
    processes: Processes
    _cpu: dict[int, tuple[str, float]] = field(default_factory=dict)
    _peaks: dict[tuple[str, int], float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self) -> None:
        with self._lock:
            for kind, pid in self.processes(self.driver):
                with contextlib.suppress(OSError):
                    # Each time: a forked process has the kind of its parent until it runs another program.
                    if (peak := peak_mb(pid)) is not None:
                        self._cpu[pid] = kind, cpu_seconds(pid)
                        self._peaks[kind, pid] = max(self._peaks.get((kind, pid), 0.0), peak)

    def spent(self) -> Counter[str]:
        """Return the CPU seconds of each kind, and of the whole machine."""
        self.sample()
        found: Counter[str] = Counter()
        with self._lock:
            for kind, seconds in self._cpu.values():
                found[kind] += seconds  # type: ignore[assignment]
        found[MACHINE] = busy_seconds()  # type: ignore[assignment]
        return found

    def peak_mb(self, kind: str) -> float:
        return max((mb for (each, _pid), mb in self._peaks.items() if each == kind), default=0.0)


def busy_seconds() -> float:
    """Return the busy seconds of all CPUs so far."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a phase, with the CPU spent by then."""

    phase: str
    at: float
    spent: Counter[str]


@contextmanager
def namespaces() -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Run two emulators: (their pids, the ready document of each namespace)."""
    with emulator(PRIMARY) as (first, primary), emulator(SECONDARY) as (second, secondary):
        yield (first, second), {**primary, **secondary}


def replayed(
    mode: str,
    words: list[str],
    details: list[dict[str, Any]],
    count: int,
    backlog: type[Stranded] = Stranded,
    *,
    answer_ms: int = 0,
) -> Run:
    """Replay once, and append the figures of the run to `details`. Raises RuntimeError if a message is wrong."""
    stranded = backlog(count, int(time.time() * 1000))
    with namespaces() as (pids, ready), TemporaryDirectory() as directory:
        sides = endpoints(ready)
        asyncio.run(stranded.create(*sides))
        asyncio.run(stranded.fill(sides[1]))
        environment = emulated_environment(ready, directory)
        run = [sys.executable, "-m", "sbpair", "replay", "run", "--archive", f"{directory}/archive"]
        chosen = [] if mode == "archive" else ["--mode", mode]
        run += [*chosen, "--log-format", "json", "--output", "json", *words]
        with far_away(sides, answer_ms):
            marks, costs, instructions = watched(run, environment, partial(processes, emulators=pids))
        asyncio.run(stranded.check(*sides))
    found = figures(count, marks, costs)
    details.append(found)
    cpu_s = sum(marks[-1].spent[kind] for kind in OWN)
    return Run(count, cpu_s, found["msg_per_s"], found["worker_peak_mb"], sum(instructions) or None)


def processes(driver: int, emulators: Sequence[int]) -> Iterator[tuple[str, int]]:
    yield DRIVER, driver
    yield from ((JVM if is_java(pid) else WORKERS, pid) for pid in offspring(driver))
    yield from ((EMULATORS, pid) for pid in emulators)


def watched(
    words: list[str],
    environment: dict[str, str],
    processes: Processes,
    *,
    sample_seconds: float = 0.2,
    max_seconds: float = math.inf,
) -> tuple[list[Mark], Costs, list[int]]:
    """Run a replay to its end: its phases, costs and user instructions. Raises RuntimeError with its log."""
    logged: list[str] = []
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(words, **streams, text=True, env=environment) as process,
        user_instructions(process.pid) as instructions,
    ):
        costs = Costs(process.pid, processes)
        marks: list[Mark] = []

        def mark(phase: str) -> None:
            marks.append(Mark(phase, time.monotonic(), costs.spent()))

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                logged.append(line)
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "phase":
                        mark(event["phase"])

        mark("begin")
        listener = threading.Thread(target=listen)
        listener.start()
        limit = time.monotonic() + max_seconds
        while process.poll() is None:
            costs.sample()
            time.sleep(sample_seconds)
            if time.monotonic() > limit:
                process.kill()
        listener.join()
        mark("end")
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{''.join(logged)}")
    return marks, costs, instructions


def spans(marks: Sequence[Mark]) -> dict[str, tuple[float, Counter[str]]]:
    """Return the seconds and the CPU of each phase, repetitions included."""
    found: dict[str, tuple[float, Counter[str]]] = {}
    for mark, after in pairwise(marks):
        seconds, spent = found.get(mark.phase, (0.0, Counter()))
        found[mark.phase] = seconds + after.at - mark.at, spent + (after.spent - mark.spent)
    return found


def figures(count: int, marks: list[Mark], costs: Costs) -> dict[str, Any]:
    begins = next(mark for mark in marks if mark.phase not in STARTING)
    last = marks[-1]
    seconds, spent = last.at - begins.at, last.spent - begins.spent
    own = sum(spent[kind] for kind in OWN)
    return {
        "messages": count,
        "seconds": round(seconds, 2),
        "msg_per_s": round(count / seconds),
        "msg_per_cpu_s": round(count / own),
        "cpu_s": rounded(spent),
        "cpu_s_emulators": round(spent[EMULATORS], 2),
        "jvm_share": round(spent[JVM] / own, 3),
        "worker_peak_mb": round(costs.peak_mb(WORKERS), 1),
        "driver_peak_mb": round(costs.peak_mb(DRIVER), 1),
        "start_s": round(begins.at - marks[0].at, 2),
        "start_cpu_s": rounded(begins.spent),
        "phases": {
            name: {"seconds": round(taken, 2), "cpu_s": rounded(each), "cpu_s_emulators": round(each[EMULATORS], 2)}
            for name, (taken, each) in spans(marks).items()
        },
    }


def slopes(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the cost of a thousand more messages after the start. `runs` are a small and a large one of each round."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for small, large in zip(runs[::2], runs[1::2], strict=True):
        more = (large["messages"] - small["messages"]) / 1000
        cpu_s = {kind: (large["cpu_s"][kind] - small["cpu_s"][kind]) / more for kind in large["cpu_s"]}
        own = sum(cpu_s.values())
        seconds = (large["seconds"] - small["seconds"]) / more
        cpu_s[EMULATORS] = (large["cpu_s_emulators"] - small["cpu_s_emulators"]) / more
        for kind, value in cpu_s.items():
            found[f"{kind}_cpu_s_per_1k"].append(value)
        found["seconds_per_1k"].append(seconds)
        if own > 0 and seconds > 0:
            found["jvm_share"].append(cpu_s[JVM] / own)
            found["msg_per_s"].append(1000 / seconds)
    return {name: spread(values, 5) for name, values in found.items()}


def rounded(spent: Counter[str]) -> dict[str, float]:
    return {kind: round(spent[kind], 2) for kind in OWN}


def document(sizes: list[int], modes: list[str], number: int, words: list[str], *, plain: bool) -> dict[str, Any]:
    details: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    ways: dict[str, Callable[[int], Run]] = {mode: partial(replayed, mode, words, details[mode]) for mode in modes}
    ways["relay"] = partial(relayed, "streams")
    if plain:
        ways["sdk_loop"] = lambda count: measure("sdk_loop", count // PLAIN_SHARE)
    rounds = interleaved(number, sizes, ways)
    others = [way for way in ways if way not in modes]
    return {
        "modes": {
            mode: summary(rounds[mode]) | {"slopes": slopes(details[mode]), "largest": details[mode][-1]}
            for mode in modes
        },
        **{way: summary(rounds[way]) for way in others},
        "ratios": {f"{mode}_to_{way}": ratio(rounds[mode], rounds[way]) for mode in modes for way in others},
    }


def main() -> None:
    options_of = parser(__doc__, messages=(10_000, 40_000), rounds=1)
    options_of.add_argument("--mode", nargs="+", choices=MODES, default=list(MODES))
    options_of.add_argument("--without-loop", action="store_true", help="leave the plain loop out")
    options, words = options_of.parse_known_args()
    plain = not options.without_loop
    emit(options, document(options.messages, options.mode, options.rounds, words, plain=plain))


if __name__ == "__main__":
    main()
