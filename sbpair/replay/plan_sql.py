"""The plan as SQL over the envelope columns: which rows are copies, which are sent, in what shard and order. Pure.

The law: no body passes through Spark; a row says where its message lies. Rows are compared with each other where they
may have to do with each other, which is found out before, and cheaply. Spark 3.5 understands it all.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from sbpair.move.message.route import TimeToLive
from sbpair.replay.run import DedupMode
from sbpair.replay.schema import KEY

if TYPE_CHECKING:
    from sbpair.replay.run import ReplayRun

MESSAGES, SHARED, ACCEPTED = "messages", "shared", "accepted"
"""The views that the SQL reads: rows of segments, the names that several of them have, and the keys, each once, that
the ledger has had since before."""

SEND, COPY, DEDUPLICATED, EXPIRED, INVALID = "send", "copy", "deduplicated", "expired", "invalid"
LEFT, WAITING = "left", "waiting"
"""LEFT was not chosen. WAITING was, and is a repetition of one that was not: it stays with that one."""

ORDER = ("enqueued_at_ms", "queue", "sequence_number")
LOSING = (COPY, DEDUPLICATED, WAITING)
_SPREAD = 40503
"""Names that differ by a digit have checksums that differ by few bits: so multiplied, all bits have to do with all."""

_KEY = ", ".join(KEY)
_IN_ORDER = ", ".join(ORDER)


def shard(shards: int) -> str:
    """Messages of a session are in one shard, whichever queue they came from: so one task has all of them."""
    text = "concat_ws(' ', lower(coalesce(destination, '')), coalesce(session_id, message_id, ''))"
    return f"cast(crc32(cast({text} AS binary)) * {_SPREAD} div 65536 % {shards} AS int)"


def shard_of(destination: str | None, session_id: str | None, message_id: str | None, shards: int) -> int:
    """The same in Python, but for capitals that the two may know different small letters of."""
    within = session_id if session_id is not None else message_id or ""
    return zlib.crc32(f"{(destination or '').lower()} {within}".encode()) * _SPREAD // 65536 % shards


def places(shards: int) -> str:
    """Where Spark would put a row by each of a few numbers, one row with an array: see `placed`."""
    enough = shards * (shards.bit_length() + 10)
    return f"SELECT transform(sequence(0, {enough}), number -> pmod(hash(number), {shards})) AS places"


def placed(shards: int, places: Sequence[int]) -> str:
    """A number by which Spark puts each shard into a partition of its own: by shards as they are, some would share one.

    `places` are where rows with 0, 1, 2 and so on would go.
    """
    number_for = {place: number for number, place in enumerate(places)}
    numbers = ", ".join(str(number_for.get(each, each)) for each in range(shards))
    return f"element_at(array({numbers}), shard + 1)"


def left_ms(now_ms: int) -> str:
    """As `move.route` has it: what is left of a time to live, null where it never ends."""
    waited = f"greatest(0, {now_ms} - greatest(enqueued_at_ms, coalesce(scheduled_at_ms, 0)))"
    lives = "(ttl_ticks div 10000 + CASE WHEN ttl_ticks % 10000 > 0 THEN 1 ELSE 0 END)"
    return f"({lives} - CASE WHEN enqueued_at_ms > 0 THEN {waited} ELSE 0 END)"


class Compare(StrEnum):
    """Which rows are compared with each other: none may be left out that shares its name with another one.

    SHARING are those whose name is in SHARED.
    """

    EVERY = "every"
    SHARING = "sharing"
    NONE = "none"


MAX_SHARED = 100_000
"""Up to so many names that are shared, rows are looked for that have them: each task gets them all."""

_FIRST_TYPE = "struct<queue: string, sequence_number: bigint, enqueued_at_ms: bigint, message_id: string, shard: int>"

_NAME = f"CASE WHEN coalesce(message_id, '') = '' THEN xxhash64({_KEY}) ELSE xxhash64(message_id) END"
"""What copies have in common, and what repeats a message id. That others may have it too costs a comparison."""


def compare(shared_names: int) -> Compare:
    """By how many names there are that several rows have."""
    if shared_names > MAX_SHARED:
        return Compare.EVERY
    return Compare.SHARING if shared_names else Compare.NONE


def shared() -> str:
    """The names that several rows have: none, as a rule."""
    return f"SELECT name FROM (SELECT {_NAME} AS name FROM {MESSAGES}) GROUP BY name HAVING count(*) > 1"  # noqa: S608


def plan(run: ReplayRun, now_ms: int, among: Compare = Compare.EVERY, *, resumed: bool = False) -> str:
    """One row for each row of the segments, without its message, with a verdict and a shard.

    `again` says that another message with this message id is sent to the same destination before it, and `first` which.
    What is a copy, or a repetition, does not depend on what was chosen: so one choice after the other comes to what one
    for all does. `resumed` is whether there are ACCEPTED: of those with the same id, these come before all others,
    whenever others were drained, and whatever has become of their time since.
    """
    columns = f"segment, position, {_KEY}, destination, size"
    expires = f"{left_ms(now_ms)} <= 0" if run.options.ttl is TimeToLive.REMAINING else "false"
    verdict = f"CASE WHEN flaw IS NOT NULL THEN '{INVALID}' WHEN {expires} THEN '{EXPIRED}' ELSE '{SEND}' END"
    alone = (
        f"SELECT {columns}, false AS again, cast(null AS {_FIRST_TYPE}) AS first,"  # noqa: S608
        f" if(chosen, verdict, '{LEFT}') AS verdict, shard FROM named"
    )
    if among is Compare.SHARING:
        ours = f"JOIN {SHARED} ON named.name = {SHARED}.name"
        compared = _compared(run, columns, f"named LEFT SEMI {ours}", resumed=resumed)
        said = f"{compared} UNION ALL {alone} LEFT ANTI {ours}"
    else:
        said = _compared(run, columns, "named", resumed=resumed) if among is Compare.EVERY else alone
    return f"""
WITH named AS (
  SELECT {columns}, {run.options.selection.sql()} AS chosen, {verdict} AS verdict, {_NAME} AS name,
    {shard(run.shards)} AS shard
  FROM {MESSAGES})
{said}"""  # noqa: S608


def _compared(run: ReplayRun, columns: str, rows: str, *, resumed: bool) -> str:
    """The same for rows that may share names. Those that do are brought together once, for both comparisons."""
    repeats = DEDUPLICATED if run.options.dedup is DedupMode.MESSAGE_ID else SEND
    accepted = f"{ACCEPTED}.queue IS NOT NULL" if resumed else "false"
    if resumed:
        rows += f" LEFT JOIN {ACCEPTED} ON " + " AND ".join(f"named.{name} = {ACCEPTED}.{name}" for name in KEY)
    return f"""(
WITH gathered AS (SELECT named.*, {accepted} AS accepted FROM {rows} DISTRIBUTE BY name),
numbered AS (
  SELECT *, row_number() OVER (PARTITION BY name, {_KEY} ORDER BY segment, position) AS copy FROM gathered),
judged AS (
  SELECT *, CASE WHEN copy > 1 THEN '{COPY}' WHEN accepted THEN '{SEND}' ELSE verdict END AS first_verdict
  FROM numbered),
repeated AS (
  SELECT *, first_verdict = '{SEND}' AND coalesce(message_id, '') <> '' AND row_number() OVER same > 1 AS again,
    first_value(chosen OR accepted) OVER same AS first_chosen, first_value(struct({_KEY}, shard)) OVER same AS first
  FROM judged
  WINDOW same AS (PARTITION BY name, message_id, first_verdict, lower(destination)
    ORDER BY NOT accepted, {_IN_ORDER}))
SELECT {columns}, again, first,
  CASE WHEN first_verdict = '{COPY}' THEN first_verdict WHEN NOT chosen THEN '{LEFT}'
    WHEN again AND '{repeats}' <> '{SEND}' AND NOT first_chosen THEN '{WAITING}'
    WHEN again THEN '{repeats}' ELSE first_verdict END AS verdict,
  shard
FROM repeated)"""  # noqa: S608


def work(plan_view: str) -> str:
    """What the senders get: every chosen message once, where it lies, and what it is sorted by."""
    columns, left_out = ", ".join(("shard", "segment", "position", "size", *ORDER)), (*LOSING, LEFT)
    return f"SELECT {columns} FROM {plan_view} WHERE verdict NOT IN {left_out}"  # noqa: S608


def repeats(plan_view: str) -> str:
    """What is not sent where the message that it repeats has been accepted, with the key and the shard of that one."""
    first = ", ".join(f"first.{name} AS first_{name}" for name in (*KEY, "shard"))
    return f"SELECT {_KEY}, destination, shard, {first} FROM {plan_view} WHERE verdict = '{DEDUPLICATED}'"  # noqa: S608


def summary(plan_view: str) -> str:
    """Per queue and destination: messages and bytes by verdict."""
    return f"""
SELECT queue, destination, verdict, count(*) AS messages, sum(size) AS bytes,
  count_if(again) AS again, min(enqueued_at_ms) AS oldest_ms, max(enqueued_at_ms) AS newest_ms
FROM {plan_view} GROUP BY queue, destination, verdict"""  # noqa: S608
