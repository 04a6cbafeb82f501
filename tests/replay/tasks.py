"""A replay's tasks in this process, without Spark."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

from sbpair.replay import driver
from sbpair.replay.archive import DRAINED_FILE, SEGMENTS, Archive
from sbpair.replay.digests import write_report
from sbpair.replay.ledger import KEY
from sbpair.replay.outcomes import Proof
from sbpair.replay.queue_task import DirectMove, QueueDrain, count_remaining
from sbpair.replay.run_description import ReplayOptions, ReplayRun, TaskJob, save_run
from sbpair.replay.send_task import send_batches
from sbpair.replay.shard_plan import ORDER, SEND, UNSELECTED, ShardPlan
from sbpair.replay.verify import check_segments, verify
from sbpair.runs.database import identity
from tests.replay.world import World

QUICK = ReplayOptions(segment_messages=20, empty_seconds=0.05)


def job_of(place: World, directory: Path, *, tasks: int = 1, started_ms: int | None = None, **options: Any) -> TaskJob:
    started_ms = started_ms or int(time.time() * 1000)
    run = ReplayRun("r1", identity(place.pair.ends), tuple(place.queues), 1, started_ms, replace(QUICK, **options))
    archive = Archive(str(directory), run.id)
    save_run(archive, run)
    return TaskJob(run, archive.url, *place.request(directory).access(), tasks)


def stranded(place: World, directory: Path, count: int, **options: Any) -> TaskJob:
    place.strand_many(count)
    return job_of(place, directory, **options)


def drain(job: TaskJob) -> None:
    found = [asyncio.run(QueueDrain(job, queue).run()).clock_ahead_ms for queue in job.run.queues]
    ahead_ms = max((each for each in found if each is not None), default=None)
    remaining = asyncio.run(count_remaining(job, clock_ahead_ms=ahead_ms))
    locked = sum(each.locked for each in remaining.values())
    archive = job.open()
    counts = {"messages": check_segments(archive, job.run).messages, "remaining_in_queues": left(job, ahead_ms)}
    write_report(archive, job.run, DRAINED_FILE, {**counts, "locked": locked})


def left(job: TaskJob, clock_ahead_ms: int | None = None) -> dict[str, int]:
    remaining = asyncio.run(count_remaining(job, clock_ahead_ms=clock_ahead_ms))
    return {queue: each.messages for queue, each in remaining.items()}


def send(job: TaskJob) -> None:
    asyncio.run(send_batches(job, iter(planned(job.open()))))


def move(job: TaskJob, queues: Sequence[str] | None = None) -> None:
    for queue in queues or job.run.queues:
        asyncio.run(DirectMove(job, queue).run())


def replayed(job: TaskJob) -> None:
    """Run the tasks of either mode."""
    if job.run.direct:
        move(job)
    else:
        drain(job)
        send(job)


def planned(archive: Archive) -> list[pa.RecordBatch]:
    """Return each row of the segments once, in the plan's order."""
    tables = [archive.read_table(path) for path in archive.files(SEGMENTS)]
    whole = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ORDER])
    seen: set[tuple[Any, ...]] = set()
    firsts = []
    for row in whole.select(list(KEY)).to_pylist():
        key = tuple(row.values())
        firsts.append(key not in seen)
        seen.add(key)
    rows = whole.filter(pa.array(firsts))
    return list(rows.append_column("shard", pa.array([0] * len(rows), pa.int32())).to_batches())


CONTEXT = SimpleNamespace(setJobDescription=lambda _text: None)


class LocalRows:
    """Rows by partition. Each has a task, in a thread of this process."""

    sparkSession = SimpleNamespace(sparkContext=CONTEXT)  # noqa: N815  Spark's name

    def __init__(self, *partitions: list[pa.RecordBatch]) -> None:
        self._partitions = partitions

    def mapInArrow(self, task: Any, _schema: str) -> Self:  # noqa: N802  Spark's name
        self._task = task
        return self

    def collect(self) -> list[Any]:
        with ThreadPoolExecutor(len(self._partitions)) as threads:
            found = [*threads.map(lambda rows: [*self._task(iter(rows))], self._partitions)]
        return [SimpleNamespace(**row) for batches in found for batch in batches for row in batch.to_pylist()]


class LocalSpark:
    """A session for drains and moves, and for a plan without a condition and without deduplication."""

    sparkContext = CONTEXT  # noqa: N815  Spark's name

    def range(self, start: int, end: int, step: int, _partitions: int) -> LocalRows:
        return LocalRows(*([pa.RecordBatch.from_pydict({"id": [number]})] for number in range(start, end, step)))

    def stop(self) -> None:
        """Nothing runs."""


class LocalPlan(ShardPlan):
    """A plan of one task, with each row of the segments once."""

    def send_rows(self) -> LocalRows:
        return LocalRows(self.spark)

    def count_excluded(self, _archive: Archive) -> int:
        return sum(row["messages"] for row in self.flows if row["verdict"] == UNSELECTED)


@pytest.fixture
def local_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    run_tasks_here(monkeypatch)


def run_tasks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the tasks of a driver in this process, and plan without Spark."""

    @contextmanager
    def session(*_arguments: Any, **_options: Any) -> Iterator[LocalSpark]:
        yield LocalSpark()

    def plan(_spark: Any, run: ReplayRun, archive: Archive, _now_ms: int) -> LocalPlan:
        rows = planned(archive)
        counts = Counter(name for batch in rows for name in batch.column("destination").to_pylist())
        left = run.options.selection.missing
        flows = [
            {"destination": name, "verdict": UNSELECTED if name in left else SEND, "messages": count}
            for name, count in counts.items()
        ]
        chosen = [
            batch.filter(pa.array([name not in left for name in batch.column("destination").to_pylist()]))
            for batch in rows
        ]
        return LocalPlan(chosen, run, flows)

    monkeypatch.setattr(driver, "spark_session", session)
    monkeypatch.setattr(driver, "build_plan", plan)


def proof_of(job: TaskJob) -> Proof:
    return verify(job.open(), job.run)
