"""One schedule carried out in virtual time, whatever its plan is about: its record, its processes, and the verdict.

Each kind of schedule is a Simulation: what runs under its plan, and what has to hold of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, ClassVar, Final
from unittest.mock import patch

from tests.faults.simulation.loop import Process, Stuck, VirtualLoop
from tests.faults.simulation.network import Network
from tests.faults.simulation.world import World, made_virtual

if TYPE_CHECKING:
    from tests.faults.simulation.order import Deviation

MEMORY: Final = Path("/dev/shm")  # noqa: S108  the directory is made by tempfile


@dataclass(frozen=True)
class Verdict:
    """What came of a plan. `again` is how often a message has arrived that was there already."""

    plan: Any
    wrong: tuple[str, ...]
    lines: tuple[str, ...]
    messages: int
    again: int
    deviations: tuple[Deviation, ...] = ()

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


class Record:
    """All that has happened, a line each in the order of events, and what is wrong. `stamp` returns the time."""

    def __init__(self, stamp: Callable[[], str]) -> None:
        self.lines: list[str] = []
        self.wrong: list[str] = []
        self._stamp = stamp

    def tell(self, text: str) -> None:
        self.lines.append(f"{self._stamp()} {text}")

    def accuse(self, text: str) -> None:
        self.wrong.append(text)
        self.tell(f"WRONG {text}")


class Simulation(ABC):
    """The stage that faults act on. `world` is there once it has begun; `messages` and `again` are for the verdict."""

    LOOP: ClassVar[type[VirtualLoop]] = VirtualLoop
    world: World
    control: Callable[[], Any] | None = None

    def __init__(self, plan: Any, loop: VirtualLoop, directory: Path, record: Record) -> None:
        """`directory` is for what the processes keep."""
        self.plan = plan
        self.loop = loop
        self.directory = directory
        self.record = record
        self.random = Random(plan.seed)
        self.network = Network(loop, self.random, plan.weather, record.tell)
        self._dead: list[Process] = []
        self._started = 0

    @abstractmethod
    async def main(self) -> None:
        """Carry out the plan, and wait until its faults are over and all has recovered."""

    @abstractmethod
    def judge(self) -> None:
        """Accuse all that is wrong with what has happened."""

    @property
    @abstractmethod
    def messages(self) -> int: ...

    @property
    @abstractmethod
    def again(self) -> int: ...

    def surroundings(self) -> AbstractContextManager[object]:
        """Return what the processes find beside virtual time."""
        return nullcontext()

    def remains(self) -> Iterator[str]:
        """Yield what is left in memory after all has ended. A search takes long."""
        yield from ()

    def tool_time(self) -> float:
        return self.world.tool_time()

    async def until(self, at: float) -> None:
        """Wait until a second of the schedule."""
        await asyncio.sleep(max(0.0, at - self.loop.time()))

    def new_process(self, what: str) -> Process:
        self._started += 1
        return Process(f"{what}-{self._started}")

    def kill_process(self, process: Process) -> None:
        self.network.kill(process)
        self._dead.append(process)

    @contextmanager
    def frozen(self, *processes: Process) -> Iterator[None]:
        for each in processes:
            each.frozen = True
        yield
        for each in processes:
            each.thaw(self.loop)

    async def bury(self) -> None:
        """End what is left of killed processes, when nothing that they do can matter any more."""
        while self._dead:
            await self._dead.pop().bury(self.loop)


def carry_out(plan: Any, kind: type[Simulation], *, thorough: bool = False) -> Verdict:
    """Carry out a plan, and judge it. If `thorough`, what is left in memory is searched for too."""
    loop = kind.LOOP(plan.order)
    with closing(loop), TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as directory:
        simulation = kind(plan, loop, Path(directory))  # type: ignore[call-arg]  # a kind makes its record itself
        record = simulation.record
        with (
            patch.dict(os.environ, XDG_STATE_HOME=directory),
            made_virtual(plan.seed, loop, simulation.tool_time, simulation.control),
            simulation.surroundings(),
        ):
            try:
                loop.run_until_complete(simulation.main())
            except (Stuck, ExceptionGroup) as broken:
                record.accuse(f"the schedule broke off: {broken!r}")
            simulation.judge()
            for context in loop.broken:
                record.accuse(repr(context.get("exception") or context["message"]))
            wrong, lines, deviations = tuple(record.wrong), tuple(record.lines), tuple(loop.decisions.made)
            loop.end_all(simulation.bury())
        wrong += tuple(simulation.remains()) if thorough else ()
    return Verdict(plan, wrong, lines, simulation.messages, simulation.again, deviations)
