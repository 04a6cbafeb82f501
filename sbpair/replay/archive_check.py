"""Checks that executors see the driver's archive, and that Spark itself can read it.

Each task reads a file of the driver's and writes one of its own. Spark reads an object store with its own connector.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.errors import MachineLacks, Unsafe
from sbpair.replay.archive_layout import REPORT, RUN_FILE
from sbpair.replay.spark import spark_message

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}
"""Hadoop's package for each kind of store."""


def check_executors(spark: Any, job: TaskJob) -> None:
    """Raise Unsafe unless every executor can read and write the driver's archive."""
    archive = job.open()
    nonce = f"{REPORT}/probe-{uuid.uuid4()}"
    archive.write(nonce, b"sbpair")
    rows = spark.range(0, job.tasks, 1, job.tasks).mapInArrow(check_task(job, nonce), "path string").collect()
    missing = [row.path for row in rows if not archive.exists(row.path)]
    if missing or len(rows) < job.tasks:
        raise Unsafe(
            f"the executors do not see the archive {job.archive} that this machine sees",
            hint="mount it at the same path on every one of them, or name a URL such as s3://bucket/backlog",
        )
    for path in (nonce, *(row.path for row in rows)):
        archive.remove(path)


def check_task(job: TaskJob, nonce: str) -> Any:
    """Return the function for `mapInArrow`: each task yields the path of the file it wrote."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _batch in batches:
            archive = job.open()
            try:
                archive.read(nonce)
            except FileNotFoundError:
                raise Unsafe(
                    f"an executor does not see the archive {job.archive}",
                    hint="mount it at the same path on every one of them",
                ) from None
            path = f"{nonce}-{uuid.uuid4()}"
            archive.write(path, b"sbpair")
            yield pa.RecordBatch.from_pydict({"path": [path]})

    return task


def check_spark_reads(spark: Any, archive: Archive) -> None:
    """Read the run's file through Spark, on an executor. Raises MachineLacks if it cannot."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        spark.read.text(archive.spark_url(RUN_FILE)).collect()
    except (Py4JError, PySparkException) as error:
        raise MachineLacks(
            f"Spark cannot read the archive {archive.url}: {spark_message(error)}; nothing was received or sent",
            hint=f"{_connector_hint(spark, archive)}; then run it again",
        ) from error


def _connector_hint(spark: Any, archive: Archive) -> str:
    connector = CONNECTORS.get(archive.url.partition("://")[0])
    if connector is None:
        return "give Spark its connector and credentials with --conf"
    version = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    jar = f"spark.jars.packages=org.apache.hadoop:{connector}:{version}"
    return f"give Spark the connector with --conf {jar}, and credentials with its own settings"
