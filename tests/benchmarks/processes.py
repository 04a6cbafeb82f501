"""Processes of a benchmark: their CPU, memory and instructions, as Linux counts them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS = 0.02
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """Return how much memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB


@contextmanager
def started(
    command: list[str], environ: dict[str, str] | None = None, stderr: IO[str] | None = None
) -> Iterator[tuple[int, str]]:
    """Run a process, and yield its id and its first line, which it writes when it is ready. End it after the block."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environ) as process:
        try:
            assert process.stdout is not None
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.terminate()
            process.communicate()


@contextmanager
def emulator(*namespaces: str, options: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run an emulator as a process: (pid, {name: its part of the ready document})."""
    wanted = [word for name in namespaces for word in ("--namespace", f"{name}=0")]
    command = [sys.executable, "-m", "sbpair", "emulator", "--quiet", "--output", "json", *options, *wanted]
    with started(command) as (pid, ready):
        yield pid, {each["name"]: each for each in json.loads(ready)["namespaces"]}


def endpoints(namespaces: dict[str, Any]) -> list[Endpoint]:
    from sbpair.model.connection_string import endpoint_from_connection_string  # the relay does without it

    return [endpoint_from_connection_string(each["connection_string"], name=name) for name, each in namespaces.items()]


@contextmanager
def far_away(sides: Iterable[Endpoint], answer_ms: int) -> Iterator[None]:
    """Delay the answers of namespaces of an emulator during the block."""
    with ExitStack() as stack:
        for side in sides if answer_ms else ():
            stack.enter_context(faulty(side, kind="latency", ms=answer_ms))
        yield


@contextmanager
def faulty(side: Endpoint, **fault: str | int) -> Iterator[None]:
    """Let a namespace of an emulator have a fault during the block."""
    begun = _control(side, "POST", "faults", json.dumps({"namespace": side.name, **fault}))
    try:
        yield
    finally:
        _control(side, "DELETE", f"faults/{json.loads(begun)['id']}")


def _control(side: Endpoint, method: str, path: str, body: str | None = None) -> bytes:
    with closing(HTTPConnection(side.host, side.port)) as connection:
        connection.request(method, f"/$control/{path}", body)
        return connection.getresponse().read()


CACHEGRIND = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
"""Counts the user instructions of a program: slower, and independent of what else the machine does."""


def counted_by_valgrind(stderr: str) -> int | None:
    found = re.search(r"I\s+refs:\s+([\d,]+)", stderr)
    return int(found[1].replace(",", "")) if found else None


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a process from start to end: user and system CPU, the peak of its memory, and user instructions."""

    cpu_s: float
    peak_mb: float
    instructions: int | None


def peak_mb(pid: int) -> float | None:
    """Return the peak of a process's memory so far; None once it has ended."""
    # wait4 would include the memory of the parent at the time of the fork.
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else None


@cache
def counts_instructions() -> bool:
    """Return whether `perf stat` counts user instructions here: many virtual machines have no such counter."""
    if shutil.which("perf") is None:
        return False
    tried = subprocess.run([*_PERF, "true"], capture_output=True, text=True, check=False)
    return bool(_counted(tried.stderr))


@contextmanager
def user_instructions(pid: int) -> Iterator[list[int]]:
    """Count the user instructions of a process and its children during the block; [] where that is not possible."""
    found: list[int] = []
    if not counts_instructions():
        yield found
        return
    with NamedTemporaryFile("r") as report:
        with subprocess.Popen([*_PERF, "-o", report.name, "-p", str(pid)]) as perf:
            try:
                yield found
            finally:
                perf.send_signal(signal.SIGINT)
        found += _counted(report.read())


_PERF = ("perf", "stat", "-x,", "-e", "instructions:u")


def _counted(report: str) -> list[int]:
    return [int(count) for count in re.findall(r"^(\d+),[^,]*,instructions:u", report, re.MULTILINE)]


def spent_by(
    command: list[str], environment: dict[str, str], *, max_seconds: float = 600.0, cachegrind: bool = False
) -> Spent:
    """Run a program to its end. Raises RuntimeError with its output if it fails or takes too long."""
    words = [*(CACHEGRIND if cachegrind else ()), *command]
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with (
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment) as process,
            user_instructions(process.pid) as instructions,
        ):
            cpu_s, peak = _watched(process, time.monotonic() + max_seconds)
        out.seek(0), err.seek(0)
        errors = err.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{out.read()}{errors}")
        return Spent(cpu_s, peak, counted_by_valgrind(errors) if cachegrind else sum(instructions) or None)


def _watched(process: subprocess.Popen[bytes], deadline: float) -> tuple[float, float]:
    peak = 0.0
    while True:
        peak = max(peak, peak_mb(process.pid) or 0.0)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime, peak
        if time.monotonic() > deadline:
            process.kill()
        time.sleep(_SAMPLE_SECONDS)


def emulated_environment(namespaces: dict[str, Any], state: str) -> dict[str, str]:
    """Return an environment in which the first two namespaces are primary and secondary, with `state` for the runs."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
    for side, (name, each) in zip(("PRIMARY", "SECONDARY"), namespaces.items(), strict=False):
        given[f"SBPAIR_{side}_NAME"] = name
        given[f"SBPAIR_{side}_CONNECTION_STRING"] = each["connection_string"]
    return given | {"XDG_STATE_HOME": state}
