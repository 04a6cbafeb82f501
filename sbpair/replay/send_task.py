"""One task of the send: the rows of its shards, moved from the archive to the primary by the syphon's mover.

Invariant: a duplicate by message id is marked as deduplicated only once the primary has accepted the first copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from sbpair.azure.credentials import token_getter
from sbpair.move.context import MoveContext
from sbpair.move.missing_destinations import MAX_MISSING, MissingDestinations
from sbpair.move.mover import Mover
from sbpair.move.rate_limit import RateLimiter
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.receipt import NamedMessage, Tally
from sbpair.replay.archive_layout import DEDUPLICATED, KEY, LEDGER
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.shard_plan import DUPLICATE_COLUMNS
from sbpair.replay.shard_source import ShardSource
from sbpair.replay.spark_task import column_rows, progress_task, run_in_worker
from sbpair.replay.task_lease import TaskLease
from sbpair.runs.journal import Journal

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

MAX_DESTINATION_FAILURES = 5  # failures in a row of a destination after which the task leaves the rest to a resume
WAIT_SECONDS = 1.0

DUPLICATE_REASON = "another message with this id went to the same destination before it"
MAX_CHUNK = 10_000  # duplicates marked in one file


def send_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over rows of whole shards, each shard in order."""
    return progress_task(lambda batches: [("", run_in_worker(send_batches(job, batches)))])


def dedup_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over rows of DUPLICATE_COLUMNS, in DUPLICATE_ORDER."""
    return progress_task(lambda batches: [("", mark_deduplicated(job.open(), job.run.shards, batches))])


async def send_batches(job: TaskJob, batches: Iterator[Any]) -> int:
    """Return how many messages the primary accepted. Raises if none can be sent, or the ledger cannot be written."""
    ledger = Ledger(job.open(), job.run.shards)
    source = ShardSource(batches, job.open(), ledger)
    lease = TaskLease(job.open(), job.heartbeat)
    await lease.wait_confirmed()
    context = move_context(job, lease, ledger)
    async with token_getter(job.pair()) as get_token:
        primary = RawPrimary(job.primary.endpoint(), get_token=get_token)
        try:
            await _move(source, primary, context)
        finally:
            await primary.close()
            await source.write_accepted()
    if source.error is not None:
        raise source.error
    ledger.write_doubtful()
    source.close()
    return context.tally.receipt().sent


def move_context(job: TaskJob, lease: TaskLease, ledger: Ledger) -> MoveContext:
    """Return the context of a mover that has a ledger instead of a journal."""
    options = job.run.options
    rate_limiter = None
    if options.rate is not None:
        rate = options.rate / max(job.tasks, job.senders)
        rate_limiter = RateLimiter(asyncio.get_running_loop().time(), rate=rate)
    return MoveContext(
        namespace=job.run.pair["secondary"],
        tally=LedgerTally(ledger),
        journal=Journal(may_send=lease.check),
        ordered=options.ordered,
        ttl=options.ttl,
        rate_limiter=rate_limiter,
        missing=MissingDestinations(None if options.allow_missing else MAX_MISSING),
    )


class LedgerTally(Tally):
    """A tally that lists in the ledger each message sent without an answer: it may arrive twice."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def doubtful(self, named: NamedMessage) -> None:
        key = (named.queue, named.sequence_number, 0, named.message_id)
        self._ledger.add_doubtful(Entry(key, named.destination, named.reason))


async def _move(source: ShardSource, primary: RawPrimary, context: MoveContext) -> None:
    async with asyncio.TaskGroup() as tasks:
        mover = Mover(source, primary, tasks, context)
        while mover.fatal is None and source.error is None and not source.stop_requested():
            if mover.room == 0 or source.ended:
                if mover.stuck(MAX_DESTINATION_FAILURES) or (source.ended and not mover.held):
                    break
                await mover.wait_changed(WAIT_SECONDS)
                continue
            messages = await source.receive(mover.room)
            if messages:
                mover.accept(messages)
        await mover.finish()
        mover.abandon_all()
    if mover.fatal is not None:
        raise mover.fatal


def mark_deduplicated(archive: Archive, shards: int, batches: Iterator[Any]) -> int:
    """Record the duplicates whose first copy was accepted, and return how many: a resume sends the others."""
    ledger, written = Ledger(archive, shards), 0
    by_shards = groupby(column_rows(batches, DUPLICATE_COLUMNS), key=lambda row: (row[len(KEY) + 1], row[-1]))
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
