"""The gain of a second worker for a replay: a standalone cluster on this machine, and the limit of each phase.

python -m tests.benchmarks.replay_scaling [--messages SMALL LARGE] [--workers 1 2] [--answer-ms 0 100]

Each worker has one core, and the work is split alike for any number of them. Each namespace is emulated by a process of
its own, with one thread. All share this machine: where its CPU is used up, two workers cannot be twice as fast.
--answer-ms repeats the run with namespaces that answer later: then a worker waits. `speedup` is that of the largest
size, Java's warm-up and each phase's first and last waits included; `slopes` is that of the messages between the sizes.
A rate is messages over the time of a phase; CPU is user and system of every process, by kind, within the phase.
"""

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
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint
from tests.benchmarks.figures import emit, log
from tests.benchmarks.processes import cpu_seconds, emulated_environment
from tests.benchmarks.replay import Mark, namespaces
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

TICKS = os.sysconf("SC_CLK_TCK")
EMULATOR, MACHINE = "emulator of ", "everything on this machine"
SPARK = (
    "spark.executor.memory=768m",
    "spark.driver.host=127.0.0.1",
    "spark.driver.bindAddress=127.0.0.1",
    f"spark.driver.extraJavaOptions={HASTY}",
    f"spark.executor.extraJavaOptions={HASTY}",
)


@dataclass
class Costs:
    """CPU seconds so far, by kind of process. Of a process that has ended, those of the last sample."""

    driver: int
    cluster: Cluster
    emulators: dict[str, int]
    _of: dict[int, tuple[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def sample(self) -> None:
        with self._lock:
            for kind, pids in self._kinds():
                for pid in pids:
                    with contextlib.suppress(OSError):
                        self._of[pid] = (kind, cpu_seconds(pid))

    def spent(self) -> Counter[str]:
        self.sample()
        found: Counter[str] = Counter()
        with self._lock:
            for kind, seconds in self._of.values():
                found[kind] += seconds  # type: ignore[assignment]
        found[MACHINE] = busy_seconds()  # type: ignore[assignment]
        return found

    def _kinds(self) -> Iterator[tuple[str, list[int]]]:
        started = offspring(self.driver)
        yield "driver", [self.driver, *(pid for pid in started if not is_java(pid))]
        yield "driver's Java", [pid for pid in started if is_java(pid)]
        for number, pid in enumerate(sorted(self.cluster.executors())):
            yield "executors' Java", [pid]
            yield f"Python of executor {number}", offspring(pid)
        yield "cluster's Java", self.cluster.daemons()
        for name, pid in self.emulators.items():
            yield f"{EMULATOR}{name}", [pid]


def busy_seconds() -> float:
    """Return the busy seconds of all CPUs so far."""
    user, nice, system, _idle, _wait, *rest = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


def measured(count: int, workers: int, tasks: int, answer_ms: int) -> dict[str, Any]:
    """Return the phases of one run with `tasks` at once on `workers`. Raises RuntimeError if a message is wrong."""
    stranded = Stranded(count, int(time.time() * 1000))
    with TemporaryDirectory() as directory, namespaces() as (both, ready):
        pids = dict(zip(ready, both, strict=True))
        sides = [endpoint_from_connection_string(ready[name]["connection_string"], name=name) for name in pids]
        asyncio.run(stranded.create(*sides))
        asyncio.run(stranded.fill(sides[1]))
        environment = emulated_environment(ready, directory)
        with standalone(Path(directory, "cluster"), environment, workers) as cluster, far_away(sides, answer_ms):
            marks = watched(command(cluster.url, tasks, directory), environment, cluster, pids)
        asyncio.run(stranded.check(*sides))
    return {name: figures(count, *span, answer_ms=answer_ms) for name, span in spans(marks).items()}


@contextmanager
def far_away(sides: list[Endpoint], answer_ms: int) -> Iterator[None]:
    """Delay the answers of both namespaces during the block."""
    with contextlib.ExitStack() as lifted:
        for side in sides if answer_ms else ():
            fault = {"kind": "latency", "namespace": side.name, "ms": answer_ms}
            begun = control(side, "POST", "faults", json.dumps(fault))
            lifted.callback(control, side, "DELETE", f"faults/{json.loads(begun)['id']}")
        yield


def control(side: Endpoint, method: str, path: str, body: str | None = None) -> bytes:
    with contextlib.closing(HTTPConnection(side.host, side.port)) as connection:
        connection.request(method, f"/$control/{path}", body)
        return connection.getresponse().read()


def command(master: str, tasks: int, directory: str) -> list[str]:
    settings = [word for each in SPARK for word in ("--conf", each)]
    place = ("--archive", f"{directory}/archive", "--shared-archive", "--master", master, "--parallelism", str(tasks))
    output = ("--log-format", "json", "--output", "json")
    return [sys.executable, "-m", "sbpair", "replay", "run", *place, *settings, *output]


def watched(words: list[str], environment: dict[str, str], cluster: Cluster, pids: dict[str, int]) -> list[Mark]:
    """Run a replay to its end. Raises RuntimeError with its log if it fails."""
    logged: list[str] = []
    marks: list[Mark] = []
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        costs = Costs(process.pid, cluster, pids)

        def listen() -> None:
            assert process.stderr is not None
            for line in process.stderr:
                logged.append(line)
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "phase":
                        marks.append(Mark(event["phase"], time.monotonic(), costs.spent()))

        listener = threading.Thread(target=listen)
        listener.start()
        limit = time.monotonic() + MAX_SECONDS
        while process.poll() is None:
            costs.sample()
            time.sleep(SAMPLE_SECONDS)
            if time.monotonic() > limit:
                process.kill()
        listener.join()
    if process.returncode:
        raise RuntimeError(f"exit code {process.returncode}\n{''.join(logged)}")
    return marks


def spans(marks: list[Mark]) -> dict[str, tuple[float, Counter[str]]]:
    """Return the seconds and the CPU of each phase, repetitions included."""
    found: dict[str, tuple[float, Counter[str]]] = {}
    for mark, after in pairwise(marks):
        if mark.phase in PHASES:
            seconds, spent = found.get(mark.phase, (0.0, Counter()))
            found[mark.phase] = seconds + after.at - mark.at, spent + (after.spent - mark.spent)
    return found


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
        found["answer_ms"][str(answer_ms)] = {"largest": runs[-1], **speedups(runs[0], runs[-1])}
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--answer-ms", nargs="+", type=int, default=[0])
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    emit(options, document(options.messages, options.workers, options.answer_ms))


if __name__ == "__main__":
    main()
