"""A running replay and other processes: status, another run, stop, then resume."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sbpair.replay.archive import LEDGER
from tests.kit import command
from tests.kit.processes import offspring, read
from tests.replay.replays import PATIENCE_SECONDS, all_end, end, end_all, is_java, nothing_is_lost
from tests.replay.world import HASTY, World, world

pytestmark = [pytest.mark.java, pytest.mark.slow]

MESSAGES = 400
SPARK = ("--master", "local[2,4]", *(word for name, value in HASTY.items() for word in ("--conf", f"{name}={value}")))


class Shell:
    """The tool, in separate processes, in a working directory whose modules nothing may import."""

    def __init__(self, place: World, directory: Path) -> None:
        self._environment = place.shell(directory)
        self._foreign = directory / "foreign"
        self._foreign.mkdir()
        for name in ("sbpair", "pyspark", "json"):
            (self._foreign / f"{name}.py").write_text("raise SystemExit('a foreign module')")
        self.archive = directory / "archive"

    def start(self, *words: str) -> subprocess.Popen[str]:
        where = ("--archive", str(self.archive), "--output", "json")
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "sbpair", "replay", *words, *where],
            env=self._environment,
            cwd=self._foreign,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @contextmanager
    def running(self, *words: str, chunks: int = 1) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Start a run, and yield it and its id once its ledger has so many files. End it and its children."""
        process = self.start("run", *words, *SPARK)
        try:
            wait_for(lambda: len([*self.archive.glob(f"*/{LEDGER}/*/[!.]*.parquet")]) >= chunks, process)
            yield process, next(self.archive.iterdir()).name
        finally:
            end_all(process)

    def say(self, *words: str) -> tuple[int, dict[str, Any], str]:
        done = self.start(*words)
        out, err = done.communicate(timeout=PATIENCE_SECONDS)
        return done.returncode, json.loads(out or "{}"), err

    def pair(self, *words: str) -> tuple[int, dict[str, Any], str]:
        """Run a command that reads the pair and the state directory."""
        done = command.run(*words, "--count", "2", "--output", "json", env=self._environment)
        return done.returncode, json.loads(done.stdout), done.stderr

    def runs(self, *words: str) -> list[dict[str, Any]]:
        done = command.run("runs", *words, "--output", "json", env=self._environment)
        return json.loads(done.stdout)["runs"]  # type: ignore[no-any-return]


@pytest.fixture
def place() -> Iterator[World]:
    with world(lock_seconds=15) as made:
        made.strand_many(MESSAGES)
        yield made


@pytest.fixture
def shell(place: World, tmp_path: Path) -> Shell:
    return Shell(place, tmp_path)


def test_a_run_has_a_status_excludes_others_stops_and_resumes(place: World, shell: Shell) -> None:
    with shell.running("--rate", "4", "--log-format", "json", chunks=2) as (first, run):
        code, status, _ = shell.say("status", run)
        assert (code, status["phase"], status["stopped"]) == (0, "send", False)
        assert status["archived_rows"] == MESSAGES
        assert 0 < status["acknowledged_rows"] < MESSAGES

        for words in (("run",), ("resume", run)):
            code, _, err = shell.say(*words, *SPARK)
            assert code == 4, err
            assert run in err, "it names who has the lease"
        assert first.poll() is None

        assert shell.say("stop", run)[0] == 0
        out, err = first.communicate(timeout=PATIENCE_SECONDS)
    receipt = json.loads(out)
    assert first.returncode == 130, err
    events = [json.loads(line) for line in err.splitlines()]
    assert {"phase", "progress"} <= {each.get("event") for each in events}, "all of stderr is JSON"
    assert receipt["stopped"]
    assert receipt["unsent"] == MESSAGES - receipt["acknowledged"] > 0
    assert len(place.ids()) == receipt["acknowledged"], "a stop doubles nothing, and forgets nothing"
    assert f"continue with sbpair replay resume {run} --archive {shell.archive} --master" in err
    [listed] = shell.runs("list")
    assert (listed["id"], listed["kind"], listed["outcome"]) == (run, "replay", "stopped")

    code, _, err = shell.say("resume", run, "--deadline", "20s", *SPARK)
    assert (code, "error: stopped by --deadline after 20 s\n" in err) == (6, True), err
    assert [each["outcome"] for each in shell.runs("list")] == ["stopped"]

    code, receipt, err = shell.say("resume", run[:-1], *SPARK)
    assert code == 0, err
    nothing_is_lost(place, receipt)
    assert len(place.ids()) == MESSAGES

    code, receipt, err = shell.say("resume", run, *SPARK)
    assert (code, receipt["acknowledged"], "starting Spark" in err) == (0, MESSAGES, False)
    assert len(place.ids()) == MESSAGES
    [shown] = shell.runs("show", run[:-1])
    assert (shown["command"], shown["outcome"], shown["exit_code"]) == ("replay resume", "done", 0)
    assert (shown["archive"], shown["receipt"]["acknowledged"]) == (str(shell.archive), MESSAGES)


def test_a_driver_killed_as_it_sends_is_not_forgotten(place: World, shell: Shell) -> None:
    """As an orchestrator does, which types the same command again."""
    with shell.running("--rate", "40", chunks=2) as (first, run):
        victims = [first.pid, *offspring(first.pid)]
        for pid in victims:
            end(pid)
        all_end(victims[1:])
        first.communicate(timeout=PATIENCE_SECONDS)
    sent = len(place.ids())
    for _ in range(2):
        code, receipt, err = shell.say("run", "--rate", "40", *SPARK)
        assert (code, receipt) == (4, {}), err
        assert f"run {run} in {shell.archive} has not ended" in err
        assert f"sbpair replay resume --archive {shell.archive} --master" in err
    assert (len(place.ids()), [each.name for each in shell.archive.iterdir()]) == (sent, [run])

    command_line = f"sbpair replay resume {run} --archive {shell.archive}"
    for words in (("audit", "--sample", "0", "--fail-on", "messages"), ("status", "--fail-on", "messages")):
        code, found, err = shell.pair(*words)
        assert code == 3, err
        [waiting] = found["waiting"]
        assert (waiting["run"], waiting["command"]) == (run, command_line)
        # The driver wrote the number within the last seconds.
        assert MESSAGES - sent <= waiting["messages"] <= MESSAGES, err
        assert found["backlog"]["messages"] == waiting["messages"] == found["backlog"]["elsewhere"]
        assert command_line in err
    [listed] = shell.runs("list")
    assert (listed["outcome"], listed["waiting"]["command"]) == ("crashed", command_line)

    code, receipt, err = shell.say("resume", run, *SPARK)
    assert code == 0, err
    nothing_is_lost(place, receipt)
    code, found, err = shell.pair("audit", "--sample", "0", "--fail-on", "messages,unseen")
    assert (code, found["waiting"], found["backlog"]["messages"], command_line in err) == (0, [], 0, False)
    code, receipt, err = shell.say("run", *SPARK)
    assert (code, receipt["archived"]) == (0, 0), "a finished run is in no one's way"


def test_a_killed_run_is_continued_by_the_command_with_its_name(place: World, shell: Shell) -> None:
    command_line = ("--run", "nightly", "--rate", "60")
    for chunks in (1, 4):
        with shell.running(*command_line, chunks=chunks) as (attempt, run):
            victims = [attempt.pid, *offspring(attempt.pid)]
            for pid in victims:
                end(pid)
            all_end(victims[1:])
        assert (run, len(place.ids()) < MESSAGES) == ("nightly", True)
    code, receipt, err = shell.say("run", *command_line, *SPARK)
    assert code == 0, err
    nothing_is_lost(place, receipt)
    assert shell.say("run", *command_line, *SPARK)[:2] == (0, receipt)
    [listed] = shell.runs("list")
    assert (listed["id"], listed["command"], listed["outcome"]) == ("nightly", "replay resume", "done")


def test_another_run_beside_a_killed_one_names_it(shell: Shell) -> None:
    with shell.running("--rate", "40", "--destination", "orders") as (first, run):
        victims = [first.pid, *offspring(first.pid)]
        for pid in victims:
            end(pid)
        all_end(victims[1:])
    code, receipt, err = shell.say("run", "--new", *SPARK)
    assert (code, receipt["archived"], receipt["run"] != run) == (0, 0, True), err
    [note] = receipt["notes"]
    assert f"run {run} in {shell.archive} has not ended" in note
    assert f"go on with sbpair replay resume --archive {shell.archive}" in err

    code, receipt, err = shell.say("resume", run, *SPARK)
    assert (code, receipt["unsent"], receipt["excluded"]) == (3, MESSAGES // 2, MESSAGES // 2), err
    code, receipt, err = shell.say("run", *SPARK)
    assert (code, receipt["archived"]) == (0, 0), "what a selection left out is not unfinished"


def test_a_lost_terminal_stops_a_run_in_order(place: World, shell: Shell) -> None:
    with shell.running("--rate", "4") as (first, run):
        os.killpg(first.pid, signal.SIGHUP)  # Java gets it, too
        out, err = first.communicate(timeout=PATIENCE_SECONDS)
    receipt = json.loads(out)
    assert (first.returncode, receipt["stopped"], receipt["run"]) == (130, True, run), err
    assert len(place.ids()) == receipt["acknowledged"] > 0


def test_a_second_interrupt_ends_with_the_command_that_continues(shell: Shell) -> None:
    with shell.running("--rate", "4") as (first, run):
        first.send_signal(signal.SIGINT)
        wait_for((shell.archive / run / "STOP").exists, first)
        first.send_signal(signal.SIGINT)
        _, err = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 130
    assert f"interrupted; continue with sbpair replay resume {run} --archive {shell.archive}" in err.splitlines()[-1]
    [listed] = shell.runs("list")
    assert (listed["id"], listed["outcome"]) == (run, "stopped")


def test_an_interrupted_start_leaves_no_java(shell: Shell) -> None:
    first, started = shell.start("run", *SPARK), []
    try:
        # The first Java only prints its version.
        wait_for(lambda: [pid for pid in offspring(first.pid) if is_java(pid) and is_spark(pid)], first)
        started = offspring(first.pid)
        first.send_signal(signal.SIGTERM)
        _, err = first.communicate(timeout=PATIENCE_SECONDS)
        assert first.returncode == 130, err
        all_end(started)
    finally:
        for pid in (*started, first.pid):
            end(pid)


def is_spark(pid: int) -> bool:
    return "SparkSubmit" in read(Path(f"/proc/{pid}/cmdline"))


def test_a_killed_java_ends_with_the_command_that_continues(place: World, shell: Shell) -> None:
    with shell.running("--rate", "100") as (first, run):
        [java] = filter(is_java, offspring(first.pid))
        end(java)
        _, err = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 6, err
    [*_, error, hint] = err.splitlines()
    assert error == "error: Spark's Java was killed, or crashed"
    assert ("Traceback" in err, "Exception" in err) == (False, False), err
    assert hint.startswith("hint: nothing is lost: continue with sbpair replay resume "), err
    assert run in hint.split(), err
    code, receipt, err = shell.say("resume", run, *SPARK)
    assert code == 0, err
    nothing_is_lost(place, receipt)


def wait_for(happens: Any, process: subprocess.Popen[str]) -> None:
    limit = time.monotonic() + PATIENCE_SECONDS
    while not happens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit
        time.sleep(0.02)
