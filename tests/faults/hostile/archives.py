"""Archives of real replays whose files are swapped, copied, cut, edited or mixed with those of another run.

Each tampering is tried against each command that reads files; none may end with 0. A run that was killed while it sent
is tampered with and resumed; once the files are restored, it must deliver everything.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

from sbpair.replay.archive import LEDGER, SEGMENTS
from tests.benchmarks.stranded import QUEUES, Stranded
from tests.faults.emulated_pair import KILLED, EmulatedPair
from tests.faults.hostile.trial import MAX_MB, Trial
from tests.replay.test_tampering import ONLY_BYTES, TAMPERINGS, Run

Tamperings: TypeAlias = dict[str, Callable[[Run], object]]
REFUSED: Final = {1, 3, 4, 7}
START_SECONDS: Final = 900.0
TRIED: Final = 8
"""How many tamperings a round tries against the commands that only read."""

BOTH: Final = TAMPERINGS | ONLY_BYTES
OTHERS: Final = re.compile("another run|mixed")
OPTIONS: Final = {"status": (), "verify": (), "verify --full": ("--full",), "gc": ("--yes",)}


async def play(trial: Trial) -> None:
    async with trial.pair().running() as pair:
        # As many in each segment, and the same numbers in no two runs.
        count = max(400, trial.amount(2_000) // 400 * 400)
        stranded = Stranded(count, int(time.time() * 1000), first=trial.number * count)
        trial.figures.messages += stranded.count
        await stranded.create(*pair.endpoints)
        await stranded.fill(pair.endpoints[1])
        root = await _killed_while_it_sends(pair, trial.folder / "archive")
        run = Run(root, trial.folder.parent / "another-run")
        # The first round has no other run to mix with.
        possible = {name: each for name, each in BOTH.items() if run.other.exists() or not OTHERS.search(name)}
        await _resume_tampered(trial, pair, run, possible)
        await pair.judge(stranded, ordered=False)
        await _try_commands(trial, pair, run, possible)
        shutil.rmtree(run.other, ignore_errors=True)
        shutil.copytree(root, run.other)


async def _killed_while_it_sends(pair: EmulatedPair, archive: Path) -> Path:
    """Kill a replay once it has drained the backlog and sent a part. Return the folder of the run."""
    words = ("replay", "run", "--count", str(QUEUES), "--rate", "100", "--archive", str(archive))
    mover = await pair.launch(*words)
    ledger = f"*/{LEDGER}/**/*.parquet"
    async with asyncio.timeout(START_SECONDS):
        while mover.process.returncode is None and not any(archive.glob(ledger)):  # noqa: ASYNC110  of files
            await asyncio.sleep(0.2)
    await mover.kill()
    await mover.end({KILLED}, max_mb=MAX_MB)
    await pair.expire_locks()
    (root,) = archive.iterdir()
    return root


async def _resume_tampered(trial: Trial, pair: EmulatedPair, run: Run, possible: Tamperings) -> None:
    """Resume with a segment that was tampered with; then with the right one."""
    backup = shutil.copytree(run.root / SEGMENTS, trial.folder / "backup")
    name = trial.random.choice([each for each in possible if "segment" in each])
    possible[name](run)
    await _refuse(trial, pair, name, run.root, "resume")
    shutil.rmtree(run.root / SEGMENTS)
    shutil.copytree(backup, run.root / SEGMENTS)
    await pair.expire_locks()
    for command in ("resume", "verify", "status"):
        words = ("replay", command, run.root.name, "--archive", str(run.root.parent))
        if code := await pair.run(*words, codes=REFUSED):
            said = pair.mover.err[-300:] if pair.mover else ""
            trial.figures.find("other", f"{command} of the restored files after {name}: {code}: {said}")


async def _try_commands(trial: Trial, pair: EmulatedPair, run: Run, possible: Tamperings) -> None:
    commands = dict(OPTIONS)
    await pair.run("replay", "verify", "--help")
    if pair.mover and "--full" not in pair.mover.out:
        trial.skipped.add("replay verify --full")
        del commands["verify --full"]
    for name in trial.random.sample([*possible], TRIED):
        for command, options in commands.items():
            if name in TAMPERINGS or command in ("verify --full", "gc"):
                copy = trial.folder / "copy" / run.root.name
                shutil.copytree(run.root, copy)
                possible[name](Run(copy, run.other))
                await _refuse(trial, pair, name, copy, command.split()[0], *options)
                shutil.rmtree(copy.parent)


async def _refuse(trial: Trial, pair: EmulatedPair, name: str, root: Path, command: str, *options: str) -> None:
    """Run a command on tampered files. It must not succeed."""
    trial.figures.messages += 1
    words = ("replay", command, root.name, "--archive", str(root.parent), *options)
    if await pair.run(*words, codes=REFUSED) == 0:
        trial.figures.find("let_in", f"{name}: {' '.join((command, *options))} ends with 0")
