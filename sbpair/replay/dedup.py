"""Duplicates by message id: marked as deduplicated once the primary has accepted the first copy.

Invariant: not before. If the first copy was refused or expired, its duplicate stays unsent and a resume sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sbpair.replay.archive_layout import DEDUPLICATED, LEDGER
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.schema import KEY

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

FIRST = tuple(f"first_{name}" for name in KEY)
COLUMNS = (*KEY, "destination", "shard", *FIRST, "first_shard")
ORDER = ("first_shard", "shard")
"""So that a task reads the ledger of one shard after the other."""

DUPLICATE_REASON = "another message with this id went to the same destination before it"
MAX_CHUNK = 10_000


def dedup_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over rows of COLUMNS, in ORDER."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        messages = mark_deduplicated(job.open(), job.run.shards, batches)
        yield pa.RecordBatch.from_pydict({"queue": [""], "messages": [messages]})

    return task


def mark_deduplicated(archive: Archive, shards: int, batches: Iterator[Any]) -> int:
    """Record the duplicates whose first copy was accepted. Returns how many. Raises MachineLacks."""
    ledger, written = Ledger(archive, shards), 0
    by_shards = groupby(_rows(batches), key=lambda row: (row[len(KEY) + 1], row[-1]))
    for (shard, first_shard), rows in by_shards:
        ended, accepted = ledger.ended_keys(shard), ledger.ended_keys(first_shard, [LEDGER])
        entries: list[Entry] = []
        for *key_parts, destination, _, queue, number, enqueued_at, message_id, _ in rows:
            key = tuple(key_parts)
            if key not in ended and (queue, number, enqueued_at, message_id) in accepted:
                entries.append(Entry(key, destination, DUPLICATE_REASON))
        for start in range(0, len(entries), MAX_CHUNK):
            ledger.write(DEDUPLICATED, shard, entries[start : start + MAX_CHUNK])
        written += len(entries)
    return written


def _rows(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
