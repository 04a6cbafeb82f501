"""One task of a write: the rows of a partition, sent by the replay's send task with its ledger.

Invariant: a row whose key the ledger has is not sent again. An attempt reads the ledger before it sends, and sends only
while its claim on the partition is confirmed, so two attempts never send at the same time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sbpair.azure.credentials import token_getter
from sbpair.errors import AccessError, EntityMissing, ServiceRefused, Unavailable
from sbpair.model.pair import Ends
from sbpair.move.context import MoveContext
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.form import MessageForm
from sbpair.move.message.route import Facts
from sbpair.move.missing_destinations import MissingDestinations
from sbpair.move.raw_primary import RawPrimary
from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import ArchivedMessage, LedgerTally, ShardSource, entry_of, send_source
from sbpair.replay.spark_task import run_in_worker
from sbpair.runs.journal import Journal
from sbpair.spark.acknowledged_rows import AcknowledgedRows
from sbpair.spark.task_claim import TaskClaim, TaskPlace
from sbpair.spark.write_run import WriteCounts, missing_destination

if TYPE_CHECKING:
    from sbpair.model.pair import Endpoint
    from sbpair.move.raw_primary import RawDestinationLink
    from sbpair.spark.row_messages import RowMessage
    from sbpair.spark.write_run import WriteJob

FORM = MessageForm(frozenset(), "column")
"""A row's message is sent as it is: no application property of it is an alias."""


def write_partition(job: WriteJob, batches: Iterator[Any]) -> WriteCounts:
    """Send the rows of the current task. Raises SbpairError unless each row was sent, or refused by its destination."""
    return run_in_worker(_write(job, TaskPlace.of_task(job), batches))


async def _write(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> WriteCounts:
    archive = job.open()
    ledger = Ledger(archive, 1)
    async with TaskClaim(job, place, ledger.attempt).kept() as claim:
        endpoint = job.access.endpoint(os.environ)
        # In a thread: a long ledger takes time, and the claim is to be renewed.
        acknowledged = await asyncio.to_thread(AcknowledgedRows, job, place)
        context = MoveContext(
            namespace=endpoint.name,
            tally=LedgerTally(ledger),
            journal=Journal(may_send=claim.check),
            missing=MissingDestinations(0),
        )
        async with token_getter(Ends("write", endpoint, endpoint)) as get_token:
            primary = RowDestinations(endpoint, get_token=get_token)
            reader = RowReader(batches, job, place, ledger, acknowledged, primary.check_destination)
            waiting = await send_source(ShardSource(reader, archive, ledger), primary, context)
    receipt = context.tally.receipt()
    if not reader.exhausted or reader.count > receipt.sent + receipt.dead_lettered:
        reason, hint = (waiting[0].reason, waiting[0].hint) if waiting else ("a stop was requested", "")
        raise Unavailable(
            f"partition {place.partition}: not all rows were sent: {reason}", hint=hint or "run the job again"
        )
    return WriteCounts(
        place.scope,
        reader.rows,
        receipt.sent,
        acknowledged.known,
        acknowledged.retried,
        receipt.dead_lettered,
        receipt.destinations,
        receipt.dead_letter_reasons,
    )


class RowDestinations(RawPrimary):
    """The namespace to send to. A destination that does not exist ends the task before a message of it is sent."""

    def __init__(self, endpoint: Endpoint, **options: Any) -> None:
        super().__init__(endpoint, **options)
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()

    def check_destination(self, destination: str) -> None:
        """Raise UsageError for a destination that does not exist. For another thread than the loop's."""
        with suppress(AccessError, ServiceRefused, Unavailable):  # the send finds these, and may try again
            asyncio.run_coroutine_threadsafe(self.ready(destination), self._loop).result()

    async def ready(self, destination: str) -> RawDestinationLink:
        try:
            return await super().ready(destination)
        except EntityMissing:
            raise missing_destination("column destination", destination, self._endpoint) from None


class RowReader:
    """The rows of a partition as messages without an outcome, in order. Each is recorded as held when read."""

    def __init__(
        self,
        batches: Iterator[Any],
        job: WriteJob,
        place: TaskPlace,
        ledger: Ledger,
        acknowledged: AcknowledgedRows,
        check_destination: Callable[[str], None],
    ) -> None:
        self.exhausted = False
        self.rows = self.count = 0
        self._job, self._place, self._ledger = job, place, ledger
        self._acknowledged, self._check_destination = acknowledged, check_destination
        self._destinations: set[str] = set()
        self._shard = f"{place.scope}/{job.job}.{place.partition}"
        self._batches = batches
        self._batch: Any = None
        self._at = 0

    def read(self, max_rows: int, max_bytes: int) -> list[ArchivedMessage]:
        """Return the messages of the next rows, maybe none. Raises UsageError for a row that is no message."""
        rows = self._next_rows(max_rows, max_bytes)
        if rows is None:
            self.exhausted = True
            return []
        found, first = [], self.rows
        self.rows += len(rows)
        for row in self._job.columns.messages(rows, f"partition {self._place.partition}", first):
            if not self._acknowledged.take(row):
                self.count += 1
                found.append(self._message(row))
        for destination in {each.facts.path for each in found} - self._destinations:
            self._check_destination(str(destination))
            self._destinations.add(str(destination))
        if found:
            self._ledger.hold({each: entry_of(each) for each in found})
        return found

    def _next_rows(self, max_rows: int, max_bytes: int) -> Any:
        while self._batch is None or self._at >= len(self._batch):
            self._batch, self._at = next(self._batches, None), 0
            if self._batch is None:
                return None
        count = min(max_rows, len(self._batch) - self._at)
        while count > 1 and self._batch.slice(self._at, count).nbytes > max_bytes:
            count //= 2
        self._at += count
        return self._batch.slice(self._at - count, count)

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
            size=len(row.payload),
        )
        content, key = GenericMessage(row.sections, FORM), row.key(self._place.scope)
        return ArchivedMessage(facts, None, self.count, key, self._shard, content, row.payload)
