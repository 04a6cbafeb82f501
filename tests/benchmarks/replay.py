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

from sbpair.model.connection_string import endpoint_from_connection_string
from tests.benchmarks.engines import measure, relayed
from tests.benchmarks.figures import Run, emit, interleaved, parser, ratio, spread, summary
from tests.benchmarks.processes import cpu_seconds, emulated_environment, emulator, peak_mb, user_instructions
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded
from tests.kit.processes import offspring

MODES = ("archive", "direct")
STARTING = ("begin", "check", "spark")
SAMPLE_SECONDS = 0.2
DRIVER, JVM, WORKERS, EMULATORS = "driver", "jvm", "workers", "emulators"
PLAIN_SHARE = 8
"""The plain loop moves that many times fewer messages: it is slow, and as slow with many."""


@dataclass
class Tree:
    """A process and its descendants: the CPU of each kind so far, and the peak of a worker's memory."""

    root: int
    cpu: dict[int, float] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)
    peaks: dict[tuple[int, str], float] = field(default_factory=dict)

    def sample(self) -> None:
        for pid in (self.root, *offspring(self.root)):
            with contextlib.suppress(OSError):
                # Each time: a forked process has the name of its parent until it runs another program.
                self.kinds[pid] = self._kind(pid)
                self.cpu[pid] = cpu_seconds(pid)
                program = pid, self.kinds[pid]
                self.peaks[program] = max(self.peaks.get(program, 0.0), peak_mb(pid) or 0.0)

    def _kind(self, pid: int) -> str:
        if pid == self.root:
            return DRIVER
        # The name of the process would be that of the thread that forked it.
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


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a phase, with the CPU spent by then."""

    phase: str
    at: float
    spent: Counter[str]
    emulated: float = 0.0


@contextmanager
def namespaces() -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Run two emulators: (their pids, the ready document of each namespace)."""
    with emulator(PRIMARY) as (first, primary), emulator(SECONDARY) as (second, secondary):
        yield (first, second), {**primary, **secondary}


def replayed(mode: str, words: list[str], details: list[dict[str, Any]], count: int) -> Run:
    """Replay once, and append the figures of the run to `details`. Raises RuntimeError if a message is wrong."""
    stranded = Stranded(count, int(time.time() * 1000))
    with namespaces() as (pids, ready), TemporaryDirectory() as directory:
        sides = [endpoint_from_connection_string(each["connection_string"]) for each in ready.values()]
        asyncio.run(stranded.create(*sides))
        asyncio.run(stranded.fill(sides[1]))
        environment = emulated_environment(ready, directory)
        run = [sys.executable, "-m", "sbpair", "replay", "run", "--archive", f"{directory}/archive"]
        chosen = [] if mode == "archive" else ["--mode", mode]
        marks, tree, instructions = watched(
            [*run, *chosen, "--log-format", "json", "--output", "json", *words], environment, pids
        )
        asyncio.run(stranded.check(*sides))
    found = figures(count, marks, tree)
    details.append(found)
    cpu_s = sum(marks[-1].spent.values())
    return Run(count, cpu_s, found["msg_per_s"], found["worker_peak_mb"], sum(instructions) or None)


def watched(words: list[str], environment: dict[str, str], pids: tuple[int, int]) -> tuple[list[Mark], Tree, list[int]]:
    """Run a replay to its end: its phases, processes and user instructions. Raises RuntimeError with its log."""
    logged: list[str] = []
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with (
        subprocess.Popen(words, **streams, text=True, env=environment) as process,
        user_instructions(process.pid) as instructions,
    ):
        tree = Tree(process.pid)
        marks: list[Mark] = []

        def mark(phase: str) -> None:
            marks.append(Mark(phase, time.monotonic(), tree.spent(), sum(map(cpu_seconds, pids))))

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
        while process.poll() is None:
            tree.sample()
            time.sleep(SAMPLE_SECONDS)
        listener.join()
        mark("end")
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{''.join(logged)}")
    return marks, tree, instructions


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
    return {kind: round(spent[kind], 2) for kind in (DRIVER, JVM, WORKERS)}


def document(sizes: list[int], modes: list[str], number: int, words: list[str], *, plain: bool) -> dict[str, Any]:
    details: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    ways: dict[str, Callable[[int], Run]] = {mode: partial(replayed, mode, words, details[mode]) for mode in modes}
    ways["relay"] = partial(relayed, "streams")
    if plain:
        ways["sdk_loop"] = lambda count: measure("sdk_loop", count // PLAIN_SHARE)
    turns = list(interleaved(number, sizes, ways))
    rounds = {way: [turn[way] for turn in turns] for way in ways}
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
