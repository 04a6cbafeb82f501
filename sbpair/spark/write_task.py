"""One task of a write: the rows of a partition, sent by the replay's send task with its ledger.

Invariant: a row whose key the ledger has is not sent again. An attempt reads the ledger before it sends, and sends only
while its claim on the partition is confirmed, so two attempts never send at the same time.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

from sbpair.azure.destinations import open_destinations
from sbpair.errors import LeaseLost, MachineLacks, SbpairError, Unavailable, Unreachable, UsageError
from sbpair.move.context import MissingDestinations, MoveContext
from sbpair.move.failure_latch import set_within
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.route import Facts, MessageForm
from sbpair.move.topic_guard import TopicGuard
from sbpair.operating_system import uptime
from sbpair.replay.ledger import Ledger
from sbpair.replay.send_task import ArchivedMessage, LedgerTally, ShardSource, send_source
from sbpair.replay.spark_task import run_in_worker
from sbpair.runs.journal import Journal
from sbpair.spark.partition_rows import AcknowledgedRows, PartitionRows, RowSpool, TaskPlace, row_destinations
from sbpair.spark.row_messages import RowMessage
from sbpair.spark.write_run import (
    CLAIMS,
    OWNER_FILE,
    RowCheck,
    RunOwner,
    WriteCounts,
    WriteJob,
    read_mark,
    read_owner,
    read_refusal,
    refuse_job,
    still_going,
    wait_silent,
)

FORM = MessageForm(frozenset(), "column")
"""A row's message is sent as it is: no application property of it is an alias."""


DISCARD_HINT = 'create a subscription or a rule that takes them, or write with .option("discard", "allow")'

CLAIM_SECONDS = 2.0
"""How often a task confirms its claim."""

TRUST_SECONDS = 6.0
"""How long a task sends after the last confirmation."""

PATIENCE_SECONDS = 120.0
"""How long an attempt waits for one before it to end: a worker may outlive its executor until it has sent its rows."""


def write_partition(job: WriteJob, batches: Iterator[Any]) -> WriteCounts:
    """Send the rows of the current task. Raises SbpairError unless each row was sent, or refused by its destination."""
    return run_in_worker(_write(job, TaskPlace.of_task(job), batches))


async def _write(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> WriteCounts:
    archive = job.open()
    ledger = Ledger(archive, 1)
    async with TaskClaim(job, place, ledger.attempt).kept() as claim:
        # In a thread: a long ledger takes time, and the claim is to be renewed.
        acknowledged = await asyncio.to_thread(AcknowledgedRows, job, place)
        tally, limit = LedgerTally(ledger), None if job.options.allow_discard else 0
        endpoint = job.options.access.endpoint(os.environ)
        async with row_destinations(job) as primary, open_destinations(endpoint) as destinations:
            context = MoveContext(
                namespace=job.options.access.bare.name,
                tally=tally,
                journal=Journal(may_send=claim.check),
                missing=MissingDestinations(0),
                topics=TopicGuard(destinations, tally, limit, hint=DISCARD_HINT),
            )
            rows = PartitionRows(batches, job, place, acknowledged, primary)
            with closing(RowReader(rows, job, place)) as reader:
                if job.options.check is RowCheck.TASK:
                    await asyncio.to_thread(reader.check)
                waiting = await send_source(ShardSource(reader, archive, ledger, claim.check), primary, context)
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
    """The messages of a partition for the send task, in order. After `check`, they come from a file of this worker."""

    def __init__(self, rows: PartitionRows, job: WriteJob, place: TaskPlace) -> None:
        self.exhausted = False
        self.count = 0
        self._rows, self._job, self._place = rows, job, place
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


class TaskClaim:
    """An attempt's claim on its partition: a file that changes while it is alive. `check` is for its sends."""

    def __init__(
        self,
        job: WriteJob,
        place: TaskPlace,
        attempt: str,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        now: Callable[[], float] = uptime,
    ) -> None:
        self._archive, self._job, self._attempt, self._now = job.open(), job, attempt, now
        self._patience_seconds = patience_seconds
        self._partition = place.partition
        self._directory = f"{CLAIMS}/{place.scope}/{job.job}.{place.partition}"
        self._path = f"{self._directory}/claim.json"
        self._confirmed_at, self._number = float("-inf"), 0
        self._lost: SbpairError | None = None
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[TaskClaim]:
        """Hold the claim within the block. Raises LeaseHeld if another job or attempt is alive, and as `check` does."""
        busy = f"partition {self._partition}: another attempt at it is still going"
        patience = self._patience_seconds
        await asyncio.to_thread(wait_silent, self._archive, self._directory, busy, patience_seconds=patience)
        await asyncio.to_thread(self._confirm, first=True)
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.to_thread(self._claim_run)
            self.check()
            yield self
        finally:
            self._ended.set()
            await keeping
            if self._is_held():
                self._archive.delete(self._directory)

    def check(self) -> None:
        """Raise LeaseLost if the claim is another's, Unreachable if it was not confirmed lately.

        Raises UsageError if another task of the job has found a wrong row.
        """
        if self._lost is not None:
            raise self._lost
        if self._now() - self._confirmed_at > TRUST_SECONDS:
            raise Unreachable("the ledger did not confirm this task in time", hint="check that the ledger is reachable")

    def _claim_run(self) -> None:
        """Take the run over from an earlier job, once no task of it is alive. Others see this claim meanwhile."""
        if self._lost is None and read_owner(self._archive).job != self._job.job:
            wait_silent(self._archive, CLAIMS, still_going(self._job.run), but=self._job.job)
            owner = RunOwner(self._job.job, self._job.number)
            self._archive.write_json(OWNER_FILE, owner._asdict())
            self._confirm()

    async def _keep(self) -> None:
        while self._lost is None and not await set_within(self._ended, CLAIM_SECONDS):
            with suppress(SbpairError):  # without a confirmation `check` raises
                await asyncio.to_thread(self._confirm)

    def _confirm(self, *, first: bool = False) -> None:
        """Renew the claim, and find out whether the run belongs to this job."""
        if read_mark(self._archive) != self._job.mark:
            raise MachineLacks(
                f"{self._archive.root} of this worker is not the driver's directory",
                hint="mount the directory at the same path on all workers, or name a URL such as s3://bucket/ledger",
            )
        began, owner = self._now(), read_owner(self._archive)
        if not (first or self._is_held()):
            self._lost = LeaseLost("another attempt at this partition has begun", hint="no action is needed")
        if owner.job != self._job.job and owner.number >= self._job.number:
            self._lost = LeaseLost(
                f"job {owner.job} has taken over this run",
                hint="run one job of a run at a time, or start this one again",
            )
        if self._lost is None:
            self._lost = read_refusal(self._job, self._archive)
        if self._lost is None:
            self._number += 1
            self._archive.write_line(self._path, {"attempt": self._attempt, "number": self._number})
            if owner.job == self._job.job:
                self._confirmed_at = began

    def _is_held(self) -> bool:
        """Return whether the claim is this attempt's."""
        found = self._archive.find_json(self._path)
        return found is not None and found.get("attempt") == self._attempt
