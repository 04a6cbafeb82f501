"""The hostile trial: rounds of each kind of attack in turn, until the time is over, and a table of what they did.

python -m tests.faults.hostile [--seconds 7200] [--only KIND]... [--seed 1] [--scale 1] FOLDER

The kind that has had the least time goes next. FOLDER keeps the figures of each kind, from which it goes on, and the
files of each round with a finding. It exits 1 if anything is lost, altered, unnamed or let in, or another finding is
there.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

from tests.faults.campaign import say
from tests.faults.figures import Table
from tests.faults.hostile import archives, clocks, disks, kills, many, pages, peers, sends
from tests.faults.hostile.trial import Trial

KINDS: Final[dict[str, Callable[[Trial], Awaitable[None]]]] = {
    "kills": kills.play,
    "sends": sends.play,
    "disks": disks.play,
    "clocks": clocks.play,
    "archives": archives.play,
    "pages": pages.play,
    "peers": peers.play,
    "many": many.play,
}
ROUND_SECONDS: Final = 7_200.0
COLUMNS: Final = ("rounds", "messages", "lost", "altered", "unnamed", "late", "let_in", "left", "tracebacks", "other")
LAST: Final = ("peak_mb", "peak_log", "seconds")


async def play(table: Table, folder: Path, kind: str, *, seed: int, scale: float) -> set[str]:
    """Play the next round of a kind, and add its figures. Return what could not be tried."""
    number, began = table.of(kind).rounds, time.monotonic()
    work = folder / f"{kind}-{number}"
    shutil.rmtree(work, ignore_errors=True)
    trial = Trial(work, number, Random(f"{seed} {kind} {number}"), scale)
    try:
        async with asyncio.timeout(ROUND_SECONDS):
            await KINDS[kind](trial)
    except Exception:  # noqa: BLE001  # the trial goes on
        trial.figures.find("other", f"the round {number} ended: {traceback.format_exc()[-1_800:]}")
    trial.find_leftovers()
    trial.figures.seconds = time.monotonic() - began
    found = list(trial.figures.findings)
    table.add(kind, trial.figures)
    if not trial.figures.wrong:
        shutil.rmtree(work)
    say(f"{time.strftime('%H:%M:%S')} {kind} {number}: {trial.figures.seconds:.0f} s", *found)
    return trial.skipped


def shown(table: Table) -> str:
    """Return the figures as lines of columns."""
    lines = [("kind", *("tried" if each == "messages" else each for each in COLUMNS), *LAST)]
    for kind, each in table.kinds.items():
        figures = [getattr(each, name) for name in (*COLUMNS, *LAST)]
        lines.append((kind, *(f"{figure:.0f}" for figure in figures)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)) for line in lines)


def wrong(table: Table) -> int:
    return sum(each.wrong for each in table.kinds.values())


def main() -> int:
    options_of = argparse.ArgumentParser(prog="python -m tests.faults.hostile", description=__doc__)
    options_of.add_argument("folder", type=Path)
    options_of.add_argument("--seconds", type=float, default=7_200.0, help="no round begins later [default: 7200]")
    options_of.add_argument("--only", action="append", choices=KINDS, help="repeatable [default: all]")
    options_of.add_argument("--seed", type=int, default=1)
    options_of.add_argument("--scale", type=float, default=1.0, help="multiplies the amounts of a round")
    options = options_of.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # A shell ignores it for a command in the background, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    table, skipped = Table(options.folder / "figures.json"), set[str]()
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        kind = min(options.only or KINDS, key=lambda each: table.of(each).seconds)
        skipped |= asyncio.run(play(table, options.folder, kind, seed=options.seed, scale=options.scale))
    say(shown(table), *(f"not tried here: {each}" for each in sorted(skipped)))
    return 1 if wrong(table) else 0


if __name__ == "__main__":
    sys.exit(main())
