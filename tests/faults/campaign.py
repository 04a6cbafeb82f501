"""A campaign of millions of messages: through a syphon or a replay that is killed, while both sides go away at times.

python -m tests.faults.campaign {syphon,replay} FOLDER [--messages 10000000] [--round 250000] [--seed 1] [--kills 3]

Each round strands messages in four backlog queues, moves them, and compares the content of each that arrived. Every
fourth round of a syphon begins with a `--where`. FOLDER keeps the figures of each round, samples of memory and files,
and a plot of them; a campaign that was interrupted goes on with the round after the last one that is in the figures.
"""

import argparse
import asyncio
import csv
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp
import matplotlib as mpl
from matplotlib import pyplot as plt

from sbpair.azure.atom import open_atom
from sbpair.model.connection_string import endpoint_from_connection_string
from tests.benchmarks.processes import emulated_environment, resident_mb
from tests.benchmarks.replay import namespaces
from tests.benchmarks.stranded import (
    BATCH,
    DESTINATIONS,
    PRIMARY,
    QUEUES,
    SCHEDULE,
    SECONDARY,
    Found,
    Stranded,
    backlog_queues,
    destination,
)
from tests.faults.figures import Figures, Table
from tests.faults.measured_command import Command, end_offspring
from tests.kit.processes import offspring

KILLED: Final = -signal.SIGKILL
ENDINGS: Final = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
AWAY: Final[tuple[dict[str, int | str], ...]] = (
    *({"kind": kind} for kind in ("namespace-down", "drop", "reset", "stall", "detach", "expire-locks", "throttle")),
    {"kind": "latency", "ms": 150},
    {"kind": "swallow-acks", "count": 5},
)
CHOSEN: Final = "path IN ('destination-0', 'destination-3', 'destination-5')"
CHOSEN_NUMBERS: Final = (0, 3, 5)
LIMIT_SECONDS: Final = 1_800.0
SAMPLE_SECONDS: Final = 1.0
MAX_MB: Final = {"syphon": 400.0, "replay": 4_000.0}
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
        self._state = self.folder / f"state-{time.time():.0f}"
        """A mover's state belongs to namespaces that a new process no longer has."""
        self._ready: dict[str, Any] = {}
        self._pids: tuple[int, int] = (0, 0)
        self._mover: Command | None = None
        self._named: set[str] = set()
        self._ended: set[str] = set()

    async def play(self, messages: int) -> None:
        """Play rounds until so many messages have been moved."""
        with namespaces() as (self._pids, self._ready):
            self._sides = [endpoint_from_connection_string(each["connection_string"]) for each in self._ready.values()]
            self._environment = emulated_environment(self._ready, str(self._state)) | {"NO_COLOR": "1"}
            sampling = asyncio.create_task(self._sample())
            while self.table.of(self.kind).messages < messages and not sampling.done():
                began, self._figures = time.monotonic(), Figures(rounds=1, messages=self._count)
                number = self.table.of(self.kind).rounds
                detail = await self._round(number, Random(f"{self._seed} {self.kind} {number}"))
                self.table.add(self.kind, self._figures)
                seconds = f"{time.monotonic() - began:.0f} s"
                say(f"{time.strftime('%H:%M:%S')} {self.kind} {number}: {seconds}, {detail}", *self._figures.findings)
            if sampling.done():
                sampling.result()
            sampling.cancel()

    async def _round(self, number: int, random: Random) -> str:
        stranded = Stranded(self._count, int(time.time() * 1000), first=number * self._count)
        self._named, self._ended = set(), set()
        await stranded.create(*self._sides)
        await stranded.fill(self._sides[1])
        began = time.monotonic()
        if self.kind == "replay":
            starts = await self._replay(random, self.folder / f"archive-{number}")
        else:
            starts = await self._syphon(random, chosen=number % 4 == 3)
        moved = time.monotonic() - began
        if any(left := await self._left()):
            self._figures.find("other", f"the backlog still holds {left}")
        twice = await self._judge(stranded)
        async with open_atom(self._sides[0]) as control:
            for queue in range(DESTINATIONS):
                await control.delete(destination(queue))
        return f"{self._count / moved:.0f}/s, {starts} starts, {twice} twice, {len(self._named)} named"

    # The movers

    async def _syphon(self, random: Random, *, chosen: bool) -> int:
        starts = 0
        if chosen:
            left = sum(await self._left())
            wanted = left - sum(number % DESTINATIONS in CHOSEN_NUMBERS for number in range(self._count))
            starts = await self._syphon_until(wanted, random, "--where", CHOSEN, "--max-skipped", str(left))
        return starts + await self._syphon_until(0, random)

    async def _syphon_until(self, wanted: int, random: Random, *options: str) -> int:
        """Start syphons until so many messages are left in the backlog. Return how many were started."""
        words = ("syphon", "--once", "--count", str(QUEUES), "--credits", "none", *options)
        for start in range(40):
            early = random.choice(ENDINGS) if start < self._kills else None
            async with self._away(random):
                await self._run(*words, after=random.uniform(0.5, 12) if early else None, ending=early)
            await self._expire_locks()
            left = sum(await self._left())
            if left <= wanted:
                if left < wanted:
                    self._figures.find("other", f"{' '.join(options)} left {left} messages, not {wanted}")
                return start + 1
        self._figures.find("other", f"the syphon leaves {left} messages, not {wanted}")
        return start

    async def _replay(self, random: Random, archive: Path) -> int:
        words, run = ("run", "--count", str(QUEUES)), ""
        for start in range(10):
            early = random.choice(ENDINGS) if start < self._kills else None
            after = random.uniform(5, 60) if early else None
            code = await self._run("replay", *words, "--archive", str(archive), after=after, ending=early)
            await self._expire_locks()
            listed = await self._run("replay", "list", "--archive", str(archive))
            run = next((each["run"] for each in self._receipt.get("runs", ())), "") if listed in (0, 3) else ""
            if code in (0, 3) and run:
                break
            words = ("resume", run) if run else words
        else:
            self._figures.find("other", f"the replay does not end: {code}")
        if await self._run("replay", "verify", run, "--archive", str(archive)):
            self._figures.find("other", f"{run} is not verified")
        shutil.rmtree(archive)
        return start + 1

    async def _run(self, *words: str, after: float | None = None, ending: signal.Signals | None = None) -> int:
        """Run a command to its end, which a signal may bring. Keep the messages that its documents name."""
        codes = {0, 3} | ({6, 130, KILLED, -signal.SIGTERM, -signal.SIGINT} if ending else {6})
        mover = await self._start(*words)
        children: list[int] = []
        if after is not None and ending is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(mover.process.wait(), after)
            children = offspring(mover.process.pid)
            mover.signal(ending)
        code = await mover.end(codes, limit=LIMIT_SECONDS, max_mb=MAX_MB[self.kind])
        await end_offspring(children)
        self._receipt = mover.receipt()
        self._name(self._receipt)
        if words[0] == "syphon":
            await self._name_those_of_runs()
        return code

    async def _name_those_of_runs(self) -> None:
        """Name what the receipts of the runs that have ended name, and each message that they left in doubt."""
        listed = await self._start("runs", "list")
        await listed.end({0})
        for each in listed.receipt().get("runs", ()):
            if each["id"] not in self._ended:
                shown = await self._start("runs", "show", each["id"])
                await shown.end({0})
                for run in shown.receipt().get("runs", ()):
                    self._name(run)
                    self._name(run.get("receipt") or {})
                self._ended |= {each["id"]} if each["outcome"] != "running" else set()

    def _name(self, document: dict[str, Any]) -> None:
        self._named |= {str(each["message_id"]) for each in document.get("doubtful", ())}

    async def _start(self, *words: str) -> Command:
        state = () if words[:2] in (("replay", "list"), ("replay", "verify")) else ("--state", str(self._state))
        words = (*words, *state, "--output", "json")
        self._mover = await Command.start(*words, env=self._environment, figures=self._figures)
        return self._mover

    # The namespaces

    async def _left(self) -> list[int]:
        async with open_atom(self._sides[1]) as control:
            return [(await control.counts(queue)).total for queue in backlog_queues()]

    async def _control(self, side: str, method: str, path: str, body: object = None) -> Any:
        """Send a request to the control API of an emulator, and return the answer's document."""
        url = f"http:{self._ready[side]['endpoint'].removeprefix('sb:').rstrip('/')}/$control/{path}"
        # An outage breaks whatever connection is not busy.
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
            http.request(method, url, json=body) as answer,
        ):
            answer.raise_for_status()
            return await answer.json() if answer.content_type == "application/json" else None

    async def _begin(self, side: str, **fault: int | str) -> str:
        return f"faults/{(await self._control(side, 'POST', 'faults', {'namespace': side, **fault}))['id']}"

    async def _expire_locks(self) -> None:
        for side in (PRIMARY, SECONDARY):
            await self._control(side, "DELETE", await self._begin(side, kind="expire-locks"))

    @asynccontextmanager
    async def _away(self, random: Random) -> AsyncIterator[None]:
        """Let a side go away at times."""

        async def disturb() -> None:
            while True:
                await asyncio.sleep(random.uniform(2, 15))
                side = random.choice((PRIMARY, SECONDARY))
                fault = await self._begin(side, **random.choice(AWAY))
                try:
                    await asyncio.sleep(random.uniform(0.1, 3))
                finally:
                    await asyncio.shield(self._control(side, "DELETE", fault))

        task = asyncio.create_task(disturb())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    # The judgement

    async def _judge(self, stranded: Stranded) -> int:
        """Compare each message that arrived. Return how many arrived more than once."""
        found = Found(stranded)
        last: dict[tuple[object, ...], int] = {}
        altered, late = [], []
        async for where, message in stranded.arrived(self._sides[0]):
            try:
                number = found.add(where, message)
            except (RuntimeError, ValueError) as error:
                altered.append(str(error))
                continue
            if found.times[number - stranded.numbers.start] == 1:
                lane = (where, number // BATCH % QUEUES, message.read_properties().group_id)
                # A replay keeps the order of sessions alone.
                if SCHEDULE not in message.read_message_annotations() and (lane[2] or self.kind == "syphon"):
                    late += [f"{number} after {last[lane]}"] if number < last.get(lane, -1) else []
                    last[lane] = max(number, last.get(lane, -1))
        times = list(zip(stranded.numbers, found.times, strict=True))
        twice = [number for number, each in times if each > 1]
        for column, wrong in (
            ("lost", [number for number, each in times if not each]),
            ("altered", altered),
            ("unnamed", [number for number in twice if f"{number:09d}" not in self._named]),
            ("late", late),
        ):
            if wrong:
                self._figures.find(column, f"{wrong[:5]}", len(wrong))
        return len(twice)

    async def _sample(self) -> None:
        """Append a line of figures each second."""
        path, began = self.folder / "samples.csv", time.monotonic()
        before = samples(path)[-1]["seconds"] if path.exists() else 0.0
        with path.open("a", newline="") as file:
            lines = csv.writer(file)
            if not before:
                lines.writerow(COLUMNS)
            while True:
                mover = self._mover.process if self._mover else None
                tree = [mover.pid, *offspring(mover.pid)] if mover and mover.returncode is None else []
                with suppress(OSError):
                    memory = [sum(map(resident_mb, tree)), *map(resident_mb, self._pids)]
                    files = sum(1 for pid in tree for _ in Path(f"/proc/{pid}/fd").iterdir())
                    state = sum(each.stat().st_size for each in self._state.glob("**/*") if each.is_file()) / 1e6
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
    options_of.add_argument("kind", choices=("syphon", "replay"))
    options_of.add_argument("folder", type=Path)
    options_of.add_argument("--messages", type=int, default=10_000_000)
    options_of.add_argument("--round", type=int, default=250_000, help="messages of each round")
    options_of.add_argument("--seed", type=int, default=1)
    options_of.add_argument("--kills", type=int, default=3, help="signals in each round")
    options = options_of.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    # A shell ignores it for a command in the background, and commands would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    campaign = Campaign(options)
    try:
        asyncio.run(campaign.play(options.messages))
    finally:
        plot(options.folder)
    say(str(campaign.table))
    return 1 if campaign.table.of(options.kind).wrong else 0


if __name__ == "__main__":
    sys.exit(main())
