"""An archive in an object store, through pyarrow's S3 client."""

from dataclasses import replace
from pathlib import Path

import pytest

from sbpair import errors
from sbpair.replay import driver
from sbpair.replay import run_description as runs
from sbpair.replay.archive import DRAINED_FILE, LEDGER, RECEIPT_FILE, SEGMENTS, Archive, find_archive, run_ids
from sbpair.replay.run_description import ReplayOptions
from sbpair.replay.verify import plan_gc, remove_messages, verify
from tests.replay.object_store import Store
from tests.replay.segments import key
from tests.replay.test_archive import RUN, end, put
from tests.replay.world import HASTY, World

BUCKET = "s3://bucket/backlog"
QUICK = ReplayOptions(empty_seconds=0.1)

COPIES = {
    "spark.hadoop.fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
    "spark.hadoop.fs.viewfs.overload.scheme.target.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
}
"""What Spark calls s3a are the copies of the objects: PySpark brings no connector for S3, and cannot do without one."""


def opened() -> Archive:
    return Archive(BUCKET, RUN.id)


def test_a_run_is_stored_proved_and_removed_there(store: Store) -> None:
    archive = opened()
    with pytest.raises(errors.UsageError, match="there is no run r1"):
        runs.load_run(archive)
    archive.create()
    archive.check_writable()
    runs.save_run(archive, RUN)
    for number in range(5):
        put(archive, f"s{number}", key(number), key(number + 1))
    end(archive, LEDGER, *map(key, range(6)))
    archive.write_json(DRAINED_FILE, {"messages": 10})

    again = opened()
    proof = verify(again, runs.load_run(again))

    assert (proof.archived, proof.acknowledged, proof.copies, proof.balanced) == (6, 6, 4, True)
    assert len(again.files(SEGMENTS)) == 5
    assert again.spark_url("segments/x").startswith("s3a://bucket/backlog/r1/segments/x")
    # One PUT an object, and none is ever changed.
    segments = [name for name in store.puts if f"/{SEGMENTS}/" in name]
    assert len(segments) == len(set(segments)) == 5
    archive.write_json(RECEIPT_FILE, {"balanced": True})
    planned = plan_gc(again, unsent=False)
    assert planned.files == 6
    remove_messages(again, planned)
    left = {name.removeprefix("bucket/backlog/r1/") for name, data in store.objects.items() if data}
    assert left == {"run.json", "report/drained.json", "report/receipt.json", "report/removed.json"}


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("url", [BUCKET, f"{BUCKET}/", f"{BUCKET}/r1/", "s3://bucket/", "s3://other/backlog"])
def test_runs_are_found_below_any_prefix(url: str) -> None:
    runs.save_run(Archive(url, RUN.id), RUN)
    if "other" in url:
        with pytest.raises(errors.StateRefused, match="there is no bucket other"):
            find_archive(url, RUN.id[:1])
    else:
        assert (find_archive(url, RUN.id[:1]).run, run_ids(url)) == (RUN.id, [RUN.id])


def test_a_failing_store_is_reported_and_has_no_partial_file(store: Store) -> None:
    archive = opened()
    runs.save_run(archive, RUN)
    store.full = True
    with pytest.raises(errors.MachineLacks, match="cannot be used"):
        put(archive, "one", key(0))
    assert archive.files(SEGMENTS) == []


def test_an_empty_object_is_ignored(store: Store) -> None:
    """Some stores list an object while it is written; a writer killed then has settled nothing."""
    archive = opened()
    runs.save_run(archive, RUN)
    put(archive, "one", key(0))
    put(archive, "two", key(1))
    [name] = [name for name in store.objects if name.endswith("one.parquet")]
    store.objects[name] = b""
    assert [path.rpartition("/")[2] for path in archive.files(SEGMENTS)] == ["two.parquet"]
    assert verify(archive, RUN).archived == 1


@pytest.mark.java
@pytest.mark.slow
def test_nothing_is_received_unless_spark_can_read_the_store(store: Store, place: World, tmp_path: Path) -> None:
    place.strand_many(40)
    store.copies = tmp_path
    request = place.request(tmp_path, settings=HASTY)
    with pytest.raises(errors.MachineLacks, match=r"Spark cannot read .*S3AFileSystem not found") as refused:
        driver.start_run(replace(request, archive=BUCKET), QUICK, place.queues, lambda _event: None)
    assert "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in refused.value.hint
    assert (place.left(), place.ids(), [name for name in store.objects if "run.json" in name]) == (40, [], [])
    link = {"spark.hadoop.fs.viewfs.mounttable.bucket.link./backlog": f"file://{tmp_path}/bucket/backlog"}
    able = replace(request, archive=BUCKET, settings={**HASTY, **COPIES, **link})
    result = driver.start_run(able, QUICK, place.queues, lambda _event: None)
    assert result.proof.balanced
    assert result.proof.acknowledged == 40
    place.check_arrived()
    assert any(f"/{SEGMENTS}/" in name for name in store.puts)
