"""One task of a direct replay: a backlog queue, moved by the mover that the syphon has, without an archive.

The law: the mover's. And what the primary has accepted is in the ledger before the backlog hears of it: whoever comes
next, on whichever machine, completes it and does not send it again, and the ledger is what is counted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from sbpair.amqp_client.client import connect
from sbpair.azure.credentials import token_getter
from sbpair.errors import SbpairError, StateRefused, Unavailable
from sbpair.move.batch_limits import BatchLimits
from sbpair.move.interface import get_facts
from sbpair.move.message.route import EXPIRED as EXPIRED_REASON
from sbpair.move.mover import Mover
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.raw_source import RawSource
from sbpair.replay.archive import EXPIRED, LEDGER, QUARANTINE, SENDING, Archive
from sbpair.replay.drain_cutoff import DrainCutoff
from sbpair.replay.drain_task import IDLE_SECONDS, accepted_before, tasks_of
from sbpair.replay.event_loop import run
from sbpair.replay.ledger import Entry, EntryBuffer, HeldRecord, Key, Ledger, keys_of, read_held
from sbpair.replay.retry import TRIES as CONNECTIONS
from sbpair.replay.retry import back_off_seconds
from sbpair.replay.schema import KEY
from sbpair.replay.send_task import TRIES, WAIT_SECONDS, move_context
from sbpair.replay.shard_source import LOOK_SECONDS
from sbpair.replay.task_lease import TaskLease

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import Failures, ReceivedMessage
    from sbpair.move.message.route import Facts
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.run import TaskJob

log = logging.getLogger(__name__)

BATCH_LIMITS = BatchLimits(prefetch=1_500, min_round=100, min_contiguous=1_000, max_unsettled=1_000)
"""What is settled at a time is a chunk of the ledger, which costs as much as sending thirty messages."""

MAX_HELD = 3_000
"""How many messages a task has in hand, with those of resting destinations: after a kill, so many may be in doubt."""

Known = set[tuple[Any, ...]]
"""Messages that the primary has: (queue in small letters, sequence number, enqueued at, message id)."""


def move(job: TaskJob) -> Any:
    """For `mapInArrow` over a range of as many rows as there are tasks."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        queues = tasks_of(job)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                messages = run(Direct(job, queues[index]).run())
                yield pa.RecordBatch.from_pydict({"queue": [queues[index]], "messages": [messages]})

    return task


class RecordedSource(RawSource):
    """A backlog queue whose messages are written down: as in hand, as accepted, and as what else became of them.

    `unwritten` is why something could not be.
    """

    unwritten: SbpairError | None = None

    def keep_books(self, ledger: Ledger, shard: int, known: Known) -> None:
        """`known` is what is completed, and neither sent nor written down again."""
        self._ledger, self._shard, self._known = ledger, shard, known
        self._others = EntryBuffer(ledger)
        self._in_hand = HeldRecord(ledger)

    async def receive(self, limit: int, *, seconds: float) -> list[RawReceivedMessage]:
        arrivals = await super().receive(limit, seconds=seconds)
        if self._known:
            await super().complete([each for each in arrivals if self._has(each)])
            arrivals = [each for each in arrivals if not self._has(each)]
        if arrivals:
            self._in_hand.take(dict(zip(arrivals, _entries(arrivals), strict=True)))
        return arrivals

    async def complete(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        # What the backlog was not heard to confirm comes again, and is in the ledger.
        new = [each for each in arrivals if not self._has(each)] if self._known else arrivals
        try:
            await asyncio.to_thread(self._ledger.write, LEDGER, self._shard, _entries(new))
        except SbpairError as error:
            self.unwritten = error
            return [(each, error) for each in arrivals]
        failures = await super().complete(arrivals)
        # Those that may come again stay in hand: after a crash, that is how they are known.
        self._known.update(_known_as(each) for each, _ in failures)
        again = {each for each, _ in failures}
        self._in_hand.let_go([each for each in arrivals if each not in again])
        return failures

    async def release(self, arrivals: Sequence[ReceivedMessage]) -> Failures:
        self._in_hand.let_go(arrivals)
        return await super().release(arrivals)

    async def dead_letter(self, arrival: ReceivedMessage, reason: str, description: str) -> None:
        await super().dead_letter(arrival, reason, description)
        [entry] = _entries([arrival])
        entry = entry._replace(reason=f"{reason}: {description}")
        try:
            await self._others.write(EXPIRED if reason == EXPIRED_REASON else QUARANTINE, self._shard, entry)
        except SbpairError as error:
            self.unwritten = error
        self._in_hand.let_go([arrival])

    def _has(self, arrival: ReceivedMessage) -> bool:
        return _known_as(arrival) in self._known


def _entries(arrivals: Sequence[ReceivedMessage]) -> list[Entry]:
    """One for each, by calls for many of them: it is done twice for every message."""
    facts = list(map(get_facts, arrivals))
    return list(map(_entry, zip(map(_key_of, facts), map(_path_of, facts), repeat(None), repeat(None), strict=False)))


_key_of: Callable[[Facts], Key] = itemgetter(slice(4))
_path_of: Callable[[Facts], str | None] = attrgetter("path")
_entry = partial(tuple.__new__, Entry)
"""As Entry(…) is, at a third of its cost."""


def _known_as(arrival: ReceivedMessage) -> tuple[Any, ...]:
    facts = arrival.facts
    return (facts.queue.lower(), facts.sequence_number, facts.enqueued_at, facts.message_id)


class Direct:
    """Empties one queue into the primary, as far as the run's cut-off."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job = job
        self._queue = queue
        self._archive = job.open()
        self._shard = job.run.queues.index(queue)
        self._ledger = Ledger(self._archive, job.run.shards, sync=False)
        self._known = accepted_before(self._archive, queue) | accepted_at_death(self._archive, queue, self._shard)
        self._permit = TaskLease(self._archive, job.beacon)
        self._ending = DrainCutoff(job.run)
        self._looked = 0.0

    async def run(self) -> int:
        """How many the primary has accepted. Raises Unavailable where a side stays away, LeaseLost, MachineLacks."""
        context = replace(
            move_context(self._job, self._permit, self._ledger), batch_limits=BATCH_LIMITS, max_held=MAX_HELD
        )
        await self._permit.ready()
        async with token_getter(self._job.pair()) as get_token:
            primary = RawPrimary(self._job.primary.endpoint(), get_token=get_token)
            try:
                await self._until_over(primary, context, get_token)
            finally:
                await primary.close()
                self._ledger.write_doubts()
        self._keep_unconfirmed(context)
        return context.tally.receipt().sent

    def _keep_unconfirmed(self, context: MoveContext) -> None:
        """The backlog may give them again to whoever resumes, who is not to send them."""
        entries = [Entry((self._queue, *key[2:]), None) for key in context.journal.unconfirmed()]
        self._ledger.has_nothing_in_hand(but=entries)

    async def _until_over(self, primary: RawPrimary, context: MoveContext, get_token: Any) -> None:
        """Go on over as many connections as it takes."""
        failures = 0
        while True:
            before = context.tally.count(self._queue, "received")
            try:
                async with connect(self._job.secondary.endpoint(), get_token=get_token) as wire:
                    source = RecordedSource(wire, await wire.receiver(self._queue), self._queue)
                    source.keep_books(self._ledger, self._shard, self._known)
                    await self._connected(source, primary, context)
            except Unavailable as error:
                failures = failures + 1 if context.tally.count(self._queue, "received") == before else 1
                if failures >= CONNECTIONS or self._archive.stopped():
                    raise
                log.info("%s: %s; trying again", self._queue, error.message)
                await asyncio.sleep(back_off_seconds(failures))
            else:
                return

    async def _connected(self, source: RecordedSource, primary: RawPrimary, context: MoveContext) -> None:
        failure: SbpairError | None = None
        async with asyncio.TaskGroup() as tasks:
            mover = Mover(source, primary, tasks, context)
            keeping = tasks.create_task(mover.renew_locks(), name="renew locks")
            try:
                await self._empty(source, mover)
            except SbpairError as error:
                failure = error
            await mover.finish()
            keeping.cancel()
        mover.abandon_all()
        failure = (
            mover.fatal or source.unwritten or failure or (None if self._archive.stopped() else mover.settlement_error)
        )
        if failure is not None:
            raise failure

    async def _empty(self, source: RecordedSource, mover: Mover) -> None:
        """Until nothing is left, the run is to stop, or destinations that take nothing keep it from going on."""
        self._ending.begun()
        while not self._is_stopped() and mover.fatal is None and source.unwritten is None:
            if source.error is not None:
                raise source.error
            if mover.held and mover.stuck(TRIES):
                break
            if mover.room == 0:
                await mover.wait_changed(WAIT_SECONDS)
                continue
            source.grant(mover.room)
            arrivals = await source.receive(mover.room, seconds=self._wait(mover))
            if arrivals:
                self._ending.came(arrivals)
                mover.accept(arrivals)
            over = self._ending.is_time() if arrivals else not mover.held
            if over and await self._ending.reached(source):
                break

    def _is_stopped(self) -> bool:
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        return self._archive.stopped()

    def _wait(self, mover: Mover) -> float:
        return IDLE_SECONDS if mover.held else self._job.run.options.empty_seconds


def accepted_at_death(archive: Archive, queue: str, shard: int) -> Known:
    """What earlier attempts had in hand of a queue, and the primary has: the backlog may hold it still.

    Few, however large the ledger is.
    """
    mine: set[Key] = set()
    for path in archive.files(SENDING):
        with suppress(StateRefused):  # a loss of power may have cut it short: the proof says so
            mine.update(key for key in read_held(archive, path) if key[0].lower() == queue.lower())
    found: Known = set()
    if mine:
        for path in archive.files(f"{LEDGER}/{shard}"):
            with suppress(StateRefused):  # likewise
                keys = mine & set(keys_of(archive.read_table(path, list(KEY))))
                found.update((queue.lower(), *key[1:]) for key in keys)
    return found
