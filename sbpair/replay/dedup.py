"""What repeats another message's id and is not sent: written off once that other one has been accepted.

The law: not before. Where that one was refused, or came past its time, the repetition is left, and a resume sends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sbpair.replay.archive import DEDUPLICATED, LEDGER
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.schema import KEY

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

FIRST = tuple(f"first_{name}" for name in KEY)
COLUMNS = (*KEY, "destination", "shard", *FIRST, "first_shard")
ORDER = ("first_shard", "shard")
"""So a task reads the ledger of one shard after the other."""

AGAIN = "another message with this id went to the same destination before it"
MAX_CHUNK = 10_000


def write_off(job: TaskJob) -> Any:
    """For `mapInArrow` over rows of COLUMNS, in ORDER."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        messages = written_off(job.open(), job.run.shards, batches)
        yield pa.RecordBatch.from_pydict({"queue": [""], "messages": [messages]})

    return task


def written_off(archive: Archive, shards: int, batches: Iterator[Any]) -> int:
    """How many were. Raises MachineLacks."""
    ledger, written = Ledger(archive, shards), 0
    by_shards = groupby(_rows(batches), key=lambda row: (row[len(KEY) + 1], row[-1]))
    for (shard, first_shard), rows in by_shards:
        done, accepted = ledger.done(shard), ledger.done(first_shard, [LEDGER])
        entries: list[Entry] = []
        for *key_parts, destination, _, queue, number, enqueued_at, message_id, _ in rows:
            key = tuple(key_parts)
            if key not in done and (queue, number, enqueued_at, message_id) in accepted:
                entries.append(Entry(key, destination, AGAIN))
        for start in range(0, len(entries), MAX_CHUNK):
            ledger.write(DEDUPLICATED, shard, entries[start : start + MAX_CHUNK])
        written += len(entries)
    return written


def _rows(batches: Iterator[Any]) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
