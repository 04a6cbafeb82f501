"""One task of a backlog queue, up to the run's cut-off: drained into segments, or moved to the primary by a direct run.

Invariant: no message is completed before its segment has been written, synced and read back, and the segment's digest
is durable; in a direct run, before the primary has accepted it and the ledger has it, so that a resume on any machine
completes it and does not send it again. No shuffle follows, so Spark repeats no stage whose messages are settled. A
task that ends releases what it holds; one that dies leaves whole files, and messages that stay locked until their
locks expire.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from math import ceil, inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sbpair.azure.destinations import open_destinations
from sbpair.errors import SbpairError, StateRefused, Unavailable
from sbpair.model.retries import Backoff
from sbpair.move.context import BatchLimits, MoveContext
from sbpair.move.interface import Failures, ReceivedMessage, get_facts
from sbpair.move.message.route import Facts, field_getter
from sbpair.move.mover import Mover
from sbpair.move.peek.locked import NewMessages
from sbpair.move.raw_destination import RawDestination
from sbpair.move.raw_source import RawReceivedMessage, RawSource, peek_queue, settle_left
from sbpair.move.receipt import BackingOff
from sbpair.move.topic_guard import TopicGuard
from sbpair.replay.archive import LEDGER, Archive
from sbpair.replay.digests import store_digest
from sbpair.replay.ledger import KEY, Entry, Key, KeySet, Ledger, held_by_attempts, read_accepted, rows_of, table_keys
from sbpair.replay.run_description import ReplayRun, TaskJob, open_destination
from sbpair.replay.segment import SEGMENT, Segment
from sbpair.replay.send_task import (
    MAX_DESTINATION_FAILURES,
    STOP_POLL_SECONDS,
    WAIT_SECONDS,
    StopPoll,
    TaskCounts,
    column_rows,
    move_context,
    note_of,
    run_in_worker,
)
from sbpair.replay.task_lease import READY_SECONDS, TaskLease

if TYPE_CHECKING:
    from sbpair.amqp_client.client import AmqpClient

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_RECEIVE = 2_000
LOCK_SHARE = 0.4  # the share of a lock's time after which its message must be in a segment
IDLE_SECONDS = 0.25  # a segment is stored after so long without a message
MIN_QUIET = 2  # peeks in a row without a message of the run, each after a receive of nothing, that end a queue
MAX_UNSETTLED = 10_000  # deliveries settled over a new connection, a hundred at a time

BATCH_LIMITS = BatchLimits(prefetch=1_500, min_round=100, min_contiguous=1_000, max_unsettled=1_000)
"""One settlement is one chunk of the ledger, which costs as much as sending thirty messages."""

SHORT_WAITS = 2.0, 0.25
"""Waits for locked messages, and in an empty queue, in seconds, if queues are peeked afterwards.

A busy namespace may settle for a while before it delivers more.
"""

MAX_TRIES = 8
RECONNECT_BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)

MAX_HELD = 3_000  # messages that a task holds; after a kill so many may be in doubt


def task_queues(job: TaskJob, counts: Mapping[str, int]) -> list[str]:
    """Return the queue of each task: every queue has one first, and then its share of all tasks unless order needs one.

    `counts` are the messages of each queue, as far as known: without them, and in a direct run, whose tasks share out
    what they may discard, the remaining tasks go round.
    """
    queues, total = list(job.run.queues), sum(counts.values())
    if job.run.direct and job.run.options.ordered:
        return queues
    if job.run.direct or not total:
        return [queues[index % len(queues)] for index in range(max(job.tasks, len(queues)))]
    return queues + [each for each in queues for _ in range(1, ceil(job.tasks * counts.get(each, 0) / total))]


def run_queues(
    job: TaskJob, kind: type[QueueTask], queues: Sequence[str], batches: Iterator[Any]
) -> Iterator[dict[str, Any]]:
    """Run `kind`, a drain or a direct move, for the queue of each row, and yield its counts. A task has one row."""
    for [index] in column_rows(batches, ["id"]):
        counts = run_in_worker(kind(job, queues[index]).run())
        yield counts._replace(queue=queues[index])._asdict()


class DrainCutoff:
    """The cut-off of one queue, which is received from until `is_reached`.

    `clock_ahead_ms` is how far the service's clock is ahead, as received messages show, and at least 0: the clock of
    the machine that began the run may differ from this one's. None before the first message.
    """

    def __init__(self, run: ReplayRun) -> None:
        self.clock_ahead_ms: int | None = None
        self._run = run
        self._new = new_messages(run)
        self._quiet = 0
        self._received_at = self._peeked_at = 0.0

    def restart(self) -> None:
        """Start the wait again, as after a connection or a message of the run."""
        self._quiet, self._received_at = 0, asyncio.get_running_loop().time()

    def note_received(self, messages: Sequence[ReceivedMessage], clock_ahead_ms: int) -> None:
        """Restart if a message is older than the run: applications may go on sending newer ones."""
        self.clock_ahead_ms = max(0, clock_ahead_ms)
        self._new = new_messages(self._run, self.clock_ahead_ms)
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


class UnsettledDeliveries(NamedTuple):
    """Deliveries of a lost connection that may still be locked, to be settled over the next one."""

    accepted: list[ReceivedMessage]
    released: list[ReceivedMessage]

    async def settle(self, source: RawSource) -> list[ReceivedMessage]:
        """Complete and release them. Return those completed."""
        left = self.accepted[:MAX_UNSETTLED], self.released[:MAX_UNSETTLED]
        self.accepted.clear()
        self.released.clear()
        return await settle_left(source, *left)


def unanswered(failures: Failures) -> list[ReceivedMessage]:
    """Return the messages whose settlement was not confirmed: they may still be locked."""
    return [message for message, error in failures if isinstance(error, Unavailable)]


class QueueTask(ABC):
    """The task of one queue, up to the run's cut-off: the common part of a drain and a direct move."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job, self._queue, self._archive, self._options = job, queue, job.open(), job.run.options
        self._accepted = load_accepted(self._archive, queue, job.run.delivery.namespace)
        self._cutoff = DrainCutoff(job.run)
        self._unsettled = UnsettledDeliveries([], [])
        self._stop = StopPoll(self._archive)

    @abstractmethod
    async def run(self) -> TaskCounts:
        """Return how many messages were released. Raises Unavailable, LeaseLost, MachineLacks."""

    async def _take(self, source: RawSource, limit: int, seconds: float) -> list[RawReceivedMessage]:
        """Receive as the source does, but wait no longer once a stop is requested."""
        until = time.monotonic() + seconds
        while True:
            left = until - time.monotonic()
            messages = await source.receive(limit, seconds=max(0.0, min(left, STOP_POLL_SECONDS)))
            if messages:
                self._cutoff.note_received(messages, source.clock_ahead_ms)
            if messages or left <= STOP_POLL_SECONDS or self._stop.requested():
                return messages


class QueueDrain(QueueTask):
    """The drain of one queue into segments. One segment is stored while the next fills."""

    _max_tries: float = MAX_TRIES
    _seal_seconds = inf  # after the first message of a segment

    def __init__(self, job: TaskJob, queue: str) -> None:
        super().__init__(job, queue)
        self._messages = self._released = self._unconfirmed = 0
        self._attempt = uuid.uuid4().hex
        self._unstored: list[Segment] = []
        self._storing: asyncio.Task[None] | None = None
        self._store_error: SbpairError | None = None

    async def run(self) -> TaskCounts:
        async with self._job.backlog() as connect_backlog:

            async def attempt() -> None:
                async with connect_backlog() as client:
                    await self._drain(await self._open(client))

            await retry_while_progressing(self._queue, attempt, lambda: self._messages, self._archive, self._max_tries)
        settled = self._attempt if self._messages and not self._unconfirmed else None
        return TaskCounts(self._released, self._cutoff.clock_ahead_ms, settled=settled)

    async def _open(self, client: AmqpClient) -> RawSource:
        return await RawSource.open(client, self._queue, keeps_payload=True)

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
            self._unsettled.released.extend(unanswered(failures))
            self._released += len(segment) - len(failures)

    async def _receive(self, source: RawSource, tasks: asyncio.TaskGroup) -> None:
        segment = self._new_segment()
        self._cutoff.restart()
        while self._store_error is None and not self._stop.requested():
            source.grant(MAX_RECEIVE)
            limit = min(MAX_RECEIVE, max(1, self._options.segment_messages - len(segment)))
            messages = await self._take(source, limit, self._idle_seconds(segment))
            if messages:
                await self._add(source, segment, messages)
            if segment and (not messages or self._is_full(segment)):
                await self._start_store(source, segment, tasks)
                segment = self._new_segment()
            elif (not messages or self._cutoff.is_due()) and await self._is_drained(source):
                break
        if segment:
            await self._start_store(source, segment, tasks)

    async def _is_drained(self, source: RawSource) -> bool:
        await self._wait_stored()
        return await self._cutoff.is_reached(source)

    def _idle_seconds(self, segment: Segment) -> float:
        """Return how long to wait for a message: after such a wait, the segment is stored."""
        return IDLE_SECONDS if segment else self._options.empty_seconds

    def _new_segment(self) -> Segment:
        run = self._job.run
        file = self._archive.new_table(SEGMENT, run.shards, large=True)
        segment = Segment(self._queue, file, run.shards, stream=run.is_stream)
        self._unstored.append(segment)
        return segment

    def _is_full(self, segment: Segment) -> bool:
        full = segment.bytes >= self._options.segment_bytes or len(segment) >= self._options.segment_messages
        return full or asyncio.get_running_loop().time() >= segment.due

    async def _add(self, source: RawSource, segment: Segment, messages: list[RawReceivedMessage]) -> None:
        now = asyncio.get_running_loop().time()
        if self._accepted:
            accepted = {each for each in messages if _accepted_key(each) in self._accepted}
            await source.complete(list(accepted))
            messages = [each for each in messages if each not in accepted]
        if messages:
            soonest = min(each.lock_until for each in messages)
            segment.add(messages, now + min(self._seal_seconds, LOCK_SHARE * max(0.0, soonest - now)))
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
            content = await asyncio.to_thread(self._archive.put, segment.path, segment.file)
            await asyncio.to_thread(store_digest, self._archive, self._job.run, segment, content, self._attempt)
            self._unstored.remove(segment)
            self._messages += segment.file.rows
            failures = await source.complete(segment.written)
        except SbpairError as error:
            self._store_error = error
            return
        if failures:
            self._unconfirmed += len(failures)
            # Those that cannot be completed later are delivered again, and become copies with the same key.
            self._unsettled.accepted.extend(unanswered(failures))
            why = failures[0][1]
            log.info("%s: %d of %d were not settled: %s", self._queue, len(failures), len(segment), why)
            if isinstance(why, Unavailable):
                self._store_error = why  # reconnect


class Remaining(NamedTuple):
    """Messages of the run that its tasks could not receive: all of them, and those that are locked."""

    messages: int = 0
    locked: int = 0


async def count_remaining(
    job: TaskJob, *, clock_ahead_ms: int | None = None, max_locked: int | None = None, newer: bool = False
) -> dict[str, Remaining]:
    """Count by queue, with a peek, the messages that tasks left of the run: locked or deferred. Raises Unavailable.

    `clock_ahead_ms` is as the tasks found; None if they received nothing: then no message counts as newer. With
    `max_locked`, a queue's count ends soon after so many locked messages, which is quicker for a long queue. With
    `newer`, messages that came later are counted, too.
    """

    new = NewMessages() if newer else new_messages(job.run, clock_ahead_ms)

    async def peek() -> dict[str, Remaining]:
        found: dict[str, Remaining] = {}
        async with connect_backlog() as client:
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

    async with job.backlog() as connect_backlog:
        return await retry(peek)


def new_messages(run: ReplayRun, clock_ahead_ms: int | None = None) -> NewMessages:
    """Return which messages are newer than a run: none, while its start is not known by the service's time."""
    new = NewMessages()
    if run.service_time:
        new.note_start(run.started_ms)
    elif clock_ahead_ms is not None:
        new.note_start(run.started_ms + clock_ahead_ms)
    return new


def load_accepted(archive: Archive, queue: str, namespace: str = "") -> KeySet:
    """Return the keys of a queue that the syphon's journal had as accepted by a namespace; "" is the primary.

    A key is (queue in lower case, sequence number, enqueued at, message id).
    """
    wanted = (namespace, queue.lower())
    found = (keys for *batch, keys in read_accepted(archive) if tuple(batch) == wanted)
    return KeySet((wanted[1], *key) for keys in found for key in keys)


class RecordedSource(RawSource):
    """A backlog queue that records each message: as held, as accepted, or with its other outcome."""

    record_error: SbpairError | None = None
    """Why a record could not be written."""

    def record_to(self, ledger: Ledger, shard: int, accepted: KeySet) -> None:
        """Set the ledger. Messages in `accepted` are completed, and neither sent nor recorded again."""
        self._ledger, self._shard, self._accepted = ledger, shard, accepted
        ledger.forget_held()  # an earlier connection held them

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        messages = await super().receive(limit, seconds=seconds)
        if self._accepted:
            await super().complete([each for each in messages if self._is_accepted(each)])
            messages = [each for each in messages if not self._is_accepted(each)]
        if messages:
            self._ledger.hold(dict(zip(messages, _entries(messages), strict=True)))
        return messages

    async def complete(self, messages: Sequence[ReceivedMessage]) -> Failures:
        # A message whose settlement was not confirmed is delivered again, and is in the ledger already.
        new = [each for each in messages if not self._is_accepted(each)] if self._accepted else messages
        try:
            await asyncio.to_thread(self._ledger.write, LEDGER, self._shard, _entries(new))
        except SbpairError as error:
            self.record_error = error
            return [(each, error) for each in messages]
        failures = await super().complete(messages)
        # Those may be delivered again: they stay recorded as held, so that a resume finds them after a crash.
        self._accepted.update(_accepted_key(each) for each, _ in failures)
        failed = {each for each, _ in failures}
        self._ledger.release([each for each in messages if each not in failed])
        return failures

    async def release(self, messages: Sequence[ReceivedMessage]) -> Failures:
        self._ledger.release(messages)
        return await super().release(messages)

    async def dead_letter(self, message: ReceivedMessage, reason: str, description: str) -> None:
        await super().dead_letter(message, reason, description)
        [entry] = _entries([message])
        try:
            await self._ledger.write_unsent(self._shard, entry, reason, description)
        except SbpairError as error:
            self.record_error = error
        self._ledger.release([message])

    def _is_accepted(self, message: ReceivedMessage) -> bool:
        return _accepted_key(message) in self._accepted


def _entries(messages: Sequence[ReceivedMessage]) -> list[Entry]:
    """Return their entries, in few calls: this is done twice for every message."""
    facts = list(map(get_facts, messages))
    return list(map(_entry, zip(map(_key_of, facts), map(_path_of, facts), repeat(None), repeat(None), strict=False)))


_key_of: Callable[[Facts], Key] = itemgetter(slice(4))
_path_of: Callable[[Facts], str | None] = field_getter(Facts, "path")
_entry = partial(tuple.__new__, Entry)  # entry(…) at a third of its cost


def _accepted_key(message: ReceivedMessage) -> tuple[Any, ...]:
    facts = message.facts
    return (facts.queue.lower(), facts.sequence_number, facts.enqueued_at, facts.message_id)


class DirectMove(QueueTask):
    """The move of one queue to the primary."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        super().__init__(job, queue)
        self._shard = job.run.queues.index(queue)
        self._ledger = Ledger(self._archive, job.run.shards, sync=False, delivery=job.run.delivery)
        dead = accepted_by_dead_attempts(self._archive, queue, self._shard, job.run.delivery.namespace)
        self._accepted.update(dead)
        self._lease = TaskLease(self._archive, job.heartbeat)
        self._returned = 0
        self._waiting: list[BackingOff] = []

    async def run(self, ready_seconds: float = READY_SECONDS) -> TaskCounts:
        context = move_context(self._job, self._lease, self._ledger)
        await self._lease.wait_confirmed(ready_seconds)
        endpoint, most = self._job.destination.endpoint(), self._options.max_discard
        async with (
            open_destinations(endpoint) as destinations,
            open_destination(RawDestination, endpoint) as primary,
            self._job.backlog() as connect_backlog,
        ):
            share = most and most // len(task_queues(self._job, {}))
            topics = TopicGuard(destinations, context.tally, share, kept_out=self._job.run.kept_out)
            context = replace(context, batch_limits=BATCH_LIMITS, max_held=MAX_HELD, topics=topics)

            async def attempt() -> None:
                async with connect_backlog() as client:
                    source = RecordedSource(client, await client.receiver(self._queue), self._queue)
                    source.record_to(self._ledger, self._shard, self._accepted)
                    await self._move(source, primary, context)

            def received() -> int:
                return context.tally.count(self._queue, "received")

            try:
                await retry_while_progressing(self._queue, attempt, received, self._archive)
            finally:
                self._ledger.write_doubtful()
        # The backlog may deliver these again, and a resume must not send them.
        self._ledger.clear_held(keep=[Entry((self._queue, *key[2:]), None) for key in context.journal.unconfirmed()])
        released = context.tally.receipt().released + self._returned
        note, renamed = note_of(context.tally, self._waiting), self._job.run.delivery.renames.used()
        return TaskCounts(released, self._cutoff.clock_ahead_ms, note, renamed=renamed)

    async def _move(self, source: RecordedSource, primary: RawDestination, context: MoveContext) -> None:
        failure: SbpairError | None = None
        completed = await self._unsettled.settle(source)
        context.journal.note_completed([each.key for each in completed])
        async with asyncio.TaskGroup() as tasks:
            mover = Mover(source, primary, tasks, context)
            renewal = tasks.create_task(mover.renew_locks(), name="renew locks")
            try:
                await self._receive(source, mover)
            except SbpairError as error:
                failure = error
            self._waiting = mover.backing_off()
            await mover.finish()
            renewal.cancel()
        mover.abandon_all()
        self._returned += source.returned
        for message in mover.unsettled:
            if _accepted_key(message) in self._accepted:
                self._unsettled.accepted.append(message)
            elif not context.journal.was_accepted(message.key):
                self._unsettled.released.append(message)
        unsettled = None if self._archive.stop_requested() else mover.settlement_error
        failure = mover.fatal or source.record_error or failure or unsettled
        if failure is not None:
            raise failure

    async def _receive(self, source: RecordedSource, mover: Mover) -> None:
        """Receive until the queue is drained, a stop is requested, or failing destinations hold all room."""
        self._cutoff.restart()
        while not self._stop.requested() and mover.fatal is None and source.record_error is None:
            if source.error is not None:
                raise source.error
            if mover.room == 0:
                if mover.stuck(MAX_DESTINATION_FAILURES):
                    break
                await mover.wait_changed(WAIT_SECONDS)
                continue
            source.grant(mover.room)
            seconds = IDLE_SECONDS if mover.held else self._options.empty_seconds
            messages = await self._take(source, mover.room, seconds)
            if messages:
                mover.accept(messages)
            elif mover.held and mover.stuck(MAX_DESTINATION_FAILURES):
                break
            due = self._cutoff.is_due() if messages else not mover.held
            if due and await self._cutoff.is_reached(source):
                break


def accepted_by_dead_attempts(archive: Archive, queue: str, shard: int, namespace: str = "") -> set[tuple[Any, ...]]:
    """Return the few messages that earlier attempts held and `namespace` accepted: the backlog may still have them."""
    held = {key for key, _ in held_by_attempts(archive) if key[0].lower() == queue.lower()}
    found: set[tuple[Any, ...]] = set()
    for path in archive.files(f"{LEDGER}/{shard}") if held else ():
        with suppress(StateRefused):  # a loss of power may have cut it short: the proof reports it
            keys = held & set(table_keys(rows_of(archive, path, KEY, namespace)))
            found.update((queue.lower(), *key[1:]) for key in keys)
    return found


async def retry(operation: Callable[[], Awaitable[T]]) -> T:
    """Return the operation's result. Raises Unavailable after MAX_TRIES."""
    for failures in range(1, MAX_TRIES):
        with suppress(Unavailable):
            return await operation()
        await asyncio.sleep(RECONNECT_BACKOFF.seconds(failures))
    return await operation()


async def retry_while_progressing(
    name: str,
    attempt: Callable[[], Awaitable[None]],
    progress: Callable[[], int],
    archive: Archive,
    max_tries: float = MAX_TRIES,
) -> None:
    """Repeat an attempt; give up without an error if a pause is requested.

    Raises Unavailable after `max_tries` in a row without progress, or once a stop is requested.
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
            if failures >= max_tries or archive.stop_requested():
                raise
            level = logging.WARNING if failures == MAX_TRIES else logging.INFO
            log.log(level, "%s: %s; trying again", name, error.message)
            until = time.monotonic() + RECONNECT_BACKOFF.seconds(failures)
            while (left := until - time.monotonic()) > 0 and not archive.stop_requested():  # noqa: ASYNC110  a file
                await asyncio.sleep(min(left, STOP_POLL_SECONDS))
