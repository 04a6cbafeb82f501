"""The runs of a pair's movers: time, outcome, receipt, timeline and messages left in doubt.

Invariants: a live run holds the lock of its own file. A run recorded as running without that lock has crashed; the next
run records that. Its figures are then the last it wrote. A timeline has the figures of every few seconds, and at most
MAX_SAMPLES; times in which nothing changes have none, except for their two ends. Runs are in the order in which they
were recorded, whatever the clock of this machine said: their times are for people.
"""

from __future__ import annotations

import json
import logging
import random
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from sbpair.errors import ExitCode, SbpairError, Unsafe, UsageError
from sbpair.operating_system.signals import ended_code, stopped_by_deadline
from sbpair.runs.database import Row, RunDatabase, now_ms
from sbpair.runs.file_lease import Lock, is_locked
from sbpair.runs.journal import ACCEPTED, DOUBTFUL, SENDING, TWICE, doubts_of
from sbpair.runs.run_record import LIVE, MOVED, RunOutcome, RunRecord, may_wait, outcome_of

log = logging.getLogger(__name__)

MAX_KEPT = 200
"""Number of runs kept, with the messages they left in doubt; replays that are not finished are kept besides."""

RESERVE_BYTES = 256 * 1024
"""Size of the file of a live run: a full disk has this room for the record of its end."""

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
"""Excludes letters that look like digits or other letters."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def new_id(started_ms: int, chance: Callable[[], float] = random.random) -> str:
    """Return an id such as `260730-182237-7k2m`: the second in UTC, so that ids sort by start, and four random
    characters.
    """
    suffix = "".join(ALPHABET[int(chance() * len(ALPHABET))] for _ in range(4))
    return f"{time.strftime('%y%m%d-%H%M%S', time.gmtime(started_ms / 1000))}-{suffix}"


def check_run_name(name: str, option: str = "--run") -> str:
    """Return the name that a run was given, which is its id. Raises UsageError."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{option}: {name!r} is not the name of a run",
            hint="use up to 64 letters, digits, '.', '-' and '_', with a letter or a digit first",
        )
    return name


# A resumed replay goes on with its row.
_INSERT = (
    "INSERT INTO runs (id, command, started_ms, outcome) VALUES (?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
    " command = excluded.command, ended_ms = NULL, outcome = excluded.outcome, exit_code = NULL, error = ''"
)


class RunEntry:
    """The record of the current run. `unreported` are crashed runs of which no receipt has told yet.

    `earlier_doubts` are messages that they left in doubt. `earlier` is the receipt of a resumed run, {} of a new one.

    A record that cannot be written later does not fail the run: its receipt is still returned. If not even its end can
    be written, the run counts as crashed.
    """

    def __init__(
        self, state: RunDatabase, command: str, *, run_id: str | None = None, clock_ms: Callable[[], int] = now_ms
    ) -> None:
        """Record that a run has begun."""
        self._state = state
        self._clock_ms = clock_ms
        self.id = run_id or new_id(clock_ms())
        self._running_file = _running_file(state, self.id)
        self._lock = Lock(self._running_file, RESERVE_BYTES * " ")
        try:
            self.unreported = _record_crashes(state)
            self.earlier_doubts = [each for run in self.unreported for each in doubts_of(state, run, ended=True)]
            state.write(
                (_INSERT, [(self.id, command, clock_ms(), RunOutcome.RUNNING)]),
                ("DELETE FROM controls WHERE run = ?", [(self.id,)]),  # those of a resumed replay
            )
            _trim(state)
            self._timeline: TimelineWriter | None = TimelineWriter(state, self.id)
            self.earlier = read_run(state, self.id).receipt or {}
        except BaseException:
            self.close()
            raise

    def record(self, receipt: Mapping[str, object]) -> None:
        """Write the current figures: a crash leaves the last ones written."""
        self._try("UPDATE runs SET receipt = ? WHERE id = ?", (json.dumps(receipt), self.id))

    def describe(self, settings: Mapping[str, object]) -> None:
        """Write the options in force, which hold no secret."""
        self._try("UPDATE runs SET settings = ? WHERE id = ?", (json.dumps(settings), self.id))

    def sample(self, figures: Figures, *, last: bool = False) -> None:
        """Add figures to the timeline. After a failure, the run goes on without one."""
        if self._timeline is not None:
            try:
                self._timeline.add(self._clock_ms(), figures, last=last)
            except SbpairError as error:
                self._timeline = None
                log.warning("run %s has no further timeline: %s", self.id, error.message)

    def finish(
        self, receipt: Mapping[str, object] | None, exit_code: int, *, stopped: bool = False, error: str = ""
    ) -> None:
        """Write how the run ended. `stopped` marks a requested stop; without a receipt, the last one stays."""
        exit_code, error = ended_code(exit_code), error or (stopped_by_deadline() if stopped else "")
        outcome = outcome_of(exit_code, stopped=stopped)
        # The file has no partial runs: earlier versions could not read them.
        stored = RunOutcome.DONE if outcome is RunOutcome.PARTIAL else outcome
        written = None if receipt is None else json.dumps(receipt)
        statement = (
            "UPDATE runs SET ended_ms = ?, outcome = ?, exit_code = ?, error = ?, receipt = coalesce(?, receipt)"
            " WHERE id = ?"
        )
        row = (self._clock_ms(), stored, exit_code, error, written, self.id)
        try:
            self._state.write((statement, [row]))
        except SbpairError:
            self._lock.empty()
            self._try(statement, row)

    def close(self) -> None:
        """Release the run's file. A run that has not finished counts as crashed."""
        self._running_file.unlink(missing_ok=True)
        self._lock.release()

    def _try(self, statement: str, row: Row) -> None:
        try:
            self._state.write((statement, [row]))
        except SbpairError as error:
            log.warning("run %s cannot be recorded: %s", self.id, error.message)


def all_runs(state: RunDatabase) -> list[RunRecord]:
    """Return all kept runs, the latest first."""
    return [_run(state, row) for row in state.read("SELECT * FROM runs ORDER BY rowid DESC")]


def find_run(state: RunDatabase | None, start: str) -> RunRecord:
    """Return the run whose id begins with `start`. Raises UsageError if there is none or more than one."""
    runs = {run.id: run for run in all_runs(state)} if state else {}
    found = match_id(runs, start)
    if found is None:
        raise UsageError(f"run {start!r} does not exist", hint="list the runs with sbpair runs list")
    return runs[found]


def read_run(state: RunDatabase, run_id: str) -> RunRecord:
    """Return the run with this id."""
    [row] = state.read("SELECT * FROM runs WHERE id = ?", (run_id,))
    return _run(state, row)


def delivered_elsewhere(state: RunDatabase) -> str:
    """Return the namespace that the last run with --to delivered to; "" after one with --primary-is-back."""
    for [settings] in state.read("SELECT settings FROM runs ORDER BY rowid DESC"):
        with state.decoding():
            known = json.loads(settings or "{}")
            if known.get("to") or known.get("primary_is_back"):
                return str(known.get("to", ""))
    return ""


def check_returned(state: RunDatabase, primary: str) -> None:
    """Raise Unsafe for a primary that was lost, until a run was confirmed to use it again."""
    if to := delivered_elsewhere(state):
        raise Unsafe(
            f"the backlog was last delivered to {to}, and {primary} was lost",
            hint="see what both have with sbpair status; then add --primary-is-back, once, or go on with --to",
        )


def match_id(ids: Iterable[str], start: str) -> str | None:
    """Return the id that is or begins with `start`, in any case, or None. Raises UsageError if more than one begins."""
    found = [each for each in ids if start and each.lower().startswith(start.lower())]
    found = [start] if start in found else found
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} runs begin with {start!r}", hint=f"give more of the id: {' or '.join(found[:3])}"
        )
    return found[0] if found else None


def _run(state: RunDatabase, row: Row) -> RunRecord:
    with state.decoding():
        return _decoded(state, row)


def _decoded(state: RunDatabase, row: Row) -> RunRecord:
    run_id, command, started, ended, outcome, exit_code, error, receipt, settings = row
    if outcome == RunOutcome.RUNNING:
        paused = state.read("SELECT run FROM controls WHERE run = ? AND state = 'paused'", (run_id,))
        is_live = is_locked(_running_file(state, run_id))
        outcome = (RunOutcome.PAUSED if paused else RunOutcome.RUNNING) if is_live else RunOutcome.CRASHED
    elif exit_code is not None:
        outcome = outcome_of(exit_code, stopped=outcome == RunOutcome.STOPPED)
    doubts = doubts_of(state, run_id, ended=outcome not in LIVE)
    read, known = (None if each is None else json.loads(each) for each in (receipt, settings))
    _check_types(str, run_id, command, error)
    _check_types(int, started, ended or 0, exit_code or 0)
    _check_types(dict, read or {}, known or {})
    if not command.split():
        raise ValueError("a run has no command")
    end = (RunOutcome(outcome), exit_code, error)
    return RunRecord(run_id, command, started, ended, *end, read, known or {}, doubts)


def _check_types(expected: type, *values: object) -> None:
    for value in values:
        if not isinstance(value, expected):
            raise TypeError(f"expected {expected.__name__}, got {value!r}")


WITH_RECEIPT = (*MOVED, ExitCode.INTERRUPTED)
"""Exit codes of runs that surely ended with a receipt, as a stopped one did: earlier doubts were reported there."""


def _record_crashes(state: RunDatabase) -> list[str]:
    """Mark crashed runs, and return those of which no receipt has told yet."""
    for [run_id] in state.read("SELECT id FROM runs WHERE outcome = ?", (RunOutcome.RUNNING,)):
        if not is_locked(_running_file(state, run_id)):
            state.write(("UPDATE runs SET outcome = ? WHERE id = ?", [(RunOutcome.CRASHED, run_id)]))
            _running_file(state, run_id).unlink(missing_ok=True)
    # Those of crashes, and of runs whose last entries a full disk did not take.
    of_ended = "state = ? AND run IN (SELECT id FROM runs WHERE outcome <> ?)"
    row = (DOUBTFUL, SENDING, RunOutcome.RUNNING)
    state.write((f"UPDATE flights SET state = ? WHERE {of_ended}", [row]))  # noqa: S608
    unreported = state.read(
        "SELECT id FROM runs WHERE outcome = ? AND rowid > "
        "(SELECT coalesce(max(rowid), 0) FROM runs WHERE (exit_code IN (?, ?, ?) OR outcome = ?)"
        " AND command NOT LIKE 'replay%') ORDER BY id",
        (RunOutcome.CRASHED, *WITH_RECEIPT, RunOutcome.STOPPED),
    )
    return [run_id for [run_id] in unreported]


def _trim(state: RunDatabase) -> None:
    kept = "SELECT id FROM runs ORDER BY rowid DESC LIMIT ?"
    older = f"SELECT id, command, receipt FROM runs WHERE outcome <> ? AND id NOT IN ({kept})"  # noqa: S608
    found = state.read(older, (RunOutcome.RUNNING, MAX_KEPT))
    state.write(
        ("DELETE FROM runs WHERE id = ?", [(run_id,) for run_id, *known in found if not _is_unfinished(*known)]),
        ("DELETE FROM flights WHERE state NOT IN (?, ?) AND run NOT IN (SELECT id FROM runs)", [(ACCEPTED, TWICE)]),
        ("DELETE FROM samples WHERE run NOT IN (SELECT id FROM runs)", [()]),
        ("DELETE FROM controls WHERE run NOT IN (SELECT id FROM runs)", [()]),
    )


def _is_unfinished(command: str, receipt: str | None) -> bool:
    """Return whether it is a replay whose archive may hold messages, as far as its record can be read."""
    with suppress(ValueError, TypeError, AttributeError):
        return command.startswith("replay") and may_wait(json.loads(receipt or "null"))
    return False


def is_running(directory: Path, run_id: str) -> bool:
    """Return whether a live process records this run in that state directory. Raises MachineLacks."""
    return is_locked(directory / f"{run_id}.running")


def _running_file(state: RunDatabase, run_id: str) -> Path:
    return state.directory / f"{run_id}.running"


MAX_SAMPLES = 2_000
"""At this number the timeline is divided into a quarter as many parts; each keeps its first and its last sample."""

SPACING_MS = 2_000
"""The time between two samples at first."""

MAX_DESTINATIONS = 12
"""How many destinations a sample has at most: those with the most messages so far."""

_INSERT_SAMPLE = "INSERT OR REPLACE INTO samples VALUES (?, ?, ?)"
_THIN = """DELETE FROM samples WHERE run = ?1
AND at_ms NOT IN (SELECT min(at_ms) FROM samples WHERE run = ?1 GROUP BY at_ms / ?2)
AND at_ms NOT IN (SELECT max(at_ms) FROM samples WHERE run = ?1 GROUP BY at_ms / ?2)"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run at a moment, all since its start. `counts` are messages by bucket.

    `destinations` has the messages that each has accepted. `depth` is how many messages the sources have, `oldest_ms`
    when the oldest of them was enqueued, in ms since 1970; None if unknown. `limit` is what slows the run down, if
    anything does.
    """

    counts: Mapping[str, int]
    destinations: Mapping[str, int] = field(default_factory=dict)
    depth: int | None = None
    oldest_ms: int | None = None
    limit: str = ""

    def encode(self) -> str:
        largest = sorted(self.destinations.items(), key=lambda each: (-each[1], each[0]))[:MAX_DESTINATIONS]
        return json.dumps(asdict(replace(self, destinations=dict(largest))), separators=(",", ":"))


class Sample(NamedTuple):
    """Figures and their time, in ms since 1970."""

    at_ms: int
    figures: Figures


class _Encoded(NamedTuple):
    at_ms: int
    figures: str


class TimelineWriter:
    """Writes the samples of one run. That of a resumed run goes on where it stopped. Raises MachineLacks."""

    def __init__(self, state: RunDatabase, run: str, max_samples: int = MAX_SAMPLES) -> None:
        self._state, self._run, self._max_samples = state, run, max_samples
        self._spacing_ms = SPACING_MS
        [[self._count]] = state.read("SELECT count(*) FROM samples WHERE run = ?", (run,))
        self._written: _Encoded | None = None
        self._seen: _Encoded | None = None

    def add(self, at_ms: int, figures: Figures, *, last: bool = False) -> None:
        """Take the figures of this moment; write them if it is time, and they have changed or are the last."""
        now, before, written = _Encoded(at_ms, figures.encode()), self._seen, self._written
        self._seen = now
        if written is not None:
            early = at_ms - written.at_ms < self._spacing_ms
            if not last and (early or now.figures == written.figures):
                return
            if before and before.figures == written.figures and before.at_ms - written.at_ms >= self._spacing_ms:
                self._write(before)  # the end of a time without changes
        self._write(now)

    def _write(self, sample: _Encoded) -> None:
        if self._count >= self._max_samples:
            self._thin()
        self._state.write((_INSERT_SAMPLE, [(self._run, *sample)]))
        self._written = sample
        self._count += 1

    def _thin(self) -> None:
        [[first, last]] = self._state.read("SELECT min(at_ms), max(at_ms) FROM samples WHERE run = ?", (self._run,))
        # One part more than divides evenly, as the first may begin before the first sample.
        part_ms = max(2 * self._spacing_ms, -(-4 * (last - first) // (self._max_samples - 4)))
        self._state.write((_THIN, [(self._run, part_ms)]))
        [[self._count]] = self._state.read("SELECT count(*) FROM samples WHERE run = ?", (self._run,))
        self._spacing_ms = part_ms // 2


def timeline_of(state: RunDatabase, run: str) -> list[Sample]:
    """Return the samples of a run, the earliest first."""
    rows = state.read("SELECT at_ms, figures FROM samples WHERE run = ? ORDER BY at_ms", (run,))
    with state.decoding():
        return [Sample(at_ms, Figures(**json.loads(figures))) for at_ms, figures in rows]
