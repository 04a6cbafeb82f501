"""What a process has cost so far, read from the operating system. Linux only, as the figures of a benchmark may be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def resident_mb(pid: int) -> float:
    """What it holds in memory now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_MB


@contextmanager
def emulator(*namespaces: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """An emulator in a process of its own, as (pid, {name: what its ready document says of it})."""
    wanted = [word for name in namespaces for word in ("--namespace", f"{name}=0")]
    command = [sys.executable, "-m", "sbpair", "emulator", "--output", "json", *wanted]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            yield process.pid, {each["name"]: each for each in ready["namespaces"]}
        finally:
            process.terminate()
            process.communicate()
