"""`sbpair send`, `ping` and `status`, in processes of their own against an emulator."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sbpair.cli.options.common import Display
from sbpair.cli.progress import reporting
from sbpair.cli.render.screen import Screen
from sbpair.failover.failover_send import Delivered
from sbpair.failover.outbox import Outbox
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Pair
from sbpair.testing import Emulator
from tests.kit import command
from tests.kit.command import CommandLines, environment
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import until

TWO = "contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"


class Terminal(CommandLines):
    """Commands on a pair whose primary has a queue `orders`, and whose secondary has two backlog queues."""

    def __init__(self, emulator: Emulator, home: Path) -> None:
        environ = environment(emulator, "XDG_", HOME=str(home), NO_COLOR="1")
        super().__init__(environ, python=("-W", "ignore::ResourceWarning"), stdin=asyncio.subprocess.PIPE)
        self.emulator = emulator
        self.orders = emulator.namespaces["contoso"].create_queue("orders")
        self.backlog = [emulator.namespaces["contoso-dr"].create_queue(path) for path in TWO]
        config = home / ".config" / "sbpair"
        config.mkdir(parents=True)
        (config / "config.toml").write_text("[pairs.default]\nbacklog_queues = 2\n")


@asynccontextmanager
async def open_terminal(home: Path) -> AsyncIterator[Terminal]:
    async with Emulator() as emulator:
        yield Terminal(emulator, home)


async def test_an_interrupt_prints_the_receipt_and_the_command_to_continue(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        process = await terminal.start("send", "orders")
        assert process.stdin
        process.stdin.write(b"a\nb\n")
        await process.stdin.drain()
        await until(lambda: terminal.orders.counts().active == 2)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert process.returncode == 130
        assert b"primary       2" in out
        assert command.untimed(err.decode()).splitlines()[-1] == "continue with sbpair send orders --skip 2"


async def test_typed_lines_are_not_skipped_by_the_command_to_continue(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        with PseudoTerminal() as typing:
            process = await terminal.start("send", "orders", stdin=typing.theirs)
            typing.hand_over()
            typing.write(b"a\n")
            await until(lambda: terminal.orders.counts().active == 1)
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        assert process.returncode == 130
        assert command.untimed(err.decode()).splitlines()[-1] == "continue with sbpair send orders"


async def test_the_status_tells_what_an_outbox_holds(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        path = tmp_path / "outbox.db"
        ends = [endpoint_from_connection_string(each.connection_string) for each in terminal.emulator.ready.namespaces]
        outbox = Outbox(path, Pair("p", *ends))
        outbox.put("orders", [b"a", b"b"])
        code, out, _ = await terminal.run("status", "--outbox", str(path), "--output", "json")
        printed = json.loads(out)
        [waiting] = printed["outbox"]["entities"]
        assert waiting.pop("oldest_seconds") >= 0
        assert (code, waiting, printed["outbox"]["messages"]) == (0, {"name": "orders", "messages": 2}, 2)
        assert (printed["backlog"]["messages"], printed["backlog"]["elsewhere"]) == (2, 2)
        failing = await terminal.run("status", "--outbox", str(path), "--fail-on", "messages")
        assert (failing[0], "exit code 3 for messages (1)" in failing[2]) == (3, True)
        outbox.close()
        path.write_bytes(b"something else, which is longer than a header" * 10)
        assert (await terminal.run("status", "--outbox", str(path)))[0] == 4


def test_a_send_prints_lines_where_none_can_be_animated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporting, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(reporting, "DUMB_TERMINAL_SECONDS", 0.0)
    screen = Screen(Display())
    with reporting.SendProgress(screen, "orders", typing=False) as shown:
        shown(Delivered(primary=2, backlog=1))
    with reporting.SendProgress(screen, "orders", typing=True) as shown:
        shown(Delivered(primary=2))
    sent = "3 sent to orders, 1 of them into the backlog, 6 a second\n"
    assert command.untimed(capsys.readouterr().err) == sent
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    with reporting.SendProgress(screen, "orders", typing=False) as shown:
        shown(Delivered(primary=2, backlog=1))
    assert capsys.readouterr().err == f"connecting to orders\n{sent}"
