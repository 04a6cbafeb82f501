"""Requests to a run in another process: who gets them, who is refused, and how long they last."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sbpair import runs
from sbpair.errors import UsageError
from sbpair.runs import control
from sbpair.runs.control import RunControl, Wanted, request
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import RunEntry, RunOutcome, all_runs, read_run
from tests.runs.states import PAIR


class Entry(RunEntry):
    """An entry that is closed once, by its test or by the fixture."""

    closed = False

    def close(self) -> None:
        if not self.closed:
            super().close()
        self.closed = True


@pytest.fixture
def entry(state: RunDatabase) -> Iterator[RunEntry]:
    made = Entry(state, "syphon --watch", run_id="261122-101500-aaaa", clock_ms=lambda: 1_790_000_000_000)
    yield made
    made.close()


def ask(state: RunDatabase, wanted: Wanted, run: str = "261122") -> RunOutcome:
    return request(state, run, wanted, 0.0)[1].outcome


@pytest.fixture
def obeys(state: RunDatabase, entry: RunEntry, monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """The run confirms each request while its sender waits. Returns the requests that it saw."""
    seen: list[Wanted] = []

    def confirm(_seconds: float) -> None:
        with RunDatabase(state.directory, PAIR) as own:
            mine = RunControl(own, entry.id)
            seen.append(mine.wanted())
            if seen[-1] is Wanted.CANCELLED:
                entry.finish({}, 130, stopped=True)
                entry.close()
            else:
                mine.confirm(seen[-1])

    monkeypatch.setattr(control.time, "sleep", confirm)
    return seen


def test_a_run_pauses_resumes_and_ends_as_requested(state: RunDatabase, obeys: list[Wanted]) -> None:
    for act, outcome in ((runs.pause, "paused"), (runs.resume, "running"), (runs.pause, "paused")):
        assert act(PAIR, "261122", state=state.directory).outcome == outcome
        assert [run.outcome for run in all_runs(state)] == [outcome]
    ended = runs.cancel(PAIR, "261122", state=state.directory)
    assert (ended.outcome, ended.exit_code) == (RunOutcome.STOPPED, 130)
    assert obeys == [Wanted.PAUSED, Wanted.RUNNING, Wanted.PAUSED, Wanted.CANCELLED]


@pytest.mark.usefixtures("entry")
def test_a_run_that_does_not_answer_stays_as_it_was(state: RunDatabase) -> None:
    assert ask(state, Wanted.PAUSED) is RunOutcome.RUNNING
    assert RunControl(state, "261122-101500-aaaa").wanted() is Wanted.PAUSED


def test_the_same_request_twice_is_confirmed_at_once(state: RunDatabase, entry: RunEntry) -> None:
    assert ask(state, Wanted.RUNNING) is RunOutcome.RUNNING
    ask(state, Wanted.PAUSED)
    RunControl(state, entry.id).confirm(Wanted.PAUSED)
    assert ask(state, Wanted.PAUSED) is RunOutcome.PAUSED


@pytest.mark.usefixtures("entry")
@pytest.mark.parametrize("wanted", [Wanted.PAUSED, Wanted.RUNNING])
def test_a_cancelled_run_is_neither_paused_nor_resumed(state: RunDatabase, wanted: Wanted) -> None:
    ask(state, Wanted.CANCELLED)
    with pytest.raises(UsageError, match="is being cancelled"):
        ask(state, wanted)
    ask(state, Wanted.CANCELLED)


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda entry: entry.finish({}, 0), r"ended at 2026-09-21 14:13:20 UTC \(done, exit code 0\)"),
        (lambda entry: entry.finish({}, 130, stopped=True), r"\(stopped, exit code 130\)"),
        (lambda entry: entry.finish(None, 6, error="away"), r"\(failed, exit code 6\)"),
        (lambda _entry: None, "it crashed"),
    ],
)
@pytest.mark.parametrize("wanted", Wanted)
def test_a_run_that_is_not_live_is_refused(
    state: RunDatabase, entry: RunEntry, end: Callable[[RunEntry], None], why: str, wanted: Wanted
) -> None:
    end(entry)
    entry.close()
    with pytest.raises(UsageError, match=why) as refused:
        ask(state, wanted)
    assert refused.value.hint
    assert state.read("SELECT * FROM controls") == []


def test_unknown_and_ambiguous_ids_are_refused(state: RunDatabase, entry: RunEntry, tmp_path: Path) -> None:
    other = RunEntry(state, "move --once", run_id="261122-101501-bbbb")
    with pytest.raises(UsageError, match="2 runs begin with"):
        ask(state, Wanted.PAUSED)
    with pytest.raises(UsageError, match="does not exist"):
        ask(state, Wanted.PAUSED, "27")
    with pytest.raises(UsageError, match="does not exist"):
        runs.pause(PAIR, entry.id, state=tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    other.close()


def test_a_pause_does_not_outlive_its_run(state: RunDatabase, entry: RunEntry) -> None:
    ask(state, Wanted.PAUSED)
    RunControl(state, entry.id).confirm(Wanted.PAUSED)
    assert read_run(state, entry.id).outcome is RunOutcome.PAUSED
    entry.close()  # as a kill does
    assert read_run(state, entry.id).outcome is RunOutcome.CRASHED
    resumed = RunEntry(state, "replay resume", run_id=entry.id)
    assert RunControl(state, entry.id).wanted() is Wanted.RUNNING
    assert read_run(state, entry.id).outcome is RunOutcome.RUNNING
    resumed.close()
