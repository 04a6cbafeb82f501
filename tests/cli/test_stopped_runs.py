"""The end of a run at the terminal: receipts of stopped runs, SIGHUP, missing destinations and exit codes."""

import json
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_runs import BACKLOG, Pair, open_pair
from tests.kit import command
from tests.kit.disks import full
from tests.kit.terminal import PseudoTerminal
from tests.kit.waiting import until


async def stopped(pair: Pair, number: signal.Signals, *words: str, **options: Any) -> tuple[int, str, str]:
    """Run a slow syphon, and signal it after its first message has arrived."""
    process = await pair.start("syphon", "--rate", "10", *words, **options)
    await until(lambda: pair.arrived > 0)
    process.send_signal(number)
    return await command.finished(process)


SIGNALLED_AFTERWARDS = """
import os, sys
from sbpair.cli.command_loop import run_gracefully

async def move(stop, hurry):
    return "receipt"

receipt, number = run_gracefully(move), int(sys.argv[1])
os.kill(os.getpid(), number)
print(receipt, flush=True)
os.kill(os.getpid(), number)
print("alive")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_end_of_a_run_leaves_its_receipt(number: signal.Signals, tmp_path: Path) -> None:
    done = command.run_program(sys.executable, "-c", SIGNALLED_AFTERWARDS, str(int(number)), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (-number, "receipt\n")


@pytest.mark.parametrize(("mode", "code"), [("--once", 130), ("--watch", 0)])
async def test_a_hangup_stops_a_run_in_order(tmp_path: Path, mode: str, code: int) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(60)
        done, out, _ = await stopped(pair, signal.SIGHUP, mode, "--output", "json")
        receipt = json.loads(out)
        assert (done, receipt["stopped"], receipt["in_doubt"]) == (code, True, 0)
        assert receipt["remaining"] == {"messages": 60 - receipt["sent"], "exact": True}
        assert receipt["next_commands"] == [f"sbpair syphon {mode} --rate 10 --state {tmp_path}"]
        [run] = await pair.runs()
        assert (run["id"], run["outcome"], run["exit_code"]) == (receipt["run"], "stopped", code)
        assert run["remaining"] == receipt["remaining"]


@pytest.mark.parametrize(("mode", "code"), [("--once", 6), ("--watch", 0)])
async def test_a_deadline_stops_a_run_in_order(tmp_path: Path, mode: str, code: int) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(100)
        process = await pair.start("syphon", "--rate", "10", mode, "--deadline", "3s", "--output", "json")
        done, out, err = await command.finished(process)
        receipt = json.loads(out)
        assert (done, receipt["stopped"], receipt["in_doubt"]) == (code, True, 0)
        assert ("error: stopped by --deadline after 3 s\n" in err) == (code == 6)
        [run] = await pair.runs()
        assert (run["id"], run["outcome"], run["exit_code"]) == (receipt["run"], "stopped", code)
        assert run["error"] == "stopped by --deadline after 3 s"


async def test_a_lost_terminal_stops_a_run_in_order(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        with PseudoTerminal() as terminal:
            streams = {"stdout": terminal.theirs, "stderr": terminal.theirs, "prepare": terminal.take}
            process = await pair.start("syphon", "--watch", **streams, TERM="xterm")
            terminal.hand_over()
            await until(lambda: pair.arrived == 3)
        await process.communicate()
        assert process.returncode == 7  # nobody can read the receipt
        [run] = await pair.runs()
        assert (run["outcome"], run["exit_code"], run["error"]) == ("stopped", 0, "")
        assert (await pair.shown(run["id"]))["receipt"]["sent"] == 3


async def test_a_stopping_run_shows_that_the_next_interrupt_stops_it_at_once(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(3)
        pair.emulator.faults.swallow_acks("contoso", "orders")
        with PseudoTerminal() as terminal:
            process = await pair.start("syphon", "--once", stderr=terminal.theirs, TERM="xterm")
            terminal.hand_over()
            await until(lambda: pair.arrived == 3)
            process.send_signal(signal.SIGINT)
            shown = await terminal.shown(" - Ctrl-C stops at once")
            process.send_signal(signal.SIGINT)
            await process.communicate()
        assert process.returncode == 130
        assert "stopping " in shown


async def test_a_run_under_nohup_ignores_a_hangup(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        process = await pair.start("syphon", "--watch", prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        await until(lambda: pair.arrived == 1)
        process.send_signal(signal.SIGHUP)
        await pair.strand_more(4)
        await until(lambda: pair.arrived == 5)
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 0


async def test_an_interrupted_run_says_what_is_left_and_how_to_continue(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(60)
        done, out, err = await stopped(pair, signal.SIGINT, "--once", "--quiet")
        assert (done, err) == (130, "")
        ended, then = out.splitlines()[-2:]
        [(run, left)] = re.findall(r"^run (\S+) was stopped after \d+s; (\d+) messages in the backlog$", ended)
        assert int(left) == 60 - pair.arrived
        assert then == f"to continue: sbpair syphon --once --rate 10 --state {tmp_path}"
        [listed] = await pair.runs()
        assert (listed["id"], listed["exit_code"], listed["remaining"]["messages"]) == (run, 130, int(left))


async def test_a_watch_with_dead_letters_ends_with_3_and_names_the_way_back(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        await pair.strand_more(30, "gone")
        process = await pair.start("syphon", "--watch", "--health-port", "0", "--order", "none", "--ttl", "remaining")
        dead = pair.emulator.namespaces["contoso-dr"].queue(BACKLOG)
        await until(lambda: (dead.counts().dead_letter, pair.arrived) == (20, 1))
        process.send_signal(signal.SIGTERM)
        done, out, err = await command.finished(process)
        assert done == 3
        again = "sbpair syphon --watch --max-missing 0 --order none --ttl remaining"
        assert out.splitlines()[-2:] == [
            f"to continue: {again} --state {tmp_path} --health-port 0",
            f"to send the dead letters: sbpair redrive --backlog --state {tmp_path}",
        ]
        held = "gone does not exist in the primary namespace: 20 messages dead-lettered, 10 left in the backlog"
        assert f"warning: {held}; create it and run again, or add --allow-missing" in err


@pytest.mark.parametrize(
    "has_home",
    [False, pytest.param(True, marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such names"))],
)
async def test_a_second_mover_with_another_state_is_refused(tmp_path: Path, has_home: bool) -> None:
    async with open_pair(tmp_path / "a") as pair:
        await pair.strand(1)
        first = await pair.start("syphon", "--watch", "--output", "json")
        await until(lambda: pair.arrived == 1)
        pair.state = tmp_path / "b"
        if has_home:
            pair.environ |= {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path / "home")}
        done, _, err = await pair.run("syphon", "--once")
        assert done == 4
        run = "" if has_home else r" \(run \S+, since [\d: -]+ UTC\)"
        assert re.match(rf"error: process {first.pid}{run} is moving messages of this pair\nhint: ", err)
        assert (await pair.run("syphon", "--once", "--no-lease"))[0] == 0
        first.send_signal(signal.SIGTERM)
        await first.communicate()
        assert (await pair.run("syphon", "--once"))[0] == 0


async def test_an_unwritable_home_is_warned_about(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as pair:
        await pair.strand(1)
        done, _, err = await pair.run("syphon", "--once", XDG_STATE_HOME="/dev/null")
        assert (done, pair.arrived) == (0, 1)
        assert "movers with another --state are not kept off this pair: /dev/null/sbpair" in err


async def test_a_run_that_a_full_disk_ended_is_listed_with_its_error(own_disk: Path) -> None:
    async with open_pair(own_disk) as pair:
        await pair.strand(1)
        process = await pair.start("syphon", "--watch")
        await until(lambda: pair.arrived == 1)
        with full(own_disk):
            await pair.strand_more(5)
            done, out, err = await command.finished(process)
            assert done == 7
            assert f"the disk is full; free space in {own_disk}, and run the same command again" in err
            assert re.search(r"; \d messages? in the backlog\nto continue: sbpair syphon --watch", out)
            [run] = await pair.runs()
            assert (run["outcome"], run["exit_code"], "disk is full" in run["error"]) == ("failed", 7, True), err
            assert run["remaining"]["exact"]
            assert "cannot be recorded" not in err
        assert (await pair.run("syphon", "--once"))[0] == 0
        assert pair.arrived == 6
