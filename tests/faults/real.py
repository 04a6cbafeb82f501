"""One schedule over real sockets and processes: an emulator here, `sbpair syphon` there, and the same checker.

The vocabulary is that of the simulated schedules, less what only a simulated network can do. A seed draws the same
workload and the same faults every time; when exactly they meet each other is the machine's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from sbpair.emulator.testing import Emulator
from sbpair.move.receipt import Named, Receipt
from tests.faults.simulation.checker import Course, check
from tests.faults.simulation.faults import KINDS, make_backlog, make_goal
from tests.faults.simulation.history import History
from tests.faults.simulation.plan import SIMULATED_ONLY, Plan, Step, plan

SPAN_MS: Final = 6_000
LASTS_MOST_MS: Final = 2_000
RECOVERY_SECONDS: Final = 200.0
STOP_SECONDS: Final = 150.0
LOCK_MS: Final = 61_000
JUMP_MOST_MS: Final = 30_000


class Process:
    """A syphon that was started. `set` asks it to stop, as its event would."""

    def __init__(self, name: str, running: asyncio.subprocess.Process) -> None:
        self.name = name
        self.running = running
        self.stop = self
        self._asked = False

    def set(self) -> None:
        # A second signal would be no wish but a command, and cost the receipt.
        if not self._asked:
            self._asked = True
            self.signal(signal.SIGINT)

    def signal(self, number: int) -> None:
        # Not `send_signal`: it may reap the process before the loop does.
        if self.running.returncode is None:
            os.kill(self.running.pid, number)


class Schedule:
    """The stage that faults act on; `world` has what the simulated one's faults want of a world."""

    def __init__(self, the_plan: Plan, emulator: Emulator, directory: Path) -> None:
        """`directory` is for the state that the syphons keep."""
        self.plan = the_plan
        self._directory = directory
        self.world = self
        self.emulator = emulator
        self.faults = emulator.faults
        self.primary, self.secondary = emulator.namespaces.values()
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._now = lambda: loop.time() - began
        self.history = History(lambda: round(self._now() * 1000), self._holder, self._sender)
        self.course = Course(the_plan, self.history)
        self.missing = self.course.missing
        self._random = Random(the_plan.seed)
        self._doors: dict[Any, int] = {}
        self._alive: list[Process] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._starting: list[asyncio.Task[Process]] = []
        self._started = 0
        self._over = False

    def _holder(self, consumer: Any) -> tuple[str, int]:
        door = getattr(consumer, "_door", None)
        return ("syphon", self._doors.setdefault(door, len(self._doors)))

    def _sender(self) -> str | None:
        # Of two at the same time nobody here can say which it was.
        return None if "second" in self.plan.kinds else "syphon"

    # Processes

    async def launch(self, *, once: bool, second: bool = False, apart: bool = False) -> Process:
        self._started += 1
        name = f"syphon-{self._started}"
        self.history.tell(f"start {name} {'--once' if once else '--watch'}")
        running = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sbpair", "syphon", "--once" if once else "--watch", "--output", "json"),
            *("--hold", str(self.plan.hold), "--count", str(self.plan.queues)),
            *("--state", str(self._directory / ("apart" if apart else "state")), *(["--no-lease"] if second else [])),
            *("--order", "backlog" if self.plan.ordered else "none"),
            *("--ttl", "remaining" if self.plan.remaining else "original"),
            *("--credits", "none", *(["--rate", f"{self.plan.rate:g}"] if self.plan.rate else [])),
            env=self._environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        process = Process(name, running)
        self._alive.append(process)
        self._tasks.append(asyncio.create_task(self._read(process)))
        return process

    def _environment(self) -> dict[str, str]:
        given = {key: value for key, value in os.environ.items() if not key.startswith("SBPAIR_")}
        for side, namespace in zip(("PRIMARY", "SECONDARY"), self.emulator.ready.namespaces, strict=True):
            given[f"SBPAIR_{side}_CONNECTION_STRING"] = namespace.connection_string
            given[f"SBPAIR_{side}_NAME"] = namespace.name
        return given

    async def _read(self, process: Process) -> None:
        out, said = await process.running.communicate()
        code = process.running.returncode
        self.history.tell(f"end {process.name} {code}")
        if process in self._alive:
            self._alive.remove(process)
        # Asked to stop while Python itself was still starting, it can only say so.
        if code == 1 and b"KeyboardInterrupt" not in said:
            self.history.accuse(f"{process.name} ended with 1: {said.decode()[-500:]}")
        if code != -signal.SIGKILL and out.strip():
            self.course.receipts.append(receipt_of(json.loads(out)))

    # What faults want

    def start(self, *, once: bool, second: bool = False, apart: bool = False) -> Any:
        starting = asyncio.create_task(self.launch(once=once, second=second, apart=apart))
        self._starting.append(starting)

        class Later:
            def set(self) -> None:
                starting.add_done_callback(lambda task: task.result().set())

        later: Any = type("Started", (), {})()
        later.stop = Later()
        return later

    def kill(self) -> None:
        for process in list(self._alive):
            self.history.tell(f"kill {process.name}")
            process.signal(signal.SIGKILL)
        for track in self.history.tracks.values():
            if track.held_by and (not track.completed or len(track.arrivals) > 1):
                self.course.in_flight_at_death.add(track.stranded.id)

    def kill_soon(self) -> None:
        self.kill()

    @contextmanager
    def freeze(self, step: Step) -> Iterator[None]:
        """Now and then for longer than a lock lives, by the service's clock."""
        frozen = list(self._alive)
        for each in frozen:
            each.signal(signal.SIGSTOP)
        # To `--once`, what is put in after such a jump would be newer than its start for ever.
        if step.number % 2 and not self.plan.kinds & {"strand", "backlog-remade", "clock"}:
            self.emulator.advance(LOCK_MS)
        yield
        for each in frozen:
            each.signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        for process in self._alive:
            self.history.tell(f"stop {process.name}")
            process.set()

    # The course of it

    async def main(self) -> None:
        for goal in self.plan.goals:
            self.history.watch_primary(make_goal(self.primary, goal))
        for index in range(self.plan.queues):
            queue = make_backlog(self.secondary, index)
            self.history.watch_backlog(queue)
            self.history.strand(queue, [each for each in self.plan.messages if each.queue == index])
        supervising = asyncio.create_task(self._supervise())
        await self._strike()
        self.history.tell("nothing is wrong any more")
        await self._drain()
        await self._stop_all(supervising)
        self.emulator.advance(LOCK_MS)
        clean = await self.launch(once=True)
        await self._gone(clean)
        await asyncio.gather(*self._tasks)

    async def _supervise(self) -> None:
        while not self._over:
            running = await self.launch(once=self.plan.once)
            if self._over:
                running.set()
            await running.running.wait()
            await asyncio.sleep(self._random.choice((0.1, 1.0)))

    async def _strike(self) -> None:
        # The first seconds are Python's: nothing strikes a syphon that is not there yet.
        while not self._doors and self._now() < 20.0:  # noqa: ASYNC110  the namespaces tell nobody
            await asyncio.sleep(0.01)
        began = self._now()
        async with asyncio.TaskGroup() as tasks:
            for step in self.plan.steps:
                await asyncio.sleep(max(0.0, began + step.at_ms / 1000 - self._now()))
                tasks.create_task(self._step(step))

    async def _step(self, step: Step) -> None:
        self.history.tell(f"begin {step}")
        with KINDS[step.kind](self, step):  # type: ignore[arg-type]  # it has what they want
            await asyncio.sleep(step.lasts_ms / 1000)
        self.history.tell(f"over {step.kind} {step.at_ms}")

    async def _drain(self) -> None:
        deadline = self._now() + RECOVERY_SECONDS
        remade = "backlog-remade" in self.plan.kinds
        while not remade and self._waiting() and self._now() < deadline:  # noqa: ASYNC110  as above
            await asyncio.sleep(0.2)
        if self._waiting() and not remade:
            self.history.accuse(f"not drained within {RECOVERY_SECONDS:g} s")

    def _waiting(self) -> int:
        return sum(queue.counts().active for queue in self.secondary.queues())

    async def _stop_all(self, supervising: asyncio.Task[None]) -> None:
        self._over = True
        await asyncio.gather(*self._starting)
        self.ask_to_stop()
        for process in list(self._alive):
            await self._gone(process)
        await supervising
        await asyncio.gather(*self._tasks)

    async def _gone(self, process: Process) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.running.wait()
        except TimeoutError:
            self.history.accuse(f"{process.name} did not end within {STOP_SECONDS:g} s")
            process.signal(signal.SIGKILL)


def receipt_of(document: dict[str, Any]) -> Receipt:
    known = {name: value for name, value in document.items() if name in Receipt.__dataclass_fields__}
    for name in ("dead_letters", "doubtful"):
        known[name] = tuple(
            Named(**{key: each.get(key) for key in Named.__dataclass_fields__}) for each in document.get(name, ())
        )
    return Receipt(**known)


def real_plan(seed: int, now_ms: int) -> Plan:
    """The plan of a seed, made shorter. The clocks may differ by less than a minute, however often one jumps."""
    drawn = plan(seed, now_ms=now_ms, without=SIMULATED_ONLY, span_ms=SPAN_MS)
    jumps = max(1, sum(step.kind == "clock" for step in drawn.steps))
    steps = tuple(
        replace(
            step,
            lasts_ms=min(step.lasts_ms, LASTS_MOST_MS),
            number=min(step.number, JUMP_MOST_MS // jumps) if step.kind == "clock" else min(step.number, 500),
        )
        if step.kind in ("clock", "latency")
        else replace(step, lasts_ms=min(step.lasts_ms, LASTS_MOST_MS))
        for step in drawn.steps
    )
    return replace(drawn, steps=steps)


async def _carry_out(seed: int, directory: Path) -> tuple[Course, list[str]]:
    async with Emulator([("contoso", 0), ("contoso-dr", 0)]) as emulator:
        now_ms = emulator.clock.now_ms()
        schedule = Schedule(real_plan(seed, now_ms), emulator, directory)
        try:
            await schedule.main()
        finally:
            for process in schedule._alive:
                process.signal(signal.SIGKILL)
        return schedule.course, check(schedule.course)


def carry_out(seed: int) -> tuple[Course, list[str]]:
    """What came of it, and what was wrong."""
    with TemporaryDirectory() as directory:
        return asyncio.run(_carry_out(seed, Path(directory)))
