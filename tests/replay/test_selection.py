"""Selected messages are sent, others stay in the archive, and an invalid selection is refused first."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.move.message import dead_letters
from sbpair.replay import driver, phases, shard_plan, spark
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import QUARANTINE, SEGMENTS
from sbpair.replay.run import EVERYTHING, DedupMode, ReplayOptions, Selection
from tests.replay.segments import rows_of
from tests.replay.tasks import proof_of, replayed, stranded
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


@pytest.mark.java
@pytest.mark.slow
def test_unselected_messages_stay_in_the_archive_until_selected(place: World, tmp_path: Path) -> None:
    """One run serves several checks, since a start of Spark takes ten seconds."""
    strand(place)
    a_refused_selection_receives_nothing(place, tmp_path)

    chosen = Selection(("ORDERS",), "NOT (message_id = 'twin' AND queue LIKE '%/0')")
    both = [*place.queues, *map(dead_letters.dead_letter_path, place.queues)]
    options = replace(QUICK, dedup=DedupMode.MESSAGE_ID, selection=chosen)
    result = driver.start_run(place.request(tmp_path), options, both, 4, lambda _event: None)

    proof = result.proof
    # The other twin was chosen, and waits for the one that was not: it comes before it.
    assert (proof.archived, proof.acknowledged, proof.unsent, proof.exit_code) == (9, 3, 6, 3)
    assert (proof.contradictions, proof.unknown) == (0, 0)
    assert sorted(place.ids()) == ["buried", "m0", "m2"]
    assert place.left() == 0
    archive = Archive(str(tmp_path / "archive"), result.run.id)
    the_archive_has_the_dead_letter_reason(archive)
    the_primary_gets_the_original_message(place)
    resume_all_sends_everything_else(place, tmp_path, archive)


def strand(place: World) -> None:
    """Strand m0 to m3; even ones are for orders."""
    place.strand_many(4)
    for index in range(2):
        place.strand(index, "twin", Aliases("orders", None, HOUR_TICKS))
        place.running.advance(0.001)
    place.strand(0, "nowhere", None)
    place.bury(0, "buried", Aliases("orders", None, HOUR_TICKS), "DestinationNotFound", "there is no orders")
    place.bury(1, "lost", None, "InvalidBacklogMessage", "the message has no destination")


@pytest.mark.java
@pytest.mark.usefixtures("own_java")
def test_a_condition_is_accepted_or_refused_with_a_reason(capfd: pytest.CaptureFixture[str]) -> None:
    with spark.spark_session("local[2,4]", HASTY) as session:
        for where in TAKEN:
            shard_plan.check_selection(session, Selection((), where))
        capfd.readouterr()
        for where, reason in REFUSED.items():
            with pytest.raises(errors.UsageError) as refused:
                shard_plan.check_selection(session, Selection((), where))
            assert reason in refused.value.message or IN_3_5.get(where, reason) in refused.value.message, where
            assert not re.search(r"\bpos \d", refused.value.message), "a position in generated SQL"
            assert "\n" not in refused.value.message
            assert "the columns are queue, sequence_number" in refused.value.hint
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


def a_refused_selection_receives_nothing(place: World, tmp_path: Path) -> None:
    there = place.left()
    refused = (
        (Selection((), "destinaton = 'orders'"), errors.UsageError, "destinaton"),
        (Selection(("orders", "not-there")), errors.EntityMissing, "has no not-there; nothing was received"),
    )
    for chosen, kind, reason in refused:
        with pytest.raises(kind, match=reason):
            driver.start_run(
                place.request(tmp_path), replace(QUICK, selection=chosen), place.queues, 4, lambda _event: None
            )
    assert place.left() == there
    assert place.ids() == []
    assert [*(tmp_path / "archive").iterdir()] == []


def the_archive_has_the_dead_letter_reason(archive: Archive) -> None:
    rows = rows_of(archive, SEGMENTS)
    why = {row["message_id"]: (row["dead_letter_reason"], row["dead_letter_description"]) for row in rows}
    assert why["buried"] == ("DestinationNotFound", "there is no orders")
    assert why["m0"] == (None, None)
    [buried] = [row for row in rows if row["message_id"] == "buried"]
    assert buried["queue"].endswith("/0/$deadletterqueue")
    assert b"DeadLetterReason" in buried["message"]


def the_primary_gets_the_original_message(place: World) -> None:
    [buried] = [each for each in place.arrived()["orders"] if b"buried" in each.sections.body]
    assert buried.sections.application_properties == b""
    assert place.altered() == []


def resume_all_sends_everything_else(place: World, tmp_path: Path, archive: Archive) -> None:
    def resume(chosen: Selection | None) -> Any:
        return driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None, chosen).proof

    with pytest.raises(errors.UsageError, match=r"fails on a message: .*everything is safe") as failed:
        resume(Selection((), "cast(message_id AS int) > 3"))
    assert archive.run in failed.value.hint
    assert resume(None).unsent == 6

    proof = resume(EVERYTHING)

    assert (proof.unsent, proof.acknowledged, proof.deduplicated, proof.quarantined) == (0, 6, 1, 2)
    assert proof.balanced
    assert sorted(place.ids()) == ["buried", "m0", "m1", "m2", "m3", "twin"]
    # What still can go nowhere is in the archive, and in no dead-letter queue again.
    assert place.left() == 0
    kept = rows_of(archive, QUARANTINE)
    assert sorted(row["message_id"] for row in kept) == ["lost", "nowhere"]
    assert all(row["message_id"].encode() in row["message"] for row in kept)


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


@pytest.mark.parametrize(("names", "what"), [(("a",), "1 destination"), (("a", "b"), "2 destinations")])
def test_one_destination_is_not_called_destinations(names: tuple[str, ...], what: str) -> None:
    assert phases._destinations(names) == what
