"""The plan as SQL over the envelope columns: which rows are copies, which are sent, in what shard and order. Pure.

The law: bodies are in no window and no join but the last, and pass through one shuffle. Spark 3.5 understands it all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.move.route import TimeToLive
from sbpair.replay.run import Dedup
from sbpair.replay.schema import KEY

if TYPE_CHECKING:
    from sbpair.replay.run import Run

MESSAGES, LOSERS = "messages", "losers"
"""The views that the SQL reads: rows of segments, and those of them that are not sent because another one is."""

SEND, COPY, DEDUPLICATED, EXPIRED, INVALID = "send", "copy", "deduplicated", "expired", "invalid"
LEFT, WAITING = "left", "waiting"
"""LEFT was not chosen. WAITING was, and is a repetition of one that was not: it stays with that one."""

ORDER = ("enqueued_at_ms", "queue", "sequence_number")
LOSING = (COPY, DEDUPLICATED, WAITING)
_KEY = ", ".join(KEY)
_IN_ORDER = ", ".join(ORDER)


def shard(shards: int) -> str:
    """Messages of a session are in one shard, whichever queue they came from: so one task has all of them."""
    return f"pmod(xxhash64(lower(destination), coalesce(session_id, message_id)), {shards})"


def left_ms(now_ms: int) -> str:
    """As `move.route` has it: what is left of a time to live, null where it never ends."""
    waited = f"greatest(0, {now_ms} - greatest(enqueued_at_ms, coalesce(scheduled_at_ms, 0)))"
    lives = "(ttl_ticks div 10000 + CASE WHEN ttl_ticks % 10000 > 0 THEN 1 ELSE 0 END)"
    return f"({lives} - CASE WHEN enqueued_at_ms > 0 THEN {waited} ELSE 0 END)"


def plan(run: Run, now_ms: int) -> str:
    """One row for each row of the segments, without its message, with a verdict and a shard.

    `again` says that another message with this message id is sent to the same destination before it. What is a copy, or
    a repetition, does not depend on what was chosen: so one choice after the other comes to what one for all does.
    """
    expires = f"{left_ms(now_ms)} <= 0" if run.options.ttl is TimeToLive.REMAINING else "false"
    repeats = DEDUPLICATED if run.options.dedup is Dedup.MESSAGE_ID else SEND
    return f"""
WITH numbered AS (
  SELECT segment, position, {_KEY}, destination, session_id, ttl_ticks, scheduled_at_ms, size, flaw,
    {run.options.selection.sql()} AS chosen,
    row_number() OVER (PARTITION BY {_KEY} ORDER BY segment, position) AS copy
  FROM {MESSAGES}),
judged AS (
  SELECT *, CASE WHEN copy > 1 THEN '{COPY}' WHEN flaw IS NOT NULL THEN '{INVALID}'
    WHEN {expires} THEN '{EXPIRED}' ELSE '{SEND}' END AS first_verdict
  FROM numbered),
repeated AS (
  SELECT *, first_verdict = '{SEND}' AND coalesce(message_id, '') <> '' AND row_number() OVER same > 1 AS again,
    first_value(chosen) OVER same AS first_chosen
  FROM judged
  WINDOW same AS (PARTITION BY first_verdict, lower(destination), message_id ORDER BY {_IN_ORDER}))
SELECT segment, position, {_KEY}, destination, session_id, size, again,
  CASE WHEN first_verdict = '{COPY}' THEN first_verdict WHEN NOT chosen THEN '{LEFT}'
    WHEN again AND '{repeats}' <> '{SEND}' AND NOT first_chosen THEN '{WAITING}'
    WHEN again THEN '{repeats}' ELSE first_verdict END AS verdict,
  {shard(run.shards)} AS shard
FROM repeated"""  # noqa: S608


def losers(plan_view: str) -> str:
    """Few, as a rule: what the bodies are joined with."""
    return f"SELECT segment, position, verdict FROM {plan_view} WHERE verdict IN {LOSING}"  # noqa: S608


def work(run: Run, *, joined: bool) -> str:
    """What the senders get: every chosen message once, with its body. `joined` is whether there are losers at all."""
    verdict, join, where = "cast(null AS string)", "", f"WHERE {run.options.selection.sql()}"
    if joined:
        verdict = "l.verdict"
        join = f"LEFT JOIN {LOSERS} l ON m.segment = l.segment AND m.position = l.position"
        where += f" AND coalesce(l.verdict, '') NOT IN ('{COPY}', '{WAITING}')"
    columns = ", ".join(f"m.{name}" for name in (*KEY, "destination", "session_id", "message"))
    return f"""
SELECT *, cast({shard(run.shards)} AS int) AS shard
FROM (SELECT {columns}, {verdict} AS verdict FROM {MESSAGES} m {join} {where})"""  # noqa: S608


def summary(plan_view: str) -> str:
    """Per queue and destination: messages and bytes by verdict."""
    return f"""
SELECT queue, destination, verdict, count(*) AS messages, sum(size) AS bytes,
  count_if(again) AS again, min(enqueued_at_ms) AS oldest_ms, max(enqueued_at_ms) AS newest_ms
FROM {plan_view} GROUP BY queue, destination, verdict"""  # noqa: S608
