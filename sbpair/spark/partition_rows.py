"""The rows of a partition as messages, in order: without those that the ledger has, and checked before one is sent.

Wrong rows are counted by reason. A file keeps the others until all are checked.
"""

from __future__ import annotations

import asyncio
import marshal
import os
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from sbpair.amqp.message import Sections
from sbpair.errors import MachineLacks, StateRefused, UsageError
from sbpair.replay.archive import LEDGER, Archive
from sbpair.replay.ledger import OUTCOME
from sbpair.replay.send_task import CHUNK_BYTES, MAX_CHUNK
from sbpair.replay.spark import check_speculation, is_local_master
from sbpair.replay.spark_task import open_primary, run_in_worker
from sbpair.spark.row_messages import RowMessage
from sbpair.spark.write_run import BATCH_SCOPE, READERS, RowDestinations, WriteJob

MAX_REASONS = 10
"""How many reasons an error names. Rows with others are counted."""

MEMORY_BYTES = 16 * 1024 * 1024
"""How much of a partition stays in memory. A larger one goes to Spark's directory of temporary files."""

_LENGTH_BYTES = 8
NAMES = ["sequence_number", "enqueued_at_ms"]
"""The columns of the ledger that identify a row and its content."""


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


def check_partition(job: WriteJob, batches: Iterator[Any]) -> CheckCounts:
    """Check the rows of the current task, and send none. Raises SbpairError, but not for wrong rows."""
    return run_in_worker(_check(job, TaskPlace.of_task(job), batches))


async def _check(job: WriteJob, place: TaskPlace, batches: Iterator[Any]) -> CheckCounts:
    acknowledged = AcknowledgedRows(job, place) if job.resumed else None
    async with row_destinations(job, strict=True) as primary:
        rows = PartitionRows(batches, job, place, acknowledged, primary)
        await asyncio.to_thread(rows.check)
    return CheckCounts(rows.read, dict(rows.destinations), [*rows.wrong.found.values()], rows.wrong.others)


def row_destinations(job: WriteJob, *, strict: bool = False) -> AbstractAsyncContextManager[RowDestinations]:
    """Open the namespace to send to within a block."""
    named_by = "option destination" if job.columns.destination else "column destination"
    return open_primary(partial(RowDestinations, named_by, strict=strict), job.options.access.endpoint(os.environ))


class PartitionRows:
    """The rows of a partition as messages, in order, without those that are acknowledged.

    `read` counts all rows so far, `destinations` the messages of each; `wrong` are the rows that are no messages.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        job: WriteJob,
        place: TaskPlace,
        acknowledged: AcknowledgedRows | None,
        primary: RowDestinations,
    ) -> None:
        self.read = 0
        self.destinations = Counter[str]()
        self.wrong = WrongRows()
        self._batches, self._columns, self._partition = batches, job.columns, place.partition
        self._acknowledged, self._primary = acknowledged, primary
        self._unchecked: dict[str, str] = {}
        self._batch: Any = None
        self._at = 0

    def next(self, max_rows: int = MAX_CHUNK, max_bytes: int = CHUNK_BYTES) -> list[RowMessage] | None:
        """Return the messages of the next rows, maybe none; None at the end. Counts what is wrong with the others."""
        batch = self._next_rows(max_rows, max_bytes)
        if batch is None:
            return None
        found = []
        for row in self._columns.messages(batch):
            if isinstance(row, UsageError):
                self.wrong.add(WrongRow(row.message, row.hint, self._place()))
            elif self._acknowledged is None or not self._acknowledged.take(row):
                if row.destination not in self.destinations:
                    self._unchecked[row.destination] = self._place()
                self.destinations[row.destination] += 1
                found.append(row)
            self.read += 1
        return found

    def check_destinations(self) -> None:
        """Find out whether the destinations of the rows since the last call exist: rows with another are wrong."""
        for destination, place in self._unchecked.items():
            try:
                self._primary.check_destination(destination)
            except UsageError as error:
                self.wrong.add(WrongRow(error.message, error.hint, place, self.destinations[destination]))
        self._unchecked = {}

    def check(self, keep: Callable[[list[RowMessage]], None] = lambda _: None) -> None:
        """Read all rows, and give those that are messages to `keep`. Raises no error for wrong rows."""
        while (found := self.next()) is not None:
            if found and not self.wrong.found:
                keep(found)
        self.check_destinations()

    def _place(self) -> str:
        return f"row {self.read} of partition {self._partition}"

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


class WrongRow(NamedTuple):
    """Rows that are no messages for one reason. `first` is the place of the first one."""

    reason: str
    hint: str
    first: str
    rows: int = 1


@dataclass(slots=True)
class WrongRows:
    """The wrong rows so far by reason, in the order of their first ones."""

    found: dict[str, WrongRow] = field(default_factory=dict)
    others: int = 0

    def add(self, row: WrongRow) -> None:
        if known := self.found.get(row.reason):
            self.found[row.reason] = known._replace(rows=known.rows + row.rows)
        elif len(self.found) < MAX_REASONS:
            self.found[row.reason] = row
        else:
            self.others += row.rows

    def check(self, sent: str = "") -> None:
        """Raise UsageError if there are any. `sent` ends its message: it says what was sent before."""
        if not self.found:
            return
        named = [f"{each.first}: {each.reason}{_more(each.rows - 1)}" for each in self.found.values()]
        if self.others:
            named.append(f"{self.others} rows for other reasons")
        hints = dict.fromkeys(each.hint for each in self.found.values())
        raise UsageError("; ".join([*named, sent] if sent else named), hint="; ".join(hints))


def _more(rows: int) -> str:
    return f" (and {rows} more row{'' if rows == 1 else 's'})" if rows else ""


@dataclass(frozen=True, slots=True)
class CheckCounts:
    """The rows of one partition that were checked and not sent."""

    rows: int = 0
    destinations: Mapping[str, int] = field(default_factory=dict)
    wrong: Sequence[WrongRow] = ()
    others: int = 0


def check_rows(parts: Iterable[CheckCounts]) -> dict[str, object]:
    """Return the counts of all partitions as a document. Raises UsageError if a row is no message."""
    wrong, rows, destinations = WrongRows(), 0, Counter[str]()
    for part in parts:
        rows += part.rows
        destinations.update(part.destinations)
        for each in part.wrong:
            wrong.add(WrongRow(*each))
        wrong.others += part.others
    wrong.check("nothing was sent")
    return {"schema": "sbpair/spark-check/1", "rows": rows, "destinations": dict(destinations)}


class RowSpool:
    """The messages of a partition in a file without a name, which is written once, then read once."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory = _local_directory()
        self._file = SpooledTemporaryFile(memory_bytes, dir=self._directory)  # noqa: SIM115  # it outlives this block

    def add(self, rows: Sequence[RowMessage]) -> None:
        """Append rows that are later read together. Raises MachineLacks if the disk is full."""
        content = marshal.dumps([_values(each) for each in rows])
        with self._reporting():
            self._file.write(len(content).to_bytes(_LENGTH_BYTES))
            self._file.write(content)

    def rewind(self) -> None:
        """Return to the first rows. Raises MachineLacks if the disk is full."""
        with self._reporting():
            self._file.seek(0)

    def read(self) -> list[RowMessage] | None:
        """Return the rows of the next `add`; None at the end."""
        length = int.from_bytes(self._file.read(_LENGTH_BYTES))
        if not length:
            return None
        values = marshal.loads(self._file.read(length))  # noqa: S302  # this object wrote it
        return [_message(*each) for each in values]

    def close(self) -> None:
        with suppress(OSError):  # the rest did not fit on the disk
            self._file.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MachineLacks(
                f"{self._directory} of this worker cannot keep the checked rows: {error.strerror or error}",
                hint="make room there, use more partitions, or add option check=row",
            ) from error


def _values(row: RowMessage) -> tuple[object, ...]:
    sections = row.sections
    return *row[:-1], sections.properties, sections.application_properties, sections.body


def _message(*values: Any) -> RowMessage:
    *row, properties, application_properties, body = values
    sections = Sections(properties=properties, application_properties=application_properties, body=body)
    return RowMessage._make((*row, sections))


def _local_directory() -> str:
    """Return the directory that Spark gives its workers for temporary files, or that of this machine."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next((each for each in given if each and Path(each).is_dir()), gettempdir())


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
    with ThreadPoolExecutor(READERS) as readers:
        table = pa.concat_tables(readers.map(lambda path: archive.read_table(path, NAMES, OUTCOME), paths))
    table = table.take(pc.sort_indices(table, [(NAMES[0], "ascending")])).combine_chunks()
    return _SortedKeys(
        *(memoryview(table.column(name).chunk(0).buffers()[1]).cast("q")[: len(table)] for name in NAMES)
    )
