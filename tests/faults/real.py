"""One schedule over real sockets: an emulator in this process, `sbpair syphon` in others, and the same checker.

The vocabulary is that of the simulated schedules, less what only a simulated network can do. A seed draws the same
workload and the same faults every time; when exactly they meet each other is the machine's business.
"""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from sbpair.move.receipt import NamedMessage, Receipt
from sbpair.testing import Emulator
from tests.faults.simulation.checker import Course, check
from tests.faults.simulation.faults import KINDS
from tests.faults.simulation.harness import Verdict
from tests.faults.simulation.history import History
from tests.faults.simulation.plan import SIMULATED_ONLY, SYPHON, Plan, Step, plan
from tests.faults.simulation.run import set_the_stage
from tests.faults.simulation.workload import messages
from tests.kit.command import environment

RECOVERY_SECONDS: Final = 200.0
STOP_SECONDS: Final = 150.0
START_SECONDS: Final = 300.0
LOCK_MS: Final = 61_000

SPAN_MS: Final = 6_000
MAX_LASTS_MS: Final = 2_000
MAX_JUMP_MS: Final = 30_000
SLOW: Final = 5.0
"""A rate that a plan may have, in messages a second."""


def real_plan(seed: int, now_ms: int) -> Plan:
    """The plan of a seed, made shorter. The clocks may differ by less than a minute, however often one jumps."""
    drawn = plan(seed, now_ms=now_ms, without=SIMULATED_ONLY, span_ms=SPAN_MS)
    jumps = max(1, sum(step.kind == "clock" for step in drawn.steps))
    limits = {"clock": MAX_JUMP_MS // jumps, "latency": 500}
    steps = [
        replace(
            step,
            lasts_ms=min(step.lasts_ms, MAX_LASTS_MS),
            number=min(step.number, limits.get(step.kind, step.number)),
        )
        for step in drawn.steps
    ]
    return _busy(replace(drawn, steps=tuple(steps)), now_ms)


def _busy(drawn: Plan, now_ms: int) -> Plan:
    """With more to do: what is there at the start is moved within milliseconds, and faults would strike the idle."""
    if "freeze" in drawn.kinds:
        return drawn  # it wants a backlog that nothing is added to
    random = Random(f"more for {drawn.seed}")
    moments = [max(0, step.at_ms - random.randrange(40)) for step in drawn.steps]
    moments += [random.randrange(SPAN_MS) for _ in range(4)]
    flawed, limit = random.choice((0.0, 0.05)), 3 if drawn.rate == SLOW else 30
    steps = list(drawn.steps)
    for at_ms in moments:
        step = Step(at_ms, 0, "strand", primary=False, number=random.randrange(1_000_000))
        count = random.randint(1, limit)
        more = messages(random, count, drawn.queues, drawn.goals, now_ms=now_ms, flawed=flawed)
        steps.append(replace(step, messages=tuple(more)))
    return replace(drawn, steps=tuple(sorted(steps, key=lambda each: each.at_ms)))


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


class RealHistory(History):
    """A history that wakes those who wait for the first lock, and for the end of the backlog."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.locked, self.drained = asyncio.Event(), asyncio.Event()

    def tell(self, text: str) -> None:
        super().tell(text)
        if text.startswith("locked "):
            self.locked.set()
        left = any(not (each.completed or each.dead or each.deleted) for each in self.tracks.values())
        (self.drained.clear if left else self.drained.set)()


class Schedule:
    """The course of it. Faults see it as their stage; `world` has what they want of one."""

    def __init__(self, the_plan: Plan, emulator: Emulator, directory: Path, tasks: asyncio.TaskGroup) -> None:
        """`directory` is for the state that the syphons keep."""
        began = time.monotonic()
        self.plan = the_plan
        self.world = self
        self.faults = emulator.faults
        self.primary, self.secondary = emulator.namespaces.values()
        self.history = RealHistory(lambda: round((time.monotonic() - began) * 1000), self._holder, self._sender)
        self.course = Course(the_plan, self.history)
        self._emulator = emulator
        self._directory = directory
        self._tasks = tasks
        self._random = Random(the_plan.seed)
        self._connections: dict[Any, int] = {}
        self._alive: dict[Syphon, asyncio.Task[None]] = {}
        self._started = 0
        self._over = False

    def _holder(self, consumer: Any) -> tuple[str, int]:
        return (SYPHON, self._connections.setdefault(consumer._owner, len(self._connections)))

    def _sender(self) -> str | None:
        # Of two at the same time nobody here can say which it was.
        return None if "second" in self.plan.kinds else SYPHON

    # Syphons

    async def _launch(self, *, once: bool, second: bool = False, apart: bool = False, clean: bool = False) -> Syphon:
        self._started += 1
        name = f"syphon-{self._started}"
        self.history.tell(f"start {name} {'--once' if once else '--watch'}")
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sbpair", "syphon", "--once" if once else "--watch", "--output", "json"),
            *("--max-held", str(self.plan.hold), "--count", str(self.plan.queues)),
            *("--state", str(self._directory / ("apart" if apart else "state")), *(["--no-lease"] if second else [])),
            *("--order", "backlog" if self.plan.ordered else "none"),
            *("--ttl", "remaining" if self.plan.remaining else "original"),
            *(["--where", self.plan.choice.text] if self.plan.choice and not clean else []),
            *("--credits", "none", *(["--rate", f"{self.plan.rate:g}"] if self.plan.rate else [])),
            env=environment(self._emulator),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
        )
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
        self.history.tell(f"end {syphon.name} {code}")
        if code == 1:
            self.history.accuse(f"{syphon.name} ended with 1: {said.decode()[-500:]}")
        if code != -signal.SIGKILL and out.strip():
            self.course.receipts.append(receipt_of(json.loads(out)))

    async def _gone(self, syphon: Syphon) -> None:
        reading = self._alive.get(syphon)
        if reading is not None and (await asyncio.wait([reading], timeout=STOP_SECONDS))[1]:
            self.history.accuse(f"{syphon.name} did not end within {STOP_SECONDS:g} s")
            syphon.signal(signal.SIGKILL)
            await reading

    def kill(self) -> None:
        for each in self._alive:
            each.signal(signal.SIGKILL)
            self.history.tell(f"kill {each.name}")
            self.course.note_death(SYPHON)

    kill_soon = kill

    def ask_to_stop(self) -> None:
        for each in self._alive:
            self.history.tell(f"stop {each.name}")
            each.ask_to_stop()

    # Faults

    @asynccontextmanager
    async def _during(self, step: Step) -> AsyncIterator[None]:
        if step.kind == "second":
            other = await self._launch(once=step.number % 2 == 0, second=True, apart=step.number % 3 > 0)
            yield
            other.ask_to_stop()
        else:
            with KINDS[step.kind](self, step):  # type: ignore[arg-type]  # it has what they want
                yield

    @contextmanager
    def freeze(self, step: Step) -> Iterator[None]:
        """Now and then for longer than a lock lives, by the service's clock."""
        frozen = list(self._alive)
        for each in frozen:
            each.signal(signal.SIGSTOP)
        # To `--once`, what is put in after such a jump would be newer than its start for ever.
        if step.number % 2 and not self.plan.kinds & {"strand", "backlog-remade", "clock"}:
            self._emulator.advance(LOCK_MS)
        yield
        for each in frozen:
            each.signal(signal.SIGCONT)

    # The course of it

    async def play(self) -> None:
        set_the_stage(self)
        supervising = self._tasks.create_task(self._supervise(), name="supervise")
        # The first seconds are Python's: nothing strikes a syphon that is not there yet.
        async with asyncio.timeout(START_SECONDS):
            await self.history.locked.wait()
        await self._strike()
        self.history.tell("nothing is wrong any more")
        await self._drain()
        await self._stop_all(supervising)
        self._emulator.advance(LOCK_MS)
        await self._gone(await self._launch(once=True, clean=True))

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
        self.history.tell(f"begin {step}")
        async with self._during(step):
            await asyncio.sleep(step.lasts_ms / 1000)
        self.history.tell(f"over {step.kind} {step.at_ms}")

    async def _drain(self) -> None:
        if "backlog-remade" in self.plan.kinds or self.plan.choice is not None:
            return
        try:
            async with asyncio.timeout(RECOVERY_SECONDS):
                await self.history.drained.wait()
        except TimeoutError:
            self.history.accuse(f"not drained within {RECOVERY_SECONDS:g} s")

    async def _stop_all(self, supervising: asyncio.Task[None]) -> None:
        self._over = True
        self.ask_to_stop()
        for each in list(self._alive):
            await self._gone(each)
        await supervising
        for each in list(self._alive):
            await self._gone(each)


def receipt_of(document: dict[str, Any]) -> Receipt:
    known = {name: value for name, value in document.items() if name in Receipt.__dataclass_fields__}
    for name in ("dead_letters", "doubtful"):
        known[name] = tuple(
            NamedMessage(**{key: each.get(key) for key in NamedMessage.__dataclass_fields__})
            for each in document.get(name, ())
        )
    return Receipt(**known)


async def _carry_out(seed: int, directory: Path) -> Verdict:
    the_plan = real_plan(seed, time.time_ns() // 1_000_000)
    async with Emulator() as emulator, asyncio.TaskGroup() as tasks:
        schedule = Schedule(the_plan, emulator, directory, tasks)
        history = schedule.history
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: history.accuse(f"the emulator: {context}"))
        await schedule.play()
    wrong = (*history.wrong, *check(schedule.course))
    return Verdict(the_plan, wrong, tuple(history.lines), len(history.tracks), history.again)


def carry_out(seed: int) -> Verdict:
    """Carry out a plan, and judge it."""
    with TemporaryDirectory() as directory:
        return asyncio.run(_carry_out(seed, Path(directory)))
