"""The plan, made by Spark of what the archive has: what it comes to, and the rows that tasks go by.

The law: nothing is sent by what was planned before. It is made anew from the files each time, and these never change.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from sbpair.errors import UsageError
from sbpair.replay import dedup, shard_source
from sbpair.replay import plan_sql as planning
from sbpair.replay import selection as choosing
from sbpair.replay import spark as sparks
from sbpair.replay.archive import EXPIRED, LEDGER, QUARANTINE, REPORT, SEGMENTS, Archive
from sbpair.replay.run import DedupMode, ReplayRun
from sbpair.replay.schema import KEY, KEY_IN_SPARK, SEGMENT_IN_SPARK

PLAN_FILE = f"{REPORT}/plan.json"
VIEW = "plan"


@dataclass(frozen=True)
class ShardPlan:
    """`flows` are the plan's summary: messages and bytes by queue, destination and verdict."""

    spark: Any
    run: ReplayRun
    flows: list[dict[str, Any]]

    @property
    def destinations(self) -> list[str]:
        """Of all that was chosen."""
        chosen = {row["destination"] for row in self.flows if row["verdict"] != planning.LEFT}
        return sorted(chosen - {None}, key=str.lower)

    def to_send(self) -> dict[str, int]:
        """How many messages, by destination."""
        found: Counter[str] = Counter()
        for row in self.flows:
            if row["verdict"] == planning.SEND:
                found[row["destination"]] += row["messages"]
        return dict(found)

    def has(self, verdict: str) -> bool:
        return any(row["verdict"] == verdict for row in self.flows)

    def work(self) -> Any:
        """What is sent: a task has one shard, in order."""
        spread = self.spark.sql(planning.work(VIEW)).repartition(self.run.shards, self._partition())
        return spread.sortWithinPartitions(*planning.ORDER).select(*shard_source.COLUMNS)

    def repeats(self) -> Any:
        """What is not sent where the message that it repeats has been accepted."""
        rows = self.spark.sql(planning.repeats(VIEW)).select(*dedup.COLUMNS)
        return rows.repartition(self.run.shards, "first_shard").sortWithinPartitions(*dedup.ORDER)

    def _partition(self) -> Any:
        from pyspark.sql.functions import expr

        [(places,)] = self.spark.sql(planning.places(self.run.shards)).collect()
        return expr(planning.placed(self.run.shards, places))


def plan(spark: Any, run: ReplayRun, archive: Archive) -> ShardPlan:
    """Raises UsageError where the run's --where fails on what some message says; what Spark raises."""
    _messages(spark, run, archive).createOrReplaceTempView(planning.MESSAGES)
    resumed = _tell_accepted(spark, run, archive)
    # Which one of several goes is the same each time that this is planned, however late: one of them may be there.
    now_ms = run.started_ms if run.options.dedup is DedupMode.MESSAGE_ID else int(time.time() * 1000)
    spark.sql(planning.plan(run, now_ms, _compare(spark), resumed=resumed)).createOrReplaceTempView(VIEW)
    planned = ShardPlan(spark, run, _flows(spark, run))
    archive.write_json(PLAN_FILE, {"flows": planned.flows})
    return planned


def _messages(spark: Any, run: ReplayRun, archive: Archive) -> Any:
    """The rows of all segments. Where repetitions are not sent, without what was refused or has expired: they are."""
    found = _rows(spark, archive, SEGMENT_IN_SPARK, SEGMENTS)
    if run.options.dedup is not DedupMode.MESSAGE_ID:
        return found
    unsent = _rows(spark, archive, KEY_IN_SPARK, EXPIRED, QUARANTINE)
    if unsent is None:
        return found
    return found.join(unsent, [found[name].eqNullSafe(unsent[name]) for name in KEY], "left_anti")


def _tell_accepted(spark: Any, run: ReplayRun, archive: Archive) -> bool:
    """Have ACCEPTED be what the primary has already, where that decides what else is sent. Whether there is any."""
    accepted = _rows(spark, archive, KEY_IN_SPARK, LEDGER) if run.options.dedup is DedupMode.MESSAGE_ID else None
    if accepted is not None:
        accepted.distinct().createOrReplaceTempView(planning.ACCEPTED)
    return accepted is not None


def _rows(spark: Any, archive: Archive, columns: str, *kinds: str) -> Any:
    """What the files that are there now have; None where there are none."""
    files = [archive.spark_url(path) for kind in kinds for path in archive.files(kind)]
    return spark.read.schema(columns).parquet(*files) if files else None


def _compare(spark: Any) -> planning.Compare:
    """Which rows have to be compared. Where they are told by the names that they share, SHARED has these."""
    [(names,)] = spark.sql(f"SELECT count(*) FROM ({planning.shared()})").collect()  # noqa: S608
    among = planning.compare(names)
    if among is planning.Compare.SHARING:
        spark.sql(f"CACHE TABLE {planning.SHARED} AS {planning.shared()}")
    return among


def _flows(spark: Any, run: ReplayRun) -> list[dict[str, Any]]:
    try:
        return [row.asDict() for row in spark.sql(planning.summary(VIEW)).collect()]
    except sparks.errors() as error:
        if run.options.selection.where is None or sparks.unreadable(str(error)):
            raise
        raise UsageError(
            f"--where fails on a message: {choosing.said(error)}; everything is safe in the archive",
            hint=f"'sbpair replay resume {run.id} --where …' with another one, or --all",
        ) from None
