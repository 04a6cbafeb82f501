"""`sbpair prune`: its question on a terminal, and the state after a kill."""

import asyncio
import os
import pty
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.emulator.entities.description import QueueDescription
from sbpair.management.auditing import audit
from sbpair.management.pruning import prune
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.model.report import Outcome
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import environment

BACKLOG = QueueDescription(
    max_size_in_megabytes=5120, max_delivery_count=2**31 - 1, dead_lettering_on_message_expiration=True
)
EXTRA = queue_path("contoso", 7)


class World:
    """A pair that should have one backlog queue, and has the extra queue `/7`."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.sides = [emulator.namespaces[name] for name in ("contoso", "contoso-dr")]
        self.primary, self.secondary = self.sides
        self.first, self.extra = (self.secondary.create_queue(queue_path("contoso", each), BACKLOG) for each in (0, 7))

    @property
    def pair(self) -> Pair:
        ends = (endpoint_from_connection_string(each.connection_string, name=each.name) for each in self.sides)
        return Pair("p", *ends, backlog_queues=1)

    @property
    def environ(self) -> dict[str, str]:
        return environment(self.emulator, NO_COLOR="1")

    async def start(self, *words: str, **options: Any) -> asyncio.subprocess.Process:
        return await command.start(*words, "--count", "1", env=self.environ, **options)

    async def start_on(self, terminal: int, *words: str, **options: Any) -> asyncio.subprocess.Process:
        process = await self.start(*words, stdin=terminal, stdout=terminal, stderr=terminal, **options)
        os.close(terminal)
        return process

    def stalled_at(self, step: str) -> asyncio.Event:
        """Return an event that is set once a prune has changed the queue, or peeked its dead letters; then it stalls.

        To the AMQP client in the first case, to the management client in the second.
        """
        reached, owner = asyncio.Event(), self.extra if step == "update" else self.extra.dead_letters
        real, faults = getattr(owner, step), self.emulator.faults

        def watched(*arguments: Any) -> Any:
            setattr(owner, step, real)
            stall = faults.stall if step == "update" else partial(faults.latency, ms=600_000)
            self.stall = stall("contoso-dr")
            reached.set()
            return real(*arguments)

        setattr(owner, step, watched)
        return reached


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with asyncio.timeout(60), Emulator() as emulator:
        yield World(emulator)


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 1), (b"\n", 4, 2), (b"\x03", 130, 2)])
async def test_on_a_terminal_it_asks(answer: bytes, code: int, left: int) -> None:
    async with world() as w:
        ours, theirs = pty.openpty()
        # A controlling terminal, for a Ctrl-C that is typed there.
        process = await w.start_on(theirs, "prune", prepare=partial(os.login_tty, 0))
        try:
            await asyncio.to_thread(read_until, ours, b"[y/N] ")
            os.write(ours, answer)
            assert await process.wait() == code
            assert os.read(ours, 65_536).endswith(b"\r\n")
        finally:
            os.close(ours)
        assert len(w.secondary.queues()) == left


async def test_a_dry_run_asks_no_confirmation_and_deletes_nothing() -> None:
    async with world() as w:
        ours, theirs = pty.openpty()
        process = await w.start_on(theirs, "prune", "--dry-run")
        try:
            said = await asyncio.to_thread(read_until, ours, b"sbpair prune --yes --count 1\r\n")
            assert await process.wait() == 0
        finally:
            os.close(ours)
        assert b"would remove" in said
        assert len(w.secondary.queues()) == 2


def read_until(descriptor: int, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        said += os.read(descriptor, 1024)
    return said


@pytest.mark.parametrize("step", ["update", "peek"])
async def test_after_a_kill_the_queue_is_named_and_the_next_run_ends_it(step: str) -> None:
    async with world() as w:
        reached = w.stalled_at(step)
        process = await w.start("prune", "--yes")
        await reached.wait()
        process.kill()
        await process.communicate()
        w.emulator.faults.end(w.stall)
        assert w.extra.description.status == "SendDisabled"
        [*_, extra] = await audit(w.pair)
        assert extra.reason.endswith("Status is SendDisabled and should be Active: a prune may have been cut short")
        [item] = await prune(w.pair, dry_run=False)
        assert (item.name, item.outcome) == (EXTRA, Outcome.REMOVED)
        assert "it was SendDisabled already" in item.reason


async def test_an_interrupted_prune_leaves_the_queue_unchanged() -> None:
    async with world() as w:
        reached = w.stalled_at("update")
        process = await w.start("prune", "--yes")
        await reached.wait()
        process.send_signal(signal.SIGINT)
        await process.communicate()
        assert process.returncode == 130
        assert w.extra.description == BACKLOG
