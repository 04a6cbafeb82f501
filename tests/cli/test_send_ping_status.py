"""`sbpair send`, `ping` and `status`, in processes of their own against an emulator."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

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
from tests.kit.command import environment
from tests.kit.waiting import until

pytestmark = pytest.mark.timeout_seconds(90)

TWO = "contoso/x-servicebus-transfer/0", "contoso/x-servicebus-transfer/1"


class Terminal:
    """Commands on a pair whose primary has a queue `orders`, and whose secondary has two backlog queues."""

    def __init__(self, emulator: Emulator, home: Path) -> None:
        self.emulator = emulator
        self.orders = emulator.namespaces["contoso"].create_queue("orders")
        self.backlog = [emulator.namespaces["contoso-dr"].create_queue(path) for path in TWO]
        self.environ = environment(emulator, "XDG_", HOME=str(home), NO_COLOR="1")
        config = home / ".config" / "sbpair"
        config.mkdir(parents=True)
        (config / "config.toml").write_text("[pairs.default]\nbacklog_queues = 2\n")

    async def start(self, *words: str, **changed: str) -> asyncio.subprocess.Process:
        lenient = ("-W", "ignore::ResourceWarning")
        env = self.environ | changed
        return await command.start(*words, env=env, python=lenient, stdin=asyncio.subprocess.PIPE)

    async def run(self, *words: str, text: str = "", **changed: str) -> tuple[int | None, str, str]:
        return await command.finished(await self.start(*words, **changed), text)

    async def document(self, *words: str, **options: Any) -> tuple[int | None, dict[str, Any]]:
        code, out, _ = await self.run(*words, "--output", "json", **options)
        return code, json.loads(out)


@asynccontextmanager
async def open_terminal(home: Path) -> AsyncIterator[Terminal]:
    async with Emulator() as emulator:
        yield Terminal(emulator, home)


async def test_lines_are_sent_and_accounted_for(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        code, printed = await terminal.document("send", "orders", text="a\n\nb\n")
        assert code == 0
        assert printed.pop("seconds") > 0
        counts = {"messages": 2, "primary": 2, "backlog": 0, "outbox": 0, "in_doubt": 0, "failed": 0, "next_line": 4}
        ends = {"doubtful": [], "failure": None, "stopped": False}
        assert printed == {"schema": "sbpair/send/1", "entity": "orders"} | counts | ends
        assert terminal.orders.counts().active == 2
        code, out, err = await terminal.run("send", "orders", "--to-backlog", "--failover-interval", "0", text="c")
        assert (code, out.split("\n")[:4]) == (
            0,
            ["MESSAGES  COUNT", "all           1", "primary       0", "backlog       1"],
        )
        assert "orders: healthy -> forced" in err
        assert sum(queue.counts().active for queue in terminal.backlog) == 1


async def test_without_backlog_queues_the_hint_is_to_create_them(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        for path in TWO:
            terminal.emulator.namespaces["contoso-dr"].delete_queue(path)
        code, _, err = await terminal.run("send", "orders", "--to-backlog", text="a\n")
        assert code == 2
        assert "hint: create the backlog queues with sbpair provision\n" in err
        assert "out of the rotation: MessagingEntityNotFoundError: The messaging entity" in err
        # Any other queue is for the user to check.
        code, _, err = await terminal.run("send", "nowhere", text="a\n")
        assert code == 2
        assert "hint: check the name, and that it exists in this namespace\n" in err


async def test_an_interrupt_prints_the_receipt_and_the_command_to_continue(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        process = await terminal.start("send", "orders")
        assert process.stdin
        process.stdin.write(b"a\nb\n")
        await process.stdin.drain()
        while terminal.orders.counts().active < 2:  # noqa: ASYNC110  a turn of the loop is no sleep
            await asyncio.sleep(0)
        process.send_signal(signal.SIGINT)
        out, err = await process.communicate()
        assert process.returncode == 130
        assert b"primary       2" in out
        assert command.untimed(err.decode()).splitlines()[-1] == "continue with sbpair send orders --skip 2"


async def test_typed_lines_are_not_skipped_by_the_command_to_continue(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        ours, theirs = pty.openpty()
        process = await command.start("send", "orders", env=terminal.environ, python=(), stdin=theirs)
        os.close(theirs)
        try:
            os.write(ours, b"a\n")
            await until(lambda: terminal.orders.counts().active == 1)
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        finally:
            os.close(ours)
        assert process.returncode == 130
        assert command.untimed(err.decode()).splitlines()[-1] == "continue with sbpair send orders"


async def test_a_ping_reports_the_health_of_each_entity(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        code, printed = await terminal.document("ping", "orders", "nowhere", "orders")
        assert (code, printed["schema"], printed["namespace"]) == (3, "sbpair/ping/1", "contoso")
        assert [(each["name"], each["health"]) for each in printed["entities"]] == [
            ("orders", "up"),
            ("nowhere", "broken"),
        ]
        terminal.emulator.faults.namespace_down("contoso")
        code, out, _ = await terminal.run("ping", "orders")
        assert (code, out.splitlines()[1].split()[:2]) == (6, ["orders", "down"])


async def test_the_status_tells_of_one_side_whether_or_not_the_other_is_up(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        assert (await terminal.run("send", "orders", "--to-backlog", text="a\nb\n"))[0] == 0
        code, printed = await terminal.document("status", "nowhere")
        assert (code, printed["schema"], printed["outbox"]) == (3, "sbpair/status/1", None)
        assert [printed[side]["health"] for side in ("primary", "secondary")] == ["up", "up"]
        assert printed["backlog"].pop("oldest_seconds") >= 0
        assert printed["backlog"] == {"messages": 2, "exact": True, "dead_letters": 0, "scheduled": 0}
        entities = {each["name"]: (each["health"], each["waiting"]) for each in printed["entities"]}
        assert entities == {"nowhere": ("broken", 0), "orders": ("up", 2)}
        assert terminal.orders.counts().active == 0
        outage = terminal.emulator.faults.namespace_down("contoso")
        code, printed = await terminal.document("status")
        assert (code, printed["primary"]["health"], printed["backlog"]["messages"]) == (6, "down", 2)
        assert [(each["name"], each["health"]) for each in printed["entities"]] == [("orders", "down")]
        terminal.emulator.faults.end(outage)
        terminal.emulator.faults.namespace_down("contoso-dr")
        code, out, _ = await terminal.run("status", "orders")
        states = [line.split()[:3] for line in out.splitlines()[1:-2]]
        assert out.splitlines()[-1] == "the backlog is unknown"
        assert states == [["primary", "contoso", "up"], ["secondary", "contoso-dr", "down"], ["entity", "orders", "up"]]
        assert code == 6


async def test_the_status_tells_what_an_outbox_holds(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        path = tmp_path / "outbox.db"
        ends = [endpoint_from_connection_string(each.connection_string) for each in terminal.emulator.ready.namespaces]
        outbox = Outbox(path, Pair("p", *ends))
        outbox.put("orders", [b"a", b"b"])
        code, printed = await terminal.document("status", "--outbox", str(path))
        [waiting] = printed["outbox"]["entities"]
        assert waiting.pop("oldest_seconds") >= 0
        assert (code, waiting, printed["outbox"]["messages"]) == (0, {"name": "orders", "messages": 2}, 2)
        outbox.close()
        path.write_bytes(b"something else, which is longer than a header" * 10)
        assert (await terminal.run("status", "--outbox", str(path)))[0] == 4


async def test_without_manage_the_status_looks_at_messages(tmp_path: Path) -> None:
    async with open_terminal(tmp_path) as terminal:
        assert (await terminal.run("send", "orders", "--to-backlog", text="a\n"))[0] == 0
        terminal.emulator.faults.refuse_requests("contoso-dr", 401)
        code, printed = await terminal.document("status")
        assert (code, printed["backlog"]["messages"], printed["backlog"]["exact"]) == (0, 1, True)
        assert [each["dead_letters"] for each in printed["queues"]] == [None, None]
        assert [each["name"] for each in printed["skipped"]] == ["contoso-dr"]


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
