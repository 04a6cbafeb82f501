"""Two emulated namespaces, a process each, and commands of sbpair on them, which signals and faults may interrupt.

Invariant: each message that a receipt or a recorded run names as in doubt is in `named`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import aiohttp

from sbpair.azure.atom import open_atom
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint
from tests.benchmarks.processes import emulated_environment
from tests.benchmarks.stranded import (
    PRIMARY,
    QUEUES,
    SCHEDULE,
    SECONDARY,
    Found,
    Stranded,
    backlog_queues,
)
from tests.faults.figures import Figures
from tests.faults.measured_command import Command, end_offspring
from tests.kit.fork_server import STRICT

SIDES: Final = (PRIMARY, SECONDARY)
KILLED: Final = -signal.SIGKILL
ENDINGS: Final = (signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
AWAY: Final[tuple[dict[str, int | str], ...]] = (
    *({"kind": kind} for kind in ("namespace-down", "drop", "reset", "stall", "detach", "expire-locks", "throttle")),
    {"kind": "latency", "ms": 150},
    {"kind": "swallow-acks", "count": 5},
)
READY_SECONDS: Final = 120.0
LIMIT_SECONDS: Final = 1_800.0
MOVERS: Final = ("syphon", "move", "redrive", "remove", "receive")
WITH_STATE: Final = (*MOVERS[:-1], "runs", "page")


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Do some work in a task until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


class EmulatedPair:
    """The processes, their state directory, and what the commands said. `figures` may be replaced between commands."""

    def __init__(self, folder: Path, figures: Figures, *, durable: bool = False, **variables: str) -> None:
        """Keep the files in `folder`. `durable` emulators can be killed. `variables` are for every process."""
        self.folder, self.figures = folder, figures
        self.home = folder / f"state-{time.time():.0f}"
        self.state = self.home / "sbpair" / "+".join(SIDES)
        """A mover's state belongs to namespaces that a new process no longer has."""
        self.mover: Command | None = None
        self.receipt: dict[str, Any] = {}
        self.named: set[str] = set()
        self.max_mb = 400.0
        self.options: tuple[str, ...] = ()
        """Further options of emulators."""
        self.python: tuple[str, ...] = STRICT
        """Options of Python for commands."""
        self.prepare: Callable[[], object] | None = None
        """Called in the process of an emulator before it runs."""
        self.data = folder
        """The folder of the data of durable emulators."""
        self._durable, self._variables = durable, variables
        self._ended: set[str] = set()
        self._launched: list[Command] = []
        self._ready: dict[str, Any] = {}
        self.emulators: dict[str, Command] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[EmulatedPair]:
        try:
            for side in SIDES:
                await self.start(side)
            yield self
        finally:
            for each in self._launched:
                if each.process.returncode is None:  # an error has ended the trial
                    await each.kill()
            for each in self.emulators.values():
                each.signal(signal.SIGTERM)
                await each.end({0}, limit=60.0)

    # The namespaces

    async def start(self, side: str) -> None:
        """Start the emulator of a side: again, at the port and with the data that it had."""
        port = self.endpoint(side).port if side in self._ready else 0
        kept = ("--data", str(self.data / f"{side}.db"), "--durable") if self._durable else ()
        words = ("emulator", "--namespace", f"{side}={port}", "--output", "json", *kept, *self.options)
        env = {name: value for name, value in os.environ.items() if not name.startswith("SBPAIR_")} | self._variables
        emulator = await Command.start(*words, env=env, figures=self.figures, prepare=self.prepare)
        self.emulators[side] = emulator
        (self._ready[side],) = json.loads(await emulator.first_line(READY_SECONDS))["namespaces"]
        # It loads its HTTP server with the first request, which takes seconds on a busy machine.
        await self.control(side, "GET", "state")

    async def kill(self, side: str) -> None:
        """Kill the emulator of a side. Its port and data stay."""
        self.emulators[side].signal(signal.SIGKILL)
        await self.emulators[side].end({KILLED})

    def endpoint(self, side: str) -> Endpoint:
        return endpoint_from_connection_string(self._ready[side]["connection_string"], name=side)

    @property
    def endpoints(self) -> tuple[Endpoint, Endpoint]:
        return self.endpoint(PRIMARY), self.endpoint(SECONDARY)

    @property
    def environment(self) -> dict[str, str]:
        ready = {side: self._ready[side] for side in SIDES}
        return emulated_environment(ready, str(self.home)) | {"NO_COLOR": "1"} | self._variables

    async def left(self) -> list[int]:
        """Return how many messages each backlog queue has, with its dead letters."""
        async with open_atom(self.endpoint(SECONDARY)) as control:
            return [(await control.counts(queue)).total for queue in backlog_queues()]

    async def is_empty(self) -> bool:
        return not any(await self.left())

    async def control(self, side: str, method: str, path: str, body: object = None) -> Any:
        """Send a request to the control API of an emulator, and return the answer's document."""
        endpoint = self.endpoint(side)
        url = f"http://{endpoint.host}:{endpoint.port}/$control/{path}"
        # An outage breaks whatever connection is not busy.
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http,
            http.request(method, url, json=body) as answer,
        ):
            answer.raise_for_status()
            return await answer.json() if answer.content_type == "application/json" else None

    async def begin(self, side: str, **fault: int | str) -> str:
        """Begin a fault. Return its path, which ends it when it is deleted."""
        return f"faults/{(await self.control(side, 'POST', 'faults', {'namespace': side, **fault}))['id']}"

    async def expire_locks(self) -> None:
        for side in SIDES:
            await self.control(side, "DELETE", await self.begin(side, kind="expire-locks"))

    @asynccontextmanager
    async def away(self, random: Random, longest: float = 15.0, *, both: bool = False) -> AsyncIterator[None]:
        """Let a side go away at times: by a fault, or by a kill where its data are durable. `both`: or both sides."""
        kinds: tuple[dict[str, int | str], ...] = (*AWAY, *({"kind": "kill"},) * (3 * self._durable))

        async def disturb() -> None:
            while True:
                await asyncio.sleep(random.uniform(longest / 8, longest))
                seconds = random.uniform(0.1, 3)
                if both and random.random() < 0.4:
                    await asyncio.gather(*(self._strike(side, AWAY[0], seconds) for side in SIDES))
                else:
                    await self._strike(random.choice(SIDES), random.choice(kinds), seconds)

        try:
            async with beside(disturb()):
                yield
        finally:
            for side in SIDES:
                # One that was beginning when the task was cancelled.
                for fault in (await self.control(side, "GET", "state"))["faults"]:
                    await self.control(side, "DELETE", f"faults/{fault}")

    async def _strike(self, side: str, fault: dict[str, int | str], seconds: float) -> None:
        if fault["kind"] == "kill":
            restart = asyncio.create_task(self._restart(side, seconds))
            try:
                await asyncio.shield(restart)
            finally:
                await restart
            return
        begun = await self.begin(side, **fault)
        try:
            await asyncio.sleep(seconds)
        finally:
            await asyncio.shield(self.control(side, "DELETE", begun))

    async def _restart(self, side: str, seconds: float) -> None:
        await self.kill(side)
        await asyncio.sleep(seconds)
        await self.start(side)

    # The commands

    async def run(
        self,
        *words: str,
        after: float | None = None,
        ending: signal.Signals | None = None,
        codes: Collection[int] = (),
        limit: float = LIMIT_SECONDS,
        begun: Callable[[Command], Awaitable[object]] | None = None,
        **variables: str,
    ) -> int:
        """Run a command to its end, which a signal may bring: `after` seconds since it started, or since `begun` ended.

        Keep the messages that its documents name.
        """
        expected = {0, 3, 6, *codes} | ({130, KILLED, -signal.SIGTERM, -signal.SIGINT} if ending else set())
        mover = await self.launch(*words, **variables)
        children: list[int] = []
        if after is not None and ending is not None:
            if begun is not None:
                await begun(mover)
            children = await mover.signal_after(after, ending)
        code = await mover.end(expected, limit=limit, max_mb=self.max_mb)
        await end_offspring(children)
        self.receipt = mover.receipt()
        self.name(self.receipt)
        if words[0] in MOVERS:
            await self._name_those_of_runs({0, *codes})
        return code

    async def repeat(
        self,
        *words: str,
        until: Callable[[], Awaitable[bool]],
        random: Random,
        kills: int,
        first: tuple[float, float] = (0.5, 12.0),
        starts: int = 40,
        faults: bool = True,
        **more: Any,
    ) -> int:
        """Run a command until a condition holds, with so many signals at first. Return how many were started.

        `more` are arguments of `run`. `faults` is whether the sides go away at times.
        """
        for start in range(starts):
            early = random.choice(ENDINGS) if start < kills else None
            lasting = early or (signal.SIGTERM if "--watch" in words else None)
            async with self.away(random) if faults else nullcontext():
                await self.run(*words, after=random.uniform(*first) if lasting else None, ending=lasting, **more)
            await self.expire_locks()
            if await until():
                return start + 1
        self.figures.find("other", f"{' '.join(words)} is not done after {starts} starts")
        return starts

    async def replay(self, archive: Path, *, random: Random, kills: int, **more: Any) -> int:
        """Run or resume a replay until it has ended, with so many signals at first, and verify it.

        Return how many were started. `more` are arguments of `run` while there are signals.
        """
        for start in range(10):
            run = await self._latest_run(archive)
            words = ("resume", run) if run else ("run", "--count", str(QUEUES))
            early = random.choice(ENDINGS) if start < kills else None
            terms = {"after": random.uniform(5, 60), "ending": early, **more} if early else {}
            code = await self.run("replay", *words, "--archive", str(archive), **terms)
            await self.expire_locks()
            if code in (0, 3) and not early:
                break
        else:
            self.figures.find("other", f"the replay does not end: {code}")
        if await self.run("replay", "verify", await self._latest_run(archive), "--archive", str(archive)):
            self.figures.find("other", "the replay is not verified")
        shutil.rmtree(archive)
        return start + 1

    async def _latest_run(self, archive: Path) -> str:
        """Return the id of the run that an archive has; "" for none."""
        if not archive.exists() or await self.run("replay", "list", "--archive", str(archive)) not in (0, 3):
            return ""
        return next((str(each["run"]) for each in self.receipt.get("runs", ())), "")

    async def launch(self, *words: str, files: Mapping[str, int] | None = None, **variables: str) -> Command:
        """Start a command, with these files in place of its pipes."""
        keeps = words[0] in WITH_STATE or words[:2] in (("replay", "run"), ("replay", "resume"))
        state = ("--state", str(self.state)) if keeps else ()
        env = self.environment | variables
        words = (*words, *state, *(() if "-o" in words else ("--output", "json")))
        self.mover = await Command.start(*words, env=env, figures=self.figures, python=self.python, **(files or {}))
        self._launched = [*(each for each in self._launched if each.process.returncode is None), self.mover]
        return self.mover

    async def _name_those_of_runs(self, codes: set[int]) -> None:
        """Name what the receipts of the runs that have ended name, and each message that they left in doubt."""
        listed = await self.launch("runs", "list")
        await listed.end(codes)
        for each in listed.receipt().get("runs", ()):
            if each["id"] not in self._ended:
                shown = await self.launch("runs", "show", each["id"])
                await shown.end(codes)
                for run in shown.receipt().get("runs", ()):
                    self.name(run)
                    self.name(run.get("receipt") or {})
                self._ended |= {each["id"]} if each["outcome"] != "running" else set()

    def name(self, document: dict[str, Any]) -> None:
        """Name messages in doubt: by their ids, or else by their sequence numbers."""
        doubts = document.get("doubtful", ())
        self.named |= {str(each["message_id"] or each["sequence_number"]) for each in doubts}

    def forget(self) -> None:
        """Forget what was named: later messages have other ids."""
        self.named, self._ended = set(), set()

    # The judgement

    async def judge(
        self, stranded: Stranded, *, ordered: bool = True, required: Collection[int] | None = None
    ) -> tuple[int, int]:
        """Compare each message that arrived, of which all or those `required` must have.

        Return how many arrived, and how many of them more than once. `ordered` is whether those without a session keep
        the order of their queue, too.
        """
        found = Found(stranded)
        last: dict[tuple[object, ...], int] = {}
        altered, late = [], []
        async for where, message in stranded.arrived(self.endpoint(PRIMARY)):
            try:
                number = found.add(where, message)
            except (RuntimeError, ValueError, IndexError) as error:
                altered.append(str(error))
                continue
            if found.times[number - stranded.numbers.start] == 1:
                lane = (where, stranded.source(number), message.read_properties().group_id)
                if SCHEDULE not in message.read_message_annotations() and (lane[2] or ordered):
                    late += [f"{number} after {last[lane]}"] if number < last.get(lane, -1) else []
                    last[lane] = max(number, last.get(lane, -1))
        times = list(zip(stranded.numbers, found.times, strict=True))
        twice = [number for number, each in times if each > 1]
        wanted = stranded.numbers if required is None else required
        for column, wrong in (
            ("lost", [number for number, each in times if not each and number in wanted]),
            ("altered", altered),
            ("unnamed", [number for number in twice if f"{number:09d}" not in self.named]),
            ("late", late),
        ):
            if wrong:
                self.figures.find(column, f"{wrong[:5]}", len(wrong))
        return sum(each > 0 for _, each in times), len(twice)
