"""One schedule of syphons, moves or redrives in virtual time: the faults of its plan, and then the verdict.

After the last fault every syphon has to find its way by itself; then a clean run has to leave nothing behind.
"""

import asyncio
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from sbpair.backlog import queue_path
from sbpair.errors import SbpairError
from sbpair.model.message_state import dead_letter_path
from sbpair.move.filter import MessageFilter
from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, TimeToLive, kept_for
from sbpair.syphon.intake_gate import IntakeGate
from tests.faults.simulation.checker import Course, check
from tests.faults.simulation.disk import Disk
from tests.faults.simulation.faults import KINDS, PRIMARY_NAME, make_backlog, make_goal
from tests.faults.simulation.harness import Simulation
from tests.faults.simulation.history import History, Track
from tests.faults.simulation.loop import Process, VirtualLoop
from tests.faults.simulation.plan import MOVE, REDRIVE, Plan, Step
from tests.faults.simulation.world import Control, World
from tests.kit.moves import run_syphon

RECOVERY_SECONDS: Final = 3_600.0
"""How long a syphon may take when nothing is wrong any more: it has to find dead connections, and rests double."""

STOP_SECONDS: Final = 900.0
QUIET_SECONDS: Final = 300.0
"""By then the service has noticed every connection that is half dead, and every lock has run out."""


def set_the_stage(stage: Any) -> None:
    """Create the entities of a plan, and strand its messages."""
    for goal in stage.plan.goals:
        stage.history.watch_primary(make_goal(stage.world.primary, goal))
    for index in range(stage.plan.queues):
        queue = make_backlog(stage.world.secondary, index)
        stranded, dead = [each for each in stage.plan.messages if each.queue == index], stage.plan.mover == REDRIVE
        stage.history.watch_backlog(queue, dead=dead)
        stage.history.strand(queue, stranded, dead=dead)


class SyphonSimulation(Simulation):
    plan: Plan

    def __init__(self, plan: Plan, loop: VirtualLoop, directory: Path) -> None:
        self.history = History(lambda: round(loop.time() * 1000), self._holder, self._sender, self._arrived)
        super().__init__(plan, loop, directory, self.history)
        self.disk = Disk(self.history.tell, self.history.accuse)
        self.course = Course(plan, self.history)
        self._syphons: list[Process] = []

    @property
    def messages(self) -> int:
        return len(self.history.tracks)

    @property
    def again(self) -> int:
        return self.history.again

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        with patch("sbpair.runs.file_lease.MACHINE", str(self.directory)), self.disk.watching():
            yield

    def control(self) -> Control:
        return Control(self.world, self.random, granted=self.plan.manage)

    def _holder(self, consumer: Any) -> tuple[str, int]:
        for line in self.network.lines:
            if line.server.get_protocol() is consumer._owner:
                return (line.process.name if line.process else "?", line.number)
        return ("?", 0)

    def _sending(self) -> Process | None:
        line = self.network.line_of(self.network.speaking)
        return line.process if line else None

    def _sender(self) -> str | None:
        process = self._sending()
        return process.name if process else None

    def _arrived(self, track: Track) -> None:
        process = self._sending()
        if process is not None and not self.disk.has_written(process, track.queue, track.number):
            self.history.accuse(f"sent before that was written down: {track}")

    # Syphons

    def start(self, *, once: bool, second: bool = False, apart: bool = False, clean: bool = False) -> Process:
        """`second` is one beside another; `apart`, its state is another one too: it is on another machine.

        Without a filter and a ramp if `clean`.
        """
        choice = None if clean else self.plan.choice
        process = self.new_process("syphon")
        self.history.tell(f"start {process.name} {'--once' if once else '--watch'}")
        state = self.directory / ("apart" if apart else "state")
        gate = IntakeGate()
        running = run_syphon(
            self.world.pair,
            once=once,
            stop=process.stop,
            max_held=self.plan.hold,
            state=state,
            lease=not second,
            ordered=self.plan.ordered,
            **self._limits(),
            where=None if choice is None else MessageFilter(choice.text),
            ramp=None if clean else self.plan.ramp,
            gate=gate,
            **self._source(),
        )
        process.work = process.start(self.loop, running)
        process.work.add_done_callback(lambda _: self._ended(process))
        self._syphons.append(process)
        for number, (at_ms, lasts_ms) in enumerate(() if clean else self.plan.pauses):
            pause = partial(self._pause, process, gate, f"pause {number}", lasts_ms)
            self.loop.call_later(at_ms / 1000, pause, context=Context())
        return process

    def _pause(self, syphon: Process, gate: IntakeGate, by: str, lasts_ms: int) -> None:
        """Pause a syphon, if it still runs, and let it go on later."""
        if syphon in self._syphons:
            self.history.tell(f"{by} of {syphon.name} for {lasts_ms} ms")
            gate.close(by)
            self.loop.call_later(lasts_ms / 1000, gate.open, by, context=Context())

    def _source(self) -> dict[str, Any]:
        """Return the options of a move, or of a redrive."""
        path, kept = queue_path(PRIMARY_NAME, 0), {"keeps_refused": True, "max_missing": 0}
        if self.plan.mover == MOVE:
            return {"command": MOVE, "form": kept_for(self.plan.goals[0].name), "source": path, **kept}
        if self.plan.mover == REDRIVE:
            source = dead_letter_path(path)
            return {"command": REDRIVE, "form": BACKLOG_DEAD_LETTERS, "source": source, **kept}
        return {}

    def _limits(self) -> dict[str, Any]:
        ttl = TimeToLive.REMAINING if self.plan.remaining else TimeToLive.ORIGINAL
        return {"rate": self.plan.rate, "ttl": ttl}

    def _ended(self, syphon: Process) -> None:
        if syphon in self._syphons:
            self._syphons.remove(syphon)
        if syphon.work.cancelled():
            return
        name, error = syphon.name, syphon.work.exception()
        if error is None:
            result = syphon.work.result()
            self.course.receipts.append(result.receipt)
            self.history.tell(f"end {name} {result.exit_code} {result.receipt.queues} {result.failures}")
        elif isinstance(error, SbpairError):
            why = error.message.replace(str(self.directory), "")
            self.history.tell(f"end {name} with {type(error).__name__}: {why}")
        else:
            self.history.accuse(f"{name} failed: {error!r}")

    def kill(self) -> None:
        for each in list(self._syphons):
            self.history.tell(f"kill {each.name}")
            self.kill_process(each)
            self.disk.kill(each)
            self.course.note_death(each.name)
            self._syphons.remove(each)

    def kill_soon(self) -> None:
        """When what happens at this moment is over, but before anybody can have heard of it."""
        self.loop.call_soon(self.kill, context=Context())

    def freeze(self, step: Step) -> AbstractContextManager[None]:
        del step
        return self.frozen(*self._syphons)

    def ask_to_stop(self) -> None:
        for each in self._syphons:
            self.history.tell(f"stop {each.name}")
            each.stop.set()

    # The course of it

    async def main(self) -> None:
        self._set_the_stage()
        async with asyncio.TaskGroup() as tasks:
            striking = tasks.create_task(self._strike(tasks))
            supervising = tasks.create_task(self._supervise())
            await striking
            await self._lift_all()
            self.history.tell("nothing is wrong any more")
            await self._recover()
            supervising.cancel()
            self.ask_to_stop()
            await self._all_ended("asked to stop")
        await asyncio.sleep(QUIET_SECONDS)
        await self._clean_up()

    def _set_the_stage(self) -> None:
        self.world = World(self.loop, self.network, queues=self.plan.queues)
        set_the_stage(self)

    async def _strike(self, tasks: asyncio.TaskGroup) -> None:
        self._lasting: list[asyncio.Task[None]] = []
        for step in self.plan.steps:
            await self.until(step.at_ms / 1000)
            self._lasting.append(tasks.create_task(self._step(step)))
        await self.until(self.plan.span_ms / 1000)

    async def _step(self, step: Step) -> None:
        self.history.tell(f"begin {step}")
        with KINDS[step.kind](self, step):
            await self.until((step.at_ms + step.lasts_ms) / 1000)
        self.history.tell(f"over {step.kind} {step.at_ms}")

    async def _lift_all(self) -> None:
        if self._lasting:
            await asyncio.wait(self._lasting)
        # `--once` takes what came more than a minute after its start for later, by the clock of its machine.
        self.world.set_tool_clock_right()

    async def _supervise(self) -> None:
        """Start a syphon, and another whenever it is gone."""
        while True:
            # A watch of dead letters of a backlog leaves those of sessions.
            running = self.start(once=self.plan.once or self.plan.mover == REDRIVE)
            await running.ends(running.work)
            await asyncio.sleep(self.random.choice((0.1, 1.0, 20.0)))

    async def _recover(self) -> None:
        """With no more faults, what runs has to bring everything back by itself."""
        deadline = self.loop.time() + RECOVERY_SECONDS
        while not self._drained() and self.loop.time() < deadline:  # noqa: ASYNC110  in virtual time
            await asyncio.sleep(5.0)
        if not self._drained():
            self.history.accuse(f"not drained within {RECOVERY_SECONDS:g} s")

    def _drained(self) -> bool:
        if "backlog-remade" in self.plan.kinds:
            # A watch does not look for a queue again that was missing once; the clean run has to find it.
            return True
        choice, tracks = self.plan.choice, self.history.tracks.values()
        if choice is not None or self.plan.keeps_refused:
            chosen = [each for each in tracks if choice is None or choice.includes(each.stranded, each.number)]
            stays = self.plan.keeps_refused
            return all(each.completed or each.dead or each.deleted or (stays and each.stranded.doom) for each in chosen)
        return not any(queue.counts().active for queue in self.world.secondary.queues())

    async def _all_ended(self, why: str) -> None:
        tasks = [each.work for each in self._syphons]
        if tasks:
            _, left = await asyncio.wait(tasks, timeout=STOP_SECONDS)
            if left:
                self.history.accuse(
                    f"{[task.get_name() for task in left]}, {why}, did not end within {STOP_SECONDS:g} s"
                )
                self.kill()

    def _check_choice(self) -> None:
        """Accuse a syphon that has moved a message which the filter excludes, or raised its delivery count."""
        choice = self.plan.choice
        if choice is None:
            return
        calm = self.plan.locks_hold and all(step.primary for step in self.plan.steps)
        for track in self.history.tracks.values():
            if choice.includes(track.stranded, track.number) or track.deleted:
                continue
            if track.arrivals or track.completed or track.dead:
                self.history.accuse(f"moved, and does not match {choice.text}: {track}")
            elif calm and track.message.delivery_count:
                self.history.accuse(f"delivered {track.message.delivery_count} times: {track}")

    async def _clean_up(self) -> None:
        self._check_choice()
        clean = self.start(once=True, clean=True)
        _, left = await asyncio.wait([clean.work], timeout=RECOVERY_SECONDS)
        if left:
            self.history.accuse(f"the clean run did not end within {RECOVERY_SECONDS:g} s")
            self.kill()

    def judge(self) -> None:
        for line in check(self.course):
            self.history.accuse(line)
