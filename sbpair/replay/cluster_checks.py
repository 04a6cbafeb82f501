"""Checks that the executors of a cluster run sbpair, and see the archive that the driver sees."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from sbpair.errors import MachineLacks, Unsafe
from sbpair.replay.archive import REPORT, RUN_FILE, Archive
from sbpair.replay.run_description import TaskJob
from sbpair.replay.send_task import run_tasks
from sbpair.replay.spark import spark_errors, spark_message

CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}  # Hadoop's packages


def check_executors(spark: Any, job: TaskJob) -> None:
    """Raise Unsafe unless every executor can read a file of the driver's archive, and write one there.

    Raises MachineLacks if they cannot run sbpair at all.
    """
    archive = job.open()
    nonce = f"{REPORT}/probe-{uuid.uuid4()}"

    def probe(batches: Iterator[Any]) -> Iterator[dict[str, str]]:
        for _batch in batches:
            archive, path = job.open(), f"{nonce}-{uuid.uuid4()}"
            if archive.exists(nonce):
                archive.write(path, b"sbpair")
                yield {"path": path}

    archive.write(nonce, b"sbpair")
    try:
        written = [each["path"] for each in run_tasks(spark.range(0, job.tasks, 1, job.tasks), probe)]
    except spark_errors() as error:
        raise MachineLacks(
            f"the executors cannot run sbpair: {spark_message(error)}",
            hint="each needs sbpair, installed or by --package, and access to the archive; then run it again",
        ) from error
    if len(written) < job.tasks or not all(map(archive.exists, written)):
        raise Unsafe(
            f"the executors do not see the archive {job.archive} that this machine sees",
            hint="mount it at the same path on every one of them, or name a URL such as s3://bucket/backlog",
        )
    for path in (nonce, *written):
        archive.remove(path)


def check_spark_reads(spark: Any, archive: Archive) -> None:
    """Read the run's file through Spark, on an executor. Raises MachineLacks if it cannot."""
    try:
        spark.read.text(archive.spark_url(RUN_FILE)).collect()
    except spark_errors() as error:
        hint = "give Spark its connector with --conf"
        if connector := CONNECTORS.get(archive.url.partition("://")[0]):
            [(version,)] = spark.sql("SELECT reflect('org.apache.hadoop.util.VersionInfo', 'getVersion')").collect()
            jar = f"spark.jars.packages=org.apache.hadoop:{connector}:{version}"
            hint = f"give Spark the connector with --conf {jar}"
        hint += ", and credentials in spark-defaults.conf, in the environment of each worker, or by its role"
        raise MachineLacks(
            f"Spark cannot read the archive {archive.url}: {spark_message(error)}; nothing was received or sent",
            hint=f"{hint}; then run it again",
        ) from error
