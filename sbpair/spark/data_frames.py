"""The same without a data source, for Spark 3.5: a write that returns the receipt, and a read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from sbpair.spark.archive_frame import DDL, ArchiveFrame
from sbpair.spark.write_receipt import abort_job, commit_job
from sbpair.spark.write_run import WriteCounts, start_job
from sbpair.spark.write_task import write_partition


def write(frame: Any, **options: str) -> dict[str, Any]:
    """Send the rows of a DataFrame, with the options of the data source, and return the receipt. Raises SbpairError."""
    job = start_job(options, frame.schema, os.environ, stream=False)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"counts": [json.dumps(asdict(write_partition(job, batches)))]})

    try:
        rows = frame.mapInArrow(task, "counts string").collect()
    except BaseException:
        abort_job(job)
        raise
    return commit_job(job, [WriteCounts(**json.loads(row.counts)) for row in rows])


def read(spark: Any, path: str, **options: str) -> Any:
    """Return the rows of an archived run as a DataFrame, with the options of the data source. Raises SbpairError."""
    frame = ArchiveFrame.open({"path": path, **options})
    if not frame.files:
        return spark.createDataFrame([], DDL)

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for index in batch.column("id").to_pylist():
                yield from frame.read(*frame.files[index])

    return spark.range(0, len(frame.files), 1, len(frame.files)).mapInArrow(task, DDL)
