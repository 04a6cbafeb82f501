"""Selected messages are sent, others stay in the archive, and an invalid selection is refused first."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.model.message_state import dead_letter_path
from sbpair.replay import driver, shard_plan, spark
from sbpair.replay.archive import QUARANTINE, SEGMENTS
from sbpair.replay.delivery import ReplayDelivery
from sbpair.replay.run_description import ReplayOptions, ReplayRun, ReplaySelection, SessionIds
from sbpair.replay.segment import shard_of
from tests.replay.segments import QUEUE, created, key, rows_of, write_segment
from tests.replay.tasks import job_of, proof_of, replayed, stranded
from tests.replay.world import HASTY, HOUR_TICKS, World

QUICK = ReplayOptions(empty_seconds=0.1)

TAKEN = (
    "destination = 'orders'",
    "size < 65536 AND session_id IS NULL -- small ones",
    "timestamp_millis(enqueued_at_ms) < current_timestamp() - INTERVAL 1 HOUR",
    "dead_letter_reason <> 'TTLExpiredException' OR ttl_ticks IS NULL",
    "true",
)
REFUSED = {
    "destinaton = 'orders'": "`destinaton` cannot be resolved",
    "message IS NOT NULL": "`message` cannot be resolved",
    "body LIKE '%4711%'": "`body` cannot be resolved",
    "segment = 'x'": "`segment` cannot be resolved",
    "position > 3": "`position` cannot be resolved",
    "destination =": "Syntax error",
    "destination = 'orders": "Syntax error",
    "": "Syntax error",
    "size > 1) OR (true": "Syntax error",
    "size > 1 ORDER BY size": "Syntax error",
    "size > 1 GROUP BY size": "Syntax error",
    "size > 1 AS big": "Syntax error",
    "size > 1; DROP TABLE messages": "Syntax error",
    "/* size > 1": "unclosed",
    "size": "not a boolean",
    "'true'": "not a boolean",
    "size > :most": "unbound parameter",
    "size > ${env:HOME}": "Syntax error",
    "nonsense(size)": "`nonsense`",
    "count(1) > 0": "count(1)",
    "row_number() OVER (ORDER BY size) = 1": "window functions",
    "explode(array(true))": "generator",
    "hash(*) > 0": "all columns",
    "size IN (SELECT 1)": "has a subquery",
    "EXISTS (SELECT 1)": "has a subquery",
    "rand() > 0.5": "not deterministic",
    "uuid() > 'a'": "not deterministic",
    "java_method('java.lang.System', 'getenv', 'HOME') = 'x'": "not deterministic",
    "input_file_name() = 'x'": "not deterministic",
}
IN_3_5 = {"hash(*) > 0": "Invalid usage of '*'"}
"""What Spark 3.5 does not take itself."""


def rows_without_copies_are_planned_as_they_are(session: Any, tmp_path: Path) -> None:
    archive = created(tmp_path)
    write_segment(archive, "one", [*map(key, range(3))], [b"x"] * 3)
    plan = shard_plan.build_plan(session, ReplayRun("r1", {}, (QUEUE,), 2, 0, ReplayOptions()), archive, 0)
    assert (plan.count_to_send(), plan.has_duplicates(), plan.destinations) == ({"orders": 3}, False, ["orders"])
    assert sorted(row.position for row in plan.send_rows().collect()) == [0, 1, 2]


def sessions_of_any_case_share_a_shard(session: Any, tmp_path: Path) -> None:
    """A run of an earlier version keeps the shards in which its tasks find what they have sent."""
    archive, names = created(tmp_path, "r3"), [*"ABCDEFGH", *"abcdefgh"]
    for at, name in enumerate(names):
        write_segment(archive, f"s{at:02}", [key(at)], [b"x"], session_id=name)
    for rule, is_shared in ((SessionIds.ANY_CASE, True), (SessionIds.EXACT, False)):
        run = ReplayRun("r3", {}, (QUEUE,), 64, 0, ReplayOptions(sessions=rule))
        rows = shard_plan.build_plan(session, run, archive, 0).send_rows().collect()
        shards = [row.shard for row in sorted(rows, key=lambda row: row.segment)]
        assert (shards[:8] == shards[8:]) is is_shared
        assert shards[8:] == [shard_of("orders", name, None, 64) for name in names[8:]]


def altered_pages_are_not_planned(session: Any, directory: Path) -> None:
    """Change a position in the file, which Spark would read as it is: a page has a checksum."""
    archive = created(directory, "r2")
    write_segment(archive, "one", [*map(key, range(3))], [b"x"] * 3)
    [path] = archive.files(SEGMENTS)
    file = Path(archive.root, path)
    whole = bytearray(file.read_bytes())
    column = pq.read_metadata(file).row_group(0).column(1)
    whole[column.data_page_offset + column.total_compressed_size - 3] ^= 1
    file.write_bytes(whole)
    with pytest.raises(spark.spark_errors()) as failed:
        shard_plan.build_plan(
            session, ReplayRun("r2", {}, (QUEUE,), 2, 0, ReplayOptions()), archive, 0
        ).send_rows().collect()
    assert spark.unreadable_segment(str(failed.value)) == path


@pytest.mark.usefixtures("local_tasks")
def test_a_selected_destination_that_is_missing_is_refused_first(place: World, tmp_path: Path) -> None:
    place.strand_many(4)
    options = replace(QUICK, selection=ReplaySelection(("orders", "not-there")))
    with pytest.raises(errors.EntityMissing, match="has no not-there; nothing was received"):
        driver.start_run(place.request(tmp_path), options, place.queues, lambda _event: None)
    assert (place.left(), place.ids(), [*(tmp_path / "archive").iterdir()]) == (4, [], [])


def test_dead_letters_are_sent_as_they_were_or_quarantined(place: World, tmp_path: Path) -> None:
    place.bury(0, "buried", Aliases("orders", None, HOUR_TICKS), "DestinationNotFound", "there is no orders")
    place.bury(1, "lost", None, "InvalidBacklogMessage", "the message has no destination")
    place.strand(0, "alive", Aliases("orders", None, HOUR_TICKS))
    job = job_of(place, tmp_path)
    both = (*place.queues, *map(dead_letter_path, place.queues))
    job = replace(job, run=replace(job.run, queues=both))
    replayed(job)
    rows = {row["message_id"]: row for row in rows_of(job.open(), SEGMENTS)}
    why = {name: (row["dead_letter_reason"], row["dead_letter_description"]) for name, row in rows.items()}
    assert why["buried"] == ("DestinationNotFound", "there is no orders")
    assert why["alive"] == (None, None)
    assert rows["buried"]["queue"].endswith("/0/$deadletterqueue")
    assert b"DeadLetterReason" in rows["buried"]["message"]
    arrived = {each.sections.body: each.sections for each in place.arrived()["orders"]}
    assert (sorted(place.ids()), place.altered()) == (["alive", "buried"], [])
    assert {each.application_properties for each in arrived.values()} == {b""}
    # What can go nowhere is in the archive, and in no dead-letter queue again.
    assert place.left() == 0
    [kept] = rows_of(job.open(), QUARANTINE)
    assert (kept["message_id"], b"lost" in kept["message"]) == ("lost", True)


@pytest.mark.java
@pytest.mark.usefixtures("own_java")
def test_a_condition_is_accepted_or_refused_with_a_reason(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with spark.spark_session("local[2,4]", HASTY) as session:
        rows_without_copies_are_planned_as_they_are(session, tmp_path)
        sessions_of_any_case_share_a_shard(session, tmp_path)
        altered_pages_are_not_planned(session, tmp_path)
        for where in TAKEN:
            shard_plan.check_selection(session, ReplaySelection((), where))
        capfd.readouterr()
        for where, reason in REFUSED.items():
            with pytest.raises(errors.UsageError) as refused:
                shard_plan.check_selection(session, ReplaySelection((), where))
            assert reason in refused.value.message or IN_3_5.get(where, reason) in refused.value.message, where
            assert not re.search(r"\bpos \d", refused.value.message), "a position in generated SQL"
            assert "\n" not in refused.value.message
            assert "the columns are queue, sequence_number" in refused.value.hint
            assert "a body is none: sbpair help spark has body_text" in refused.value.hint
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def test_a_missing_destination_that_is_allowed_is_quarantined(place: World, tmp_path: Path) -> None:
    place.strand_many(30)
    place.strand(0, "homeless", Aliases("not-there", None, HOUR_TICKS))
    job = stranded(place, tmp_path, 0, ordered=False, allow_missing=True)
    replayed(job)
    proof = proof_of(job)
    assert (proof.archived, proof.acknowledged, proof.quarantined, proof.unsent) == (31, 30, 1, 0)
    assert (proof.balanced, place.left()) == (True, 0)
    [reason] = proof.reasons
    assert "not-there" in reason
    [homeless] = rows_of(job.open(), QUARANTINE)
    assert (homeless["message_id"], homeless["destination"]) == ("homeless", "not-there")
    assert sorted(place.ids()) == sorted(f"m{number}" for number in range(30))


@pytest.mark.usefixtures("local_tasks")
@pytest.mark.parametrize(
    ("options", "sent", "quarantined", "note"),
    [
        ({"skip_missing": True}, 30, 0, "contoso has no not-there: 2 messages stay unsent in the archive"),
        (
            {"allow_missing": True},
            30,
            2,
            "contoso has no not-there: 2 messages are quarantined for good; no resume sends them",
        ),
        ({"delivery": ReplayDelivery(map=("NOT-there=orders",))}, 32, 0, None),
    ],
)
def test_a_resume_does_with_missing_destinations_as_it_is_told(
    options: dict[str, Any], sent: int, quarantined: int, note: str | None, place: World, tmp_path: Path
) -> None:
    place.strand_many(30)
    for number in range(2):
        place.strand(number, f"homeless{number}", Aliases("not-there", None, HOUR_TICKS))
    with pytest.raises(errors.DestinationsMissing, match="has no not-there; everything is safe") as refused:
        driver.start_run(place.request(tmp_path), QUICK, place.queues, lambda _event: None)
    assert refused.value.exit_code == 3
    assert place.ids() == []
    [run_id] = [each.name for each in (tmp_path / "archive").iterdir()]
    assert f"run sbpair replay resume {run_id} --skip-missing; to quarantine" in refused.value.hint
    result = driver.resume_run(place.request(tmp_path), run_id, lambda _event: None, **options)
    proof, left = result.proof, 32 - sent - quarantined
    assert (proof.acknowledged, proof.quarantined, proof.unsent, result.end.excluded) == (sent, quarantined, left, left)
    assert (result.exit_code, [*result.end.notes]) == (3 if sent < 32 else 0, [note] if note else [])
    assert len(place.ids()) == sent
    place.running.do(lambda: place.running.namespace.create_queue("not-there"))
    again = driver.resume_run(place.request(tmp_path), run_id, lambda _event: None)
    assert (again.proof.acknowledged, again.proof.unsent) == (32 - quarantined, 0)


def test_missing_destinations_are_left_out_whatever_their_names_hold() -> None:
    sql = ReplaySelection(("orders",), missing=("it's", "a\\b", "\u20ac\n")).sql()
    assert "coalesce(destination NOT IN (decode(unhex('69742773'), 'UTF-8'), decode(unhex('615c62'), 'UTF-8')" in sql
    assert sql.isascii()
