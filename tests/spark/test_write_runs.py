"""Runs of writes: nothing acknowledged is sent twice, nothing is lost, and one job of a run sends at a time."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext

from sbpair.errors import (
    LeaseHeld,
    LeaseLost,
    MachineLacks,
    ServiceRefused,
    StateRefused,
    Unavailable,
    Unsafe,
    UsageError,
)
from sbpair.replay import send_task
from sbpair.replay.archive import HELD, LEDGER, QUARANTINE, RUN_FILE, Archive
from sbpair.replay.send_task import ShardSource
from sbpair.spark import write_run, write_task
from sbpair.spark.row_messages import check_schema
from sbpair.spark.write_run import OWNER_FILE, WRITE_FILE, RunOwner, WriteJob, commit_job, start_job, wait_silent
from sbpair.spark.write_task import RowReader, TaskClaim, TaskPlace, _write, write_partition
from tests.replay.object_store import Store
from tests.replay.world import VARIABLES, World
from tests.spark.writes import BINARY, ROWS, TEXT, environment_of, numbered, schema_of, start, write

ENDING = "the source of rows ends here"


@pytest.fixture
def quick_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_task, "CLAIM_SECONDS", 0.05)


def interrupted(job: WriteJob, *batches: pa.RecordBatch, partition: int = 0) -> None:
    """Send rows until some are accepted, and the worker fails when there are no more."""
    accepted, complete, read = threading.Event(), ShardSource.complete, RowReader.read

    async def noted(self: ShardSource, messages: Any) -> Any:
        accepted.set()
        return await complete(self, messages)

    def failing(self: RowReader, max_rows: int, max_bytes: int) -> Any:
        found = read(self, max_rows, max_bytes)
        if self.exhausted:
            accepted.wait(0.5)  # none is, if all were sent before
            raise OSError(ENDING)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardSource, "complete", noted)
        patch.setattr(RowReader, "read", failing)
        with pytest.raises(ExceptionGroup) as found:
            asyncio.run(_write(job, TaskPlace(partition), iter(batches)))
    assert ENDING in repr(found.value)


@pytest.mark.parametrize("stored", [False, True], ids=["directory", "object store"])
def test_a_run_again_sends_only_the_rest(stored: bool, place: World, store: Store, tmp_path: Path) -> None:
    options = {"ledger": "s3://bucket/ledger"} if stored else {}
    interrupted(start(place, tmp_path, **options), numbered(range(1_500)))
    before = len(place.ids())
    assert 0 < before <= 1_500
    replaced = start(place, tmp_path, **options)
    later = start(place, tmp_path, **options)
    # Other partitions, and another order.
    receipt = write(later, numbered(range(1_999, 999, -1)), numbered(range(1_000)))
    assert receipt["acknowledged_before"] + receipt["acknowledged"] == receipt["rows"] == 2_000
    assert before <= receipt["acknowledged_before"] + receipt["doubtful_total"]
    assert sorted(set(place.ids())) == sorted(f"m{n}" for n in range(2_000))
    twice = len(place.ids()) - 2_000
    assert twice <= receipt["doubtful_total"]
    with pytest.raises(LeaseLost, match=f"job {later.job} has taken over this run"):
        write(replaced, numbered([2_001]))
    again = write(start(place, tmp_path, **options), numbered(range(2_000)))
    assert (again["acknowledged_before"], again["acknowledged"], len(place.ids())) == (2_000, 0, 2_000 + twice)
    files = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} | store.objects
    keys = [place.environment[name].partition("SharedAccessKey=")[2].partition(";")[0] for name in VARIABLES]
    assert not [name for name, data in files.items() if any(key.encode() in data for key in keys)]
    assert not [name for name in files if "/claims/" in name and name.endswith(".json")]
    assert (bool(store.objects), bool([*tmp_path.iterdir()])) == (stored, not stored)


def test_a_second_attempt_reads_the_ledger_first(place: World, tmp_path: Path) -> None:
    for columns in (ROWS, {"body": BINARY}):
        job = start(place, tmp_path / str(len(columns)), columns)
        rows = numbered(range(100)).select([*columns])
        write_partition(job, iter([rows]))
        count = len(place.ids())
        again = write(job, [rows, rows.slice(0, 0)])
        assert (again["rows"], again["acknowledged"], again["acknowledged_before"]) == (100, 100, 0)
        assert len(place.ids()) == count


@pytest.mark.parametrize("seed", range(6))
def test_interrupted_attempts_send_every_row_and_name_those_sent_twice(seed: int, place: World, tmp_path: Path) -> None:
    random = Random(seed)
    columns = ROWS if seed % 2 else {"body": BINARY}
    job = start(place, tmp_path, columns, check="row" if seed < 3 else "task")
    expected, parts = Counter[bytes](), []
    for partition in range(3):
        # Without ids many rows are equal.
        numbers = [1_000 * partition + (n if seed % 2 else n // 3) for n in range(random.randint(1, 300))]
        rows = numbered(numbers).select([*columns])
        expected.update(rows.column("body").to_pylist())
        for _ in range(random.randint(0, 2)):
            interrupted(job, rows.slice(0, random.randint(0, len(rows))), partition=partition)
        parts.append(asyncio.run(_write(job, TaskPlace(partition), iter([rows.slice(0, 0), rows]))))
    receipt = commit_job(job, parts)
    arrived = Counter(b"".join(v for _, v in each.sections.read_body()) for each in place.arrived()["orders"])
    assert expected <= arrived
    assert (arrived - expected).total() <= receipt["doubtful_total"]
    assert (receipt["rows"], receipt["acknowledged_before"]) == (expected.total(), 0)


def test_an_id_with_another_content_is_refused(place: World, tmp_path: Path) -> None:
    """By a retry of the task, and by a later job."""
    job, changed = start(place, tmp_path), pa.record_batch({"id": ["m1"], "body": [b"another"]})
    write_partition(job, iter([numbered([1])]))
    for again in (job, start(place, tmp_path)):
        with pytest.raises(StateRefused, match="id 'm1' was sent by run r1 with another content"):
            write(again, changed)
    assert place.ids() == ["m1"]


def test_a_ledger_of_another_run_is_refused(place: World, tmp_path: Path) -> None:
    write(start(place, tmp_path), numbered([1]))
    job = start(place, tmp_path)
    for path in (tmp_path / "ledger").rglob("*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"sbpair.run": b"r2"}), path)
    with pytest.raises(StateRefused, match="belongs to run r2, not r1"):
        write(job, numbered([1, 2]))
    assert place.ids() == ["m1"]


def test_a_run_that_an_earlier_job_owned_is_resumed(place: World, tmp_path: Path) -> None:
    """The earlier job may write the first file of its ledger after the later one has looked for it."""
    job = start(place, tmp_path)
    assert not job.resumed
    job.open().write_json(OWNER_FILE, RunOwner(job.job, job.number)._asdict())
    assert start(place, tmp_path).resumed


def test_the_archive_of_a_replay_is_refused_as_a_ledger(place: World, tmp_path: Path) -> None:
    archive = Archive(str(tmp_path / "ledger"), "r1")
    archive.create()
    archive.write_json(RUN_FILE, {})
    with pytest.raises(StateRefused, match="r1 is a run of sbpair replay"):
        start(place, tmp_path)
    assert [*archive.sizes("")] == [RUN_FILE]


def test_a_run_of_another_namespace_or_version_is_refused(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)
    with pytest.raises(StateRefused, match="run r1 has namespace"):
        start(place, tmp_path, side="secondary", destination=place.queues[0])
    archive = job.open()
    archive.write_json(WRITE_FILE, {**archive.read_json(WRITE_FILE), "version": 2})
    with pytest.raises(StateRefused, match="run r1 has version 2, not 1"):
        start(place, tmp_path)


@pytest.mark.usefixtures("quick_claims")
def test_a_run_that_is_still_going_is_refused(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_task, "PATIENCE_SECONDS", 0.0)
    job = start(place, tmp_path)

    async def hold() -> None:
        async with TaskClaim(job, TaskPlace(0), "a").kept() as claim:
            with pytest.raises(LeaseHeld, match="run r1 is still going"):
                await asyncio.to_thread(start, place, tmp_path)
            with pytest.raises(LeaseHeld, match="another attempt"):
                async with TaskClaim(job, TaskPlace(0), "b").kept():
                    pass
            claim.check()

    asyncio.run(hold())
    start(place, tmp_path)


@pytest.mark.usefixtures("quick_claims")
def test_an_attempt_waits_for_the_end_of_the_one_before_it(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)

    async def take_turns() -> None:
        async with TaskClaim(job, TaskPlace(0), "a").kept():
            second = asyncio.create_task(hold_second())
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.shield(second), 0.6)  # the first claim changes meanwhile
        await second

    async def hold_second() -> None:
        async with TaskClaim(job, TaskPlace(0), "b").kept() as claim:
            claim.check()

    asyncio.run(take_turns())


def take_claim(archive: Archive, job: WriteJob) -> None:
    archive.write_line(f"{write_run.CLAIMS}/batch/{job.job}.0/claim.json", {"attempt": "another", "number": 1})


def take_run(archive: Archive, job: WriteJob) -> None:
    archive.write_json(OWNER_FILE, RunOwner("another", job.number + 1)._asdict())


PAUSES: dict[str, Any] = {
    "confirmed": (lambda _archive, _job: None, None),
    "another attempt": (take_claim, "another attempt at this partition has begun"),
    "another job": (take_run, "job another has taken over this run"),
    "away": (lambda _archive, _job: None, "did not confirm this task in time, nor in 120 s more: it is away"),
}


@pytest.mark.usefixtures("quick_claims")
@pytest.mark.parametrize("end", PAUSES)
def test_sends_pause_while_a_stalled_ledger_confirms_nothing(
    end: str, place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    act, error = PAUSES[end]
    job, clock, check = start(place, tmp_path, check="row"), [0.0], TaskClaim.check
    stalling, stalled, paused, answering = (threading.Event() for _ in range(4))

    def mark(archive: Archive) -> str | None:
        if stalling.is_set():
            stalled.set()
            answering.wait()
            if end == "away":
                raise MachineLacks("it is away")
        return write_run.read_mark(archive)

    def noted(self: TaskClaim) -> None:
        try:
            check(self)
        except Unavailable:
            paused.set()
            raise

    def rows() -> Any:
        stalling.set()
        stalled.wait()
        clock[0] += write_task.TRUST_SECONDS + 0.1
        yield numbered(range(500))

    def answer() -> None:
        paused.wait()
        assert place.ids() == []
        act(job.open(), job)
        clock[0] += write_task.PATIENCE_SECONDS * (end == "away")
        stalling.clear()
        answering.set()

    monkeypatch.setattr(write_task, "read_mark", mark)
    monkeypatch.setattr(write_task, "uptime", lambda: clock[0])
    monkeypatch.setattr(TaskClaim, "check", noted)
    with ThreadPoolExecutor(1) as other:
        answered = other.submit(answer)
        if error is None:
            assert write(job, rows())["acknowledged"] == len(place.ids()) == 500
        else:
            with pytest.raises((LeaseLost, MachineLacks), match=error):
                write(job, rows())
            assert place.ids() == []
        answered.result()


def test_a_claim_that_was_silent_counts_once_others_have_seen_it(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have removed it as that of a dead attempt, and have begun, before it was written again."""
    clock, job = [0.0], start(place, tmp_path)
    monkeypatch.setattr(write_task, "uptime", lambda: clock[0])
    claim = TaskClaim(job, TaskPlace(0), "a")
    job.open().write_json(OWNER_FILE, RunOwner(job.job, job.number)._asdict())
    claim._confirm(first=True)
    for late, confirmed in ((5, True), (11, False), (5, False), (2, True)):
        clock[0] += late
        claim._confirm()
        with nullcontext() if confirmed else pytest.raises(Unavailable, match="did not confirm"):
            claim.check()


def test_a_worker_with_another_directory_sends_nothing(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)
    start(place, tmp_path / "worker")
    for other in ("worker/ledger", "nowhere"):
        with pytest.raises(MachineLacks, match="of this worker is not the driver's directory"):
            write_partition(replace(job, ledger=str(tmp_path / other)), iter([numbered([1])]))
    assert place.ids() == []


def test_a_claim_that_is_silent_is_waited_for(place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = start(place, tmp_path).open()
    archive.write_line("claims/batch/dead.0/claim.json", {"number": 1})
    monkeypatch.setattr(write_run, "SILENT_SECONDS", 0.5)
    wait_silent(archive, "claims", "never")


def test_refused_messages_fail_the_job_unless_kept(place: World, tmp_path: Path) -> None:
    rows = numbered(range(3))
    large = rows.set_column(1, "body", pa.array([b"a", b"b" * 2_000_000, b"c"]))
    with pytest.raises(ServiceRefused, match=r"1 of 3 messages were refused, and all others sent"):
        write(start(place, tmp_path), large)
    receipt = write(start(place, tmp_path, refused="quarantine"), large)
    assert (receipt["acknowledged_before"], receipt["refused"], receipt["balanced"]) == (2, 1, True)
    assert sorted(place.ids()) == ["m0", "m2"]
    archive = start(place, tmp_path).open()
    [row] = archive.read_table(archive.files(QUARANTINE)[-1]).to_pylist()
    assert (row["message_id"], row["message"].count(b"b") >= 2_000_000) == ("m1", True)


def test_a_ledger_without_some_files_fails_the_commit(place: World, tmp_path: Path) -> None:
    job = start(place, tmp_path)
    counts = write_partition(job, iter([numbered(range(10))]))
    archive = job.open()
    for path in archive.files(LEDGER):
        archive.remove(path)
    with pytest.raises(StateRefused, match="the ledger has 0 messages of this job"):
        commit_job(job, [counts])


def test_after_a_failed_commit_nothing_is_sent_again(place: World, tmp_path: Path) -> None:
    blocked = tmp_path / "ledger" / "r1" / "report" / "receipt.json"
    blocked.mkdir(parents=True)
    with pytest.raises(MachineLacks, match="Is a directory"):
        write(start(place, tmp_path), numbered(range(10)))
    blocked.rmdir()
    job = start(place, tmp_path)
    receipt = write(job, numbered(range(10)))
    assert (receipt["acknowledged_before"], receipt["acknowledged"], len(place.ids())) == (10, 0, 10)
    assert (job.open().files(HELD), receipt["doubtful_total"], job.open().sizes("claims")) == ([], 0, {})


def test_a_task_checks_the_settings_that_spark_passes_on(
    place: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = start(place, tmp_path)
    passed = {"spark.master": "spark://host:7077"}
    context = SimpleNamespace(getLocalProperty=passed.get, partitionId=lambda: 3)
    monkeypatch.setattr(TaskContext, "get", lambda: context)
    assert TaskPlace.of_task(job) == TaskPlace(3, "batch")
    with pytest.raises(UsageError, match="option ledger: missing, and the workers are other machines"):
        TaskPlace.of_task(replace(job, options=replace(job.options, ledger=None)))
    passed |= {"sql.streaming.queryId": "q", "streaming.sql.batchId": "7"}
    assert TaskPlace.of_task(job) == TaskPlace(3, "q/7")
    passed["spark.speculation"] = "true"
    with pytest.raises(Unsafe, match="speculation is on, and would send messages twice"):
        write(job, numbered([1]))
    assert place.ids() == []


SECRET = "Endpoint=sb://x.servicebus.windows.net/;SharedAccessKeyName=a;SharedAccessKey=c2VjcmV0"
BAD_OPTIONS: dict[str, dict[str, str]] = {
    "option namespace holds a secret": {"namespace": SECRET},
    "option connection_string holds a secret": {"connection_string": "x"},
    "option destinatoin is unknown": {"destinatoin": "orders"},
    "option ledger is empty": {"ledger": " "},
    "option refused: expected fail or quarantine, got 'no'": {"refused": "no"},
    "option run: 'a/b' is not the name of a run": {"run": "a/b"},
    "option side: expected primary or secondary, got 'left'": {"side": "left"},
    "options namespace and pair exclude each other": {"namespace": "n", "pair": "p"},
    "namespace 'nowhere' does not exist": {"namespace": "nowhere"},
    "option pair: pair 'nowhere' does not exist": {"pair": "nowhere"},
    "option config: /nowhere.toml does not exist": {"config": "/nowhere.toml"},
    "option destination: there is no queue or topic 'nowhere' in contoso": {"destination": "nowhere"},
    "option destination: 'a b' is not a valid path": {"destination": "a b"},
}


@pytest.mark.parametrize("message", BAD_OPTIONS)
def test_a_wrong_option_is_refused_before_the_first_message(message: str, place: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        start(place, tmp_path, **BAD_OPTIONS[message])
    assert refused.value.message.startswith(message)
    assert refused.value.hint
    assert "c2VjcmV0" not in refused.value.message + refused.value.hint


def test_a_destination_is_given_once() -> None:
    for columns, destination in (({"body": TEXT}, None), ({"body": TEXT, "destination": TEXT}, "orders")):
        with pytest.raises(UsageError, match="destination: "):
            check_schema(schema_of(columns), destination)


def test_a_resumable_run_needs_ids_and_a_stream_needs_a_run(place: World, tmp_path: Path) -> None:
    options = {"destination": "orders", "ledger": str(tmp_path)}
    with pytest.raises(UsageError, match="run r1: a run that may be resumed needs a column id or message_id"):
        start_job({**options, "run": "r1"}, schema_of({"body": TEXT}), environment_of(place), stream=False)
    with pytest.raises(UsageError, match="option run: missing, and a stream needs it"):
        start_job(options, schema_of({"body": TEXT}), environment_of(place), stream=True)


def test_a_topic_that_would_discard_holds_its_rows(place: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(send_task, "MAX_DESTINATION_FAILURES", 1)
    events = place.running.do(lambda: place.running.namespace.create_topic("events"))
    rows = pa.record_batch({**{name: numbered(range(9)).column(name) for name in ROWS}, "destination": ["events"] * 9})
    options: Any = {"columns": {**ROWS, "destination": TEXT}}
    with pytest.raises(Unavailable, match="events: it is a topic without a subscription") as held:
        write(start(place, tmp_path, **options), rows)
    assert '.option("discard", "allow")' in held.value.hint
    assert write(start(place, tmp_path, discard="allow", **options), rows)["acknowledged"] == 9
    place.running.do(lambda: events.create_subscription("s"))
    assert write(start(place, tmp_path, run="r2", **options), rows)["acknowledged"] == 9
    assert place.running.do(lambda: events.subscription("s").counts().active) == 9
