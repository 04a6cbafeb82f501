"""Runs with work left: the rule for receipts, what a state directory knows, and what it keeps of them."""

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbpair.runs import waiting
from sbpair.runs.control import RunControl, Wanted, request
from sbpair.runs.database import RunDatabase, StateOwner
from sbpair.runs.run_log import MAX_KEPT, RunEntry, all_runs
from sbpair.runs.run_record import is_finished, left_unsent
from sbpair.runs.waiting import WaitingRun, local_directory, read_waiting, waiting_runs
from tests.runs.states import PAIR

COUNTS = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("receipt", "finished"),
    [
        (None, False),
        ({}, False),
        ({"unsent": 0}, True),
        ({"unsent": 1}, False),
        ({"unsent": 3, "excluded": 3}, True),
        ({"unsent": 3, "excluded": 2}, False),
        ({"unsent": 0, "stopped": True}, True),
        ({"unsent": 0, "locked": 5, "remaining_in_queues": {"q": 5}}, True),
        ({"unsent": 0, "expired": 2, "quarantined": 3}, True),
        ({"mode": "direct", "unsent": None}, True),
        ({"mode": "direct", "unsent": None, "in_doubt": 9}, True),
        ({"mode": "direct", "unsent": None, "stopped": True}, False),
    ],
)
def test_a_run_is_finished_without_selected_unsent_messages(receipt: dict[str, Any] | None, finished: bool) -> None:
    assert is_finished(receipt) is finished


@given(COUNTS, COUNTS)
def test_only_unsent_messages_that_no_selection_left_out_count(unsent: int, excluded: int) -> None:
    assert left_unsent({"unsent": unsent + excluded, "excluded": excluded}) == unsent
    assert is_finished({"unsent": unsent + excluded, "excluded": excluded}) is (unsent == 0)


@pytest.mark.parametrize(
    ("archive", "directory"),
    [
        ("/mnt/archive", "/mnt/archive"),
        ("file:/mnt/archive", "/mnt/archive"),
        ("file:///mnt/archive", "/mnt/archive"),
        ("s3://bucket/backlog", None),
        ("abfss://c@a.dfs.core.windows.net/x", None),
    ],
)
def test_an_archive_is_a_directory_unless_its_url_has_a_host(archive: str, directory: str | None) -> None:
    assert local_directory(archive) == (None if directory is None else Path(directory))


def record(
    state: RunDatabase, run: str, receipt: Mapping[str, object], command: str = "replay run", **more: Any
) -> None:
    """Record a run that has crashed, or with `exit_code` one that has ended."""
    with closing(RunEntry(state, command, run_id=run)) as entry:
        entry.record(receipt)
        if more:
            entry.finish(None, **more)


def found(state: RunDatabase) -> tuple[WaitingRun, ...]:
    return waiting_runs(all_runs(state))


def test_a_run_whose_receipt_is_recorded_is_read_no_more(state: RunDatabase) -> None:
    record(state, "r1", {"archive": "/nowhere", "run": "r1", "unsent": 0}, exit_code=0)
    assert found(state) == ()


def test_a_run_refused_at_its_start_has_no_archive(state: RunDatabase) -> None:
    record(state, "r1", {}, exit_code=2, error="no such queue")
    assert found(state) == ()


def test_a_receipt_of_another_machine_replaces_the_record(state: RunDatabase, tmp_path: Path) -> None:
    report = tmp_path / "archive/r1/report"
    report.mkdir(parents=True)
    (report.parent / "run.json").write_text("{}")
    record(state, "r1", {"archive": str(tmp_path / "archive"), "unsent": 9, "counted_ms": 1})
    assert found(state) == (WaitingRun("r1", "interrupted", str(tmp_path / "archive"), 9, False, 1),)
    doubtful = [{"message_id": "m" * 100}] * 20_000
    (report / "receipt.json").write_text(json.dumps({"run": "r1", "unsent": 4, "doubtful": doubtful}))
    assert found(state) == (WaitingRun("r1", "interrupted", str(tmp_path / "archive"), 4),)
    (report / "receipt.json").write_text(json.dumps({"run": "r1", "unsent": 0, "doubtful": doubtful}))
    assert found(state) == ()


@pytest.mark.parametrize("broken", ["pipe", "text", "list", "directory", "missing"])
def test_a_broken_receipt_hides_no_run(state: RunDatabase, tmp_path: Path, broken: str) -> None:
    report = tmp_path / "r1/report"
    report.mkdir(parents=True)
    if broken != "missing":
        (report.parent / "run.json").write_text("{}")
    file = report / "receipt.json"
    match broken:
        case "pipe":
            os.mkfifo(file)
        case "directory":
            file.mkdir()
        case "text" | "list":
            file.write_text({"text": "{", "list": "[]"}[broken])
    record(state, "r1", {"archive": str(tmp_path), "unsent": 9, "counted_ms": 1})
    [run] = found(state)
    assert (run.messages, run.exact, run.holds_messages) == (9, False, True)
    assert str(report.parent) in run.note


def test_a_count_that_was_never_recorded_is_unknown_and_not_zero(state: RunDatabase) -> None:
    for run, receipt in {"r1": {}, "r2": {"unsent": 0}}.items():
        record(state, run, {"archive": "s3://bucket/x", **receipt})
    assert [(each.messages, each.holds_messages) for each in found(state)] == [(None, True)] * 2


def test_a_running_replay_counts_as_long_as_it_sends(state: RunDatabase) -> None:
    with closing(RunEntry(state, "replay run", run_id="r1")) as entry:
        entry.record({"archive": "/mnt/archive", "unsent": 5, "counted_ms": 1})
        assert found(state) == (WaitingRun("r1", "running", "/mnt/archive", 5, False, 1),)


@pytest.mark.parametrize(("command", "archive"), [("syphon --watch", ""), ("move", ""), ("replay run", "/mnt/archive")])
def test_a_paused_run_is_named(state: RunDatabase, command: str, archive: str) -> None:
    with closing(RunEntry(state, command, run_id="r1")) as entry:
        entry.record({"archive": archive} if archive else {"received": 1})
        request(state, "r1", Wanted.PAUSED, 0)
        RunControl(state, "r1").confirm(Wanted.PAUSED)
        [run] = found(state)
        assert (run.run, run.state, run.archive) == ("r1", "paused", archive)
        assert run.holds_messages is bool(archive)


def test_unfinished_replays_outlive_two_hundred_later_runs(state: RunDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbpair.runs.run_log.MAX_KEPT", 3)
    record(state, "crashed", {"archive": "s3://bucket/x", "unsent": 9})
    record(state, "excluded", {"archive": "s3://bucket/x", "run": "excluded", "unsent": 9, "excluded": 9}, exit_code=3)
    record(state, "unsent", {"archive": "s3://bucket/x", "run": "unsent", "unsent": 9}, exit_code=3)
    for number in range(5):
        record(state, f"later{number}", {"received": 1}, "syphon --once", exit_code=0)
    assert MAX_KEPT == 200
    assert {run.id for run in all_runs(state)} == {"crashed", "unsent", "later2", "later3", "later4"}


def test_a_state_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    owner = StateOwner(PAIR.ends, tmp_path)
    assert read_waiting(owner) == ((), "")
    (tmp_path / "state.db").write_text("nonsense" * 100)
    runs, problem = read_waiting(owner)
    assert runs == ()
    assert "state.db is broken" in problem


def test_reading_creates_no_state(tmp_path: Path) -> None:
    read_waiting(StateOwner(PAIR.ends, tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_the_files_have_the_names_that_a_replay_gives_them() -> None:
    from sbpair.replay import archive

    for name in ("RUN_FILE", "RECEIPT_FILE", "REMOVED_FILE"):
        assert getattr(waiting, name) == getattr(archive, name)


def test_a_resumed_run_keeps_its_last_counts_until_it_counts(state: RunDatabase) -> None:
    from sbpair.replay.progress import Expected, PhaseProgress, ReplayTimeline

    record(state, "r1", {"archive": "/old", "run": "r1", "unsent": 9, "excluded": 2, "archived": 20}, exit_code=3)
    with ExitStack() as stack:
        entry = stack.enter_context(closing(RunEntry(state, "replay resume", run_id="r1")))
        timeline = ReplayTimeline(entry, lambda _event: None, "s3://bucket/x")
        seen = [found(state)[0].messages]
        timeline(PhaseProgress("drain", 25, 3))
        seen.append(found(state)[0].messages)
        timeline(PhaseProgress("send", 4, 1))  # before the plan has ended
        seen.append(found(state)[0].messages)
        timeline(Expected("send", {"orders": 12, "events": 3}))
        timeline(PhaseProgress("send", 6, 2))
        seen.append(found(state)[0].messages)
    assert seen == [7, 25, 25, 9]
    [run] = found(state)
    assert (run.state, run.archive, run.messages, run.exact) == ("interrupted", "s3://bucket/x", 9, False)
