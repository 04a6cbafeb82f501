"""Parts of all tasks: parameters, rows from and to Spark, the event loop of a worker, connections, and retries."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter_for
from sbpair.errors import Unavailable
from sbpair.model.retries import Backoff
from sbpair.replay.archive import Archive
from sbpair.replay.secret_references import named_secrets

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient
    from sbpair.model.pair import Endpoint
    from sbpair.move.raw_primary import RawPrimary
    from sbpair.move.raw_source import RawReceivedMessage, RawSource
    from sbpair.replay.run import NamespaceAccess, ReplayRun

T = TypeVar("T")
Primary = TypeVar("Primary", bound="RawPrimary")

log = logging.getLogger(__name__)

SHORT_WAITS = 2.0, 0.25
"""Waits for locked messages, and in an empty queue, in seconds, if queues are peeked afterwards.

A busy namespace may settle for a while before it delivers more.
"""

STOP_POLL_SECONDS = 0.5  # how often a task checks whether a stop is requested
MAX_TRIES = 8
RECONNECT_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


@dataclass(frozen=True, slots=True)
class TaskJob:
    """The pickled parameters of a task. `archive` is a URL, `heartbeat` a path in it; `senders` share the rate."""

    run: ReplayRun
    archive: str
    primary: NamespaceAccess
    secondary: NamespaceAccess
    tasks: int
    heartbeat: str | None = None
    senders: int = 1

    def with_waits(self, locked_seconds: float, empty_seconds: float = inf) -> TaskJob:
        """Return the job with shorter waits, where these are shorter."""
        options = self.run.options
        locked, empty = min(options.locked_seconds, locked_seconds), min(options.empty_seconds, empty_seconds)
        options = replace(options, locked_seconds=locked, empty_seconds=empty)
        return replace(self, run=replace(self.run, options=options))

    def open(self) -> Archive:
        os.environ.update(named_secrets(os.environ))  # pyarrow may need a service principal to open it
        return Archive(self.archive, self.run.id)

    @asynccontextmanager
    async def backlog(self) -> AsyncIterator[Callable[[], AbstractAsyncContextManager[AmqpClient]]]:
        """Yield a function that connects to the secondary, signed in within the block."""
        endpoint = self.secondary.endpoint()
        async with token_getter_for(endpoint.credential, endpoint.name) as get_token:
            yield lambda: connect(endpoint, get_token=get_token)


class StopPoll:
    """A check for a requested stop, by the archive once in STOP_POLL_SECONDS. Once requested, it stays so."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._checked_at, self._stopped = float("-inf"), False

    def requested(self) -> bool:
        now = time.monotonic()
        if not self._stopped and now - self._checked_at >= STOP_POLL_SECONDS:
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
    queue: str = ""


def run_tasks(rows: Any, run: Callable[[Iterator[Any]], Iterable[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Run a function in a task for each partition of the rows. Return what it yields there, which passes as JSON."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for found in run(batches):
            yield pa.RecordBatch.from_pydict({"result": [json.dumps(found)]})

    return [json.loads(row.result) for row in rows.mapInArrow(task, "result string").collect()]


def run_queues(job: TaskJob, kind: Callable[[TaskJob, str], Any], batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Run `kind`, a drain or a direct move, for the queue of each row, and yield its counts. A task has one row."""
    queues = task_queues(job)
    for [index] in column_rows(batches, ["id"]):
        counts: TaskCounts = run_in_worker(kind(job, queues[index]).run())
        yield counts._replace(queue=queues[index])._asdict()


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


@asynccontextmanager
async def open_primary(kind: Callable[..., Primary], endpoint: Endpoint) -> AsyncIterator[Primary]:
    """Open the namespace to send to within the block, as `RawPrimary` or a class of that kind."""
    async with token_getter_for(endpoint.credential, endpoint.name) as get_token:
        primary = kind(endpoint, get_token=get_token)
        try:
            yield primary
        finally:
            await primary.close()


async def retry(operation: Callable[[], Awaitable[T]]) -> T:
    """Return the operation's result. Raises Unavailable after MAX_TRIES."""
    for failures in range(1, MAX_TRIES):
        with suppress(Unavailable):
            return await operation()
        await asyncio.sleep(RECONNECT_BACKOFF.seconds(failures))
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
            until = time.monotonic() + RECONNECT_BACKOFF.seconds(failures)
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
