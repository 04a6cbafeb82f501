"""One task of a write: the rows of a partition, sent by the replay's send task with its ledger, or only checked.

Invariant: a row whose key the ledger has is not sent again. An attempt reads the ledger before it sends, and sends only
while its claim on the partition is confirmed, so two attempts never send at the same time. Sends pause meanwhile, and
go on once the claim is confirmed again: it was never another's.
"""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.azure.destinations import open_destinations
from sbpair.errors import LeaseLost, MachineLacks, SbpairError, StateRefused, Unavailable, Unreachable, UsageError
from sbpair.move.context import MissingDestinations, MoveContext
from sbpair.move.failure_latch import set_within
from sbpair.move.message.decode import GenericMessage
from sbpair.move.message.route import Facts, MessageForm
from sbpair.move.topic_guard import TopicGuard
from sbpair.operating_system import uptime
from sbpair.replay.archive import LEDGER, Archive
from sbpair.replay.digests import for_each_file
from sbpair.replay.ledger import OUTCOME, Ledger
from sbpair.replay.run_description import open_destination
from sbpair.replay.send_task import (
    CHUNK_BYTES,
    MAX_CHUNK,
    ArchivedMessage,
    LedgerTally,
    ShardSource,
    run_in_worker,
    run_tasks,
    send_source,
)
from sbpair.replay.spark_settings import check_speculation, is_local_master
from sbpair.runs.journal import Journal
from sbpair.spark.row_messages import CheckCounts, PartitionRows, RowMessage, RowSpool, check_rows
from sbpair.spark.write_run import (
    BATCH_SCOPE,
    CLAIMS,
    FRAME_CHECKS,
    OWNER_FILE,
    SILENT_SECONDS,
    RowCheck,
    RowDestinations,
    RunOwner,
    WriteCounts,
    WriteJob,
    abort_job,
    commit_job,
    read_mark,
    read_owner,
    read_refusal,
    refuse_job,
    start_job,
    still_going,
    wait_silent,
)

FORM = MessageForm(frozenset(), "column")
"""A row's message is sent as it is: no application property of it is an alias."""


LEDGER_HINT = "check that the ledger is reachable"
DISCARD_HINT = 'create a subscription or a rule that takes them, or write with .option("discard", "allow")'

CLAIM_SECONDS = 2.0
"""How often a task confirms its claim."""

TRUST_SECONDS = 6.0
"""How long a task sends after the last confirmation. Then its sends pause."""

PATIENCE_SECONDS = 120.0
"""How long an attempt waits for one before it to end: a worker may outlive its executor until it has sent its rows.

A pause lasts as long at most.
"""

NAMES = ["sequence_number", "enqueued_at_ms"]
"""The columns of the ledger that identify a row and its content."""


def write(frame: Any, **options: str) -> dict[str, Any]:
    """Send the rows of a DataFrame, with the options of the data source, and return the receipt. Raises SbpairError.

    All rows are checked before the first message, unless option check says otherwise.
    """
    job = start_job(options, frame.schema, os.environ, stream=False, checks=FRAME_CHECKS)
    try:
        if job.options.check in (RowCheck.FULL, RowCheck.ONLY):
            checked = check_rows(CheckCounts(**each) for each in _counts_of(frame, job, check_partition))
            if job.checks_only:
                return checked
        counts = _counts_of(frame, job, write_partition)
    except BaseException:
        abort_job(job)
        raise
    return commit_job(job, [WriteCounts(**each) for each in counts])


def _counts_of(frame: Any, job: WriteJob, run: Callable[[WriteJob, Iterator[Any]], Any]) -> list[dict[str, Any]]:
    """Return the counts of the task of each partition."""
    return run_tasks(frame, lambda batches: [asdict(run(job, batches))])


@dataclass(frozen=True, slots=True)
class TaskPlace:
    """The partition of a task, and the scope of its keys: BATCH_SCOPE, or QUERY/BATCH of a stream."""

    partition: int
    scope: str = BATCH_SCOPE

    @classmethod
    def of_task(cls, job: WriteJob) -> TaskPlace:
        """Return the place of the current task. Raises Unsafe for speculation, UsageError for a ledger of one machine.

        Spark passes its settings on to tasks, and to no other part of a data source.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        local: Callable[[str], str | None] = context.getLocalProperty if context else lambda _: None
        check_speculation(local("spark.speculation") or "false")
        if not (job.checks_only or job.options.ledger or is_local_master(local("spark.master") or "")):
            raise UsageError(
                "option ledger: missing, and the workers are other machines",
                hint='add .option("ledger", "DIRECTORY or URL") that driver and workers share',
            )
        batch = local("streaming.sql.batchId")
        scope = BATCH_SCOPE if batch is None else f"{local('sql.streaming.queryId')}/{batch}"
        return cls(context.partitionId() if context else 0, scope)


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
            primary.wait_allowed = claim.wait_confirmed
            context = MoveContext(
                namespace=job.options.access.bare.name,
                tally=tally,
                journal=Journal(may_send=claim.check),
                missing=MissingDestinations(0),
                topics=TopicGuard(destinations, tally, limit, hint=DISCARD_HINT),
            )
            rows = PartitionRows(batches, job.columns, place.partition, acknowledged.take, primary.check_destination)
            with closing(RowReader(rows, job, place)) as reader:
                if job.options.check is RowCheck.TASK:
                    await asyncio.to_thread(reader.check)
                waiting = await send_source(
                    ShardSource(reader, archive, ledger, claim.wait_confirmed), primary, context
                )
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


def check_partition(job: WriteJob, batches: Iterator[Any]) -> CheckCounts:
    """Check the rows of the current task, and send none. Raises SbpairError, but not for wrong rows."""
    return run_in_worker(_check(job, TaskPlace.of_task(job), batches))


async def _check(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> CheckCounts:
    was_sent = AcknowledgedRows(job, place).take if job.resumed else lambda _row: False
    async with row_destinations(job, strict=True) as primary:
        rows = PartitionRows(batches, job.columns, place.partition, was_sent, primary.check_destination)
        await asyncio.to_thread(rows.check, MAX_CHUNK, CHUNK_BYTES)
    return CheckCounts(rows.read, dict(rows.destinations), [*rows.wrong.found.values()], rows.wrong.others)


def row_destinations(job: WriteJob, *, strict: bool = False) -> AbstractAsyncContextManager[RowDestinations]:
    """Open the namespace to send to within a block."""
    named_by = "option destination" if job.columns.destination else "column destination"
    return open_destination(partial(RowDestinations, named_by, strict=strict), job.options.access.endpoint(os.environ))


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
        self._rows.check(MAX_CHUNK, CHUNK_BYTES, self._spool.add)
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
    """An attempt's claim on its partition: a file that changes while it is alive.

    `check` and `wait_confirmed` are for its sends.
    """

    def __init__(self, job: WriteJob, place: TaskPlace, attempt: str) -> None:
        self._archive, self._job, self._attempt, self._partition = job.open(), job, attempt, place.partition
        self._directory = f"{CLAIMS}/{place.scope}/{job.job}.{place.partition}"
        self._path = f"{self._directory}/claim.json"
        self._confirmed_at, self._number = float("-inf"), 0
        self._written_at = self._doubted_until = float("-inf")
        self._lost: SbpairError | None = None
        self._failure = ""
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[TaskClaim]:
        """Hold the claim within the block. Raises LeaseHeld if another job or attempt is alive, and as `check` does."""
        busy = f"partition {self._partition}: another attempt at it is still going"
        await asyncio.to_thread(wait_silent, self._archive, self._directory, busy, patience_seconds=PATIENCE_SECONDS)
        await asyncio.to_thread(self._confirm, first=True)
        keeping = asyncio.create_task(self._keep())
        try:
            await asyncio.to_thread(self._claim_run)
            await self.wait_confirmed()
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
        if uptime() - self._confirmed_at > TRUST_SECONDS:
            raise Unreachable("the ledger did not confirm this task in time", hint=LEDGER_HINT)

    async def wait_confirmed(self) -> None:
        """Wait until `check` does not raise Unreachable. Raises its other errors; MachineLacks after a long time."""
        until = uptime() + PATIENCE_SECONDS
        while True:
            try:
                return self.check()
            except Unreachable as error:
                if uptime() >= until:
                    why = f"{error.message}, nor in {PATIENCE_SECONDS:.0f} s more"
                    raise MachineLacks(": ".join(filter(None, (why, self._failure))), hint=LEDGER_HINT) from error
            await asyncio.sleep(CLAIM_SECONDS / 4)

    def _claim_run(self) -> None:
        """Take the run over from an earlier job, once no task of it is alive. Others see this claim meanwhile."""
        if self._lost is None and read_owner(self._archive).job != self._job.job:
            wait_silent(self._archive, CLAIMS, still_going(self._job.run), but=self._job.job)
            owner = RunOwner(self._job.job, self._job.number)
            self._archive.write_json(OWNER_FILE, owner._asdict())
            self._confirm()

    async def _keep(self) -> None:
        while self._lost is None and not await set_within(self._ended, CLAIM_SECONDS):
            try:
                await asyncio.to_thread(self._confirm)
            except SbpairError as error:  # without a confirmation `check` raises
                self._failure = error.message

    def _confirm(self, *, first: bool = False) -> None:
        """Renew the claim, and find out whether the run belongs to this job."""
        if read_mark(self._archive) != self._job.mark:
            raise MachineLacks(
                f"{self._archive.root} of this worker is not the driver's directory",
                hint="mount the directory at the same path on all workers, or name a URL such as s3://bucket/ledger",
            )
        began, owner = uptime(), read_owner(self._archive)
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
            written_at = uptime()
            self._archive.write_line(self._path, {"attempt": self._attempt, "number": self._number})
            if not first and uptime() > self._written_at + SILENT_SECONDS:
                # Another attempt may have taken this one for dead meanwhile: it sees this file before it is trusted.
                self._doubted_until = uptime() + TRUST_SECONDS
            self._written_at = written_at
            if owner.job == self._job.job and began >= self._doubted_until:
                self._confirmed_at = began

    def _is_held(self) -> bool:
        """Return whether the claim is this attempt's."""
        found = self._archive.find_json(self._path)
        return found is not None and found.get("attempt") == self._attempt


class AcknowledgedRows:
    """The rows that the ledger has. `known` and `retried` count those found, of earlier jobs and of this one.

    With ids, rows of earlier jobs are looked up among all partitions; an id with only other contents is refused.
    Without ids only those of the same partition count, each for one row of the same content.
    """

    def __init__(self, job: WriteJob, place: TaskPlace) -> None:
        self.known = self.retried = 0
        self._has_ids, self._run = job.columns.has_ids, job.run
        self._own: defaultdict[int, list[int]] = defaultdict(list)
        self._earlier: defaultdict[int, list[int]] = defaultdict(list)
        self._all = _SortedKeys.empty()
        archive, own = job.open(), f"{LEDGER}/{place.scope}/{job.job}.{place.partition}"
        _fill(self._own, archive, archive.files(own))
        if not job.resumed:
            return
        paths = [path for path in archive.files(f"{LEDGER}/{place.scope}") if f"/{job.job}." not in path]
        if self._has_ids:
            self._all = _sorted_keys(job, tuple(paths))
        else:
            ending = f".{place.partition}"
            _fill(self._earlier, archive, [each for each in paths if each.rpartition("/")[0].endswith(ending)])

    def take(self, row: RowMessage) -> bool:
        """Return whether the row was sent before. Raises StateRefused if its id was sent with another content."""
        if self._take_one(self._own, row):
            self.retried += 1
            return True
        contents = self._all.contents(row.number)
        if self._take_one(self._earlier, row) or row.content in contents:
            self.known += 1
            return True
        if contents or (self._has_ids and self._own.get(row.number)):
            raise StateRefused(
                f"the row with id {row.message_id!r} was sent by run {self._run} with another content",
                hint="make ids unique, and write columns such as current_timestamp() to a table first: they change",
            )
        return False

    @staticmethod
    def _take_one(known: dict[int, list[int]], row: RowMessage) -> bool:
        contents = known.get(row.number, [])
        if row.content not in contents:
            return False
        contents.remove(row.content)
        return True


def _fill(known: dict[int, list[int]], archive: Archive, paths: list[str]) -> None:
    for path in paths:
        table = archive.read_table(path, NAMES, OUTCOME)
        for number, content in zip(*(column.to_pylist() for column in table.columns), strict=True):
            known[number].append(content)


@dataclass(frozen=True, slots=True)
class _SortedKeys:
    """Numbers in order, and the content of each: 16 bytes a row, since a run may have millions."""

    numbers: memoryview
    of: memoryview

    @classmethod
    def empty(cls) -> _SortedKeys:
        return cls(memoryview(b"").cast("q"), memoryview(b"").cast("q"))

    def contents(self, number: int) -> list[int]:
        return self.of[bisect_left(self.numbers, number) : bisect_right(self.numbers, number)].tolist()


@lru_cache(1)  # a worker runs many tasks of one job
def _sorted_keys(job: WriteJob, paths: tuple[str, ...]) -> _SortedKeys:
    archive = job.open()
    if not paths:
        return _SortedKeys.empty()
    table = pa.concat_tables(for_each_file(lambda path: archive.read_table(path, NAMES, OUTCOME), paths).values())
    table = table.take(pc.sort_indices(table, [(NAMES[0], "ascending")])).combine_chunks()
    return _SortedKeys(
        *(memoryview(table.column(name).chunk(0).buffers()[1]).cast("q")[: len(table)] for name in NAMES)
    )
