"""Jobs of the data source in this process, without Spark: their schema, rows, tasks and receipt."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import types

from sbpair.spark.write_run import FRAME_CHECKS, WriteJob, commit_job, start_job
from sbpair.spark.write_task import write_partition
from tests.kit.running import NAMESPACE, OTHER
from tests.replay.world import World

TEXT, BINARY = types.StringType(), types.BinaryType()
ROWS = {"id": TEXT, "body": BINARY}


def schema_of(columns: Mapping[str, Any]) -> types.StructType:
    return types.StructType([types.StructField(name, kind) for name, kind in columns.items()])


def start(
    place: World, directory: Path, columns: Mapping[str, Any] = ROWS, checks: Any = FRAME_CHECKS[1:], **options: str
) -> WriteJob:
    given = {"destination": "orders", "ledger": str(directory / "ledger"), "run": "r1", **options}
    if "id" not in columns and "message_id" not in columns:
        del given["run"]
    if "destination" in columns:
        del given["destination"]
    return start_job(given, schema_of(columns), environment_of(place), stream=False, checks=checks)


def environment_of(place: World) -> dict[str, str]:
    """Return the environment of a driver that reaches the namespaces."""
    return {**place.environment, "SBPAIR_PRIMARY_NAME": NAMESPACE, "SBPAIR_SECONDARY_NAME": OTHER}


def numbered(numbers: Iterable[int]) -> pa.RecordBatch:
    """Return a row for each number, with an id and a body of its own."""
    found = list(numbers)
    return pa.record_batch({"id": [f"m{each}" for each in found], "body": [b"body %d" % each for each in found]})


def write(job: WriteJob, *partitions: Sequence[pa.RecordBatch] | pa.RecordBatch) -> dict[str, Any]:
    """Write partitions one after the other, and return the receipt."""
    parts = [[each] if isinstance(each, pa.RecordBatch) else each for each in partitions]
    return commit_job(job, [write_partition(job, iter(part)) for part in parts])
