"""Requests of other processes to a live run, and their answer: pause, resume, cancel.

Invariant: a request outlives the process that made it, and never the run: each run begins without one.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path

from sbpair.errors import UsageError
from sbpair.model.pair import Ends, Pair
from sbpair.runs.database import RunDatabase, state_if_any
from sbpair.runs.run_log import find_run, read_run
from sbpair.runs.run_record import LIVE, RunOutcome, RunRecord

CONFIRM_SECONDS = 10.0
"""How long to wait for a run that pauses or resumes: it looks for requests twice a second."""

CANCEL_SECONDS = 60.0
"""How long to wait for the end of a cancelled run, which waits for the outcome of pending sends."""

POLL_SECONDS = 0.1


class Wanted(StrEnum):
    """The state in which a run is wanted."""

    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"


WANTED = {"pause": Wanted.PAUSED, "resume": Wanted.RUNNING, "cancel": Wanted.CANCELLED}
"""The state that each command requests."""

WAIT_SECONDS = {
    Wanted.PAUSED: CONFIRM_SECONDS,
    Wanted.RUNNING: CONFIRM_SECONDS,
    Wanted.CANCELLED: CANCEL_SECONDS,
}

_ASK = (
    "INSERT INTO controls VALUES (?, ?, 'running')"
    " ON CONFLICT (run) DO UPDATE SET wanted = excluded.wanted WHERE wanted <> 'cancelled'"
)


class RunControl:
    """The side of the run. Raises MachineLacks if the state cannot be used."""

    def __init__(self, state: RunDatabase, run: str) -> None:
        self._state, self._run = state, run

    def wanted(self) -> Wanted:
        """Return the state in which others want the run."""
        rows = self._state.read("SELECT wanted FROM controls WHERE run = ?", (self._run,))
        return Wanted(rows[0][0]) if rows else Wanted.RUNNING

    def confirm(self, state: Wanted) -> None:
        """Record that the run has paused, or goes on."""
        self._state.write(("UPDATE controls SET state = ? WHERE run = ?", [(state, self._run)]))


def request(state: RunDatabase | None, run_id: str, wanted: Wanted, seconds: float) -> tuple[RunRecord, RunRecord]:
    """Request a state of the live run whose id begins with `run_id`, and wait up to `seconds` for it.

    Returns its record before and after. Raises UsageError for a run that does not exist, has ended, has crashed or is
    being cancelled.
    """
    before = find_run(state, run_id)
    assert state is not None  # noqa: S101  it has the run
    if before.outcome not in LIVE:
        raise _not_running(before)
    state.write((_ASK, [(before.id, wanted)]))
    if wanted is not RunControl(state, before.id).wanted():
        raise UsageError(f"run {before.id} is being cancelled", hint="wait for its end: sbpair runs list")
    return before, _wait(state, before, wanted, seconds)


def is_confirmed(run: RunRecord, wanted: Wanted) -> bool:
    """Return whether a run is as it was wanted."""
    if wanted is Wanted.CANCELLED:
        return run.outcome not in (*LIVE, RunOutcome.CRASHED)
    return run.outcome.value == wanted.value


def _wait(state: RunDatabase, run: RunRecord, wanted: Wanted, seconds: float) -> RunRecord:
    """Wait until a run is as wanted, has ended, or is wanted otherwise; at most `seconds`. Return its record then."""
    until, control = time.monotonic() + seconds, RunControl(state, run.id)
    while run.outcome in LIVE and not is_confirmed(run, wanted) and control.wanted() is wanted:
        if time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
        run = read_run(state, run.id)
    return run


def pause(pair: Pair | Ends, run: str, *, state: Path, seconds: float = CONFIRM_SECONDS) -> RunRecord:
    """Pause a run of the pair whose state is in that directory: it keeps its leases and connections, and no message.

    Waits up to `seconds` for the run's confirmation: its outcome is then `paused`. Raises UsageError if it is not live.
    """
    return _change(pair, run, state, Wanted.PAUSED, seconds)


def resume(pair: Pair | Ends, run: str, *, state: Path, seconds: float = CONFIRM_SECONDS) -> RunRecord:
    """Let a paused run go on, as `pause` does: its outcome is then `running`."""
    return _change(pair, run, state, Wanted.RUNNING, seconds)


def cancel(pair: Pair | Ends, run: str, *, state: Path, seconds: float = CANCEL_SECONDS) -> RunRecord:
    """Stop a run as an interruption does, and wait up to `seconds` for its end: its outcome is then `stopped`."""
    return _change(pair, run, state, Wanted.CANCELLED, seconds)


def _change(pair: Pair | Ends, run_id: str, directory: Path, wanted: Wanted, seconds: float) -> RunRecord:
    ends = pair.ends if isinstance(pair, Pair) else pair
    with state_if_any(directory, ends) or nullcontext() as state:
        return request(state, run_id, wanted, seconds)[1]


def _not_running(run: RunRecord) -> UsageError:
    if run.outcome == RunOutcome.CRASHED:
        return UsageError(
            f"run {run.id} is not running: it crashed",
            hint="start it again: it goes on with what this one has left",
        )
    ended = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime((run.ended_ms or 0) / 1000))
    code = "" if run.exit_code is None else f", exit code {int(run.exit_code)}"
    return UsageError(
        f"run {run.id} is not running: it ended at {ended} UTC ({run.outcome}{code})",
        hint="list the runs with sbpair runs list",
    )
