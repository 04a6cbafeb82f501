"""An archive in an object store, through the S3 clients of pyarrow and Hadoop."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair import errors
from sbpair.backlog import Aliases
from sbpair.emulator.entities.description import QueueDescription
from sbpair.replay import driver
from sbpair.replay import run_description as runs
from sbpair.replay.archive import (
    DOUBTFUL_FILE,
    DRAINED_FILE,
    LEDGER,
    RECEIPT_FILE,
    REMOVED_FILE,
    SEGMENTS,
    Archive,
)
from sbpair.replay.run_description import ReplayOptions
from sbpair.replay.verify import plan_gc, remove_messages, verify
from tests.kit.command import captured
from tests.kit.replay_archives import java_in
from tests.replay.object_store import Store, environment, moto
from tests.replay.segments import key
from tests.replay.test_archive import RUN, end, put
from tests.replay.world import HASTY, World

BUCKET = "s3://bucket/backlog"
QUICK = ReplayOptions(empty_seconds=0.1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with moto() as url:
        yield url


class Typed:
    """Commands of a replay on an archive in a store, as someone types them in this process."""

    def __init__(self, environ: dict[str, str], url: str) -> None:
        self.environ, self._url = environ, url

    def __call__(self, command: str, code: int = 0) -> str:
        """Return what it prints on both streams."""
        found, out, err = captured(["replay", *command.split(), "--archive", self._url], self.environ, clear=True)
        assert found == code, (command, out, err)
        return out + err


@pytest.mark.usefixtures("local_tasks")
@pytest.mark.parametrize("url", [f"{BUCKET}-1", f"{BUCKET}-2/", "s3://bucket"])
def test_each_command_works_on_an_object_store(
    url: str, endpoint: str, place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "check_spark_reads", lambda _spark, _archive: None)
    environ = {**place.shell(tmp_path), **environment(endpoint), "JAVA_HOME": str(java_in(tmp_path))}
    replay = Typed(environ, url)
    place.strand_many(10)
    place.strand(0, "late", Aliases("late"))
    resume = re.compile(rf"replay resume --archive {re.escape(url)} ([\w-]+)")
    [run] = {*resume.findall(replay("run", 3))}
    assert resume.findall(replay("run", 4)) == [run]
    short = run[:-2]
    assert run in replay("list")
    assert f"run {run} will stop" in replay(f"stop {short}")
    assert "11 unsent" in replay(f"verify {short}", 3)
    place.running.do(lambda: place.running.namespace.create_queue("late", QueueDescription()))
    assert "archived 11 = 11 acknowledged" in replay(f"resume {short}")
    assert len(place.ids()) == 10
    assert "proved" in replay(f"status {short}")
    for command in ("verify", "verify --full", "gc --dry-run", "gc --yes"):
        replay(f"{command} {short}")
    assert "removed" in replay(f"status {short}") + replay("list")
    assert "has finished" in replay(f"stop {short}", 4)
    assert "were removed" in replay(f"resume {short}", 4)


@pytest.mark.usefixtures("local_tasks")
def test_each_command_names_a_bucket_that_is_not_there(endpoint: str, place: World, tmp_path: Path) -> None:
    environ = {**place.shell(tmp_path), **environment(endpoint), "JAVA_HOME": str(java_in(tmp_path))}
    replay = Typed(environ, "s3://nowhere/backlog")
    for command in ("list", "status r", "verify r", "gc r", "stop r", "resume r", "run"):
        assert "there is no bucket nowhere" in replay(command, 4), command


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
    end(archive, LEDGER, key(0))
    archive.write_json(DRAINED_FILE, {"messages": 10})

    again = opened()
    proof = verify(again, runs.load_run(again), save=True)

    assert (proof.archived, proof.acknowledged, proof.copies, proof.balanced) == (6, 6, 4, True)
    assert [each["message_id"] for each in again.read_lines(DOUBTFUL_FILE)] == ["m0"]
    assert len(again.files(SEGMENTS)) == 5
    assert again.spark_url("segments/x").startswith("s3a://bucket/backlog/r1/segments/x")
    # One PUT an object, and none is ever changed.
    segments = [name for name in store.puts if f"/{SEGMENTS}/" in name]
    assert len(segments) == len(set(segments)) == 5
    archive.write_json(RECEIPT_FILE, {"balanced": True})
    planned = plan_gc(again, unsent=False)
    assert planned.files == 7
    remove_messages(again, planned)
    left = {name.removeprefix("bucket/backlog/r1/") for name, data in store.objects.items() if data}
    assert left == {"run.json", DRAINED_FILE, RECEIPT_FILE, REMOVED_FILE, DOUBTFUL_FILE}


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
    request = place.request(tmp_path, settings=HASTY)
    with pytest.raises(errors.MachineLacks, match=r"Spark cannot read .*S3AFileSystem not found") as refused:
        driver.start_run(replace(request, archive=BUCKET), QUICK, place.queues, lambda _event: None)
    assert "--conf spark.jars.packages=org.apache.hadoop:hadoop-aws:3." in refused.value.hint
    assert (place.left(), place.ids(), [name for name in store.objects if "run.json" in name]) == (40, [], [])
