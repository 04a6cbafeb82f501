"""Runs that have not done all of their work: replays whose archive holds messages, and paused runs.

Invariant: reading them contacts no namespace, needs the standard library alone, and changes nothing. A replay is left
out only where a receipt shows that nothing is left to send; a count or an archive that is not known is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbpair.errors import MachineLacks, SbpairError, StateRefused
from sbpair.operating_system.files import read_document
from sbpair.runs.database import StateOwner
from sbpair.runs.run_log import all_runs
from sbpair.runs.run_record import LIVE, RunRecord, is_finished, left_unsent, may_wait

# Files of a run in its archive, as `replay.archive` names them, which needs pyarrow.
RUN_FILE, RECEIPT_FILE, REMOVED_FILE = "run.json", "report/receipt.json", "report/removed.json"

MAX_RECEIPT_BYTES = 64 * 1024 * 1024
"""A receipt lists up to 20,000 messages in doubt."""

_RESTORE = "restore it from a copy"

PAUSED, INTERRUPTED = "paused", "interrupted"


Read = Callable[[str], Mapping[str, Any] | None]
"""Reads a JSON object of one run; None without the file. Raises SbpairError."""


def unfinished_receipt(read: Read) -> Mapping[str, Any] | None:
    """Return the receipt of an unfinished run, {} if it has none; None for a finished run."""
    receipt = read(RECEIPT_FILE)
    # gc keeps the receipt. A resume removes it for a moment, and puts it back if gc has removed the messages.
    if is_finished(receipt) or read(REMOVED_FILE) is not None:
        return None
    return receipt or {}


def local_directory(archive: str) -> Path | None:
    """Return the directory of an archive on this machine; None for that of an object store."""
    path = archive.removeprefix("file://") if archive.startswith("file:///") else archive.removeprefix("file:")
    return None if "://" in path else Path(path)


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run with work left. `state` is running, paused or interrupted.

    `archive` is empty for a paused syphon or move, whose messages are in their source. `messages` wait in the archive:
    None is unknown, and about so many unless `exact`, as of `counted_ms` if that is not None. `note` is a remark, such
    as why the archive could not be read.
    """

    run: str
    state: str
    archive: str = ""
    messages: int | None = 0
    exact: bool = True
    counted_ms: int | None = None
    note: str = ""

    @property
    def holds_messages(self) -> bool:
        """Whether messages wait in its archive, or may."""
        return self.messages != 0


def read_waiting(owner: StateOwner) -> tuple[tuple[WaitingRun, ...], str]:
    """Return the runs with work left, the latest first, and why they are not known; "" if they are."""
    try:
        with owner.open_if_any() or nullcontext() as state:
            return (waiting_runs(all_runs(state)) if state else ()), ""
    except SbpairError as error:
        return (), error.message


def waiting_runs(runs: Iterable[RunRecord]) -> tuple[WaitingRun, ...]:
    """Return the runs with work left, in the order of `runs`."""
    return tuple(found for run in runs if (found := _waiting(run)) is not None)


def _waiting(run: RunRecord) -> WaitingRun | None:
    state = run.outcome.value if run.outcome in LIVE else INTERRUPTED
    with run.reading():
        if run.kind == "replay" and (state != INTERRUPTED or may_wait(run.receipt)):
            return _archived(run, state, run.receipt or {})
    return WaitingRun(run.id, state) if state == PAUSED else None


def _archived(run: RunRecord, state: str, known: Mapping[str, Any]) -> WaitingRun | None:
    archive, counted_ms, note = str(known.get("archive", "")), known.get("counted_ms", run.ended_ms), ""
    directory, exact = local_directory(archive), "run" in known
    if directory is not None and state == INTERRUPTED:
        try:
            found = _read_end(directory / run.id)
        except (SbpairError, TypeError) as error:
            note = error.message if isinstance(error, SbpairError) else f"the receipt of {directory / run.id} is broken"
        else:
            if found is None:
                return None
            if found:
                known, counted_ms, exact = found, None, True
    if run.settings.get("mode") == "direct":
        return WaitingRun(run.id, state, archive, note=note or "direct: a resume knows what was sent of the backlog")
    messages = left_unsent(known) if exact else known.get("unsent") or None
    return WaitingRun(run.id, state, archive, messages, exact, counted_ms, note)


def _read_end(directory: Path) -> Mapping[str, Any] | None:
    """Return what `unfinished_receipt` returns. Raises MachineLacks without the run's directory."""
    if read_object(directory / RUN_FILE) is None:
        raise MachineLacks(f"{directory} is not there", hint="mount the archive, or correct its path")
    return unfinished_receipt(lambda name: read_object(directory / name))


def read_object(path: Path) -> Mapping[str, Any] | None:
    """Read a JSON object; None without the file. Raises StateRefused for anything else, UsageError, MachineLacks."""
    try:
        found = json.loads(read_document(path, hint=_RESTORE, missing="null", max_bytes=MAX_RECEIPT_BYTES))
    except (ValueError, RecursionError) as error:
        raise StateRefused(f"{path} is broken: {error}", hint=_RESTORE) from error
    if not isinstance(found, dict | None):
        raise StateRefused(f"{path} is broken: expected a JSON object", hint=_RESTORE)
    return found
