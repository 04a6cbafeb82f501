"""One task of a direct replay: a backlog queue, moved to the primary by the syphon's mover, without archived bodies.

Invariant: the mover's; and the ledger has an accepted message before it is settled in the backlog. A resume, on any
machine, completes such a message and does not send it again. The counts come from the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter
from sbpair.azure.destinations import open_destinations
from sbpair.errors import SbpairError, StateRefused
from sbpair.move.context import BatchLimits
from sbpair.move.interface import get_facts
from sbpair.move.message.route import Facts, field_getter
from sbpair.move.mover import Mover
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.raw_source import RawSource
from sbpair.move.topic_guard import TopicGuard
from sbpair.replay.archive_layout import HELD, KEY, LEDGER
from sbpair.replay.drain_task import IDLE_SECONDS, DrainCutoff, UnsettledDeliveries, load_accepted
from sbpair.replay.ledger import Entry, Key, Ledger, read_held, table_keys
from sbpair.replay.send_task import MAX_DESTINATION_FAILURES, WAIT_SECONDS, move_context, note_of
from sbpair.replay.spark_task import StopPoll, TaskCounts, queue_task, receive_until_stopped, retry_while_progressing
from sbpair.replay.task_lease import READY_SECONDS, TaskLease

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.move.receipt import BackingOff
    from sbpair.replay.archive import Archive
    from sbpair.replay.run import TaskJob

BATCH_LIMITS = BatchLimits(prefetch=1_500, min_round=100, min_contiguous=1_000, max_unsettled=1_000)
"""One settlement is one chunk of the ledger, which costs as much as sending thirty messages."""

MAX_HELD = 3_000  # messages that a task holds; after a kill so many may be in doubt

Accepted = set[tuple[Any, ...]]
"""Messages that the primary has accepted: (queue in lower case, sequence number, enqueued at, message id)."""


def direct_task(job: TaskJob) -> Any:
    """Return the function for `mapInArrow` over one row per task."""
    return queue_task(job, lambda queue: DirectMove(job, queue).run())


class RecordedSource(RawSource):
    """A backlog queue that records each message: as held, as accepted, or with its other outcome."""

    record_error: SbpairError | None = None
    """Why a record could not be written."""

    def record_to(self, ledger: Ledger, shard: int, accepted: Accepted) -> None:
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


class DirectMove:
    """The move of one queue to the primary, up to the run's cut-off."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job, self._queue, self._archive = job, queue, job.open()
        self._shard = job.run.queues.index(queue)
        self._ledger = Ledger(self._archive, job.run.shards, sync=False)
        dead_accepted = accepted_by_dead_attempts(self._archive, queue, self._shard)
        self._accepted = load_accepted(self._archive, queue) | dead_accepted
        self._lease = TaskLease(self._archive, job.heartbeat)
        self._cutoff = DrainCutoff(job.run)
        self._unsettled = UnsettledDeliveries()
        self._returned = 0
        self._waiting: list[BackingOff] = []
        self._stop = StopPoll(self._archive)

    async def run(self, ready_seconds: float = READY_SECONDS) -> TaskCounts:
        """Return how many messages were sent and released. Raises Unavailable, LeaseLost, MachineLacks."""
        context = move_context(self._job, self._lease, self._ledger)
        await self._lease.wait_confirmed(ready_seconds)
        endpoint, most = self._job.primary.endpoint(), self._job.run.options.max_discard
        async with token_getter(self._job.pair()) as get_token, open_destinations(endpoint) as destinations:
            share = most and most // len(self._job.run.queues)
            topics = TopicGuard(destinations, context.tally, share)
            context = replace(context, batch_limits=BATCH_LIMITS, max_held=MAX_HELD, topics=topics)
            primary = RawPrimary(self._job.primary.endpoint(), get_token=get_token)

            async def attempt() -> None:
                async with connect(self._job.secondary.endpoint(), get_token=get_token) as client:
                    source = RecordedSource(client, await client.receiver(self._queue), self._queue)
                    source.record_to(self._ledger, self._shard, self._accepted)
                    await self._move(source, primary, context)

            def received() -> int:
                return context.tally.count(self._queue, "received")

            try:
                await retry_while_progressing(self._queue, attempt, received, self._archive)
            finally:
                await primary.close()
                self._ledger.write_doubtful()
        # The backlog may deliver these again, and a resume must not send them.
        self._ledger.clear_held(keep=[Entry((self._queue, *key[2:]), None) for key in context.journal.unconfirmed()])
        receipt = context.tally.receipt()
        released = receipt.released + self._returned
        return TaskCounts(receipt.sent, released, self._cutoff.clock_ahead_ms, note_of(context.tally, self._waiting))

    async def _move(self, source: RecordedSource, primary: RawPrimary, context: MoveContext) -> None:
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
            seconds = IDLE_SECONDS if mover.held else self._job.run.options.empty_seconds
            messages = await receive_until_stopped(source, mover.room, seconds, self._stop.requested)
            if messages:
                self._cutoff.note_received(messages, source.clock_ahead_ms)
                mover.accept(messages)
            elif mover.held and mover.stuck(MAX_DESTINATION_FAILURES):
                break
            due = self._cutoff.is_due() if messages else not mover.held
            if due and await self._cutoff.is_reached(source):
                break


def accepted_by_dead_attempts(archive: Archive, queue: str, shard: int) -> Accepted:
    """Return the few messages that earlier attempts held and the primary accepted: the backlog may still have them."""
    held: set[Key] = set()
    for path in archive.files(HELD):
        with suppress(StateRefused):  # a loss of power may have cut it short: the proof reports it
            held.update(key for key in read_held(archive, path) if key[0].lower() == queue.lower())
    found: Accepted = set()
    if held:
        for path in archive.files(f"{LEDGER}/{shard}"):
            with suppress(StateRefused):  # likewise
                keys = held & set(table_keys(archive.read_table(path, list(KEY))))
                found.update((queue.lower(), *key[1:]) for key in keys)
    return found
