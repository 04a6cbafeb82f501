"""A task's ledger: messages held, lists cut short, and duplicates marked."""

import errno
import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbpair import errors
from sbpair.model.pair import Endpoint, Identity
from sbpair.replay import ledger as ledger_module
from sbpair.replay.archive import DEDUPLICATED, HELD, LEDGER, QUARANTINE, Archive
from sbpair.replay.delivery import ReplayDelivery
from sbpair.replay.ledger import Entry, Key, Ledger, check_chunks, read_held, table_keys
from sbpair.replay.run_description import NamespaceAccess, ReplayOptions, ReplayRun, TaskJob
from sbpair.replay.send_task import mark_deduplicated
from sbpair.replay.shard_plan import DUPLICATE_COLUMNS
from tests.replay.segments import created, key

SHARDS = 2


def written(archive: Archive, kind: str) -> list[Key]:
    def read(path: str) -> list[Key]:
        return list(read_held(archive, path)) if kind == HELD else table_keys(archive.read_table(path))

    return [each for path in archive.files(kind) for each in read(path)]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return created(tmp_path)


@settings(max_examples=30, deadline=None)
@given(
    takes=st.lists(st.integers(1, 4), max_size=8),
    chance=st.randoms(use_true_random=False),
    max_reported=st.integers(0, 6),
    at_the_end=st.integers(0, 3),
)
def test_every_held_message_is_recorded_and_few_others(
    takes: list[int], chance: Random, max_reported: int, at_the_end: int
) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "MAX_HELD_PER_FILE", max_reported)
        archive = created(Path(directory))
        ledger = Ledger(archive, SHARDS)
        held, number = list[int](), 0
        for limit in takes:
            ledger.hold({each: Entry(key(each), "orders") for each in range(number, number + limit)})
            held, number = [*held, *range(number, number + limit)], number + limit
            assert {key(each) for each in held} <= set(written(archive, HELD))
            gone = chance.sample(held, chance.randint(0, len(held)))
            ledger.release(gone)
            held = [each for each in held if each not in gone]
        ledger.hold({number: Entry(key(number), "orders")})
        assert len(written(archive, HELD)) <= (len(held) + 2) * max(max_reported, 4)
        left = [Entry(key(each), "orders") for each in range(at_the_end)]
        ledger.clear_held(keep=left)
        assert sorted(written(archive, HELD)) == sorted(each.key for each in left)


def test_after_a_failed_append_a_new_file_is_started(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(archive, SHARDS)
    ledger.record_held([Entry(key(0), "orders")])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full)
        with pytest.raises(errors.MachineLacks):
            ledger.record_held([Entry(key(1), "orders")])
    ledger.record_held([Entry(key(2), "orders")])
    assert (len(archive.files(HELD)), sorted(written(archive, HELD))) == (2, [key(0), key(2)])


def full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "no space left on device")


def test_the_readable_part_of_a_truncated_list_counts(archive: Archive) -> None:
    ledger = Ledger(archive, SHARDS)
    boundaries = []
    for number in range(0, 6, 2):
        path = Path(archive.root, ledger.record_held([Entry(key(each), "orders") for each in (number, number + 1)]))
        boundaries.append(path.stat().st_size)
    whole = path.read_bytes()
    for size in range(len(whole) + 1):
        for rest in (b"", bytes(len(whole) - size)):
            path.write_bytes(whole[:size] + rest)
            found = list[Key]()
            with nullcontext() if size in boundaries and not rest else pytest.raises(errors.StateRefused):
                found.extend(read_held(archive, path.relative_to(archive.root).as_posix()))
            minimum = 2 * sum(boundary <= size for boundary in boundaries)
            assert found[:minimum] == [key(number) for number in range(minimum)]


@pytest.mark.parametrize(("namespace", "own"), [("", 0), ("contoso-dr", 1), ("other", None)])
def test_an_acceptance_may_count_only_for_the_namespace_that_gave_it(
    archive: Archive, namespace: str, own: int | None
) -> None:
    """A chunk without the column, as earlier versions wrote all, is the primary's."""
    Ledger(archive, SHARDS).write(LEDGER, 0, [Entry(key(0), "orders")])
    named = Ledger(archive, SHARDS, delivery=ReplayDelivery("dr", "contoso-dr", ("/Orders/=new",)))
    named.write(LEDGER, 0, [Entry(key(1), "orders")])
    named.write(QUARANTINE, 0, [Entry(key(2), None, "why")])
    every = ReplayDelivery("dr", namespace)
    assert all(key(number) in Ledger(archive, SHARDS, delivery=every).ended_keys(0) for number in range(3))
    found = Ledger(archive, SHARDS, delivery=replace(every, include_acknowledged=True)).ended_keys(0)
    assert [number for number in range(4) if key(number) in found] == [2] if own is None else [own, 2]
    rows = [row for path in archive.files(LEDGER) for row in archive.read_table(path).to_pylist()]
    assert {row["destination"]: row.get("namespace") for row in rows} == {"orders": None, "new": "contoso-dr"}
    assert check_chunks(archive, SHARDS, synced=True) == (3, [])


def test_a_duplicate_is_marked_once_its_first_copy_is_accepted(archive: Archive) -> None:
    ledger = Ledger(archive, SHARDS)
    ledger.write(LEDGER, 0, [Entry(key(0), "orders")])
    ledger.write(QUARANTINE, 0, [Entry(key(1), "orders", "why")])
    ledger.write(LEDGER, 1, [Entry(key(2), "orders")])

    def repeated(number: int, first: int, first_shard: int) -> tuple[Any, ...]:
        return *key(number), "orders", 1, *key(first), first_shard

    rows = [repeated(10, 0, 0), repeated(11, 1, 0), repeated(12, 3, 0), repeated(13, 2, 1), repeated(14, 2, 1)]
    batch = pa.RecordBatch.from_pydict(dict(zip(DUPLICATE_COLUMNS, zip(*rows, strict=True), strict=True)))

    nowhere = NamespaceAccess(Endpoint("contoso", "contoso", "contoso", 5671, tls=True, credential=Identity()))
    job = TaskJob(ReplayRun("r1", {}, (), SHARDS, 0, ReplayOptions()), archive.url, nowhere, nowhere, tasks=1)
    for _ in range(2):
        mark_deduplicated(job, iter([batch]))
    assert sorted(written(archive, DEDUPLICATED)) == [key(number) for number in (10, 13, 14)]
