"""The plan that Spark makes of the archive: its summary, and the rows that tasks send.

Invariant: nothing is sent by an earlier plan. The plan is computed each time, from files that never change.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sbpair.errors import UsageError
from sbpair.replay import plan_sql, send_task, shard_source
from sbpair.replay.archive_layout import (
    EXPIRED,
    KEY,
    KEY_IN_SPARK,
    LEDGER,
    PLAN_FILE,
    QUARANTINE,
    SEGMENT_IN_SPARK,
    SEGMENTS,
)
from sbpair.replay.run import DedupMode, ReplayRun
from sbpair.replay.selection import sql_message
from sbpair.replay.spark import spark_errors, unreadable_segment

if TYPE_CHECKING:
    from sbpair.replay.archive import Archive

PLAN_VIEW = "plan"


@dataclass(frozen=True)
class ShardPlan:
    """A plan. `flows` are its summary: messages and bytes by queue, destination and verdict."""

    spark: Any
    run: ReplayRun
    flows: list[dict[str, Any]]

    @property
    def destinations(self) -> list[str]:
        """The destinations of all selected messages."""
        selected = {row["destination"] for row in self.flows if row["verdict"] != plan_sql.UNSELECTED}
        return sorted(selected - {None}, key=str.lower)

    def count_to_send(self) -> dict[str, int]:
        """Count the messages to send, by destination."""
        found: Counter[str] = Counter()
        for row in self.flows:
            if row["verdict"] == plan_sql.SEND:
                found[row["destination"]] += row["messages"]
        return dict(found)

    def has_duplicates(self) -> bool:
        """Return whether messages are to be marked as deduplicated."""
        return any(row["verdict"] == plan_sql.DEDUPLICATED for row in self.flows)

    def send_rows(self) -> Any:
        """Return the rows to send, one partition per shard, each in order."""
        from pyspark.sql.functions import expr

        [(places,)] = self.spark.sql(plan_sql.placement_query(self.run.shards)).collect()
        partition = expr(plan_sql.placement_expression(self.run.shards, places))
        rows = self.spark.sql(plan_sql.send_query(PLAN_VIEW)).repartition(self.run.shards, partition)
        return rows.sortWithinPartitions(*plan_sql.ORDER).select(*shard_source.COLUMNS)

    def duplicate_rows(self) -> Any:
        """Return the rows of duplicates that are not sent, by the shard of their first copy."""
        rows = self.spark.sql(plan_sql.duplicates_query(PLAN_VIEW)).select(*send_task.DUPLICATE_COLUMNS)
        return rows.repartition(self.run.shards, "first_shard").sortWithinPartitions(*send_task.DUPLICATE_ORDER)


def build_plan(spark: Any, run: ReplayRun, archive: Archive) -> ShardPlan:
    """Plan the archive as it is now. Raises UsageError if --where fails on a message, and Spark's errors."""
    _messages(spark, run, archive).createOrReplaceTempView(plan_sql.MESSAGES)
    now_ms, accepted = int(time.time() * 1000), None
    if run.options.dedup is DedupMode.MESSAGE_ID:
        # Each plan chooses the same first message, however late: it may have been sent.
        now_ms, accepted = run.started_ms, _rows(spark, archive, KEY_IN_SPARK, LEDGER)
    if accepted is not None:
        accepted.distinct().createOrReplaceTempView(plan_sql.ACCEPTED)
    query = plan_sql.plan_query(run, now_ms, _choose_compare(spark), resumed=accepted is not None)
    spark.sql(query).createOrReplaceTempView(PLAN_VIEW)
    plan = ShardPlan(spark, run, _flows(spark, run))
    archive.write_json(PLAN_FILE, {"flows": plan.flows})
    return plan


def _messages(spark: Any, run: ReplayRun, archive: Archive) -> Any:
    """Return the rows of all segments. With deduplication, duplicates of expired and quarantined ones are sent."""
    found = _rows(spark, archive, SEGMENT_IN_SPARK, SEGMENTS)
    by_id = run.options.dedup is DedupMode.MESSAGE_ID
    unsent = _rows(spark, archive, KEY_IN_SPARK, EXPIRED, QUARANTINE) if by_id else None
    if unsent is None:
        return found
    return found.join(unsent, [found[name].eqNullSafe(unsent[name]) for name in KEY], "left_anti")


def _rows(spark: Any, archive: Archive, columns: str, *kinds: str) -> Any:
    files = [archive.spark_url(path) for kind in kinds for path in archive.files(kind)]
    return spark.read.schema(columns).parquet(*files) if files else None


def _choose_compare(spark: Any) -> plan_sql.Compare:
    [(keys,)] = spark.sql(f"SELECT count(*) FROM ({plan_sql.shared_query()})").collect()  # noqa: S608
    compare = plan_sql.choose_compare(keys)
    if compare is plan_sql.Compare.SHARING:
        spark.sql(f"CACHE TABLE {plan_sql.SHARED} AS {plan_sql.shared_query()}")
    return compare


def _flows(spark: Any, run: ReplayRun) -> list[dict[str, Any]]:
    try:
        return [row.asDict() for row in spark.sql(plan_sql.summary_query(PLAN_VIEW)).collect()]
    except spark_errors() as error:
        if run.options.selection.where is None or unreadable_segment(str(error)):
            raise
        raise UsageError(
            f"--where fails on a message: {sql_message(error)}; everything is safe in the archive",
            hint=f"resume run {run.id} with another --where, or with --all",
        ) from None
