"""One task of a write: the rows of a partition, sent by the replay's send task with its ledger.

Invariant: a row whose key the ledger has is not sent again. An attempt reads the ledger before it sends, and sends only
while its claim on the partition is confirmed, so two attempts never send at the same time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from sbpair.azure.destinations import open_destinations
from sbpair.errors import Unavailable, UsageError
from sbpair.move.context import MissingDestinations, MoveContext
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.route import Facts, MessageForm
from sbpair.move.topic_guard import TopicGuard
from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import ArchivedMessage, LedgerTally, ShardSource, entry_of, send_source
from sbpair.replay.spark_task import run_in_worker
from sbpair.runs.journal import Journal
from sbpair.spark.acknowledged_rows import AcknowledgedRows
from sbpair.spark.checked_rows import RowSpool
from sbpair.spark.partition_rows import PartitionRows, row_destinations
from sbpair.spark.task_claim import TaskClaim, TaskPlace
from sbpair.spark.write_options import RowCheck
from sbpair.spark.write_run import WriteCounts, refuse_job

if TYPE_CHECKING:
    from sbpair.spark.row_messages import RowMessage
    from sbpair.spark.write_run import WriteJob

FORM = MessageForm(frozenset(), "column")
"""A row's message is sent as it is: no application property of it is an alias."""


DISCARD_HINT = 'create a subscription or a rule that takes them, or write with .option("discard", "allow")'


def write_partition(job: WriteJob, batches: Iterator[Any]) -> WriteCounts:
    """Send the rows of the current task. Raises SbpairError unless each row was sent, or refused by its destination."""
    return run_in_worker(_write(job, TaskPlace.of_task(job), batches))


async def _write(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> WriteCounts:
    archive = job.open()
    ledger = Ledger(archive, 1)
    async with TaskClaim(job, place, ledger.attempt).kept() as claim:
        # In a thread: a long ledger takes time, and the claim is to be renewed.
        acknowledged = await asyncio.to_thread(AcknowledgedRows, job, place)
        tally, limit = LedgerTally(ledger), None if job.allow_discard else 0
        endpoint = job.access.endpoint(os.environ)
        async with row_destinations(job) as primary, open_destinations(endpoint) as destinations:
            context = MoveContext(
                namespace=job.access.bare.name,
                tally=tally,
                journal=Journal(may_send=claim.check),
                missing=MissingDestinations(0),
                topics=TopicGuard(destinations, tally, limit, hint=DISCARD_HINT),
            )
            rows = PartitionRows(batches, job, place, acknowledged, primary)
            with closing(RowReader(rows, job, place, ledger)) as reader:
                if job.check is RowCheck.TASK:
                    await asyncio.to_thread(reader.check)
                waiting = await send_source(ShardSource(reader, archive, ledger), primary, context)
    receipt = context.tally.receipt()
    if not reader.exhausted or reader.count > receipt.sent + receipt.dead_lettered:
        reason, hint = "a stop was requested", ""
        if waiting:
            reason, hint = f"{waiting[0].destination}: {waiting[0].reason}", waiting[0].hint
        raise Unavailable(
            f"partition {place.partition}: not all rows were sent: {reason}", hint=hint or "run the job again"
        )
    return WriteCounts(
        place.scope,
        rows.read,
        receipt.sent,
        acknowledged.known,
        acknowledged.retried,
        receipt.dead_lettered,
        receipt.destinations,
        receipt.dead_letter_reasons,
    )


class RowReader:
    """The messages of a partition for the send task, in order. Each is recorded as held when read.

    After `check`, they come from a file of this worker.
    """

    def __init__(self, rows: PartitionRows, job: WriteJob, place: TaskPlace, ledger: Ledger) -> None:
        self.exhausted = False
        self.count = 0
        self._rows, self._job, self._place, self._ledger = rows, job, place, ledger
        self._shard = f"{place.scope}/{job.job}.{place.partition}"
        self._spool: RowSpool | None = None

    def check(self) -> None:
        """Read all rows before the first is sent. Raises UsageError for rows that are no messages."""
        self._spool = RowSpool()
        self._rows.check(self._spool.add)
        self._check_wrong(f"no row of partition {self._place.partition} is sent")
        self._spool.rewind()

    def read(self, max_rows: int, max_bytes: int) -> list[ArchivedMessage]:
        """Return the messages of the next rows, maybe none. Raises UsageError for a row that is no message."""
        rows = self._spool.read() if self._spool else self._checked(max_rows, max_bytes)
        if rows is None:
            self.exhausted = True
            return []
        found = []
        for row in rows:
            self.count += 1
            found.append(self._message(row))
        if found:
            self._ledger.hold({each: entry_of(each) for each in found})
        return found

    def close(self) -> None:
        if self._spool is not None:
            self._spool.close()

    def _checked(self, max_rows: int, max_bytes: int) -> list[RowMessage] | None:
        found = self._rows.next(max_rows, max_bytes)
        self._rows.check_destinations()
        self._check_wrong()
        return found

    def _check_wrong(self, sent: str = "") -> None:
        """Raise UsageError for wrong rows, which ends the other tasks of the job too."""
        try:
            self._rows.wrong.check(sent)
        except UsageError as error:
            refuse_job(self._job, error)
            raise

    def _message(self, row: RowMessage) -> ArchivedMessage:
        facts = Facts(
            queue=self._place.scope,
            sequence_number=self.count,  # the mover takes messages with the same number for the same message
            enqueued_at=0,
            message_id=row.message_id,
            path=row.destination,
            session_id=row.session_id,
            ttl_ticks=row.ttl_ticks,
            scheduled_at=row.scheduled_ms,
            size=len(row.sections),
        )
        content, key = GenericMessage(row.sections, FORM), row.key(self._place.scope)
        return ArchivedMessage(facts, None, self.count, key, self._shard, content, row.sections.join())
