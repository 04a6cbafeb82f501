"""The data source as Spark 4 knows it. Spark pickles these objects, and calls each method in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks, SbpairError, UsageError

try:
    from pyspark.sql import datasource
except ImportError as missing:
    raise MachineLacks(
        "this Spark has no Python data sources", hint="use Spark 4, or sbpair.spark.write and read"
    ) from missing

if TYPE_CHECKING:
    from sbpair.spark.archive_frame import ArchiveFrame
    from sbpair.spark.row_messages import CheckCounts
    from sbpair.spark.write_run import WriteCounts, WriteJob

NAME = "sbpair"
TAKES_FILTERS = any("data_source_pushdown_filters" in word for word in sys.argv)
"""Whether this is Spark's process that asks for filters. In any other, Spark refuses a reader with `pushFilters`."""

STREAMS = hasattr(datasource, "DataSourceStreamArrowWriter")
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", datasource.DataSourceStreamWriter)


@contextmanager
def hints_shown(archive: str = "option ledger") -> Iterator[None]:
    """Raise errors of the block with their hints in the message: Spark passes on only that.

    `archive` is the name here of the directory that a replay's option names.
    """
    try:
        yield
    except SbpairError as error:
        text = f"{error.message}; {error.hint}" if error.hint else error.message
        raise type(error)(text.replace("--archive", archive)) from error


class DefaultSource(datasource.DataSource):
    """`df.write.format("sbpair")` and `spark.read.format("sbpair")`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from sbpair.spark.archive_frame import ArchiveFrame

        with hints_shown("the path"):
            return ArchiveFrame.open(self.options).ddl

    def reader(self, schema: Any) -> ArchiveReader:
        from sbpair.spark.archive_frame import ArchiveFrame

        with hints_shown("the path"):
            return ArchiveReader(ArchiveFrame.open(self.options, schema).check_files())

    def streamReader(self, schema: Any) -> Any:  # noqa: N802, ARG002  Spark's name
        from sbpair.spark.archive_frame import READ_STREAM

        with hints_shown():
            raise UsageError('format("sbpair") reads no stream', hint=f"read {READ_STREAM}")

    def writer(self, schema: Any, overwrite: bool) -> RowWriter:
        return RowWriter(self._start(schema, overwrite=overwrite))

    def streamWriter(self, schema: Any, overwrite: bool) -> RowStreamWriter:  # noqa: N802  Spark's name
        with hints_shown():
            if not STREAMS:
                raise MachineLacks(
                    "streams need Spark 4.1 or later", hint="write each batch in foreachBatch, with the same run"
                )
        return RowStreamWriter(self._start(schema, overwrite=overwrite, stream=True))

    def _start(self, schema: Any, *, overwrite: bool, stream: bool = False) -> WriteJob:
        from sbpair.spark.write_run import start_job

        with hints_shown():
            if overwrite:
                raise UsageError("a queue cannot be overwritten", hint='use .mode("append")')
            return start_job(self.options, schema, os.environ, stream=stream)


@dataclass
class TaskResult(datasource.WriterCommitMessage):
    """The counts of one task, and its job: the writer that commits a batch of a stream has another one."""

    job: WriteJob
    counts: WriteCounts | CheckCounts


class _RowWriter:
    def __init__(self, job: WriteJob) -> None:
        self._job = job

    def write(self, iterator: Iterator[Any]) -> TaskResult:
        from sbpair.spark.write_task import check_partition, write_partition

        with hints_shown():
            run = check_partition if self._job.checks_only else write_partition
            return TaskResult(self._job, run(self._job, iterator))

    def commit(self, messages: Sequence[Any], batchId: int | None = None) -> None:  # noqa: N803  Spark's name
        from sbpair.spark.row_messages import check_rows
        from sbpair.spark.write_run import commit_job

        job, counts = self._results(messages)
        with hints_shown():
            if job.checks_only:
                check_rows(counts)
            else:
                commit_job(job, counts, batchId)

    def abort(self, messages: Sequence[Any], batchId: int | None = None) -> None:  # noqa: N803  Spark's name
        from sbpair.spark.write_run import abort_job

        job, counts = self._results(messages)
        with hints_shown():
            abort_job(job, len(counts), batchId)

    def _results(self, messages: Sequence[Any]) -> tuple[WriteJob, list[Any]]:
        """Return the job and the counts of the tasks that ended."""
        found = [each for each in messages if isinstance(each, TaskResult)]
        return found[0].job if found else self._job, [each.counts for each in found]


class RowWriter(_RowWriter, datasource.DataSourceArrowWriter):
    """The writer of a batch."""


class RowStreamWriter(_RowWriter, _StreamWriter):  # type: ignore[misc]  # the base depends on the version of Spark
    """The writer of a stream. Spark calls it once for each batch."""


class ArchiveReader(datasource.DataSourceReader):
    """The reader of an archive: a partition is one file. It decodes no row that a filter of the query leaves out."""

    def __init__(self, frame: ArchiveFrame) -> None:
        self._frame = frame

    def partitions(self) -> list[datasource.InputPartition]:
        return [datasource.InputPartition(each) for each in self._frame.files]

    def read(self, partition: datasource.InputPartition) -> Iterator[Any]:
        # Spark reads one partition without a value if there are none.
        if partition is not None and partition.value is not None:
            with hints_shown("the path"):
                yield from self._frame.read(*partition.value)

    if TAKES_FILTERS:

        def pushFilters(self, filters: list[Any]) -> list[Any]:  # noqa: N802  Spark's name
            self._frame = self._frame.filtered(filters)
            return [each for each in filters if each not in self._frame.filters]
