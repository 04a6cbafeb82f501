"""Digests: durable before messages are completed, adopted after a crash, merged by reports, and read meanwhile."""

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbpair.backlog import Aliases
from sbpair.errors import MachineLacks, StateRefused, Unsafe
from sbpair.replay import digests, driver
from sbpair.replay.archive import DIGESTS, DRAINED_FILE, LEDGER, RECEIPT_FILE, SEGMENTS, Archive
from sbpair.replay.digests import adopt_segments, check_files, read_digests, write_report
from sbpair.replay.ledger import Entry, Key, Ledger
from sbpair.replay.progress import run_status
from sbpair.replay.run_description import load_run, save_run
from sbpair.replay.verify import Limits, invalidate_receipt, plan_gc, verify
from tests.replay.object_store import Store
from tests.replay.segments import QUEUE, key, write_segment
from tests.replay.tasks import QUICK, drain, job_of
from tests.replay.test_archive import RUN as WITHOUT
from tests.replay.world import HOUR_TICKS, World

RUN = replace(WITHOUT, digests=True)
FULL = MachineLacks("the disk is full")


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    made = Archive(str(tmp_path), RUN.id)
    save_run(made, RUN)
    return made


def put(archive: Archive, name: str, *keys: Key, attempt: str = "") -> str:
    """Store a segment with its digest, as an attempt at a task does, or a driver that adopts it."""
    write_segment(archive, name, keys, [b"body"] * len(keys), queue=QUEUE, shards=RUN.shards)
    [path] = adopt_segments(archive, RUN)
    if attempt:
        [(list_name, found)] = [each for each in read_digests(archive).lists.items() if each[1][0].path == path]
        archive.remove(f"{DIGESTS}/{list_name}.json")
        digests._store(archive, [replace(found[0], attempt=attempt)])
    return path


def end(archive: Archive, *keys: Key) -> None:
    Ledger(archive, RUN.shards).write(LEDGER, 1, [Entry(each, "orders") for each in keys])


def report(archive: Archive, path: str = DRAINED_FILE, **values: Any) -> None:
    counts = {"run": RUN.id, "messages": check_files(archive, RUN).messages}
    write_report(archive, RUN, path, {**counts, **values})


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fails: Callable[..., bool]) -> None:
    """Let a function fail instead of those calls of which `fails` is true."""
    working = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        if fails(*arguments):
            raise FULL
        return working(*arguments, **options)

    monkeypatch.setattr(owner, name, called)


@pytest.mark.usefixtures("local_tasks")
def test_a_segment_without_a_digest_is_adopted_and_named(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.strand_many(80)
    request = place.request(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, digests, "_store", lambda *_: True)
        with pytest.raises(MachineLacks):
            driver.start_run(request, QUICK, place.queues, lambda _event: None)
    assert place.left() == 80, "nothing is completed before its digest is durable"
    [directory] = (tmp_path / "archive").iterdir()
    archive = Archive(request.archive, directory.name)
    stored = archive.files(SEGMENTS)
    proof = verify(archive, load_run(archive), full=True)
    assert (proof.not_adopted, proof.exit_code) == (stored, 3)
    assert run_status(archive).not_adopted == tuple(stored)

    result = driver.resume_run(request, archive.run, lambda _event: None)

    assert [note.split()[1].removesuffix(":") for note in result.end.notes] == stored
    counts = result.proof.acknowledged, result.proof.copies, result.proof.unexplained_copies, result.exit_code
    assert counts == (80, 20 * len(stored), 0, 0)
    place.check_arrived()


@pytest.mark.usefixtures("local_tasks")
def test_a_stopped_and_continued_drain_merges_its_digests(place: World, tmp_path: Path) -> None:
    place.strand_many(40)
    request = place.request(tmp_path)
    first = driver.start_run(request, QUICK, place.queues, lambda _event: None)
    archive = Archive(request.archive, first.run.id)
    assert len(read_digests(archive).lists) == 2, "one of the drain, one of the end"
    attempts = {each.attempt for path, each in read_digests(archive).files().items() if path.startswith(SEGMENTS)}
    assert {*archive.read_json(DRAINED_FILE)["settled"]} == attempts
    drained = {**archive.read_json(DRAINED_FILE), "remaining_in_queues": {place.queues[0]: 1}}
    receipt = archive.read_json(RECEIPT_FILE)
    archive.write_json(DRAINED_FILE, drained)
    archive.write_json(RECEIPT_FILE, {**receipt, "drained": archive.sha256(DRAINED_FILE)})
    place.strand_many(1)
    again = driver.resume_run(request, first.run.id, lambda _event: None)
    assert (again.proof.remaining_in_queues, again.exit_code) == ({}, 0)
    assert {*archive.sizes(DIGESTS)} == {
        f"{DIGESTS}/{name}.json" for name in archive.read_json(RECEIPT_FILE)["digests"]
    }


REPEATED = {
    "both attempts completed all": ("ab", ["a", "b"], 1),
    "one attempt completed all": ("ab", ["a"], 0),
    "no attempt is known to have ended": ("ab", [], 0),
    "one attempt archived it twice, and completed all": ("aa", ["a"], 1),
    "one attempt archived it twice, and died": ("aa", [], 0),
    "one segment was adopted": (("a", ""), ["a"], 0),
}


@pytest.mark.parametrize("case", REPEATED)
@pytest.mark.parametrize("max_part", [1, 1_000])
def test_a_key_that_no_crash_repeats_is_a_finding(archive: Archive, case: str, max_part: int) -> None:
    attempts, settled, expected = REPEATED[case]
    put(archive, "one", key(0), key(1), attempt=attempts[0])
    put(archive, "two", key(1), key(2), attempt=attempts[1])
    report(archive, settled=settled)
    end(archive, *map(key, range(3)))
    report(archive, RECEIPT_FILE, balanced=True)
    proof = verify(archive, RUN, Limits(max_part))
    assert (proof.copies, proof.unexplained_copies, proof.balanced) == (1, expected, True)
    assert proof.exit_code == (3 if expected else 0)
    if expected:
        with pytest.raises(Unsafe, match="nothing was removed"):
            plan_gc(archive, unsent=False)
    else:
        assert plan_gc(archive, unsent=False).files == 3


def test_gc_keeps_a_segment_that_is_not_adopted(archive: Archive) -> None:
    put(archive, "one", key(0))
    report(archive)
    end(archive, key(0))
    report(archive, RECEIPT_FILE, balanced=True)
    write_segment(archive, "two", [key(0)], [b"body"], queue=QUEUE, shards=RUN.shards)
    with pytest.raises(Unsafe, match=r"two\.parquet, whose task died"):
        plan_gc(archive, unsent=False)


def test_adopting_a_broken_or_copied_segment_is_refused(archive: Archive) -> None:
    path = put(archive, "one", *map(key, range(9)))
    whole = archive.read(path)
    archive.write(path.replace("one", "two"), whole)
    with pytest.raises(StateRefused, match=r"two\.parquet is a copy of .*one\.parquet"):
        adopt_segments(archive, RUN)


def test_a_crash_while_digests_are_merged_loses_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each write and each removal fails once; the state that it leaves is checked, and merged again."""
    interrupted = [merge_interrupted(tmp_path / str(calls), monkeypatch, calls) for calls in range(7)]
    assert interrupted == [True] * 6 + [False]


def merge_interrupted(directory: Path, monkeypatch: pytest.MonkeyPatch, calls: int) -> bool:
    """Merge digests until so many writes and removals have worked, then again. Return whether that was earlier."""
    archive = Archive(str(directory), RUN.id)
    save_run(archive, RUN)
    put(archive, "one", key(0))
    report(archive)
    put(archive, "two", key(1))
    put(archive, "three", key(2))
    end(archive, *map(key, range(3)))
    working = iter(range(calls))

    def write_both() -> None:
        invalidate_receipt(archive)
        report(archive)
        report(archive, RECEIPT_FILE)

    interrupted = False
    with monkeypatch.context() as patch:
        for name in ("write", "remove"):
            failing(patch, Archive, name, lambda *_: next(working, None) is None)
        try:
            write_both()
        except MachineLacks:
            interrupted = True
    assert len(check_files(archive, RUN, full=True).rows) == 4
    write_both()
    checked = check_files(archive, RUN, full=True)
    assert (checked.messages, len(checked.rows), checked.not_adopted) == (3, 4, ())
    names = archive.read_json(RECEIPT_FILE)["digests"]
    assert {*archive.sizes(DIGESTS)} == {f"{DIGESTS}/{name}.json" for name in names}
    return interrupted


def test_digests_are_read_while_a_driver_merges_them(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    put(archive, "one", key(0))
    put(archive, "two", key(1))
    reading, merged = digests._read, []

    def read(archive: Archive, path: str) -> Any:
        if not merged:
            merged.append(True)
            write_report(archive, RUN, DRAINED_FILE, {"messages": 2})
        return reading(archive, path)

    monkeypatch.setattr(digests, "_read", read)
    assert {*read_digests(archive).files()} == {*archive.files(SEGMENTS), "run.json"}


def test_a_drain_reads_no_segment_again_but_its_footer(store: Store, place: World, tmp_path: Path) -> None:
    for number in range(40):
        aliases = Aliases(place.destinations[0], None, HOUR_TICKS)
        place.strand(number % 2, f"m{number}", aliases, random.Random(number).randbytes(20_000))
    local = job_of(place, tmp_path)
    job = replace(local, archive="s3://bucket/backlog", run=replace(local.run, digests=True))
    save_run(job.open(), job.run)
    drain(job)
    archive = job.open()
    stored = read_digests(archive).files()
    assert sorted(stored) == ["run.json", *archive.files(SEGMENTS)]
    for path, size in archive.sizes(SEGMENTS).items():
        assert store.read_bytes[f"{archive.root}/{path}"] < size / 4
        assert store.puts.count(f"{archive.root}/{path}") == 1
    proof = verify(archive, job.run, full=True)
    assert (proof.archived, proof.not_adopted) == (40, [])
