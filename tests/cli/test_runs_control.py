"""`sbpair runs pause`, `resume` and `cancel` on a run in another process; and what is refused."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sbpair.runs.control import WAIT_SECONDS, Wanted
from tests.cli.test_runs import BACKLOG, Pair, open_pair
from tests.kit.command import Here
from tests.kit.json_schemas import parse_validated
from tests.kit.waiting import until


async def asked(pair: Pair, action: str, run: str) -> dict[str, Any]:
    code, out, err = await pair.run("runs", action, run, "--output", "json", "--quiet")
    assert (code, err) == (0, "")
    answer = parse_validated(out)
    assert isinstance(answer, dict)
    assert (answer["run"], answer["request"], answer["confirmed"]) == (run, action, True)
    assert answer["seconds"] < 2.0
    return answer


async def watching(pair: Pair, *words: str) -> tuple[asyncio.subprocess.Process, str]:
    """Start a watch. Returns its process and its run, once it waits for messages."""
    process = await pair.start("syphon", "--watch", *words)
    messages = pair.emulator.namespaces["contoso-dr"].queue(BACKLOG).messages
    await until(lambda: messages.has_consumers)
    [run, *_] = await pair.runs()
    return process, run["id"]


async def test_a_watch_is_paused_resumed_and_cancelled(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(0)
        process, run = await watching(pair, "--log-format", "json")
        assert (await asked(pair, "pause", run))["outcome"] == "paused"
        await pair.strand_more(3)
        [listed], shown = await pair.runs(), await pair.shown(run)
        assert (listed["outcome"], shown["outcome"], listed["ended"]) == ("paused", "paused", None)
        assert (listed["waiting"]["state"], listed["waiting"]["messages"]) == ("paused", 0)
        _, out, err = await pair.run("status")
        assert f"run {run} is paused: sbpair runs resume {run}" in err
        assert f"run {run} is paused, and nothing moves them: run sbpair runs resume {run}" in out
        code, _, err = await pair.run("syphon", "--once")
        assert code == 4  # it keeps its lease
        assert run in err
        assert pair.arrived == 0
        assert (await asked(pair, "resume", run))["outcome"] == "running"
        await until(lambda: pair.arrived == 3)
        assert (await asked(pair, "cancel", run))["outcome"] == "stopped"
        out, err_bytes = await process.communicate()
        assert process.returncode == 0
        assert b"to continue: sbpair syphon --watch" in out
        lines = [json.loads(line) for line in err_bytes.splitlines()]
        for line in lines:
            parse_validated(json.dumps(line))
        kinds = [line["event"] for line in lines if line["event"].startswith("run-")]
        assert kinds == ["run-pausing", "run-paused", "run-resumed", "run-cancelled"]
        assert {line["run"] for line in lines if line["event"].startswith("run-")} == {run}


async def test_a_paused_run_says_so_and_ends_at_an_interruption(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(0)
        process, run = await watching(pair)
        code, out, err = await pair.run("runs", "pause", run[:13])
        assert (code, out) == (0, f"{run} paused\n")
        assert f"to go on: sbpair runs resume {run} --state {tmp_path}" in err
        code, _, err = await pair.run("runs", "pause", run)
        assert (code, "it was paused before" in err) == (0, True)
        process.send_signal(signal.SIGINT)
        _, said = await process.communicate()
        assert process.returncode == 0
        assert f"paused, and holds no message; to go on: sbpair runs resume {run}".encode() in said
        code, _, err = await pair.run("runs", "resume", run)
        assert (code, "is not running: it ended at" in err, "(stopped, exit code 0)" in err) == (2, True, True)


async def test_a_run_that_cannot_answer_is_reported_and_a_killed_one_refused(
    tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WAIT_SECONDS, Wanted.PAUSED, 1.0)
    async with open_pair(tmp_path) as pair:
        await pair.strand(0)
        process, run = await watching(pair)
        os.kill(process.pid, signal.SIGSTOP)
        code, out, err = here("runs", "pause", run, "--state", str(tmp_path), **pair.environ)
        assert (code, out) == (3, f"{run} running\n")
        assert "no confirmation within 1s" in err
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        for action in ("pause", "resume", "cancel"):
            code, _, err = await pair.run("runs", action, run)
            assert (code, f"run {run} is not running: it crashed" in err) == (2, True)
        _process, other = await watching(pair)  # a new run is not paused
        assert (await asked(pair, "cancel", other))["outcome"] == "stopped"
        await _process.communicate()
