"""A round of the hostile trial: its folder, its draws, its figures, and what its processes leave behind."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Final

from sbpair.amqp.message import BATCH_FORMAT, Sections, batch_of
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.model.pair import Endpoint
from sbpair.model.queues import QueueSpec
from tests.benchmarks.stranded import BATCH, DESTINATIONS, QUEUES, Stranded, destination, session_id
from tests.faults.emulated_pair import EmulatedPair
from tests.faults.figures import Figures
from tests.kit.processes import read

MAX_MB: Final = 4_000.0
"""Of a command with Spark's processes."""

SYPHON: Final = ("syphon", "--once", "--count", str(QUEUES), "--credits", "none")


@dataclass
class Trial:
    """A round of one kind. `scale` multiplies its amounts."""

    folder: Path
    number: int
    random: Random
    scale: float = 1.0
    figures: Figures = field(default_factory=lambda: Figures(rounds=1))
    skipped: set[str] = field(default_factory=set)
    """What cannot be tried on this machine."""

    def amount(self, count: int) -> int:
        """Return a number of messages, with as many for each destination."""
        return max(8, round(count * self.scale) // 8 * 8)

    @property
    def temporary(self) -> Path:
        """The directory of temporary files of all processes, by which these are known."""
        found = self.folder / "temporary"
        found.mkdir(parents=True, exist_ok=True)
        return found

    def pair(self, *, durable: bool = False, **variables: str) -> EmulatedPair:
        # The variable of Python's also keeps commands out of the fork server, whose children cannot be told apart.
        own = {"TMPDIR": str(self.temporary), "PYTHONFAULTHANDLER": "1", **variables}
        pair = EmulatedPair(self.folder, self.figures, durable=durable, **own)
        pair.max_mb = MAX_MB
        return pair

    def find_leftovers(self) -> None:
        """Count processes, temporary files and sockets that are left. Processes are a failure, and are ended."""
        mark = f"TMPDIR={self.temporary}\0"
        for path in Path("/proc").glob("[0-9]*/environ"):
            words = read(path.parent / "cmdline").replace("\0", " ")[:200]
            if words and mark in read(path) + "\0":
                self.figures.find("left", f"a process: {words}")
                self.figures.find("other", "a process is left")
                with suppress(ProcessLookupError):
                    os.kill(int(path.parent.name), signal.SIGKILL)
        left = [*self.temporary.iterdir(), *(each for each in self.folder.glob("**/*") if each.is_socket())]
        if left:
            self.figures.find("left", f"{sorted(each.name for each in left)[:5]}", len(left))


class Plain(Stranded):
    """Messages as clients send them to a queue. None is scheduled, and they age in an outbox."""

    ages = True

    def scheduled_at(self, number: int) -> None:  # noqa: ARG002  a base class's argument
        return None

    def sections(self, number: int) -> Sections:
        return replace(self.restore(number, enqueued_at=0), message_annotations=b"")

    async def create_sources(self, side: Endpoint) -> None:
        """Create queues with the names of the destinations."""
        async with open_atom(side) as control:
            for number in range(DESTINATIONS):
                await control.create(QueueSpec(destination(number), requires_session=session_id(number) is not None))

    async def fill_sources(self, side: Endpoint) -> None:
        async with connect(side) as wire:
            for first in range(DESTINATIONS):
                sender = await wire.sender(destination(first))
                numbers = self.numbers[first::DESTINATIONS]
                for start in range(0, len(numbers), BATCH):
                    batch = batch_of([*map(self.message, numbers[start : start + BATCH])])
                    await sender.send(batch, message_format=BATCH_FORMAT)


async def strand(trial: Trial, pair: EmulatedPair, count: int) -> Stranded:
    """Fill backlog queues, and create the destinations."""
    stranded = Stranded(trial.amount(count), int(time.time() * 1000))
    trial.figures.messages += stranded.count
    await stranded.create(*pair.endpoints)
    await stranded.fill(pair.endpoints[1])
    return stranded


async def bring_back(pair: EmulatedPair) -> None:
    """Move what is left in the backlog, without faults."""
    for _ in range(5):
        await pair.expire_locks()
        if await pair.run(*SYPHON) == 0:
            break
    if any(left := await pair.left()):
        pair.figures.find("other", f"the backlog still holds {left}")
