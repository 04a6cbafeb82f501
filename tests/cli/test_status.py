"""Samples, dead letters and --fail-on of `sbpair status` and `audit`, and `status --watch`, against an emulator."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair import status
from sbpair.cli.commands.status import total_line
from sbpair.cli.options.common import Display
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.screen import Screen
from sbpair.management.audit_findings import BacklogTotal, ReasonCount, Unseen
from sbpair.management.calls import SecondSample
from sbpair.move.peek.peeker import Peeked
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import CommandLines
from tests.kit.pairs import BacklogWorld, pair_on
from tests.kit.stranded import put, stranded
from tests.kit.terminal import PseudoTerminal


class World(BacklogWorld, CommandLines):
    """A pair with the queue `orders` and two backlog queues, the second of which has two dead letters."""

    def __init__(self, emulator: Emulator) -> None:
        BacklogWorld.__init__(self, emulator, 2)
        environ = command.environment(emulator, "XDG_", NO_COLOR="1", TERM="xterm")
        CommandLines.__init__(self, environ, "--count", "2")
        self.primary.create_queue("orders")
        self.first, self.second = self.queue(0), self.queue(1)
        self.strand(2, self.second)
        for each in self.second.messages.receive(2):
            self.second.messages.dead_letter(each.lock_token)

    def strand(self, count: int, queue: Any = None) -> None:
        for number in range(count):
            put(queue or self.first, stranded(f"m{number}", "orders"))

    @asynccontextmanager
    async def on_terminal(
        self, *words: str, columns: int = 80, **changed: str
    ) -> AsyncIterator[tuple[asyncio.subprocess.Process, PseudoTerminal]]:
        """Start a command on a terminal."""
        with PseudoTerminal(columns) as terminal:
            process = await self.start(*words, stdin=terminal.theirs, stdout=terminal.theirs, **changed)
            terminal.hand_over()
            yield process, terminal


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with Emulator() as emulator:
        yield World(emulator)


def test_while_it_waits_for_its_second_sample_an_audit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.spinner.Spinner.update", lambda _drawn, text: shown.append(text))
    monkeypatch.setattr(Screen, "animated", True)
    with PeekProgress(Screen(Display())) as progress:
        for event in (Peeked("a", 250), Peeked("b", 1), SecondSample(4.2)):
            progress(event)
    assert shown == [
        "250 messages peeked",
        "251 messages peeked",
        "251 messages peeked; counting again in 4s (--sample 0 does not wait)",
    ]


@pytest.mark.parametrize(
    ("dead", "reasons", "text"),
    [
        (0, None, "0 dead-lettered"),
        (7, None, "7 dead-lettered"),
        (7, {"A": 4, None: 3}, "7 dead-lettered (4 A, 3 without a reason)"),
        (9_000, {"A": 2_500}, "9 000 dead-lettered (of the first 2 500: 2 500 A)"),
        (9, {"A": 5, "B": 1, "C": 1, "D": 1, "E": 1}, "9 dead-lettered (5 A, 1 B, 1 C, 2 of other reasons)"),
        (1, {"a\x1b[2J" + "b" * 99: 1}, f"1 dead-lettered (1 a\ufffd[2J{'b' * 14}…{'b' * 20})"),
    ],
)
def test_the_total_has_the_dead_letters_by_reason(dead: int, reasons: dict[str | None, int] | None, text: str) -> None:
    counts = reasons and tuple(ReasonCount(*each) for each in reasons.items())
    total = BacklogTotal(5, True, dead, None, None, dead_letter_reasons=counts)
    assert total_line(total) == f"5 waiting, {text}"


# --watch


@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
async def test_off_a_terminal_a_watch_prints_a_line_for_each_reading(form: str) -> None:
    async with world() as w:
        process = await w.start("status", "--watch", "--interval", "10ms", "-o", form)
        assert process.stdout
        before = (await process.stdout.readline()).decode()
        w.strand(1)
        while (
            " 1 waiting" not in (after := (await process.stdout.readline()).decode()) and '"messages": 1' not in after
        ):
            assert after
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")
        if form == "table":
            assert before.split(" ", 1)[1] == "contoso up, contoso-dr up: 0 waiting, 2 dead-lettered\n"
            assert before.split(" ", 1)[0].endswith("Z")
        else:
            totals = [json.loads(line)["backlog"]["messages"] for line in (before, after)]
            assert totals == [0, 1]


async def test_the_links_that_a_status_opens_are_limited_and_the_others_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sbpair.status.MAX_DESTINATIONS", 2)
    async with world() as w:
        for number in range(5):
            put(w.first, stranded(f"m{number}", f"queue{number % 4}"))
        found = await status.read_status(pair_on(w.emulator, 2), ["queue3"])
    assert [each.link.name for each in found.entities] == ["queue3", "queue0", "queue1"]
    assert found.unseen == (Unseen("other destinations", "1 message for 1 more"),)


async def test_on_a_terminal_a_watch_redraws_in_place() -> None:
    words = ("status", "--watch", "--interval", "10ms")
    async with world() as w, w.on_terminal(*words) as (process, terminal):
        foot = " - Ctrl-C to stop"
        seen = await terminal.shown("first reading", foot, foot, foot)
        first, second, *_ = seen.split("\x1b[?7l")[2:]
        lines = first.split("\x1b[?7h")[0].splitlines()
        assert lines[0] == "no messages stranded; 2 dead letters in backlog queues; primary up"
        assert lines[1] == "0 waiting, 2 dead-lettered"
        assert lines[2:4] == ["", "backlog queues contoso/x-servicebus-transfer/…"]
        # The second drawing begins where the first one did.
        assert f"\x1b[{len(lines)}F\x1b[J" in first
        assert second
        process.send_signal(signal.SIGINT)
        await asyncio.to_thread(terminal.read_to_the_end)
        assert await process.wait() == 0


async def test_a_dumb_terminal_gets_lines() -> None:
    words = ("status", "--watch", "--interval", "10ms")
    async with world() as w, w.on_terminal(*words, TERM="dumb") as (process, terminal):
        assert "\x1b" not in await terminal.shown("dead-lettered\r\n", "dead-lettered\r\n")
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(terminal.read_to_the_end)
        assert await process.wait() == 0


# Terminals


async def test_a_terminal_has_the_table_in_its_width() -> None:
    async with world() as w:
        for columns in (80, 100, 160):
            async with w.on_terminal("audit", "--sample", "0", columns=columns) as (process, terminal):
                seen = await terminal.shown("dead-lettered\r\n")
                assert await process.wait() == 0
            assert max(map(len, seen.splitlines())) <= columns
            assert seen.splitlines()[:3] == [
                "0 waiting, 2 dead-lettered (2 without a reason)",
                "",
                "backlog queues contoso/x-servicebus-transfer/…",
            ]
