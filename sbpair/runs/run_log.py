"""The runs of a pair's movers: who ran when, how it ended, what it moved and what it left in doubt.

The law: a run that lives holds the lock of a file of its own. One that is down as running and does not, has crashed,
and is so written down by the next run; its figures are the last that it wrote itself.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.errors import ExitCode, SbpairError, UsageError
from sbpair.runs.database import now_ms
from sbpair.runs.journal import ACCEPTED, DOUBTFUL, SENDING, Doubt, doubts_of
from sbpair.runs.lease import Lock, is_locked

if TYPE_CHECKING:
    from sbpair.runs.database import Row, RunDatabase

log = logging.getLogger(__name__)

MAX_KEPT = 200
"""How many runs are kept, with what they left in doubt."""

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without the letters that are taken for figures, or for others."""

MOVED = (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS)
"""Exit codes of a run that came to its end, if not with every message."""


class RunOutcome(StrEnum):
    """How a run ended. The values are part of the JSON contract."""

    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"
    CRASHED = "crashed"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run. Times are ms since 1970; `ended_ms` and `exit_code` are None for one that runs or has crashed.

    `error` is why it failed, and `receipt` is what it had written down last.
    """

    id: str
    command: str
    started_ms: int
    ended_ms: int | None
    outcome: RunOutcome
    exit_code: int | None
    error: str
    receipt: dict[str, object] | None
    doubts: tuple[Doubt, ...]


def new_id(started_ms: int, chance: Callable[[], float] = random.random) -> str:
    """`260730-182237-7k2m`: the second in UTC, so that ids sort as their runs do, and four characters of chance."""
    suffix = "".join(ALPHABET[int(chance() * len(ALPHABET))] for _ in range(4))
    return f"{time.strftime('%y%m%d-%H%M%S', time.gmtime(started_ms / 1000))}-{suffix}"


class RunEntry:
    """A run that is going on, and its place in the state file. `earlier_doubts` is what crashed ones left in doubt.

    What cannot be written down at the end, or on the way, does not fail the run: its receipt is still to be had.
    """

    def __init__(
        self, state: RunDatabase, command: str, *, run_id: str | None = None, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        """Write down that a run has begun."""
        self._state = state
        self._clock_ms = clock_ms
        self.id = run_id or new_id(clock_ms())
        self._running_file = _running_file(state, self.id)
        self._lock = Lock(self._running_file)
        try:
            self.earlier_doubts = _record_crashes(state)
            row = (self.id, command, clock_ms(), None, RunOutcome.RUNNING, None, "", None)
            state.write(("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [row]))
            _trim(state)
        except BaseException:
            self.close()
            raise

    def record(self, receipt: Mapping[str, object]) -> None:
        """Write the figures down as they are now: those are the ones that a crash leaves."""
        self._try("UPDATE runs SET receipt = ? WHERE id = ?", (json.dumps(receipt), self.id))

    def finish(
        self, receipt: Mapping[str, object] | None, exit_code: int, *, stopped: bool = False, error: str = ""
    ) -> None:
        """Write down how it ended. `stopped` says that it was asked to; without a receipt, the last one stays."""
        ended = RunOutcome.DONE if exit_code in MOVED else RunOutcome.FAILED
        self._try(
            "UPDATE runs SET ended_ms = ?, outcome = ?, exit_code = ?, error = ?, receipt = coalesce(?, receipt)"
            " WHERE id = ?",
            (
                self._clock_ms(),
                RunOutcome.STOPPED if stopped else ended,
                exit_code,
                error,
                None if receipt is None else json.dumps(receipt),
                self.id,
            ),
        )

    def close(self) -> None:
        """Live no longer. Unless it has finished, it has crashed."""
        self._running_file.unlink(missing_ok=True)
        self._lock.release()

    def _try(self, statement: str, row: Row) -> None:
        try:
            self._state.write((statement, [row]))
        except SbpairError as error:
            log.warning("run %s cannot be written down: %s", self.id, error.message)


def all_runs(state: RunDatabase) -> list[RunRecord]:
    """All runs that are kept, the latest first."""
    return [_run(state, row) for row in state.read("SELECT * FROM runs ORDER BY started_ms DESC, id DESC")]


def find_run(state: RunDatabase | None, start: str) -> RunRecord:
    """The run whose id begins so. Raises UsageError where there is none, or more than one."""
    found = [run for run in all_runs(state) if run.id.startswith(start.lower())] if state and start else []
    if not found:
        raise UsageError(f"there is no run {start!r}", hint="'sbpair runs list' has those that are kept")
    if len(found) > 1:
        some = " or ".join(run.id for run in found[:3])
        raise UsageError(f"{len(found)} runs begin with {start!r}", hint=f"say more of the id: {some}")
    return found[0]


def _run(state: RunDatabase, row: Row) -> RunRecord:
    run_id, command, started, ended, outcome, exit_code, error, receipt = row
    if outcome == RunOutcome.RUNNING and not is_locked(_running_file(state, run_id)):
        outcome = RunOutcome.CRASHED
    doubts = doubts_of(state, run_id, gone=outcome != RunOutcome.RUNNING)
    read = None if receipt is None else json.loads(receipt)
    return RunRecord(run_id, command, started, ended, RunOutcome(outcome), exit_code, error, read, tuple(doubts))


WITH_RECEIPT = (*MOVED, ExitCode.INTERRUPTED)
"""Exit codes of runs that have ended with a receipt for sure: what was left in doubt before them has been told."""


def _record_crashes(state: RunDatabase) -> list[Doubt]:
    """Write down which runs have crashed, and answer what those left in doubt that no receipt has told of yet."""
    for [run_id] in state.read("SELECT id FROM runs WHERE outcome = ?", (RunOutcome.RUNNING,)):
        if not is_locked(_running_file(state, run_id)):
            state.write(
                ("UPDATE runs SET outcome = ? WHERE id = ?", [(RunOutcome.CRASHED, run_id)]),
                ("UPDATE flights SET state = ? WHERE run = ? AND state = ?", [(DOUBTFUL, run_id, SENDING)]),
            )
            _running_file(state, run_id).unlink(missing_ok=True)
    unreported = state.read(
        "SELECT id FROM runs WHERE outcome = ? AND started_ms >= "
        "(SELECT coalesce(max(started_ms), 0) FROM runs WHERE exit_code IN (?, ?, ?)) ORDER BY id",
        (RunOutcome.CRASHED, *WITH_RECEIPT),
    )
    return [doubt for [run_id] in unreported for doubt in doubts_of(state, run_id, gone=True)]


def _trim(state: RunDatabase) -> None:
    kept = "SELECT id FROM runs ORDER BY started_ms DESC, id DESC LIMIT ?"
    state.write(
        (f"DELETE FROM runs WHERE outcome <> ? AND id NOT IN ({kept})", [(RunOutcome.RUNNING, MAX_KEPT)]),  # noqa: S608
        ("DELETE FROM flights WHERE state <> ? AND run NOT IN (SELECT id FROM runs)", [(ACCEPTED,)]),
    )


def _running_file(state: RunDatabase, run_id: str) -> Path:
    """The file that a run has locked for as long as it lives."""
    return state.directory / f"{run_id}.running"
