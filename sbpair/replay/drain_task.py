"""One task of the drain: a backlog queue into segments, each settled once it is durable.

Invariant: no message is settled before its segment has been written, synced and read back. No shuffle follows, so
Spark repeats no stage whose messages are already settled. A task that dies leaves whole segments, and messages whose
locks expire: both are safe.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter
from sbpair.errors import SbpairError, Unavailable
from sbpair.model.message_key import message_key
from sbpair.move.raw_source import RawSource, peek_queue
from sbpair.replay.archive_layout import ACCEPTED_FILE
from sbpair.replay.drain_cutoff import DrainCutoff, was_present
from sbpair.replay.event_loop import run_in_worker
from sbpair.replay.namespace_retry import retry, retry_while_progressing
from sbpair.replay.schema import SEGMENT
from sbpair.replay.segment import Segment

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.model.message_key import Key
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

log = logging.getLogger(__name__)

MAX_RECEIVE = 2_000
LOCK_SHARE = 0.4
"""The share of a lock's time after which its message must be in a segment."""

IDLE_SECONDS = 0.25
"""A segment is stored after so long without a message."""


def task_queues(job: TaskJob) -> list[str]:
    """Return the queue of each task: every queue has one, and the remaining tasks go round.

    In an ordered direct run each queue has exactly one task.
    """
    queues, alone = job.run.queues, job.run.direct and job.run.options.ordered
    return [queues[index % len(queues)] for index in range(len(queues) if alone else max(job.tasks, len(queues)))]


def drain_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over one row per task."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        queues = task_queues(job)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                messages = run_in_worker(QueueDrain(job, queues[index]).run())
                yield pa.RecordBatch.from_pydict({"queue": [queues[index]], "messages": [messages]})

    return task


class QueueDrain:
    """The drain of one queue into segments, up to the run's cut-off. One segment is stored while the next fills."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job = job
        self._queue = queue
        self._archive = job.open()
        self._options = job.run.options
        self._accepted = load_accepted(self._archive, queue)
        self._messages = 0
        self._cutoff = DrainCutoff(job.run)
        self._storing: asyncio.Task[None] | None = None
        self._store_error: SbpairError | None = None

    async def run(self) -> int:
        """Drain, over new connections if needed. Returns how many messages were archived.

        Raises Unavailable if the namespace stays away, MachineLacks if the archive fails.
        """
        async with token_getter(self._job.pair()) as get_token:

            async def attempt() -> None:
                async with connect(self._job.secondary.endpoint(), get_token=get_token) as client:
                    await self._drain(await RawSource.open(client, self._queue, keeps_payload=True))

            await retry_while_progressing(self._queue, attempt, lambda: self._messages, self._archive.stop_requested)
        return self._messages

    async def _drain(self, source: RawSource) -> None:
        failure: SbpairError | None = None
        self._store_error = None
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._receive(source, tasks)
            except SbpairError as error:
                failure = error
            await self._wait_stored()
        failure = self._store_error or failure
        if failure is not None:
            raise failure
        await source.stop()

    async def _receive(self, source: RawSource, tasks: asyncio.TaskGroup) -> None:
        segment = self._new_segment()
        self._cutoff.restart()
        while self._store_error is None and not self._archive.stop_requested():
            source.grant(MAX_RECEIVE)
            limit = max(1, self._options.segment_messages - len(segment))
            messages = await source.receive(min(MAX_RECEIVE, limit), seconds=self._wait_seconds(segment))
            if messages:
                self._cutoff.note_received(messages)
                await self._add(source, segment, messages)
            if segment and (not messages or self._is_full(segment)):
                await self._start_store(source, segment, tasks)
                segment = self._new_segment()
            elif not messages or self._cutoff.is_due():
                await self._wait_stored()
                if await self._cutoff.is_reached(source):
                    break
        if segment:
            await self._start_store(source, segment, tasks)

    def _new_segment(self) -> Segment:
        shards = self._job.run.shards
        return Segment(self._queue, self._archive.new_table(SEGMENT, shards, large=True), shards)

    def _wait_seconds(self, segment: Segment) -> float:
        return IDLE_SECONDS if segment else self._options.empty_seconds

    def _is_full(self, segment: Segment) -> bool:
        options = self._options
        return (
            segment.bytes >= options.segment_bytes
            or len(segment) >= options.segment_messages
            or asyncio.get_running_loop().time() >= segment.due
        )

    async def _add(self, source: RawSource, segment: Segment, messages: list[RawReceivedMessage]) -> None:
        now = asyncio.get_running_loop().time()
        namespace = self._job.run.pair["secondary"]
        if self._accepted:
            accepted = {each for each in messages if message_key(namespace, each.facts)[1:] in self._accepted}
            await source.complete(list(accepted))
            messages = [each for each in messages if each not in accepted]
        if messages:
            soonest = min(each.lock_until for each in messages)
            segment.add(messages, now + LOCK_SHARE * max(0.0, soonest - now))
        if segment.has_full_groups:
            # In a thread, so that the connection is still read and its heartbeats answered.
            await asyncio.to_thread(segment.write_groups)

    async def _start_store(self, source: RawSource, segment: Segment, tasks: asyncio.TaskGroup) -> None:
        """Store in the background, one segment at a time: at most two are in memory."""
        await self._wait_stored()
        if self._store_error is None:
            self._storing = tasks.create_task(self._store(source, segment), name=f"store {segment.path}")

    async def _wait_stored(self) -> None:
        if self._storing is not None:
            await self._storing
            self._storing = None

    async def _store(self, source: RawSource, segment: Segment) -> None:
        try:
            await asyncio.to_thread(segment.write_groups)
            await asyncio.to_thread(self._archive.put, segment.path, segment.file)
            await self._settle(source, segment)
        except SbpairError as error:
            self._store_error = error

    async def _settle(self, source: RawSource, segment: Segment) -> None:
        self._messages += segment.file.rows
        failures = await source.complete(segment.written)
        if failures:
            # They are delivered again, and become copies with the same key.
            why = failures[0][1]
            log.info("%s: %d of %d were not settled: %s", self._queue, len(failures), len(segment), why)
            if isinstance(why, Unavailable):
                raise why  # reconnect


async def count_remaining(job: TaskJob) -> dict[str, int]:
    """Count the messages that were present when the run began and still are, by queue; queues without any are left out.

    Another receiver has locked them, or has deferred them. Raises Unavailable if the namespace stays away.
    """
    async with token_getter(job.pair()) as get_token:
        return await retry(lambda: _peek_remaining(job, get_token))


async def has_remaining(job: TaskJob) -> bool:
    """Return whether any such message remains, which is quicker than to count them. Raises Unavailable."""
    async with token_getter(job.pair()) as get_token:
        return bool(await retry(lambda: _peek_remaining(job, get_token, count_all=False)))


async def _peek_remaining(job: TaskJob, get_token: GetToken | None, *, count_all: bool = True) -> dict[str, int]:
    found: Counter[str] = Counter()
    async with connect(job.secondary.endpoint(), get_token=get_token) as client:
        for queue in job.run.queues:
            async for page in peek_queue(client, queue):
                found[queue] += sum(was_present(job.run, peeked) for peeked in page)
                if found[queue] and not count_all:
                    break
    return {queue: count for queue, count in found.items() if count}


def load_accepted(archive: Archive, queue: str) -> set[tuple[Any, ...]]:
    """Return the keys of a queue that the syphon's journal had as accepted, without the namespace."""
    try:
        keys = archive.read_json(ACCEPTED_FILE)["keys"]
    except FileNotFoundError:
        return set()
    return {tuple(key[1:]) for key in keys if key[1] == queue.lower()}


def save_accepted(archive: Archive, keys: list[Key]) -> None:
    """Write the keys that the primary has already accepted, for the tasks."""
    archive.write_json(ACCEPTED_FILE, {"at_ms": int(time.time() * 1000), "keys": keys})
