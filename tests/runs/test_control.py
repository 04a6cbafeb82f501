"""Requests to a run in another process: who gets them, who is refused, and how long they last."""

from collections.abc import Callable, Iterator

import pytest

from sbpair.errors import UsageError
from sbpair.runs.control import RunControl, Wanted, request
from sbpair.runs.database import RunDatabase
from sbpair.runs.run_log import RunEntry, read_run
from sbpair.runs.run_record import RunOutcome


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
    ("end", "why"), [(lambda entry: entry.finish({}, 0), r"ended at .* \(done, exit code 0\)"), (None, "it crashed")]
)
def test_a_run_that_is_not_live_is_refused(
    state: RunDatabase, entry: RunEntry, end: Callable[[RunEntry], None] | None, why: str
) -> None:
    if end is not None:
        end(entry)
    entry.close()
    with pytest.raises(UsageError, match=why):
        ask(state, Wanted.PAUSED)
    assert state.read("SELECT * FROM controls") == []


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
