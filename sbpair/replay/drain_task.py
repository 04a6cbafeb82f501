"""One task of the drain: a backlog queue into segments, up to the run's cut-off, each settled once it is durable.

Invariant: no message is completed before its segment has been written, synced and read back. No shuffle follows, so
Spark repeats no stage whose messages are settled. A task that ends releases what it holds; one that dies leaves whole
segments, and messages that stay locked until their locks expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED, RELEASED
from sbpair.azure.credentials import token_getter
from sbpair.errors import SbpairError, Unavailable
from sbpair.model.message_key import message_key
from sbpair.move.peek.locked import NewMessages
from sbpair.move.raw_source import RawSource, peek_queue
from sbpair.replay.archive_layout import ACCEPTED_FILE, SEGMENT
from sbpair.replay.segment import Segment
from sbpair.replay.spark_task import TaskCounts, queue_task, receive_until_stopped, retry, retry_while_progressing

if TYPE_CHECKING:
    from sbpair.amqp.performatives import Outcome
    from sbpair.model.message_key import Key
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import ReplayRun, TaskJob

log = logging.getLogger(__name__)

MAX_RECEIVE = 2_000
LOCK_SHARE = 0.4  # the share of a lock's time after which its message must be in a segment
IDLE_SECONDS = 0.25  # a segment is stored after so long without a message
MIN_QUIET = 2  # peeks in a row without a message of the run, each after a receive of nothing, that end a queue
MAX_UNSETTLED = 10_000  # deliveries settled over a new connection, a hundred at a time


class DrainCutoff:
    """The cut-off of one queue, which is received from until `is_reached`.

    `clock_ahead_ms` is how far the service's clock is ahead, as received messages show, and at least 0: the clock of
    the machine that began the run may differ from this one's. None before the first message.
    """

    def __init__(self, run: ReplayRun) -> None:
        self.clock_ahead_ms: int | None = None
        self._run = run
        self._new = NewMessages(run.started_ms)
        self._quiet = 0
        self._received_at = self._peeked_at = 0.0

    def restart(self) -> None:
        """Start the wait again, as after a connection or a message of the run."""
        self._quiet, self._received_at = 0, asyncio.get_running_loop().time()

    def note_received(self, messages: Sequence[ReceivedMessage], clock_ahead_ms: int) -> None:
        """Restart if a message is older than the run: applications may go on sending newer ones."""
        self.clock_ahead_ms = max(0, clock_ahead_ms)
        self._new.compare_clocks(self.clock_ahead_ms)
        if not all(self._new.include(message.facts.enqueued_at) for message in messages):
            self.restart()

    def is_due(self) -> bool:
        """Return whether to peek though newer messages arrive: none of the run's came for `empty_seconds`."""
        quiet_since = max(self._received_at, self._peeked_at)
        return asyncio.get_running_loop().time() - quiet_since >= self._run.options.empty_seconds

    async def is_reached(self, source: RawSource) -> bool:
        """Peek the queue. A message of the run that another receiver has locked is seen, and is waited for."""
        self._peeked_at = asyncio.get_running_loop().time()
        async for page in source.peek_pages():
            if any(peeked.active and not self._new.include(peeked.enqueued_at) for peeked in page):
                self._quiet = 0
                return asyncio.get_running_loop().time() - self._received_at >= self._run.options.locked_seconds
        self._quiet += 1
        return self._quiet >= MIN_QUIET


def drain_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over one row per task."""
    return queue_task(job, lambda queue: QueueDrain(job, queue).run())


class UnsettledDeliveries:
    """Deliveries of a lost connection that are still locked, to be settled over the next one."""

    def __init__(self) -> None:
        self.accepted: list[ReceivedMessage] = []
        self.released: list[ReceivedMessage] = []

    async def settle(self, source: RawSource) -> list[ReceivedMessage]:
        """Complete and release them. Return those completed; the locks of others expire by themselves."""
        completed = await self._settle(source, self.accepted, ACCEPTED)
        await self._settle(source, self.released, RELEASED)
        return completed

    async def _settle(
        self, source: RawSource, messages: list[ReceivedMessage], outcome: Outcome
    ) -> list[ReceivedMessage]:
        now = asyncio.get_running_loop().time()
        locked = [each for each in messages[:MAX_UNSETTLED] if each.lock_until > now]
        messages.clear()
        failed = {id(each) for each, _ in await source.settle_by_token(locked, outcome)}
        if locked:
            log.info("%s: %d messages settled over a new connection", source.queue, len(locked) - len(failed))
        return [each for each in locked if id(each) not in failed]


def unanswered(failures: Failures) -> list[ReceivedMessage]:
    """Return the messages whose settlement was not confirmed: they may still be locked."""
    return [message for message, error in failures if isinstance(error, Unavailable)]


class QueueDrain:
    """The drain of one queue into segments, up to the run's cut-off. One segment is stored while the next fills."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job, self._queue, self._archive = job, queue, job.open()
        self._options = job.run.options
        self._accepted = load_accepted(self._archive, queue)
        self._messages = self._released = 0
        self._cutoff = DrainCutoff(job.run)
        self._unstored: list[Segment] = []
        self._unsettled = UnsettledDeliveries()
        self._storing: asyncio.Task[None] | None = None
        self._store_error: SbpairError | None = None

    async def run(self) -> TaskCounts:
        """Return how many messages were archived and released. Raises Unavailable, MachineLacks."""
        async with token_getter(self._job.pair()) as get_token:

            async def attempt() -> None:
                async with connect(self._job.secondary.endpoint(), get_token=get_token) as client:
                    await self._drain(await RawSource.open(client, self._queue, keeps_payload=True))

            await retry_while_progressing(self._queue, attempt, lambda: self._messages, self._archive)
        return TaskCounts(self._messages, self._released, self._cutoff.clock_ahead_ms)

    async def _drain(self, source: RawSource) -> None:
        failure: SbpairError | None = None
        self._store_error = None
        await self._unsettled.settle(source)
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._receive(source, tasks)
            except SbpairError as error:
                failure = error
            await self._wait_stored()
        await source.stop()
        await self._release_unstored(source)
        self._released += source.returned
        failure = self._store_error or failure
        if failure is not None:
            raise failure

    async def _release_unstored(self, source: RawSource) -> None:
        """Release the messages whose segments are not in the archive."""
        unstored, self._unstored = self._unstored, []
        for segment in filter(len, unstored):
            failures = await source.release(segment.messages)
            self._unsettled.released += unanswered(failures)
            self._released += len(segment) - len(failures)

    async def _receive(self, source: RawSource, tasks: asyncio.TaskGroup) -> None:
        segment = self._new_segment()
        self._cutoff.restart()
        while self._store_error is None and not self._archive.stop_requested():
            source.grant(MAX_RECEIVE)
            limit = max(1, self._options.segment_messages - len(segment))
            seconds = IDLE_SECONDS if segment else self._options.empty_seconds
            limit = min(MAX_RECEIVE, limit)
            messages = await receive_until_stopped(source, limit, seconds, self._archive.stop_requested)
            if messages:
                self._cutoff.note_received(messages, source.clock_ahead_ms)
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
        segment = Segment(self._queue, self._archive.new_table(SEGMENT, shards, large=True), shards)
        self._unstored.append(segment)
        return segment

    def _is_full(self, segment: Segment) -> bool:
        full = segment.bytes >= self._options.segment_bytes or len(segment) >= self._options.segment_messages
        return full or asyncio.get_running_loop().time() >= segment.due

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
            self._unstored.remove(segment)
            self._messages += segment.file.rows
            failures = await source.complete(segment.written)
        except SbpairError as error:
            self._store_error = error
            return
        if failures:
            # Those that cannot be completed later are delivered again, and become copies with the same key.
            self._unsettled.accepted += unanswered(failures)
            why = failures[0][1]
            log.info("%s: %d of %d were not settled: %s", self._queue, len(failures), len(segment), why)
            if isinstance(why, Unavailable):
                self._store_error = why  # reconnect


class Remaining(NamedTuple):
    """Messages of the run that its tasks could not receive: all of them, and those that are locked."""

    messages: int = 0
    locked: int = 0


async def count_remaining(
    job: TaskJob, *, clock_ahead_ms: int | None = None, max_locked: int | None = None
) -> dict[str, Remaining]:
    """Count by queue, with a peek, what tasks left of the run: others have locked or deferred it. Raises Unavailable.

    `clock_ahead_ms` is what the tasks found; None if they received nothing: then no message counts as newer.
    With `max_locked`, a queue's count ends soon after so many locked messages, which is quicker for a long queue.
    """

    new = NewMessages(job.run.started_ms)
    if clock_ahead_ms is not None:
        new.compare_clocks(clock_ahead_ms)

    async def peek() -> dict[str, Remaining]:
        found: dict[str, Remaining] = {}
        async with connect(job.secondary.endpoint(), get_token=get_token) as client:
            for queue in job.run.queues:
                messages = locked = 0
                async for page in peek_queue(client, queue):
                    present = [peeked for peeked in page if not new.include(peeked.enqueued_at)]
                    messages += len(present)
                    locked += sum(peeked.active for peeked in present)
                    if max_locked is not None and locked >= max_locked:
                        break
                if messages:
                    found[queue] = Remaining(messages, locked)
        return found

    async with token_getter(job.pair()) as get_token:
        return await retry(peek)


def load_accepted(archive: Archive, queue: str) -> set[tuple[Any, ...]]:
    """Return the keys of a queue that the syphon's journal had as accepted, without the namespace."""
    try:
        keys = archive.read_json(ACCEPTED_FILE)["keys"]
        return {tuple(key[1:]) for key in keys if key[1] == queue.lower()}
    except FileNotFoundError:
        return set()
    except (KeyError, IndexError, TypeError) as error:
        raise archive.broken(ACCEPTED_FILE, "it does not have the keys of messages") from error


def save_accepted(archive: Archive, keys: list[Key]) -> None:
    """Write the keys that the primary has already accepted, for the tasks."""
    archive.write_json(ACCEPTED_FILE, {"at_ms": int(time.time() * 1000), "keys": keys})
