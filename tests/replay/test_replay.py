"""A replay from end to end, on a Spark of two local cores, between two emulated namespaces."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.move.message.route import TimeToLive
from sbpair.replay import driver
from sbpair.replay.archive import DEDUPLICATED, LEDGER, SEGMENTS, Archive
from sbpair.replay.outcomes import Proof
from sbpair.replay.progress import ReplayPhase
from sbpair.replay.run_description import DedupMode, ReplayOptions, ReplayResult, ReplaySelection, load_run
from sbpair.replay.segment import SEGMENT
from sbpair.replay.verify import verify
from tests.replay.test_tampering import Run, make_old
from tests.replay.world import HOUR_TICKS, World

pytestmark = pytest.mark.java
QUICK = ReplayOptions(empty_seconds=0.1)
MS_TICKS = 10_000


@pytest.mark.parametrize("place", [{"lock_seconds": 300}], indirect=True, ids=["long locks"])
def test_everything_arrives_once_in_order_and_the_equation_balances(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run serves several checks, since a start takes ten seconds.

    Another receiver has locked the older of two copies of `elder`. The first of three of `large` is refused.
    """
    for index in (0, 1):
        place.strand(index, "elder", Aliases("orders", None, HOUR_TICKS))
        place.running.advance(0.001)
    place.lock(1)
    place.strand_many(60)
    place.strand(0, "nowhere", None)
    place.strand(1, "late", Aliases("orders", None, MS_TICKS))
    for index in range(2):
        place.strand(index, "again", Aliases("orders", None, HOUR_TICKS))
    for body in (b"x" * 300_000, b"second", b"second"):
        place.strand(0, "large", Aliases("orders", None, HOUR_TICKS), body)
        place.running.advance(0.001)
    heard: list[Any] = []
    options = replace(QUICK, ttl=TimeToLive.REMAINING, dedup=DedupMode.MESSAGE_ID, locked_seconds=3.0)

    result = driver.start_run(place.request(tmp_path), options, place.queues, heard.append)

    proof = result.proof
    assert ends_of(proof) == {"archived": 68, "acknowledged": 62, "deduplicated": 1, "unsent": 2}
    assert (proof.quarantined, proof.expired, proof.remaining_in_queues) == (2, 1, {place.queues[0]: 1})
    assert (proof.balanced, proof.exit_code) == (False, 3)
    phases = [event.name for event in heard if isinstance(event, ReplayPhase)]
    assert [*dict.fromkeys(phases)] == ["check", "spark", "drain", "plan", "send", "verify"]

    place.running.advance(301)
    result = driver.resume_run(place.request(tmp_path), result.run.id, lambda _event: None)

    proof = result.proof
    assert ends_of(proof) == {"archived": 69, "acknowledged": 63, "deduplicated": 3, "unsent": 0}
    assert (proof.quarantined, proof.expired, proof.remaining_in_queues, proof.balanced) == (2, 1, {}, True)
    assert sorted(place.ids()) == sorted([*(f"m{number}" for number in range(60)), "again", "elder", "large"])
    assert (place.altered(), place.left()) == ([], 0)
    assert all(numbers == sorted(numbers) for numbers in place.by_session().values())

    a_finished_run_sends_nothing_when_resumed(place, tmp_path, result)
    archive = Archive(str(tmp_path / "archive"), result.run.id)
    files_hold_what_is_documented(archive)
    # Files of a run with digests are refused if one is missing.
    make_old(Run(Path(archive.root), Path(archive.root)))
    a_late_duplicate_is_marked_as_deduplicated(place, tmp_path, archive, monkeypatch)
    a_lost_ledger_chunk_is_reported(archive)


def ends_of(proof: Proof) -> dict[str, int]:
    return {name: getattr(proof, name) for name in ("archived", "acknowledged", "deduplicated", "unsent")}


def a_finished_run_sends_nothing_when_resumed(place: World, tmp_path: Path, first: ReplayResult) -> None:
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
    """The run is killed before, and resumed when the first copies are expired: those have arrived all the same."""
    archive.delete(DEDUPLICATED)
    assert verify(archive, load_run(archive)).unsent == 3
    there, now = sorted(place.ids()), time.time
    with monkeypatch.context() as later:
        later.setattr(time, "time", lambda: now() + 7_200)
        proof = driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None).proof
    assert (proof.deduplicated, proof.unsent, proof.balanced) == (3, 0, True)
    assert sorted(place.ids()) == there


def a_lost_ledger_chunk_is_reported(archive: Archive) -> None:
    archive.remove(archive.files(LEDGER)[0])
    with pytest.raises(errors.StateRefused, match=r"ledger has \d+ messages, and the receipt 63"):
        verify(archive, load_run(archive))


@pytest.mark.slow
def test_a_missing_destination_is_refused_before_sending(place: World, tmp_path: Path) -> None:
    place.strand_many(4)
    place.strand(0, "lost", Aliases("not-there", None, HOUR_TICKS))
    with pytest.raises(errors.EntityMissing, match="not-there") as refused:
        driver.start_run(place.request(tmp_path), QUICK, place.queues, lambda _event: None)
    assert "resume" in refused.value.hint
    assert place.ids() == []
    [run_id] = [each.name for each in (tmp_path / "archive").iterdir()]
    place.running.do(lambda: place.running.namespace.create_queue("not-there"))
    place.destinations = [*place.destinations, "not-there"]
    a_corrupted_message_is_not_sent(place, tmp_path, Archive(str(tmp_path / "archive"), run_id))
    proof = driver.resume_run(place.request(tmp_path), run_id, lambda _event: None).proof
    assert proof.exit_code == 0
    # What others had in hand when one failed may be there twice.
    place.check_arrived((each.message_id for each in proof.doubtful), max_twice=len(place.sent))


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
    for chosen in (None, ReplaySelection((), "message_id < 'n'")):
        with pytest.raises(errors.StateRefused, match=rf"{path.name} is broken: Spark cannot read it"):
            driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None, chosen)

    assert place.ids() == sent
    path.write_bytes(whole)
    fails = ReplaySelection((), "cast(message_id AS int) > 3")
    with pytest.raises(errors.UsageError, match=r"fails on a message: .*everything is safe") as failed:
        driver.resume_run(place.request(tmp_path), archive.run, lambda _event: None, fails)
    assert archive.run in failed.value.hint
