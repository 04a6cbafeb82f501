"""The end of a job: its receipt, counted from the ledger, with the messages that may have been sent twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sbpair.errors import ServiceRefused, StateRefused
from sbpair.replay.archive_layout import DOUBTFUL, HELD, KEY, LEDGER, QUARANTINE, REPORT
from sbpair.replay.ledger import read_held, table_keys
from sbpair.spark.write_options import RowCheck
from sbpair.spark.write_run import BATCH_SCOPE, CLAIMS, READERS, record_event

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.ledger import Key
    from sbpair.spark.write_run import WriteCounts, WriteJob

RECEIPT_SCHEMA = "sbpair/spark-write/1"
MAX_DOUBTFUL = 1_000
"""How many doubtful messages a receipt names. Their total is exact beyond it."""


def commit_job(job: WriteJob, parts: Iterable[WriteCounts], batch: int | None = None) -> dict[str, Any]:
    """Count what the ledger has, and write the receipt. Raises if the counts differ, or messages were refused."""
    counts = list(parts)
    scope = counts[0].scope if counts else BATCH_SCOPE
    archive = job.open()
    under = f"{LEDGER}/{scope}"
    paths = [path for path in archive.files(under) if path.removeprefix(f"{under}/").startswith(f"{job.job}.")]
    with ThreadPoolExecutor(READERS) as readers:
        acknowledged = sum(readers.map(archive.row_count, paths))
    totals = {name: sum(getattr(each, name) for each in counts) for name in ("rows", "sent", "known", "retried")}
    refused = sum(each.refused for each in counts)
    reasons: Counter[str] = sum((Counter(each.reasons) for each in counts), Counter())
    doubtful = _doubtful(archive, scope)
    counted = totals["rows"] == totals["sent"] + totals["known"] + totals["retried"] + refused
    receipt = {
        "schema": RECEIPT_SCHEMA,
        "run": job.run,
        "job": job.job,
        "batch": batch,
        "rows": totals["rows"],
        "acknowledged": acknowledged,
        "acknowledged_before": totals["known"],
        "refused": refused,
        "balanced": counted and acknowledged >= totals["sent"] + totals["retried"],
        "destinations": dict(sum((Counter(each.destinations) for each in counts), Counter())),
        "reasons": dict(reasons),
        "doubtful": doubtful[:MAX_DOUBTFUL],
        "doubtful_total": len(doubtful),
    }
    archive.write_json(f"{REPORT}/{'receipt' if scope == BATCH_SCOPE else scope}.json", receipt)
    archive.delete(CLAIMS, [path for path in archive.sizes(CLAIMS) if f"/{job.job}." in path])
    if not receipt["balanced"]:
        raise StateRefused(
            f"run {job.run}: the ledger has {acknowledged} messages of this job, and its tasks {totals}",
            hint=f"compare {archive.root}/{REPORT} with {archive.root}/{LEDGER}: files of it are missing",
        )
    if refused and not job.keep_refused:
        reason = _first_reason(archive, job, scope)
        raise ServiceRefused(
            f"{refused} of {totals['rows']} messages were refused, and all others sent: {reason}",
            hint=f"see {archive.root}/{QUARANTINE}; correct the rows and run {job.run} again, or add"
            ' .option("refused", "quarantine")',
        )
    record_event(job, "job-committed", **{name: receipt[name] for name in ("batch", "rows", "acknowledged", "refused")})
    return receipt


def abort_job(job: WriteJob, ended_tasks: int = 0, batch: int | None = None) -> None:
    """Record that a job failed. The ledger has the messages that its tasks sent. No-op for one that only checks."""
    if job.check is RowCheck.ONLY:
        return
    record_event(job, "job-failed", batch=batch, ended_tasks=ended_tasks)


def _first_reason(archive: Archive, job: WriteJob, scope: str) -> str:
    """Return why the destination refused a message of this job."""
    paths = (path for path in archive.files(f"{QUARANTINE}/{scope}") if f"/{job.job}." in path)
    reasons = (archive.read_table(path, ["reason"]).column("reason")[0].as_py() for path in paths)
    return str(next(reasons, "for an unknown reason"))


def _doubtful(archive: Archive, scope: str) -> list[dict[str, object]]:
    """Name the messages that may have been sent twice: without an answer, or held when a task was killed."""
    held = _held(archive, scope)
    named = dict.fromkeys((key[3], destination) for key, destination, _ in _rows(archive, DOUBTFUL) if key[0] == scope)
    for key, destination, attempt in _rows(archive, f"{LEDGER}/{scope}") if held else ():
        if held.get(key[1:3], set()) - {attempt}:
            named[key[3], destination] = None
    return [{"message_id": message_id, "destination": destination} for message_id, destination in named]


def _held(archive: Archive, scope: str) -> dict[tuple[int, int], set[str]]:
    """Return the attempts that held a row when they were killed, by number and content of the row."""
    found = defaultdict(set)
    for path in archive.files(HELD):
        attempt = path.removeprefix(f"{HELD}/").partition(".")[0]
        with suppress(StateRefused):  # a kill cut its last line short, before those were sent
            for key in read_held(archive, path):
                if key[0] == scope:
                    found[key[1:3]].add(attempt)
    return found


def _rows(archive: Archive, under: str) -> Iterator[tuple[Key, str | None, str]]:
    for path in archive.files(under):
        table = archive.read_table(path, [*KEY, "destination", "attempt"])
        columns = (table.column(name).to_pylist() for name in ("destination", "attempt"))
        yield from zip(table_keys(table), *columns, strict=True)
