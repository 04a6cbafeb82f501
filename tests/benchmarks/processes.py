"""Processes of a benchmark: their CPU, memory and instructions, as Linux counts them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

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
def emulator(*namespaces: str, options: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run an emulator as a process: (pid, {name: its part of the ready document})."""
    wanted = [word for name in namespaces for word in ("--namespace", f"{name}=0")]
    command = [sys.executable, "-m", "sbpair", "emulator", "--quiet", "--output", "json", *options, *wanted]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield process.pid, {each["name"]: each for each in ready["namespaces"]}
        finally:
            process.terminate()
            process.communicate()


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of a process from start to end: user and system CPU, the peak of its memory, and user instructions."""

    cpu_s: float
    peak_mb: float
    instructions: int | None
    output: str


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


def spent_by(command: list[str], environment: dict[str, str], *, max_seconds: float = 600.0) -> Spent:
    """Run a program to its end. Raises RuntimeError with its output if it fails or takes too long."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with (
            subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment) as process,
            user_instructions(process.pid) as instructions,
        ):
            cpu_s, peak = _watched(process, time.monotonic() + max_seconds)
        out.seek(0), err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{out.read()}{err.read()}")
        return Spent(cpu_s, peak, sum(instructions) or None, out.read())


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
