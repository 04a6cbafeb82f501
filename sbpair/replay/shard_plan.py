"""The plan that Spark makes of the archive: which rows are copies, which are sent, in what shard and order.

Invariant: nothing is sent by an earlier plan. It is computed each time, from files that never change. No body passes
through Spark; a row has its message's position. Only rows that may be copies or duplicates are compared, which is
found out first, and cheaply. Spark 3.5 understands all of the SQL, and refuses a wrong --where before a drain.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sbpair.errors import UsageError
from sbpair.move.message.route import TimeToLive
from sbpair.replay.archive import LEDGER, NOT_SENT, OUTCOMES, PLAN_FILE, SEGMENTS, Archive
from sbpair.replay.ledger import KEY
from sbpair.replay.run_description import DedupMode, ReplayRun, ReplaySelection
from sbpair.replay.segment import ENVELOPE, KEY_IN_SPARK, SEGMENT, SEGMENT_IN_SPARK, SPARK_TYPES, shard_expression
from sbpair.replay.spark import spark_errors, spark_message, unreadable_segment

MESSAGES, SHARED, ACCEPTED, PLAN = "messages", "shared", "accepted", "plan"
"""Views: rows of segments; match keys of several rows; keys that an earlier attempt sent; the rows with verdicts."""

SEND, COPY, DEDUPLICATED, EXPIRED, INVALID = "send", "copy", "deduplicated", "expired", "invalid"
UNSELECTED, WAITING = "unselected", "waiting"  # WAITING is a selected duplicate of an unselected message
ORDER = ("enqueued_at_ms", "queue", "sequence_number")
COLUMNS = ("shard", "segment", "position", "size")  # of the rows that tasks send
DUPLICATE_COLUMNS = (*KEY, "destination", "shard", *(f"first_{name}" for name in KEY), "first_shard")
DUPLICATE_ORDER = ("first_shard", "shard")  # so that a task reads the ledger of one shard after the other
EXCLUDED = (UNSELECTED, WAITING)
UNSENT = (COPY, DEDUPLICATED, WAITING, UNSELECTED)

CHECKSUMS = "parquet.page.verify-checksum.enabled"
"""The option with which Spark compares pages with their checksums, as pyarrow does for tasks."""

_HINT = f"the columns are {', '.join(ENVELOPE)}; a body is none: sbpair help spark has body_text, of an archive"
_KEY = ", ".join(KEY)
_IN_ORDER = ", ".join(ORDER)


def remaining_ms_expression(now_ms: int) -> str:
    """Return SQL for the remaining time to live, as `move.route` computes it; null if it never ends."""
    waited = f"greatest(0, {now_ms} - greatest(enqueued_at_ms, coalesce(scheduled_at_ms, 0)))"
    lives = "(ttl_ticks div 10000 + CASE WHEN ttl_ticks % 10000 > 0 THEN 1 ELSE 0 END)"
    return f"({lives} - CASE WHEN enqueued_at_ms > 0 THEN {waited} ELSE 0 END)"


class Compare(StrEnum):
    """Which rows are compared with each other. Rows that share a match key always are."""

    EVERY = "every"
    SHARING = "sharing"  # those whose match key is in SHARED
    NONE = "none"


MAX_SHARED = 100_000  # upper bound on shared match keys that are sent to each task, to filter rows by them
_FIRST_TYPE = "struct<queue: string, sequence_number: bigint, enqueued_at_ms: bigint, message_id: string, shard: int>"
_MATCH_KEY = f"CASE WHEN coalesce(message_id, '') = '' THEN xxhash64({_KEY}) ELSE xxhash64(message_id) END"
"""A hash that copies and duplicates share. A collision costs a comparison."""

SHARED_QUERY = f"SELECT {_MATCH_KEY} AS match_key FROM {MESSAGES} GROUP BY {_MATCH_KEY} HAVING count(*) > 1"  # noqa: S608
"""The match keys that several rows have: usually none."""

SEND_QUERY = f"SELECT {', '.join((*COLUMNS, *ORDER))} FROM {PLAN} WHERE verdict NOT IN {UNSENT}"  # noqa: S608
"""The rows that tasks send: each selected message once, its position, and the columns of ORDER."""

_FIRST = ", ".join(f"first.{name} AS first_{name}" for name in (*KEY, "shard"))
DUPLICATES_QUERY = f"SELECT {_KEY}, destination, shard, {_FIRST} FROM {PLAN} WHERE verdict = '{DEDUPLICATED}'"  # noqa: S608
"""The duplicates that are not sent, with key and shard of the first copy."""

SUMMARY_QUERY = f"""
SELECT queue, destination, verdict, count(*) AS messages, sum(size) AS bytes,
  count_if(duplicate) AS duplicates, min(enqueued_at_ms) AS oldest_ms, max(enqueued_at_ms) AS newest_ms
FROM {PLAN} GROUP BY queue, destination, verdict"""  # noqa: S608


def choose_compare(shared_keys: int) -> Compare:
    """Choose by the number of match keys that several rows have."""
    if shared_keys > MAX_SHARED:
        return Compare.EVERY
    return Compare.SHARING if shared_keys else Compare.NONE


def plan_query(run: ReplayRun, now_ms: int, compare: Compare = Compare.EVERY, *, resumed: bool = False) -> str:
    """Return SQL with one row for each row of the segments, without its message, with a verdict and a shard.

    `duplicate` is whether another message with this id goes to the same destination before it, and `first` is that
    message. Copies and duplicates do not depend on the selection: several selections in turn send the same as one run
    of everything. `resumed` is whether ACCEPTED exists: an accepted message comes before others with its id, whenever
    those were drained, and even if its time to live has ended since.
    """
    columns = f"segment, position, {_KEY}, destination, size"
    expires = f"{remaining_ms_expression(now_ms)} <= 0" if run.options.ttl is TimeToLive.REMAINING else "false"
    verdict = f"CASE WHEN flaw IS NOT NULL THEN '{INVALID}' WHEN {expires} THEN '{EXPIRED}' ELSE '{SEND}' END"
    alone = (
        f"SELECT {columns}, false AS duplicate, cast(null AS {_FIRST_TYPE}) AS first,"  # noqa: S608
        f" if(selected, verdict, '{UNSELECTED}') AS verdict, shard FROM matched"
    )
    if compare is Compare.SHARING:
        join = f"JOIN {SHARED} ON matched.match_key = {SHARED}.match_key"
        compared = _compared(run, columns, f"matched LEFT SEMI {join}", resumed=resumed)
        rows = f"{compared} UNION ALL {alone} LEFT ANTI {join}"
    else:
        rows = _compared(run, columns, "matched", resumed=resumed) if compare is Compare.EVERY else alone
    return f"""
WITH matched AS (
  SELECT {columns}, {run.options.selection.sql()} AS selected, {verdict} AS verdict, {_MATCH_KEY} AS match_key,
    {shard_expression(run.shards, run.options.sessions)} AS shard
  FROM {MESSAGES})
{rows}"""  # noqa: S608


def _compared(run: ReplayRun, columns: str, rows: str, *, resumed: bool) -> str:
    """Return the same for rows that may share match keys. One shuffle by that key serves both comparisons."""
    duplicates = DEDUPLICATED if run.options.dedup is DedupMode.MESSAGE_ID else SEND
    accepted = f"{ACCEPTED}.queue IS NOT NULL" if resumed else "false"
    if resumed:
        rows += f" LEFT JOIN {ACCEPTED} ON " + " AND ".join(f"matched.{name} = {ACCEPTED}.{name}" for name in KEY)
    return f"""(
WITH gathered AS (SELECT matched.*, {accepted} AS accepted FROM {rows} DISTRIBUTE BY match_key),
numbered AS (
  SELECT *, row_number() OVER (PARTITION BY match_key, {_KEY} ORDER BY segment, position) AS copy FROM gathered),
judged AS (
  SELECT *, CASE WHEN copy > 1 THEN '{COPY}' WHEN accepted THEN '{SEND}' ELSE verdict END AS first_verdict
  FROM numbered),
repeated AS (
  SELECT *, first_verdict = '{SEND}' AND coalesce(message_id, '') <> '' AND row_number() OVER same > 1 AS duplicate,
    first_value(selected OR accepted) OVER same AS first_selected,
    first_value(struct({_KEY}, shard)) OVER same AS first
  FROM judged
  WINDOW same AS (PARTITION BY match_key, message_id, first_verdict, lower(destination)
    ORDER BY NOT accepted, {_IN_ORDER}))
SELECT {columns}, duplicate, first,
  CASE WHEN first_verdict = '{COPY}' THEN first_verdict WHEN NOT selected THEN '{UNSELECTED}'
    WHEN duplicate AND '{duplicates}' <> '{SEND}' AND NOT first_selected THEN '{WAITING}'
    WHEN duplicate THEN '{duplicates}' ELSE first_verdict END AS verdict,
  shard
FROM repeated)"""  # noqa: S608


def check_selection(spark: Any, selection: ReplaySelection) -> None:
    """Have Spark analyse the condition. Raises UsageError if Spark refuses it, or it uses more than the envelope."""
    if selection.where is None:
        return
    from pyspark.errors import PySparkException

    whole, condition = _empty_table(SEGMENT.names), selection.sql()
    try:
        # Bare and in parentheses: one whole condition, which cannot close ours.
        _analyse(spark, f"SELECT 1 FROM {_empty_table(ENVELOPE)} WHERE {selection.where}\n")  # noqa: S608
        _analyse(spark, f"SELECT 1 FROM {whole} WHERE {condition}")  # noqa: S608
    except PySparkException as error:
        raise UsageError(f"--where is refused by Spark: {sql_message(error)}", hint=_HINT) from None
    # Spark refuses each of these where the condition stands. Plans are not read: Spark Connect has none.
    for query, reason in {
        f"SELECT filter(array(1), each -> {condition}) FROM {whole}": "has a subquery",  # noqa: S608
        f"SELECT max({condition}) FROM {whole}": "is not deterministic",  # noqa: S608
        f"SELECT {condition} FROM {whole} GROUP BY {', '.join(ENVELOPE)}": (  # noqa: S608
            "uses all columns, and bodies are not part of the envelope"  # by a star
        ),
    }.items():
        try:
            _analyse(spark, query)
        except PySparkException:
            raise UsageError(f"--where {reason}", hint=_HINT) from None


def _analyse(spark: Any, query: str) -> None:
    spark.sql(query).schema  # noqa: B018  through Spark Connect, this analyses the query


def sql_message(error: Any) -> str:
    """Return Spark's message about SQL in one line, without error class and position."""
    pattern = r"^.*\[[A-Z][A-Z_.]+\] | SQLSTATE: \S+.*|;? ?\(?line \d+,? pos \d+.*"
    return re.sub(pattern, "", spark_message(error))


def _empty_table(columns: Iterable[str]) -> str:
    cast = (f"cast(null AS {SPARK_TYPES[str(SEGMENT.field(name).type)]}) AS {name}" for name in columns)
    return f"(SELECT {', '.join(cast)})"


@dataclass(frozen=True)
class ShardPlan:
    """A plan. `flows` are its summary: messages and bytes by queue, destination and verdict."""

    spark: Any
    run: ReplayRun
    flows: list[dict[str, Any]]

    @property
    def destinations(self) -> list[str]:
        """The destinations of all selected messages, as they are named now."""
        found = (self.run.delivery.name(row["destination"]) for row in self.flows if row["verdict"] != UNSELECTED)
        return sorted({each for each in found if each is not None}, key=str.lower)

    def written(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the destinations that have these names now, as messages name them."""
        rows = (row["destination"] for row in self.flows)
        return tuple(each for each in rows if self.run.delivery.name(each) in names)

    def count_to_send(self) -> dict[str, int]:
        """Count the messages to send, by destination as it is named now."""
        found: Counter[Any] = Counter()
        for row in self.flows:
            if row["verdict"] == SEND:
                found[self.run.delivery.name(row["destination"])] += row["messages"]
        return dict(found)

    def count_excluded(self, archive: Archive) -> int:
        """Count the messages without an outcome that the selection left out."""
        left_out = ", ".join(map(repr, EXCLUDED))
        if not any(row["verdict"] in EXCLUDED for row in self.flows):
            return 0
        found = self.spark.sql(f"SELECT {_KEY} FROM {PLAN} WHERE verdict IN ({left_out})")  # noqa: S608
        ended = _rows(self.spark, archive, KEY_IN_SPARK, *OUTCOMES)
        return int((found if ended is None else _without(found, ended)).count())

    def has_duplicates(self) -> bool:
        """Return whether messages are to be marked as deduplicated."""
        return any(row["verdict"] == DEDUPLICATED for row in self.flows)

    def send_rows(self) -> Any:
        """Return the rows to send, one partition per shard, each in order."""
        from pyspark.sql.functions import expr

        shards = self.run.shards
        # By shard alone, some shards would have the same partition: find a number that Spark puts into each partition.
        numbers = f"sequence(0, {shards * (shards.bit_length() + 10)})"
        [(places,)] = self.spark.sql(f"SELECT transform({numbers}, each -> pmod(hash(each), {shards}))").collect()
        number_for = {place: number for number, place in enumerate(places)}
        chosen = ", ".join(str(number_for.get(each, each)) for each in range(shards))
        rows = self.spark.sql(SEND_QUERY).repartition(shards, expr(f"element_at(array({chosen}), shard + 1)"))
        return rows.sortWithinPartitions(*ORDER).select(*COLUMNS)

    def duplicate_rows(self) -> Any:
        """Return the rows of duplicates that are not sent, by the shard of their first copy."""
        rows = self.spark.sql(DUPLICATES_QUERY).select(*DUPLICATE_COLUMNS)
        return rows.repartition(self.run.shards, "first_shard").sortWithinPartitions(*DUPLICATE_ORDER)


def build_plan(spark: Any, run: ReplayRun, archive: Archive, now_ms: int) -> ShardPlan:
    """Plan the archive as it is now, at a time of the service.

    Raises UsageError if --where fails on a message, and Spark's errors.
    """
    _messages(spark, run, archive).createOrReplaceTempView(MESSAGES)
    accepted = None
    if run.options.dedup is DedupMode.MESSAGE_ID:
        # Each plan chooses the same first message, however late: it may have been sent.
        now_ms, accepted = run.started_ms, _rows(spark, archive, KEY_IN_SPARK, LEDGER)
    if accepted is not None:
        accepted.distinct().createOrReplaceTempView(ACCEPTED)
    query = plan_query(run, now_ms, _choose_compare(spark), resumed=accepted is not None)
    spark.sql(query).createOrReplaceTempView(PLAN)
    plan = ShardPlan(spark, run, _flows(spark, run))
    archive.write_json(PLAN_FILE, {"flows": plan.flows})
    return plan


def _messages(spark: Any, run: ReplayRun, archive: Archive) -> Any:
    """Return the rows of all segments. With deduplication, duplicates of expired and quarantined ones are sent."""
    found = _rows(spark, archive, SEGMENT_IN_SPARK, SEGMENTS)
    by_id = run.options.dedup is DedupMode.MESSAGE_ID
    unsent = _rows(spark, archive, KEY_IN_SPARK, *NOT_SENT) if by_id else None
    if unsent is None:
        return found
    return _without(found, unsent)


def _without(found: Any, others: Any) -> Any:
    """Return the rows whose message is not among others."""
    return found.join(others, [found[name].eqNullSafe(others[name]) for name in KEY], "left_anti")


def _rows(spark: Any, archive: Archive, columns: str, *kinds: str) -> Any:
    files = [archive.spark_url(path) for kind in kinds for path in archive.files(kind)]
    return spark.read.schema(columns).option(CHECKSUMS, "true").parquet(*files) if files else None


def _choose_compare(spark: Any) -> Compare:
    [(keys,)] = spark.sql(f"SELECT count(*) FROM ({SHARED_QUERY})").collect()  # noqa: S608
    compare = choose_compare(keys)
    if compare is Compare.SHARING:
        spark.sql(f"CACHE TABLE {SHARED} AS {SHARED_QUERY}")
    return compare


def _flows(spark: Any, run: ReplayRun) -> list[dict[str, Any]]:
    try:
        return [row.asDict() for row in spark.sql(SUMMARY_QUERY).collect()]
    except spark_errors() as error:
        if run.options.selection.where is None or unreadable_segment(str(error)):
            raise
        raise UsageError(
            f"--where fails on a message: {sql_message(error)}; everything is safe in the archive",
            hint=f"resume run {run.id} with another --where, or with --all",
        ) from None
