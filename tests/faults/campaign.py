"""A campaign of millions of messages: through a syphon or a replay that is killed, while both sides go away at times.

python -m tests.faults.campaign {syphon,replay,states} FOLDER [--messages 10000000] [--round 250000] [--kills 3]

Each round strands messages in four backlog queues, moves them, and compares the content of each that arrived. Every
fourth round of a syphon begins with a `--where`. FOLDER keeps the figures of each round, samples of memory and files,
and a plot of them; a campaign that was interrupted goes on with the round after the last one that is in the figures.

A round of `states` is one command that moves, removes or copies messages of one state and all types, on one kind of
entity. All rounds have `--messages` together, and each command is killed `--kills` times.
"""

import argparse
import asyncio
import csv
import math
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import matplotlib as mpl
from matplotlib import pyplot as plt

from sbpair.azure.atom import open_atom
from tests.benchmarks.processes import resident_mb
from tests.benchmarks.stranded import DESTINATIONS, PRIMARY, QUEUES, Stranded, destination
from tests.faults.emulated_pair import SIDES, EmulatedPair
from tests.faults.figures import Figures, Table
from tests.faults.states import ROUNDS, StateRound
from tests.kit.processes import offspring

CHOSEN: Final = "path IN ('destination-0', 'destination-3', 'destination-5')"
CHOSEN_NUMBERS: Final = (0, 3, 5)
SAMPLE_SECONDS: Final = 1.0
MAX_MB: Final = {"syphon": 400.0, "replay": 4_000.0, "states": 400.0}
COLUMNS: Final = ("seconds", "messages", "mover_mb", "mover_files", "primary_mb", "secondary_mb", "state_mb")


class Campaign:
    """Two namespaces, a state directory, and the figures of the rounds so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.kind: str = options.kind
        self.folder: Path = options.folder
        self._count: int = options.round
        self._seed: int = options.seed
        self._kills: int = options.kills
        self.table = Table(self.folder / "figures.json")
        self._figures = Figures()
        self._pair = EmulatedPair(self.folder, self._figures)
        self._pair.max_mb = MAX_MB[self.kind]

    async def play(self, rounds: int) -> None:
        """Play rounds until there have been so many."""
        async with self._pair.running():
            sampling = asyncio.create_task(self._sample())
            while self.table.of(self.kind).rounds < rounds and not sampling.done():
                began, self._figures = time.monotonic(), Figures(rounds=1, messages=self._count)
                self._pair.figures = self._figures
                number = self.table.of(self.kind).rounds
                detail = await self._round(number, Random(f"{self._seed} {self.kind} {number}"))
                self.table.add(self.kind, self._figures)
                seconds = f"{time.monotonic() - began:.0f} s"
                say(f"{time.strftime('%H:%M:%S')} {self.kind} {number}: {seconds}, {detail}", *self._figures.findings)
            if sampling.done():
                sampling.result()
            sampling.cancel()

    async def _round(self, number: int, random: Random) -> str:
        pair = self._pair
        if self.kind == "states":
            return await StateRound(pair, number, self._count).play(random, self._kills)
        pair.forget()
        stranded = Stranded(self._count, int(time.time() * 1000), first=number * self._count)
        await stranded.create(*pair.endpoints)
        await stranded.fill(pair.endpoints[1])
        began = time.monotonic()
        if self.kind == "replay":
            starts = await pair.replay(self.folder / f"archive-{number}", random=random, kills=self._kills)
        else:
            starts = await self._syphon(random, chosen=number % 4 == 3)
        moved = time.monotonic() - began
        if any(left := await pair.left()):
            self._figures.find("other", f"the backlog still holds {left}")
        # A replay keeps the order of sessions alone.
        _, twice = await pair.judge(stranded, ordered=self.kind == "syphon")
        async with open_atom(pair.endpoint(PRIMARY)) as control:
            for queue in range(DESTINATIONS):
                await control.delete(destination(queue))
        return f"{self._count / moved:.0f}/s, {starts} starts, {twice} twice, {len(pair.named)} named"

    async def _syphon(self, random: Random, *, chosen: bool) -> int:
        starts = 0
        if chosen:
            left = sum(await self._pair.left())
            wanted = left - sum(number % DESTINATIONS in CHOSEN_NUMBERS for number in range(self._count))
            starts = await self._syphon_until(wanted, random, "--where", CHOSEN, "--max-skipped", str(left))
        return starts + await self._syphon_until(0, random)

    async def _syphon_until(self, wanted: int, random: Random, *options: str) -> int:
        """Start syphons until so many messages are left in the backlog. Return how many were started."""

        async def is_done() -> bool:
            left = sum(await self._pair.left())
            if left < wanted:
                self._figures.find("other", f"{' '.join(options)} left {left} messages, not {wanted}")
            return left <= wanted

        words = ("syphon", "--once", "--count", str(QUEUES), "--credits", "none", *options)
        return await self._pair.repeat(*words, until=is_done, random=random, kills=self._kills)

    async def _sample(self) -> None:
        """Append a line of figures each second."""
        path, began = self.folder / "samples.csv", time.monotonic()
        before = samples(path)[-1]["seconds"] if path.exists() else 0.0
        with path.open("a", newline="") as file:
            lines = csv.writer(file)
            if not before:
                lines.writerow(COLUMNS)
            while True:
                mover = self._pair.mover.process if self._pair.mover else None
                tree = [mover.pid, *offspring(mover.pid)] if mover and mover.returncode is None else []
                with suppress(OSError):
                    emulators = [self._pair.emulators[side].process.pid for side in SIDES]
                    memory = [sum(map(resident_mb, tree)), *map(resident_mb, emulators)]
                    files = sum(1 for pid in tree for _ in Path(f"/proc/{pid}/fd").iterdir())
                    state = sum(each.stat().st_size for each in self._pair.state.glob("**/*") if each.is_file()) / 1e6
                    seconds = before + time.monotonic() - began
                    moved = self.table.of(self.kind).messages
                    lines.writerow([round(each, 1) for each in (seconds, moved, memory[0], files, *memory[1:], state)])
                    file.flush()
                await asyncio.sleep(SAMPLE_SECONDS)


def samples(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(value) for name, value in line.items()} for line in csv.DictReader(file)]


def plot(folder: Path) -> None:
    """Draw memory and files over time."""
    mpl.use("svg")
    found = samples(folder / "samples.csv")
    minutes = [each["seconds"] / 60 for each in found]
    figure, parts = plt.subplots(3, sharex=True, figsize=(10, 9))
    shown = (("MB", ("mover_mb", "primary_mb", "secondary_mb")), ("files", ("mover_files",)), ("MB", ("state_mb",)))
    for part, (unit, names) in zip(parts, shown, strict=True):
        for name in names:
            part.plot(minutes, [each[name] for each in found], label=name, linewidth=0.7)
        part.set_ylabel(unit)
        part.legend()
    parts[-1].set_xlabel("minutes")
    figure.savefig(folder / "campaign.svg")


def say(*lines: str) -> None:
    sys.stdout.write("\n    ".join(lines) + "\n")
    sys.stdout.flush()


def main() -> int:
    options_of = argparse.ArgumentParser(prog="python -m tests.faults.campaign", description=__doc__)
    options_of.add_argument("kind", choices=(*MAX_MB,))
    options_of.add_argument("folder", type=Path)
    options_of.add_argument("--messages", type=int, default=10_000_000)
    options_of.add_argument("--round", type=int, default=250_000, help="messages of each round")
    options_of.add_argument("--seed", type=int, default=1)
    options_of.add_argument("--kills", type=int, default=3, help="signals in each round")
    options = options_of.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # A shell ignores it for a command in the background, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rounds = math.ceil(options.messages / options.round)
    if options.kind == "states":
        rounds = len(ROUNDS)
        options.round = math.ceil(options.messages / rounds)
    campaign = Campaign(options)
    try:
        asyncio.run(campaign.play(rounds))
    finally:
        plot(options.folder)
    say(str(campaign.table))
    return 1 if campaign.table.of(options.kind).wrong else 0


if __name__ == "__main__":
    sys.exit(main())
