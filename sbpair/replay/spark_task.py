"""Parts shared by the tasks of all phases: rows from and to Spark, the event loop of a worker, and retries."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sbpair.errors import Unavailable
from sbpair.model.backoff import Backoff

if TYPE_CHECKING:
    from sbpair.move.raw_source import RawReceivedMessage, RawSource
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

T = TypeVar("T")

log = logging.getLogger(__name__)

STOP_POLL_SECONDS = 0.5  # how often a task checks whether a stop is requested
MAX_TRIES = 8
BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


class StopPoll:
    """A check for a requested stop that reads the archive at most once in `seconds`. Once requested, it stays so."""

    def __init__(self, archive: Archive, seconds: float = STOP_POLL_SECONDS) -> None:
        self._archive, self._seconds = archive, seconds
        self._checked_at, self._stopped = float("-inf"), False

    def requested(self) -> bool:
        now = time.monotonic()
        if not self._stopped and now - self._checked_at >= self._seconds:
            self._checked_at, self._stopped = now, self._archive.stop_requested()
        return self._stopped


def task_queues(job: TaskJob) -> list[str]:
    """Return the queue of each task: every queue has one, and the remaining tasks go round unless order needs one."""
    queues, alone = job.run.queues, job.run.direct and job.run.options.ordered
    return [queues[index % len(queues)] for index in range(len(queues) if alone else max(job.tasks, len(queues)))]


class TaskCounts(NamedTuple):
    """The messages that a task archived or sent, and those that it gave back to the backlog.

    `clock_ahead_ms` is how far the service's clock is ahead, if the task has compared them. `note` is for the user.
    """

    messages: int
    released: int = 0
    clock_ahead_ms: int | None = None
    note: str | None = None


def queue_task(job: TaskJob, run: Callable[[str], Coroutine[Any, Any, TaskCounts]]) -> Any:
    """Return the function for `mapInArrow` over one row per task: it runs the coroutine of the task's queue."""
    queues = task_queues(job)

    def counts(batches: Iterator[Any]) -> Iterator[tuple[str, TaskCounts]]:
        for [index] in column_rows(batches, ["id"]):
            yield queues[index], run_in_worker(run(queues[index]))

    return progress_task(counts)


def progress_task(counts: Callable[[Iterator[Any]], Iterable[tuple[str, TaskCounts]]]) -> Any:
    """Return the function for `mapInArrow` that yields `counts` as rows of PROGRESS."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        texts, numbers = ("queue", "note"), TaskCounts._fields[:-1]
        schema = pa.schema([(name, pa.string()) for name in texts] + [(name, pa.int64()) for name in numbers])
        for queue, found in counts(batches):
            yield pa.RecordBatch.from_pylist([{"queue": queue, **found._asdict()}], schema=schema)

    return task


def column_rows(batches: Iterator[Any], columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """Yield the values of these columns, row by row."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def run_in_worker(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in a worker that does nothing else."""
    # A mover's objects die by reference count: looking for cycles after every 700 objects cost a tenth of its time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    return asyncio.run(task)


async def retry(operation: Callable[[], Awaitable[T]]) -> T:
    """Return the operation's result. Raises Unavailable after MAX_TRIES."""
    for failures in range(1, MAX_TRIES):
        with suppress(Unavailable):
            return await operation()
        await asyncio.sleep(BACKOFF.seconds(failures))
    return await operation()


async def retry_while_progressing(
    name: str, attempt: Callable[[], Awaitable[None]], progress: Callable[[], int], archive: Archive
) -> None:
    """Repeat an attempt; give up without an error if a pause is requested.

    Raises Unavailable after MAX_TRIES in a row without progress, or once a stop is requested.
    """
    failures = 0
    while True:
        before = progress()
        try:
            return await attempt()
        except Unavailable as error:
            failures = failures + 1 if progress() == before else 1
            if archive.pause_requested():
                return None
            if failures >= MAX_TRIES or archive.stop_requested():
                raise
            log.info("%s: %s; trying again", name, error.message)
            until = time.monotonic() + BACKOFF.seconds(failures)
            while (left := until - time.monotonic()) > 0 and not archive.stop_requested():  # noqa: ASYNC110  a file
                await asyncio.sleep(min(left, STOP_POLL_SECONDS))


async def receive_until_stopped(
    source: RawSource, limit: int, seconds: float, stop_requested: Callable[[], bool]
) -> list[RawReceivedMessage]:
    """Receive as the source does, but wait no longer once a stop is requested."""
    until = time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        messages = await source.receive(limit, seconds=max(0.0, min(left, STOP_POLL_SECONDS)))
        if messages or left <= STOP_POLL_SECONDS or stop_requested():
            return messages
