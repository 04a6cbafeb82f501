"""`sbpair prune`: its question on a terminal, and the state after a kill."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest

from sbpair.backlog import queue_path
from sbpair.management.auditing import audit
from sbpair.management.pruning import prune
from sbpair.model.report import Outcome
from sbpair.testing import Emulator
from tests.kit.command import CommandLines, environment
from tests.kit.pairs import BACKLOG, BacklogWorld
from tests.kit.terminal import PseudoTerminal

EXTRA = queue_path("contoso", 7)


class World(BacklogWorld, CommandLines):
    """A pair that should have one backlog queue, and has the extra queue `/7`."""

    def __init__(self, emulator: Emulator) -> None:
        BacklogWorld.__init__(self, emulator, 1)
        CommandLines.__init__(self, environment(emulator, NO_COLOR="1"), "--count", "1")
        self.queue(0)
        self.extra = self.queue(7)

    async def start_on(self, terminal: PseudoTerminal, *words: str, **options: Any) -> asyncio.subprocess.Process:
        end = terminal.theirs
        process = await self.start(*words, stdin=end, stdout=end, stderr=end, **options)
        terminal.hand_over()
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
    async with Emulator() as emulator:
        yield World(emulator)


@pytest.mark.parametrize(("answer", "code", "left"), [(b"y\n", 0, 1), (b"\n", 4, 2), (b"\x03", 130, 2)])
async def test_on_a_terminal_it_asks(answer: bytes, code: int, left: int) -> None:
    async with world() as w:
        with PseudoTerminal() as terminal:
            # A controlling terminal, for a Ctrl-C that is typed there.
            process = await w.start_on(terminal, "prune", prepare=partial(os.login_tty, 0))
            await terminal.shown("[y/N] ")
            terminal.write(answer)
            assert await process.wait() == code
            assert terminal.read().endswith("\r\n")
        assert len(w.secondary.queues()) == left


async def test_a_dry_run_asks_no_confirmation_and_deletes_nothing() -> None:
    async with world() as w:
        with PseudoTerminal() as terminal:
            process = await w.start_on(terminal, "prune", "--dry-run")
            assert "would remove" in await terminal.shown("sbpair prune --yes --count 1\r\n")
            assert await process.wait() == 0
        assert len(w.secondary.queues()) == 2


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
