"""What a process has cost so far, read from the operating system. Linux only, as the figures of a benchmark may be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.02
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """What it holds in memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB


@contextmanager
def emulator(*namespaces: str, options: tuple[str, ...] = ()) -> Iterator[tuple[int, dict[str, Any]]]:
    """An emulator in a process of its own, as (pid, {name: what its ready document says of it})."""
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
    """What a process has cost from its start to its end: CPU of user and system together, and memory at its highest."""

    cpu_s: float
    peak_mb: float
    output: str


def peak_mb(pid: int) -> float | None:
    """The most that a process has held in memory so far; None when it has ended."""
    # Not what wait4 says of it: that includes what the parent held at the time of the fork.
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 / 1e6 if found else None


def spent_by(command: list[str], environment: dict[str, str], *, max_seconds: float = 600.0) -> Spent:
    """Run a program to its end. Raises RuntimeError, with what it said, where it fails or takes too long."""
    with TemporaryFile("w+") as out, TemporaryFile("w+") as err:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment) as process:
            cpu_s, peak = _watched(process, time.monotonic() + max_seconds)
        out.seek(0), err.seek(0)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}: exit code {process.returncode}\n{out.read()}{err.read()}")
        return Spent(cpu_s, peak, out.read())


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
        time.sleep(_LOOK_SECONDS)


def emulated_environment(namespaces: dict[str, Any], state: str) -> dict[str, str]:
    """What `sbpair` finds the first two namespaces by, as primary and secondary; what it keeps goes to `state`."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
    for side, (name, each) in zip(("PRIMARY", "SECONDARY"), namespaces.items(), strict=False):
        given[f"SBPAIR_{side}_NAME"] = name
        given[f"SBPAIR_{side}_CONNECTION_STRING"] = each["connection_string"]
    return given | {"XDG_STATE_HOME": state}
