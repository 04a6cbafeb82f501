"""Small disks that fill up and are freed, below the state, an outbox, an archive, and the data of emulators."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from subprocess import CalledProcessError
from typing import Final

from tests.faults.emulated_pair import beside
from tests.faults.hostile.sends import play_sends
from tests.faults.hostile.trial import SYPHON, Trial, bring_back, strand
from tests.kit.disks import full, mounted

DISK_MB: Final = {"state": 2, "outbox": 4, "archive": 24, "data": 48}
REFUSED: Final = {4, 7}


async def play(trial: Trial) -> None:
    kind = [*DISK_MB][trial.number % len(DISK_MB)]
    trial.folder.mkdir(parents=True, exist_ok=True)
    try:
        with mounted(trial.folder / "disk", DISK_MB[kind]) as folder:
            await _play(trial, kind, folder)
    except (PermissionError, CalledProcessError):
        trial.skipped.add("full disks: a mount needs root")


async def _play(trial: Trial, kind: str, disk: Path) -> None:
    pair = trial.pair(durable=kind == "data")
    pair.data = disk if kind == "data" else trial.folder
    pair.state = disk / "state" if kind == "state" else pair.state
    async with pair.running():
        if kind == "outbox":
            during = _filled_at_times(disk, trial.random)
            await play_sends(trial, pair, "sync", outbox=disk / "outbox.db", during=during)
            return
        stranded = await strand(trial, pair, 6_000)
        async with _filled_at_times(disk, trial.random):
            if kind == "archive":
                words = ("replay", "run", "--count", "4", "--archive", str(disk / "archive"))
                await pair.run(*words, codes=REFUSED)
            else:
                await pair.repeat(*SYPHON, until=pair.is_empty, random=trial.random, kills=1, codes=REFUSED)
        if kind == "archive":
            await pair.replay(disk / "archive", random=trial.random, kills=0)
        await bring_back(pair)
        await pair.judge(stranded, ordered=False)


@asynccontextmanager
async def _filled_at_times(disk: Path, random: Random) -> AsyncIterator[None]:
    async def fill() -> None:
        while True:
            await asyncio.sleep(random.uniform(0.3, 4))
            with full(disk):
                await asyncio.sleep(random.uniform(0.2, 3))

    async with beside(fill()):
        yield
