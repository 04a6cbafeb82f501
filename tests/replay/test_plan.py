"""The plan's SQL against a simple plan in Python, on arbitrary rows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sbpair.move.message.route import Expire, Facts, TimeToLive, route
from sbpair.replay import shard_plan
from sbpair.replay.run_description import EVERYTHING, DedupMode, ReplayOptions, ReplayRun, ReplaySelection
from sbpair.replay.segment import KEY_IN_SPARK, shard_of
from sbpair.replay.spark import spark_session
from tests.replay.world import HASTY

NOW = 1_000_000
COLUMNS = (
    "segment string, position int, queue string, sequence_number long, enqueued_at_ms long, message_id string,"
    " destination string, session_id string, ttl_ticks long, scheduled_at_ms long, size long, flaw string"
)
Row = tuple[Any, ...]
WHERE = "message_id = 'a' OR sequence_number = 2 -- the former may be null"
CHOICES = (
    EVERYTHING,
    ReplaySelection(("orders",)),
    ReplaySelection((), WHERE),
    ReplaySelection(("orders", "invoices"), WHERE),
    ReplaySelection((), missing=("orders", "it's")),
)


@pytest.fixture
def spark(own_java: None) -> Iterator[Any]:  # noqa: ARG001  it ends Java
    settings = {**HASTY, "spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}
    with spark_session("local[2]", settings) as session:
        yield session


def rows() -> st.SearchStrategy[list[Row]]:
    """Draw many rows with few distinct values, so that most combinations occur."""
    moments = st.sampled_from([0, 1, NOW - 100, NOW - 10, NOW, NOW + 50])
    message = st.tuples(
        st.sampled_from(["q/0", "q/1"]),
        st.integers(1, 3),
        moments,
        st.sampled_from(["a", "b", "", None]),
        st.sampled_from(["orders", "Orders", "invoices"]),
        st.sampled_from([None, "s1", "s2"]),
        st.sampled_from([None, 0, 1, 10_000, 100_001, 1_000_000, 10**15]),
        st.one_of(st.none(), moments),
    )
    drawn = st.tuples(message, st.sampled_from([False, False, False, True]))
    return st.one_of(st.lists(drawn, max_size=5), st.lists(drawn, min_size=40, max_size=60)).map(_placed)


def _placed(drawn: Sequence[tuple[Row, bool]]) -> list[Row]:
    """Put rows into two segments. Rows with the same key are equal, since they are the same message."""
    of_key: dict[Row, Row] = {}
    found = []
    for number, (message, is_flawed) in enumerate(drawn):
        key, rest = message[:4], message[4:]
        destination, *envelope = of_key.setdefault(key, (None if is_flawed else rest[0], *rest[1:]))
        flaw = "no destination" if destination is None else None
        place = (f"s{number % 2}", number // 2)
        found.append((*place, *key, destination, *envelope, 10 + number, flaw))
    return found


def _row(number: int, message_id: str | None, destination: str | None, ttl_ticks: int | None = None) -> Any:
    return ("q/0", number, NOW - 100, message_id, destination, None, ttl_ticks, None), destination is None


_STRANGERS = _placed([_row(1, "a", "orders"), _row(2, "b", None), _row(3, None, "invoices"), _row(4, "c", "orders", 1)])
_TWINS = _placed([_row(1, "a", "orders"), _row(1, "a", "orders"), _row(2, "a", "Orders"), _row(3, "b", "orders")])
_CHOSEN: Any = {"dedup": DedupMode.MESSAGE_ID, "ttl": TimeToLive.REMAINING, "shards": 4, "selection": CHOICES[1]}


def naive(rows: list[Row], options: ReplayOptions, accepted: set[Row]) -> dict[tuple[str, int], tuple[str, bool]]:
    found: dict[tuple[str, int], tuple[str, bool]] = {}
    seen: set[Row] = set()
    sendable = []
    for row in sorted(rows, key=lambda row: row[:2]):
        segment, position, *key_parts = row[:6]
        key = tuple(key_parts)
        verdict = shard_plan.SEND
        if key in seen:
            verdict = shard_plan.COPY
        elif row[11] is not None:
            verdict = shard_plan.INVALID
        elif key not in accepted and is_expired(row, options):
            verdict = shard_plan.EXPIRED
        seen.add(key)
        found[segment, position] = verdict, False
        if verdict == shard_plan.SEND:
            sendable.append(row)
    first_is_chosen: dict[tuple[str, str], bool] = {}
    for row in sorted(sendable, key=lambda row: (row[2:6] not in accepted, row[4], row[2], row[3])):
        name = (row[6].lower(), row[5])
        if row[5] and name in first_is_chosen:
            repeated = shard_plan.DEDUPLICATED if first_is_chosen[name] else shard_plan.WAITING
            found[row[0], row[1]] = repeated if options.dedup is DedupMode.MESSAGE_ID else shard_plan.SEND, True
        first_is_chosen.setdefault(name, is_chosen(row, options.selection) or row[2:6] in accepted)
    for row in rows:
        if found[row[:2]][0] != shard_plan.COPY and not is_chosen(row, options.selection):
            found[row[0], row[1]] = shard_plan.UNSELECTED, found[row[0], row[1]][1]
    return found


def first_of(row: Row, rows: list[Row], expected: dict[tuple[str, int], tuple[str, bool]], found: Any) -> Row:
    same = [
        each
        for each in rows
        if (each[5], str(each[6]).lower()) == (row[5], row[6].lower())
        and expected[each[:2]] in ((shard_plan.SEND, False), (shard_plan.UNSELECTED, False))
    ]
    [first] = [each for each in same if expected[each[:2]] == (shard_plan.SEND, False)] or same
    return (*first[2:6], found[first[:2]].shard)


def is_chosen(row: Row, selection: ReplaySelection) -> bool:
    named = not selection.destinations or (row[6] or "").lower() in selection.destinations
    return named and row[6] not in selection.missing and (selection.where is None or row[5] == "a" or row[3] == 2)


def is_expired(row: Row, options: ReplayOptions) -> bool:
    facts = Facts(row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9])
    return isinstance(route(facts, ttl=options.ttl, now_ms=NOW), Expire)


def summed(rows: list[Row], expected: dict[tuple[str, int], tuple[str, bool]]) -> dict[Row, Row]:
    flows: dict[Row, list[Row]] = {}
    for row in rows:
        flows.setdefault((row[2], row[6], expected[row[:2]][0]), []).append(row)
    return {
        flow: (
            len(each),
            sum(row[10] for row in each),
            sum(expected[row[:2]][1] for row in each),
            min(row[4] for row in each),
            max(row[4] for row in each),
        )
        for flow, each in flows.items()
    }


@pytest.mark.java
@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    drawn=rows(),
    dedup=st.sampled_from(DedupMode),
    ttl=st.sampled_from(TimeToLive),
    shards=st.sampled_from([1, 4, 7]),
    selection=st.sampled_from(CHOICES),
    looked=st.booleans(),
    had=st.sampled_from([None, 1, 2, 3]),
)
@example(drawn=_STRANGERS, looked=True, had=None, **_CHOSEN)
@example(drawn=_TWINS, looked=True, had=None, **_CHOSEN)
@example(drawn=_TWINS, looked=True, had=2, **_CHOSEN)
def test_the_sql_equals_a_naive_plan(
    spark: Any,
    drawn: list[Row],
    dedup: DedupMode,
    ttl: TimeToLive,
    shards: int,
    selection: ReplaySelection,
    looked: bool,
    had: int | None,
) -> None:
    """It holds whether all rows are compared, or only those that share a match key."""
    options = ReplayOptions(dedup=dedup, ttl=ttl, selection=selection)
    run = ReplayRun("r", {}, ("q/0", "q/1"), shards, 0, options)
    spark.createDataFrame(drawn, COLUMNS).createOrReplaceTempView(shard_plan.MESSAGES)
    names = spark.sql(shard_plan.SHARED_QUERY)
    names.createOrReplaceTempView(shard_plan.SHARED)
    among = shard_plan.choose_compare(names.count()) if looked else shard_plan.Compare.EVERY
    ids = Counter(row[5] for row in drawn if row[5] and row[6] is not None)
    # A message that shares its id with no other is not looked up.
    accepted = {row[2:6] for row in drawn if row[3] == had and row[6] is not None and ids[row[5]] > 1}
    if had is not None:
        spark.createDataFrame(sorted(accepted), KEY_IN_SPARK).createOrReplaceTempView(shard_plan.ACCEPTED)
    planned = spark.sql(shard_plan.plan_query(run, NOW, among, resumed=had is not None))
    planned.createOrReplaceTempView("plan")

    found = {(row.segment, row.position): row for row in planned.collect()}
    expected = naive(drawn, options, accepted)

    assert {at: (row.verdict, row.duplicate) for at, row in found.items()} == expected
    envelopes = {row[:2]: row[5:8] for row in drawn}
    for at, row in found.items():
        message_id, destination, session_id = envelopes[at]
        assert row.shard == shard_of(destination, session_id, message_id, shards), "where its segment has it"
    assert (among is shard_plan.Compare.NONE) == (looked and not names.count())

    verdicts = {at: verdict for at, (verdict, _) in expected.items()}
    work = spark.sql(shard_plan.SEND_QUERY).collect()
    columns = ("segment", "position", "queue", "sequence_number", "enqueued_at_ms", "size", "shard")
    assert sorted(tuple(row[name] for name in columns) for row in work) == sorted(
        (*row[:5], row[10], found[row[:2]].shard) for row in drawn if verdicts[row[:2]] not in shard_plan.UNSENT
    )

    repeated = {tuple(row[:6]): tuple(row[6:]) for row in spark.sql(shard_plan.DUPLICATES_QUERY).collect()}
    assert repeated == {
        (*row[2:7], found[row[:2]].shard): first_of(row, drawn, expected, found)
        for row in drawn
        if verdicts[row[:2]] == shard_plan.DEDUPLICATED
    }

    flows = {
        (row.queue, row.destination, row.verdict): tuple(row[3:])
        for row in spark.sql(shard_plan.SUMMARY_QUERY).collect()
    }
    assert flows == summed(drawn, expected)


def test_sessions_and_single_messages_are_spread_over_the_shards() -> None:
    for session in (None, "s{}"):
        found = {shard_of("orders", session and session.format(n), f"m{n}", 8) for n in range(100)}
        assert found == set(range(8))


def test_rows_are_filtered_by_shared_match_keys_while_few() -> None:
    compared = [shard_plan.choose_compare(names) for names in (0, 1, shard_plan.MAX_SHARED, shard_plan.MAX_SHARED + 1)]
    assert compared == [shard_plan.Compare.NONE, *2 * [shard_plan.Compare.SHARING], shard_plan.Compare.EVERY]
