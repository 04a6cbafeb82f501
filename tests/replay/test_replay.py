"""A replay from end to end, on a Spark of two local cores, between two emulated namespaces."""

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.move.message.route import TimeToLive
from sbpair.replay import driver
from sbpair.replay.archive import Archive
from sbpair.replay.archive_layout import DEDUPLICATED, LEDGER, SEGMENT, SEGMENTS
from sbpair.replay.progress import ReplayPhase
from sbpair.replay.run import DedupMode, ReplayOptions, Selection, load_run
from sbpair.replay.verify import verify
from tests.replay.world import HOUR_TICKS, World

pytestmark = pytest.mark.java
QUICK = ReplayOptions(empty_seconds=0.1)
MS_TICKS = 10_000


def run(place: World, directory: Path, options: ReplayOptions = QUICK, **changes: Any) -> driver.ReplayResult:
    return driver.start_run(place.request(directory, **changes), options, place.queues, 4, lambda _event: None)


def test_everything_arrives_once_in_order_and_the_equation_balances(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run serves several checks, since a start takes ten seconds."""
    place.strand_many(60)
    place.strand(0, "nowhere", None)
    place.strand(1, "late", Aliases("orders", None, MS_TICKS))
    for index in range(2):
        place.strand(index, "again", Aliases("orders", None, HOUR_TICKS))
    heard: list[Any] = []
    options = replace(QUICK, ttl=TimeToLive.REMAINING, dedup=DedupMode.MESSAGE_ID)

    result = driver.start_run(place.request(tmp_path), options, place.queues, 4, heard.append)

    proof = result.proof
    ends = (proof.acknowledged, proof.deduplicated, proof.quarantined, proof.expired)
    assert (proof.archived, *ends) == (64, 61, 1, 1, 1)
    assert proof.balanced
    assert place.left() == 0
    assert sorted(place.ids()) == sorted([*(f"m{number}" for number in range(60)), "again"])
    assert place.altered() == []
    assert all(numbers == sorted(numbers) for numbers in place.by_session().values())
    phases = [event.name for event in heard if isinstance(event, ReplayPhase)]
    assert [*dict.fromkeys(phases)] == ["check", "spark", "drain", "plan", "send", "verify"]

    a_finished_run_sends_nothing_when_resumed(place, tmp_path, result)
    archive = Archive(str(tmp_path / "archive"), result.run.id)
    files_hold_what_is_documented(archive)
    a_late_duplicate_is_marked_as_deduplicated(place, tmp_path, archive, monkeypatch)
    a_lost_ledger_chunk_is_reported(archive)


def a_finished_run_sends_nothing_when_resumed(place: World, tmp_path: Path, first: driver.ReplayResult) -> None:
    heard: list[Any] = []
    there = sorted(place.ids())

    again = driver.resume_run(place.request(tmp_path), first.run.id, heard.append)

    assert again.proof == first.proof
    assert sorted(place.ids()) == there
    assert "spark" not in [event.name for event in heard]


def files_hold_what_is_documented(archive: Archive) -> None:
    [*segments] = archive.files(SEGMENTS)
    assert archive.read_table(segments[0]).schema.equals(SEGMENT)
    assert "SharedAccessKey" not in "".join(
        path.read_bytes().decode("latin-1") for path in Path(archive.root).rglob("*.json")
    )


def a_late_duplicate_is_marked_as_deduplicated(
    place: World, tmp_path: Path, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is killed before, and resumed when the first copy is expired: that one has arrived all the same."""
    [mark_deduplicated] = archive.files(DEDUPLICATED)
    archive.remove(mark_deduplicated)
    assert verify(archive, load_run(archive)).unsent == 1
    now = time.time
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now() + 7_200)
        proof = driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None).proof
    assert (proof.deduplicated, proof.unsent, proof.balanced) == (1, 0, True)
    assert place.ids().count("again") == 1


def a_lost_ledger_chunk_is_reported(archive: Archive) -> None:
    chunk = archive.files(LEDGER)[0]
    lost = archive.row_count(chunk)
    archive.remove(chunk)
    proof = verify(archive, load_run(archive))
    assert not proof.balanced
    assert (proof.unsent, proof.exit_code) == (lost, 3)


def test_the_duplicate_of_a_refused_message_is_sent_by_a_resume(place: World, tmp_path: Path) -> None:
    for body in (b"x" * 300_000, b"second", b"second"):
        place.strand(0, "twin", Aliases("orders", None, HOUR_TICKS), body)
        place.running.advance(0.001)
    proof = (first := run(place, tmp_path, replace(QUICK, dedup=DedupMode.MESSAGE_ID))).proof
    assert (proof.archived, proof.quarantined, proof.deduplicated, proof.unsent, proof.exit_code) == (3, 1, 0, 2, 3)
    proof = driver.resume_run(place.request(tmp_path), first.run.id, lambda _event: None).proof
    assert (proof.acknowledged, proof.quarantined, proof.deduplicated, proof.unsent) == (1, 1, 1, 0)
    assert proof.balanced
    assert (place.ids(), place.altered()) == (["twin"], [])


def test_an_accepted_duplicate_stays_first_if_an_older_one_comes_later(place: World, tmp_path: Path) -> None:
    """Another receiver had locked the older one when the younger one was sent."""
    for index in range(2):
        place.strand(index, "twin", Aliases("orders", None, HOUR_TICKS))
        place.running.advance(0.001)
    place.running.do(lambda: place.backlog(0).messages.receive(1))
    options = replace(QUICK, dedup=DedupMode.MESSAGE_ID, locked_seconds=0.2)
    proof = (first := run(place, tmp_path, options)).proof
    assert (proof.acknowledged, proof.remaining_in_queues) == (1, {place.queues[0]: 1})
    place.running.advance(300)
    proof = driver.resume_run(place.request(tmp_path), first.run.id, lambda _event: None).proof
    assert place.ids() == ["twin"]
    assert (proof.acknowledged, proof.deduplicated, proof.remaining_in_queues, proof.balanced) == (1, 1, {}, True)


@pytest.mark.slow
def test_a_missing_destination_is_refused_before_sending(place: World, tmp_path: Path) -> None:
    place.strand_many(4)
    place.strand(0, "lost", Aliases("not-there", None, HOUR_TICKS))
    with pytest.raises(errors.EntityMissing, match="not-there") as refused:
        run(place, tmp_path)
    assert "resume" in refused.value.hint
    assert place.ids() == []
    [run_id] = [each.name for each in (tmp_path / "archive").iterdir()]
    place.running.do(lambda: place.running.namespace.create_queue("not-there"))
    place.destinations = [*place.destinations, "not-there"]
    a_corrupted_message_is_not_sent(place, tmp_path, Archive(str(tmp_path / "archive"), run_id))
    proof = driver.resume_run(place.request(tmp_path), run_id, lambda _event: None).proof
    assert proof.exit_code == 0
    assert set(place.ids()) == set(place.sent)
    twice = [name for name, count in Counter(place.ids()).items() if count > 1]
    assert {*twice} <= {each["message_id"] for each in proof.doubtful}, "what others had in hand when one failed"


def a_corrupted_message_is_not_sent(place: World, tmp_path: Path, archive: Archive) -> None:
    path = Path(archive.root, archive.files(SEGMENTS)[0])
    whole = path.read_bytes()
    at = whole.rindex(b"\x28\xb5\x2f\xfd") + 20  # of the last page, which holds messages of the last group
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    groups = pq.read_metadata(path).num_row_groups
    changed = pq.ParquetFile(path).read_row_group(groups - 1, columns=["message_id"])["message_id"].to_pylist()

    with pytest.raises(errors.StateRefused, match=rf"{path.name} is broken"):
        driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None)

    sent = place.ids()
    assert changed
    assert not {*changed} & {*sent}
    about = pq.read_metadata(path).row_group(0)
    column = next(
        about.column(at) for at in range(about.num_columns) if about.column(at).path_in_schema == "destination"
    )
    at = column.dictionary_page_offset + column.total_compressed_size - 1
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    for chosen in (None, Selection((), "message_id < 'n'")):
        with pytest.raises(errors.StateRefused, match=rf"{path.name} is broken: Spark cannot read it"):
            driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None, chosen)

    assert place.ids() == sent
    path.write_bytes(whole)
