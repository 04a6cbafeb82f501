"""`sbpair syphon --watch`: JSON lines in a pipe, a table on a terminal, and the receipt."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.test_runs import open_pair
from tests.kit.command import untimed
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import until

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


async def line_of(stream: asyncio.StreamReader, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first event line that fits."""
    while True:
        printed = json.loads(await stream.readline())
        assert printed["schema"] == "sbpair/syphon-event/1"
        if fits(printed):
            return printed


async def test_a_pipe_gets_lines_of_json_and_stdout_the_receipt_alone(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        process = await pair.start("syphon", "--watch", "--output", "jsonl", "--log-format", "json")
        assert process.stderr
        found = await line_of(process.stderr, lambda printed: printed["event"] == "queues-found")
        assert found["managed"] is True
        await line_of(process.stderr, lambda printed: printed["event"] == "queue-opened")
        await until(lambda: pair.arrived == 3)
        process.send_signal(signal.SIGTERM)
        out, err = await process.communicate()
        assert process.returncode == 0
        lines = [json.loads(line) for line in err.splitlines()]
        assert {each["schema"] for each in lines} == {"sbpair/syphon-event/1"}
        [last] = [each for each in lines if each["event"] == "progress" and each["received"]]
        assert (last["received"], last["sent"], last["held"]) == (3, 3, 0)
        assert [each["sent"] for each in lines if each["event"] == "destination-progress"] == [3]
        [receipt] = [json.loads(line) for line in out.splitlines()]
        assert (receipt["schema"], receipt["sent"]) == ("sbpair/syphon/1", 3)
        assert receipt["operations"]["received"] == 6
        assert receipt["operations"]["sent"] == 3


async def test_progress_comes_at_intervals_and_names_a_limit(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(40)
        words = ("syphon", "--once", "--rate", "10", "--progress-interval", "1s", "--output", "json")
        code, out, err = await pair.run(*words)
        lines = untimed(err).splitlines()
        assert "moving 1 backlog queue to contoso" in lines[:2]  # a slow machine says first that it connects
        assert len(lines) >= 3
        limited = re.compile(r"\d+ sent, ~?\d+ left, .* a second.*; limited to 10 messages/s by --rate")
        assert any(map(limited.fullmatch, lines))
        assert (code, json.loads(out)["limit"]) == (0, {"per_second": 10.0, "by": "--rate"})


async def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        with PseudoTerminal() as terminal:
            process = await pair.start("syphon", "--watch", stderr=terminal.theirs, TERM="dumb")
            terminal.hand_over()
            seen = await terminal.shown("3 sent")
            assert "moving 1 backlog queue to contoso\r\n" in seen
            assert "\x1b" not in seen
            process.send_signal(signal.SIGTERM)
            await process.communicate()


async def test_quiet_writes_nothing_for_a_watch_without_trouble(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        no_exporter = {"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_EXPORTER": "none"}
        process = await pair.start("syphon", "--watch", "--quiet", **no_exporter)
        await until((tmp_path / "lease").exists)
        await pair.strand_more()
        await until(lambda: pair.arrived == 2)
        process.send_signal(signal.SIGTERM)
        _out, err = await process.communicate()
        assert err == b""


async def test_a_closed_pipe_does_not_keep_messages_from_being_moved(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(0)
        reading, writing = os.pipe()
        process = await pair.start("syphon", "--watch", "--log-format", "json", stderr=writing)
        os.close(writing)
        await asyncio.get_running_loop().run_in_executor(None, os.read, reading, 1)
        os.close(reading)
        await pair.strand_more()
        await until(lambda: pair.arrived == 1)
        process.send_signal(signal.SIGTERM)
        out, _ = await process.communicate()
        assert b"received" in out


async def shown_plainly(terminal: PseudoTerminal, wanted: str) -> str:
    """Return what is shown until a text has come, whose escapes do not count."""
    seen = ""
    while wanted not in ESCAPE.sub("", seen):
        seen += await asyncio.to_thread(terminal.read)
    return seen


async def test_a_terminal_gets_a_picture_that_is_gone_in_the_end(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        with PseudoTerminal() as terminal:
            plain_terminal = {"TERM": "xterm", "NO_COLOR": "1", "COLUMNS": "", "LINES": ""}
            process = await pair.start("syphon", "--watch", stderr=terminal.theirs, **plain_terminal)
            terminal.hand_over()
            seen = await shown_plainly(terminal, "orders")
            plain = ESCAPE.sub("", seen)
            assert "QUEUE" in plain
            assert "…/0" in plain
            assert "DESTINATION" in plain
            assert '"schema"' not in plain
            terminal.resize(40)
            seen += await shown_plainly(terminal, "SENT  MSG/S  ETA\r\n")
            assert "\x1b[2J" not in seen, "some terminals move what is cleared to the scrollback"
            assert not [code for code in re.findall(r"\x1b\[([0-9;]*)m", seen) if re.search(r"\b[34]\d\b", code)]
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
            seen += terminal.read_to_the_end()
        assert seen.rstrip().endswith("\x1b[2K")  # the last that is done to a line is to wipe it
        assert "\x1b[?25h" in seen  # the cursor is back
        lines = [" ".join(line.split()) for line in out.decode().splitlines()]
        assert "QUEUE RECEIVED SENT" in lines
        assert "contoso/x-servicebus-transfer/0 3 3" in lines
        assert "DESTINATION SENT" in lines
        assert "orders 3" in lines
        assert [line for line in lines if line.startswith("billable operations: ")]
        run = (await pair.runs())[0]["id"]
        _, shown, _ = await pair.run("runs", "show", run)
        assert next(line for line in lines if line.startswith("billable")) in " ".join(shown.split())
        assert "orders 3" in [" ".join(line.split()) for line in shown.splitlines()]
