"""The status and proof of a run, from its files alone, and requests to stop it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sbpair.errors import UsageError
from sbpair.replay.archive_layout import DRAINED_FILE, RECEIPT_FILE, REMOVED_FILE, STOP_FILE
from sbpair.replay.progress import drain_watcher, move_watcher, send_watcher
from sbpair.replay.run import ReplayRun, load_run
from sbpair.replay.verify import verify

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.proof import Proof


def run_status(archive: Archive) -> dict[str, Any]:
    """Return the phase and the counts of a run as its JSON contract."""
    run = load_run(archive)
    drained, stopped = archive.exists(DRAINED_FILE), archive.stop_requested()
    archived, sent = drain_watcher(archive).sample(), send_watcher(archive).sample()
    phase = _phase(archive, sent.files)
    if run.direct:
        archived, phase = move_watcher(archive).sample(), "moved" if drained else "move"
    return {
        "run": run.id,
        "pair": run.pair,
        "mode": run.options.mode.value,
        "phase": phase,
        "stopped": stopped,
        "archived_rows": 0 if run.direct else archived.messages,
        "segments": 0 if run.direct else archived.files,
        "acknowledged_rows": sent.messages,
        "queues": archived.by,
    }


def _phase(archive: Archive, chunks_sent: int) -> str:
    if archive.exists(REMOVED_FILE):
        return "removed"
    if archive.exists(RECEIPT_FILE) and archive.read_json(RECEIPT_FILE).get("balanced") is True:
        return "proved"
    if chunks_sent:
        return "send"
    return "drained" if archive.exists(DRAINED_FILE) else "drain"


def prove_run(archive: Archive) -> tuple[ReplayRun, Proof]:
    """Verify a run from its files alone. Raises UsageError for a direct run."""
    run = load_run(archive)
    if run.direct:
        raise UsageError(
            f"run {run.id} is direct: it archived no messages that would prove it",
            hint=f"'sbpair replay status {run.id}' shows its ledger's counts",
        )
    return run, verify(archive, run)


def request_stop(archive: Archive) -> None:
    """Request a stop: the run's tasks finish the messages they hold."""
    load_run(archive)
    archive.write(STOP_FILE, b"")
