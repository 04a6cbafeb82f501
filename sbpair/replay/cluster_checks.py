"""Checks that each worker of a cluster has what its tasks need, and sees the archive that the driver sees."""

from __future__ import annotations

import asyncio
import json
import pickle
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import open_tokens
from sbpair.errors import MachineLacks, Unsafe
from sbpair.replay.archive import REPORT, RUN_FILE, Archive
from sbpair.replay.run_description import TaskJob
from sbpair.replay.spark import count_task_slots, describe_jobs, failed_worker, spark_errors, spark_message

CONNECTORS = {"s3": "hadoop-aws", "abfs": "hadoop-azure", "abfss": "hadoop-azure"}  # Hadoop's packages

LACKS = {
    "python": (
        "its Python does not suit",
        "set PYSPARK_PYTHON here to a Python of every worker that has pyarrow and the minor version of the driver's",
    ),
    "package": (
        "sbpair is missing",
        "pass --package sbpair.zip, which sbpair replay package writes, or install sbpair on every worker",
    ),
    "store": (
        "the archive cannot be used",
        "mount it at the same path on every worker, or name a URL, and give each worker its credentials and endpoint",
    ),
    "namespace": (
        "a namespace cannot be used",
        "give each worker the credential in its own environment, and a way to the namespace",
    ),
}
"""Words and remedies of the errors about a worker, in the order of the checks."""

UNSEEN = "it does not have what this machine has written there"


def check_executors(spark: Any, job: TaskJob) -> int:
    """Check every executor that is there by now. Return how many tasks they run at once.

    Raises MachineLacks for what a worker lacks, Unsafe for one that sees another archive.
    """
    archive, nonce = job.open(), f"{REPORT}/probe-{uuid.uuid4()}"
    archive.write(nonce, b"sbpair")
    describe_jobs(spark, "check the workers")
    try:
        slots = count_task_slots(spark)
        found = _run_probes(spark, max(job.tasks, slots), _probe(pickle.dumps(partial(find_lacks, job, nonce))))
        for each in found:
            if each["path"] is not None and not archive.exists(each["path"]):
                each["lacks"]["store"] = UNSEEN
    except spark_errors() as error:
        worker = failed_worker(str(error)) or "of the cluster"
        found = [{"worker": worker, "lacks": {"python": spark_message(error)}}]
    finally:
        archive.delete(REPORT, [path for path in archive.sizes(REPORT) if path.startswith(nonce)])
    _check_found(found)
    return slots


def _probe(finder: bytes) -> Callable[[int], str]:
    """Return the function of a task. It is pickled whole, so that it runs where sbpair is missing, and says so."""

    def look(_row: int) -> str:
        import json
        import pickle
        import socket
        import sys

        found: dict[str, Any] = {"worker": socket.gethostname(), "lacks": {}, "path": None}
        kind = "python"
        try:
            import pyarrow as pa  # noqa: F401

            kind = "package"
            find = pickle.loads(finder)  # noqa: S301  of the driver
        except ImportError as error:
            found["lacks"] = {kind: f"{error} in {sys.executable}"}
        else:
            found |= find()
        return json.dumps(found)

    return look


def _run_probes(spark: Any, tasks: int, look: Callable[[int], str]) -> list[dict[str, Any]]:
    from pyspark.sql.functions import udf

    rows = spark.range(0, tasks, 1, tasks)
    # Arrow is one of the things that may be missing.
    column = udf(look, "string", useArrow=False)("id").alias("found")
    return [json.loads(row.found) for row in rows.select(column).collect()]


def find_lacks(job: TaskJob, nonce: str) -> dict[str, Any]:
    """Return what this worker lacks, and the path of the file that it has written beside `nonce`."""
    lacks, path = {}, None
    try:
        archive = job.open()
        if archive.exists(nonce):
            path = f"{nonce}-{uuid.uuid4()}"
            archive.write(path, b"sbpair")
        else:
            lacks["store"] = UNSEEN
    except Exception as error:  # noqa: BLE001  the driver raises it
        lacks["store"] = str(error)
    try:
        asyncio.run(_reach_namespaces(job))
    except Exception as error:  # noqa: BLE001  the driver raises it
        lacks["namespace"] = str(error)
    return {"lacks": lacks, "path": path}


async def _reach_namespaces(job: TaskJob) -> None:
    async with open_tokens() as get_token:
        for access in (job.secondary, job.destination):
            async with connect(access.endpoint(), get_token=get_token):
                pass


def _check_found(found: Iterable[dict[str, Any]]) -> None:
    """Raise the error that names the workers, by what they lack."""
    workers = defaultdict(set)
    for each in found:
        for kind, text in each["lacks"].items():
            workers[kind, text].add(each["worker"])
    if not workers:
        return
    said = (
        f"on worker {', '.join(sorted(names))}: {LACKS[kind][0]}: {text}" for (kind, text), names in workers.items()
    )
    hints = [hint for kind, (_, hint) in LACKS.items() if any(kind == each for each, _ in workers)]
    error = Unsafe if {text for _, text in workers} == {UNSEEN} else MachineLacks
    raise error(f"{'; '.join(said)}; nothing was received or sent", hint="; ".join(hints))


def check_spark_reads(spark: Any, archive: Archive) -> None:
    """Read the run's file through Spark, on an executor. Raises MachineLacks if it cannot."""
    describe_jobs(spark, "check that Spark reads the archive")
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
