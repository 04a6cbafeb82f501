"""A command of sbpair as a process: its end is judged, and its memory and time are measured."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.faults.figures import Figures
from tests.kit import command
from tests.kit.processes import offspring, read

SAMPLE_SECONDS: Final = 0.2
MAX_KEPT: Final = 16_000_000
"""Characters of an output."""
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Command:
    """A running command. `acted` is when something was done to it, from which its answer is timed."""

    def __init__(self, words: tuple[str, ...], process: asyncio.subprocess.Process, figures: Figures) -> None:
        self.process = process
        self.out = self.err = ""
        self.acted = time.monotonic()
        self.words = words
        self._figures = figures
        self._peak_mb = 0.0
        self._log_bytes = 0
        self._line = asyncio.Event()
        self._reading = [
            asyncio.create_task(self._read("out", process.stdout)),
            asyncio.create_task(self._read("err", process.stderr)),
        ]
        self._sampling = asyncio.create_task(self._sample())

    @classmethod
    async def start(cls, *words: str, env: dict[str, str], figures: Figures, **more: Any) -> Command:
        """Start a command. `more` are arguments of `command.start`."""
        return cls(words, await command.start(*words, env=env, **more), figures)

    async def _read(self, name: str, stream: Any) -> None:
        while stream and (data := await stream.read(65_536)):
            if name == "err":
                self._log_bytes += len(data)
            setattr(self, name, getattr(self, name)[-MAX_KEPT:] + data.decode(errors="backslashreplace"))
            if name == "out" and b"\n" in data:
                self._line.set()
        self._line.set()

    async def first_line(self, limit: float) -> str:
        """Return the first line of the output. Raises TimeoutError, or RuntimeError if the command ends without one."""
        async with asyncio.timeout(limit):
            await self._line.wait()
        if not self.out:
            raise RuntimeError(f"sbpair {' '.join(self.words)} said nothing but: {self.err[-600:]}")
        return self.out.split("\n", 1)[0]

    async def _sample(self) -> None:
        while self.process.returncode is None:
            pids = (self.process.pid, *offspring(self.process.pid))
            peaks = (_PEAK.search(read(Path(f"/proc/{pid}/status"))) for pid in pids)
            self._peak_mb = max(self._peak_mb, sum(int(found[1]) for found in peaks if found) * 1024 / 1e6)
            await asyncio.sleep(SAMPLE_SECONDS)

    def signal(self, number: int) -> None:
        self.acted = time.monotonic()
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def signal_after(self, seconds: float, number: int) -> list[int]:
        """Send a signal, unless it ends before. Return the descendants that it had then."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.process.wait(), seconds)
        children = offspring(self.process.pid)
        self.signal(number)
        return children

    async def kill(self) -> None:
        """End it with its descendants."""
        for pid in (self.process.pid, *offspring(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self.process.wait()
        await asyncio.wait([*self._reading, self._sampling], timeout=10)

    async def end(self, codes: Collection[int], *, limit: float = 240.0, max_mb: float = 400.0) -> int:
        """Wait for the end, judge it, and return the exit code."""
        what = f"sbpair {' '.join(self.words)}"
        try:
            async with asyncio.timeout(limit):
                await self.process.wait()
                await asyncio.wait([*self._reading, self._sampling])
        except TimeoutError:
            self._figures.find("other", f"{what}: no end within {limit:g} s: {self.err[-600:]}")
            await self.kill()
            return -signal.SIGKILL
        code, said = self.process.returncode or 0, self.out + self.err
        figures = self._figures
        figures.longest_s = max(figures.longest_s, time.monotonic() - self.acted)
        figures.peak_mb = max(figures.peak_mb, self._peak_mb)
        figures.peak_log = max(figures.peak_log, self._log_bytes)
        if (
            (code == 1 and code not in codes)
            or "Traceback (most recent call last)" in said
            or "Exception ignored" in said
        ):
            found = self.err[self.err.find("Traceback") :] if "Traceback" in self.err else self.err[-1_500:]
            figures.find("tracebacks", f"{what}: exit code {code}: {found[:1_800]}")
        elif code not in codes:
            figures.find("other", f"{what}: exit code {code}, expected {sorted(codes)}: {self.err[-800:]}")
        if 1 < code < 130 and not said.strip():
            figures.find("other", f"{what}: exit code {code} without a word")
        if found := _CONTROLS.search(said):
            figures.find("other", f"{what}: a control character: {said[max(0, found.start() - 100) :][:200]!r}")
        if self._peak_mb > max_mb:
            figures.find("other", f"{what}: {self._peak_mb:.0f} MB")
        return code

    def receipt(self) -> dict[str, Any]:
        """Return the JSON document that it printed; {} for none."""
        try:
            found = json.loads(self.out)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


async def end_offspring(pids: Collection[int]) -> None:
    """Wait until the children of a killed command have noticed that; kill those that have not after a minute."""
    for _ in range(300):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        await asyncio.sleep(0.2)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
