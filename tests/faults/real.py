"""One schedule over real sockets and processes: `sbpair emulator` here, `sbpair syphon` there, and the same checker.

The vocabulary is that of the simulated schedules, less what only a simulated network can do. A seed draws the same
workload and the same faults every time; when exactly they meet each other is the machine's business. Faults and the
clock are what the control door is asked for; what happened, and what is done to entities, is `observed`'s part.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

import aiohttp

from tests.faults.observed import INSIDE, PRIMARY, SECONDARY, real_plan
from tests.faults.simulation.faults import fault_of
from tests.faults.simulation.plan import EMULATOR, Plan, Step
from tests.kit.command import untimed

RECOVERY_SECONDS: Final = 200.0
STOP_SECONDS: Final = 150.0
START_SECONDS: Final = 300.0
LOCK_MS: Final = 61_000


@dataclass(frozen=True)
class Played:
    """What came of a schedule. `struck` are the kinds of the faults that did: what came too late for its entity, or
    found nobody to kill, did not."""

    wrong: tuple[str, ...]
    lines: tuple[str, ...]
    struck: tuple[str, ...]
    messages: int
    again: int


class Service:
    """The emulator's process: its control door, and what it tells."""

    def __init__(self, running: asyncio.subprocess.Process, http: aiohttp.ClientSession) -> None:
        self._running = running
        self._http = http
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._verdict: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self.locked = asyncio.Event()
        self.drained = asyncio.Event()
        self.left = 0
        self.kills = 0
        self._listening = asyncio.create_task(self._listen(), name="listen to the emulator")
        assert running.stderr is not None
        self._complaints = asyncio.create_task(running.stderr.read(), name="hear the emulator complain")

    @classmethod
    @asynccontextmanager
    async def start(cls, seed: int, now_ms: int) -> AsyncIterator[Self]:
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.faults.observed", str(seed), str(now_ms), repr(time.monotonic())),
            env=environment(),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=1 << 26,  # its verdict has every line
        )
        try:
            # An outage breaks whatever connection is not busy.
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as http:
                service = cls(running, http)
                async with asyncio.timeout(START_SECONDS):
                    await service._ready
                yield service
                running.send_signal(signal.SIGTERM)
                complaints = untimed((await service._complaints).decode())
                assert (await running.wait(), complaints) == (0, "stopped\n"), complaints
        finally:
            if running.returncode is None:
                running.kill()
                await running.wait()

    async def _listen(self) -> None:
        assert self._running.stdout is not None
        try:
            async for line in self._running.stdout:
                self._hear(json.loads(line))
        finally:
            for awaited in (self._ready, self._verdict):
                if not awaited.done():
                    awaited.set_exception(EOFError("the emulator has ended"))
                    awaited.exception()

    def _hear(self, said: dict[str, Any]) -> None:
        if "schema" in said:
            self._ready.set_result(said)
        elif "wrong" in said:
            self._verdict.set_result(said)
        else:
            self._note(said["line"], said["left"])

    def _note(self, line: str, left: int) -> None:
        self.left = left
        self.kills += line.startswith("kill ")
        if line.startswith("locked "):
            self.locked.set()
        (self.drained.clear if left else self.drained.set)()

    def say(self, **command: Any) -> None:
        assert self._running.stdin is not None
        self._running.stdin.write(json.dumps(command).encode() + b"\n")

    async def judge(self, receipts: list[dict[str, Any]]) -> dict[str, Any]:
        self.say(judge=receipts)
        return await self._verdict

    @property
    def namespaces(self) -> list[dict[str, str]]:
        listed: list[dict[str, str]] = self._ready.result()["namespaces"]
        return listed

    # The control door

    def _url(self, path: str) -> str:
        return f"http:{self.namespaces[0]['endpoint'].removeprefix('sb:').rstrip('/')}/$control/{path}"

    async def advance(self, ms: int) -> None:
        async with self._http.post(self._url("clock"), json={"advance_ms": ms}) as answer:
            assert answer.status == 200, await answer.text()

    @asynccontextmanager
    async def during(self, step: Step) -> AsyncIterator[bool]:
        """Whether it strikes: what its entity is too late for does not happen."""
        fault = asdict(fault_of(step, PRIMARY if step.primary else SECONDARY))
        wanted = {name: value for name, value in fault.items() if value is not None}
        async with self._http.post(self._url("faults"), json=wanted) as answer:
            told = await answer.json()
        assert answer.status in (201, 400), told
        yield answer.status == 201
        if answer.status == 201:
            async with self._http.delete(self._url(f"faults/{told['id']}")) as answer:
                assert answer.status == 200, await answer.text()


@dataclass(eq=False)
class Syphon:
    """A syphon's process."""

    name: str
    running: asyncio.subprocess.Process
    _asked: bool = field(default=False, init=False)

    def ask_to_stop(self) -> None:
        # A second signal would be no wish but a command.
        if not self._asked:
            self._asked = True
            # Not SIGINT, which whatever a shell starts in the background is deaf to.
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        # Not `send_signal`: it may reap the process before the loop does.
        if self.running.returncode is None:
            os.kill(self.running.pid, number)


class Schedule:
    """The course of it, from outside."""

    def __init__(self, the_plan: Plan, service: Service, directory: Path, tasks: asyncio.TaskGroup) -> None:
        """`directory` is for the state that the syphons keep."""
        self.plan = the_plan
        self.struck: list[str] = []
        self.receipts: list[dict[str, Any]] = []
        self._service = service
        self._directory = directory
        self._tasks = tasks
        self._random = Random(the_plan.seed)
        self._alive: dict[Syphon, asyncio.Task[None]] = {}
        self._started = 0
        self._over = False

    def _tell(self, text: str) -> None:
        self._service.say(tell=text)

    # Syphons

    async def _launch(self, *, once: bool, second: bool = False, apart: bool = False, clean: bool = False) -> Syphon:
        self._started += 1
        name = f"syphon-{self._started}"
        self._tell(f"start {name} {'--once' if once else '--watch'}")
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sbpair", "syphon", "--once" if once else "--watch", "--output", "json"),
            *("--max-held", str(self.plan.hold), "--count", str(self.plan.queues)),
            *("--state", str(self._directory / ("apart" if apart else "state")), *(["--no-lease"] if second else [])),
            *("--order", "backlog" if self.plan.ordered else "none"),
            *("--ttl", "remaining" if self.plan.remaining else "original"),
            *(["--where", self.plan.choice.text] if self.plan.choice and not clean else []),
            *("--credits", "none", *(["--rate", f"{self.plan.rate:g}"] if self.plan.rate else [])),
            env=environment(*self._service.namespaces),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
        self._service.say(started=[name, running.pid])
        syphon = Syphon(name, running)
        self._alive[syphon] = self._tasks.create_task(self._read(syphon), name=f"read {name}")
        return syphon

    async def _read(self, syphon: Syphon) -> None:
        try:
            out, said = await syphon.running.communicate()
        finally:
            syphon.signal(signal.SIGKILL)
        code = syphon.running.returncode
        del self._alive[syphon]
        self._service.say(ended=syphon.name)
        self._tell(f"end {syphon.name} {code}")
        if code == 1:
            self._service.say(accuse=f"{syphon.name} ended with 1: {said.decode()[-500:]}")
        if code != -signal.SIGKILL and out.strip():
            self.receipts.append(json.loads(out))

    async def _gone(self, syphon: Syphon) -> None:
        reading = self._alive.get(syphon)
        if reading is not None and (await asyncio.wait([reading], timeout=STOP_SECONDS))[1]:
            self._service.say(accuse=f"{syphon.name} did not end within {STOP_SECONDS:g} s")
            syphon.signal(signal.SIGKILL)
            await reading

    # Faults

    def _during(self, step: Step) -> AbstractAsyncContextManager[bool]:
        if step.kind in EMULATOR:
            return self._service.during(step)
        if step.kind in INSIDE:
            return self._inside(step)
        mine = {"freeze": self._freeze, "stop": self._stop, "second": self._second}
        return mine[step.kind](step)

    @asynccontextmanager
    async def _inside(self, step: Step) -> AsyncIterator[bool]:
        number = self.plan.steps.index(step)
        self._service.say(begin=number)
        yield step.kind != "crash"
        self._service.say(end=number)

    @asynccontextmanager
    async def _freeze(self, step: Step) -> AsyncIterator[bool]:
        """Now and then for longer than a lock lives, by the service's clock."""
        frozen = list(self._alive)
        for each in frozen:
            each.signal(signal.SIGSTOP)
        # To `--once`, what is put in after such a jump would be newer than its start for ever.
        if step.number % 2 and not self.plan.kinds & {"strand", "backlog-remade", "clock"}:
            await self._service.advance(LOCK_MS)
        yield bool(frozen)
        for each in frozen:
            each.signal(signal.SIGCONT)

    @asynccontextmanager
    async def _stop(self, _: Step) -> AsyncIterator[bool]:
        asked = list(self._alive)
        self._ask_to_stop()
        yield bool(asked)

    @asynccontextmanager
    async def _second(self, step: Step) -> AsyncIterator[bool]:
        other = await self._launch(once=step.number % 2 == 0, second=True, apart=step.number % 3 > 0)
        yield True
        other.ask_to_stop()

    def _ask_to_stop(self) -> None:
        for each in self._alive:
            self._tell(f"stop {each.name}")
            each.ask_to_stop()

    # The course of it

    async def play(self) -> None:
        supervising = self._tasks.create_task(self._supervise(), name="supervise")
        # The first seconds are Python's: nothing strikes a syphon that is not there yet.
        async with asyncio.timeout(START_SECONDS):
            await self._service.locked.wait()
        await self._strike()
        self._tell("nothing is wrong any more")
        await self._drain()
        await self._stop_all(supervising)
        await self._service.advance(LOCK_MS)
        await self._gone(await self._launch(once=True, clean=True))
        self.struck += ["crash"] * self._service.kills

    async def _supervise(self) -> None:
        while not self._over:
            running = await self._launch(once=self.plan.once)
            if self._over:
                running.ask_to_stop()
            await running.running.wait()
            await asyncio.sleep(self._random.choice((0.1, 1.0)))

    async def _strike(self) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.TaskGroup() as tasks:
            for step in self.plan.steps:
                await asyncio.sleep(began + step.at_ms / 1000 - loop.time())
                tasks.create_task(self._step(step), name=step.kind)

    async def _step(self, step: Step) -> None:
        self._tell(f"begin {step}")
        async with self._during(step) as strikes:
            self.struck += [step.kind] * strikes
            await asyncio.sleep(step.lasts_ms / 1000)
        self._tell(f"over {step.kind} {step.at_ms}")

    async def _drain(self) -> None:
        if "backlog-remade" in self.plan.kinds or self.plan.choice is not None:
            return
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                await self._service.drained.wait()
        except TimeoutError:
            self._service.say(accuse=f"not drained within {RECOVERY_SECONDS:g} s")

    async def _stop_all(self, supervising: asyncio.Task[None]) -> None:
        self._over = True
        self._ask_to_stop()
        for each in list(self._alive):
            await self._gone(each)
        await supervising
        for each in list(self._alive):
            await self._gone(each)


def environment(*namespaces: dict[str, str]) -> dict[str, str]:
    """Where a command finds the pair."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
    for side, namespace in zip(("PRIMARY", "SECONDARY"), namespaces, strict=False):
        given[f"SBPAIR_{side}_CONNECTION_STRING"] = namespace["connection_string"]
        given[f"SBPAIR_{side}_NAME"] = namespace["name"]
    return given


async def _carry_out(seed: int, directory: Path) -> Played:
    now_ms = time.time_ns() // 1_000_000
    async with Service.start(seed, now_ms) as service:
        async with asyncio.TaskGroup() as tasks:
            schedule = Schedule(real_plan(seed, now_ms), service, directory, tasks)
            await schedule.play()
        verdict = await service.judge(schedule.receipts)
    told = {name: tuple(verdict[name]) for name in ("wrong", "lines")}
    return Played(**told, struck=tuple(schedule.struck), messages=verdict["messages"], again=verdict["again"])


def carry_out(seed: int) -> Played:
    """What came of it, and what was wrong."""
    with TemporaryDirectory() as directory:
        return asyncio.run(_carry_out(seed, Path(directory)))
