"""The same without a data source, for Spark 3.5: a write that returns the receipt, and a read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from sbpair.replay.spark_task import run_tasks
from sbpair.spark.archive_frame import DDL, ArchiveFrame
from sbpair.spark.partition_rows import CheckCounts, check_partition, check_rows
from sbpair.spark.write_run import FRAME_CHECKS, RowCheck, WriteCounts, WriteJob, abort_job, commit_job, start_job
from sbpair.spark.write_task import write_partition


def write(frame: Any, **options: str) -> dict[str, Any]:
    """Send the rows of a DataFrame, with the options of the data source, and return the receipt. Raises SbpairError.

    All rows are checked before the first message, unless option check says otherwise.
    """
    job = start_job(options, frame.schema, os.environ, stream=False, checks=FRAME_CHECKS)
    try:
        if job.options.check in (RowCheck.FULL, RowCheck.ONLY):
            checked = check_rows(CheckCounts(**each) for each in _run_tasks(frame, job, check_partition))
            if job.checks_only:
                return checked
        counts = _run_tasks(frame, job, write_partition)
    except BaseException:
        abort_job(job)
        raise
    return commit_job(job, [WriteCounts(**each) for each in counts])


def _run_tasks(frame: Any, job: WriteJob, run: Callable[[WriteJob, Iterator[Any]], Any]) -> list[dict[str, Any]]:
    """Return the counts of the task of each partition."""
    return run_tasks(frame, lambda batches: [asdict(run(job, batches))])


def read(spark: Any, path: str, **options: str) -> Any:
    """Return the rows of an archived run as a DataFrame, with the options of the data source. Raises SbpairError."""
    frame = ArchiveFrame.open({"path": path, **options}).check_files()
    if not frame.files:
        return spark.createDataFrame([], DDL)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from frame.read(*frame.files[index])

    return spark.range(0, len(frame.files), 1, len(frame.files)).mapInArrow(task, DDL)
