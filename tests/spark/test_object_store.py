"""An archive in an object store, by the very client that pyarrow has for S3."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sbpair import errors
from sbpair.replay import run as runs
from sbpair.replay import sweep
from sbpair.replay.archive import DRAINED, LEDGER, PROVED, SEGMENTS, Archive
from sbpair.replay.verify import verify
from tests.spark.object_store import Store, running
from tests.spark.test_archive import RUN, end, key, put


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with running() as found:
        for name, value in {
            "AWS_ENDPOINT_URL": found.url,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "eu-west-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, value)
        yield found


def opened() -> Archive:
    return Archive("s3://bucket/backlog", RUN.id)


def test_a_run_is_kept_proved_and_removed_there(store: Store) -> None:
    archive = opened()
    archive.create()
    archive.check_writable()
    runs.save(archive, RUN)
    for number in range(5):
        put(archive, f"s{number}", key(number), key(number + 1))
    end(archive, LEDGER, *map(key, range(6)))
    archive.write_json(DRAINED, {"messages": 10})

    again = opened()
    proof = verify(again, runs.load(again))

    assert (proof.archived, proof.acknowledged, proof.copies, proof.balanced) == (6, 6, 4, True)
    assert len(again.files(SEGMENTS)) == 5
    assert again.spark_url("segments/x").startswith("s3a://bucket/backlog/r1/segments/x")
    # One PUT an object, and none is ever changed.
    segments = [name for name in store.puts if f"/{SEGMENTS}/" in name]
    assert len(segments) == len(set(segments)) == 5
    a_finished_run_is_removed(again, store)


def a_finished_run_is_removed(archive: Archive, store: Store) -> None:
    archive.write_json(PROVED, {"balanced": True})
    planned = sweep.plan(archive, unsent=False)
    assert planned.files == 6
    assert sweep.sweep(archive, planned) == planned.bytes
    left = {name.removeprefix("bucket/backlog/r1/") for name, data in store.objects.items() if data}
    assert left == {"run.json", "report/drained.json", "report/receipt.json", "report/swept.json"}


def test_a_store_that_takes_nothing_is_told_of_and_has_no_half_of_it(store: Store) -> None:
    archive = opened()
    runs.save(archive, RUN)
    store.full = True
    with pytest.raises(errors.MachineLacks, match="cannot be used"):
        put(archive, "one", key(0))
    assert archive.files(SEGMENTS) == []


def test_an_object_that_is_cut_short_is_refused_by_name(store: Store) -> None:
    archive = opened()
    put(archive, "one", key(0))
    [name] = [name for name in store.objects if name.endswith("one.parquet")]
    store.objects[name] = store.objects[name][:-9]
    with pytest.raises(errors.StateRefused, match=r"one\.parquet is broken"):
        verify(archive, RUN)


def test_a_run_that_is_not_there_is_told_of(store: Store) -> None:
    assert store.objects == {}
    with pytest.raises(errors.UsageError, match="there is no run r1"):
        runs.load(opened())
