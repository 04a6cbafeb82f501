"""Whether those who run the tasks have the same archive: each reads what the driver wrote, and answers there.

And whether Spark itself can read it: what is in an object store it reads with a connector of its own.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks, Unsafe
from sbpair.replay.archive import REPORT, RUN_FILE, Archive
from sbpair.replay.spark import said

if TYPE_CHECKING:
    from sbpair.replay.run import TaskJob

CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""What Hadoop calls the part that reads from a kind of store."""


def question(archive: Archive) -> str:
    """Write one, and answer its path."""
    path = f"{REPORT}/probe-{uuid.uuid4()}"
    archive.write(path, b"sbpair")
    return path


def answer(job: TaskJob, path: str) -> Any:
    """For `mapInArrow`: each task answers the path of what it wrote."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _batch in batches:
            archive = job.open()
            try:
                archive.read(path)
            except FileNotFoundError:
                raise Unsafe(
                    f"an executor does not see the archive {job.archive}",
                    hint="mount it at the same path on every one of them",
                ) from None
            mine = f"{path}-{uuid.uuid4()}"
            archive.write(mine, b"sbpair")
            yield pa.RecordBatch.from_pydict({"answer": [mine]})

    return task


def read_by_spark(spark: Any, archive: Archive) -> None:
    """Have Spark read the run's file, on whoever runs its tasks. Raises MachineLacks where it cannot."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark.read.text(archive.spark_url(RUN_FILE)).collect()
    except (Py4JError, PySparkException) as error:
        raise MachineLacks(
            f"Spark cannot read the archive {archive.url}: {said(error)}; nothing was received or sent",
            hint=f"{_fix(spark, archive)}; then run it again",
        ) from error


def _fix(spark: Any, archive: Archive) -> str:
    connector = CONNECTORS.get(archive.url.partition("://")[0])
    if connector is None:
        return "give Spark the connector for it, and what it signs in with, by --conf"
    version = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    jar = f"spark.jars.packages=org.apache.hadoop:{connector}:{version}"
    return f"give it the connector by --conf {jar}, and what it signs in with by its own settings"
