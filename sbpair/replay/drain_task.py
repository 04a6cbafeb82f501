"""One task of the drain: a backlog queue into segments, and each settled once it is durable.

The law: nothing is settled before its segment has been written, synced and read back. Nothing upstream of this is ever
shuffled, so no stage is run anew for what it has consumed. A try that dies leaves whole segments and messages whose
locks run out; both are right.
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
from sbpair.replay.archive import REPORT, Archive
from sbpair.replay.drain_cutoff import DrainCutoff, is_ours
from sbpair.replay.event_loop import run
from sbpair.replay.retry import TRIES, back_off_seconds, patiently
from sbpair.replay.schema import SEGMENT
from sbpair.replay.segment import Segment

if TYPE_CHECKING:
    from sbpair.amqp_client.client import GetToken
    from sbpair.model.message_key import Key
    from sbpair.move.raw_source import RawReceivedMessage
    from sbpair.replay.run import TaskJob

log = logging.getLogger(__name__)

MAX_TAKE = 2_000
LOCK_SHARE = 0.4
"""How much of a lock may be over before its message has to be in a segment."""

IDLE_SECONDS = 0.25
"""After how long without a message what there is becomes a segment."""

JOURNAL = f"{REPORT}/accepted-before.json"
"""What the syphon's journal says the primary has: keys of five parts."""


def tasks_of(job: TaskJob) -> list[str]:
    """The queue of each task: every queue has one, and those that are left over go round.

    Where a task sends what it receives, and the order matters, a queue has no more than that.
    """
    queues, alone = job.run.queues, job.run.direct and job.run.options.ordered
    return [queues[index % len(queues)] for index in range(len(queues) if alone else max(job.tasks, len(queues)))]


def drain(job: TaskJob) -> Any:
    """For `mapInArrow` over a range of as many rows as there are tasks."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        queues = tasks_of(job)
        for batch in batches:
            for index in batch.column(0).to_pylist():
                messages = run(Drain(job, queues[index]).run())
                yield pa.RecordBatch.from_pydict({"queue": [queues[index]], "messages": [messages]})

    return task


class Drain:
    """Empties one queue into segments, as far as the run's cut-off. While one is stored, the next is received."""

    def __init__(self, job: TaskJob, queue: str) -> None:
        self._job = job
        self._queue = queue
        self._archive = job.open()
        self._options = job.run.options
        self._accepted = accepted_before(self._archive, queue)
        self._messages = 0
        self._ending = DrainCutoff(job.run)
        self._storing: asyncio.Task[None] | None = None
        self._unstored: SbpairError | None = None

    async def run(self) -> int:
        """How many messages it has archived. Raises Unavailable where the namespace stays away, MachineLacks."""
        failures = 0
        async with token_getter(self._job.pair()) as get_token:
            while True:
                before = self._messages
                try:
                    async with connect(self._job.secondary.endpoint(), get_token=get_token) as wire:
                        await self._empty(await RawSource.open(wire, self._queue, keeps_payload=True))
                except Unavailable as error:
                    failures = failures + 1 if self._messages == before else 1
                    if failures >= TRIES or self._archive.stopped():
                        raise
                    log.info("%s: %s; trying again", self._queue, error.message)
                    await asyncio.sleep(back_off_seconds(failures))
                else:
                    return self._messages

    async def _empty(self, source: RawSource) -> None:
        failure: SbpairError | None = None
        self._unstored = None
        async with asyncio.TaskGroup() as tasks:
            try:
                await self._receive(source, tasks)
            except SbpairError as error:
                failure = error
            await self._stored()
        failure = self._unstored or failure
        if failure is not None:
            raise failure
        await source.stop()

    async def _receive(self, source: RawSource, tasks: asyncio.TaskGroup) -> None:
        segment = self._new_segment()
        self._ending.begun()
        while self._unstored is None and not self._archive.stopped():
            source.grant(MAX_TAKE)
            limit = max(1, self._options.segment_messages - len(segment))
            arrivals = await source.receive(min(MAX_TAKE, limit), seconds=self._wait(segment))
            if arrivals:
                self._ending.came(arrivals)
                await self._take(source, segment, arrivals)
            if segment and (not arrivals or self._is_full(segment)):
                await self._store_soon(source, segment, tasks)
                segment = self._new_segment()
            elif not arrivals or self._ending.is_time():
                await self._stored()
                if await self._ending.reached(source):
                    break
        if segment:
            await self._store_soon(source, segment, tasks)

    def _new_segment(self) -> Segment:
        shards = self._job.run.shards
        return Segment(self._queue, self._archive.new_table(SEGMENT, shards, large=True), shards)

    def _wait(self, segment: Segment) -> float:
        return IDLE_SECONDS if segment else self._options.empty_seconds

    def _is_full(self, segment: Segment) -> bool:
        options = self._options
        return (
            segment.bytes >= options.segment_bytes
            or len(segment) >= options.segment_messages
            or asyncio.get_running_loop().time() >= segment.due
        )

    async def _take(self, source: RawSource, segment: Segment, arrivals: list[RawReceivedMessage]) -> None:
        now = asyncio.get_running_loop().time()
        namespace = self._job.run.pair["secondary"]
        if self._accepted:
            known = {each for each in arrivals if message_key(namespace, each.facts)[1:] in self._accepted}
            await source.complete(list(known))
            arrivals = [each for each in arrivals if each not in known]
        if arrivals:
            soonest = min(each.lock_until for each in arrivals)
            segment.add(arrivals, now + LOCK_SHARE * max(0.0, soonest - now))
        if segment.is_due_for_groups:
            # In a thread: what the service sends meanwhile is taken in, and its heartbeats are answered.
            await asyncio.to_thread(segment.write_groups)

    async def _store_soon(self, source: RawSource, segment: Segment, tasks: asyncio.TaskGroup) -> None:
        """One at a time: there are two segments in memory at most."""
        await self._stored()
        if self._unstored is None:
            self._storing = tasks.create_task(self._store(source, segment), name=f"store {segment.path}")

    async def _stored(self) -> None:
        """Wait until what is being stored has been settled, or has not."""
        if self._storing is not None:
            await self._storing
            self._storing = None

    async def _store(self, source: RawSource, segment: Segment) -> None:
        try:
            await asyncio.to_thread(segment.write_groups)
            await asyncio.to_thread(self._archive.put, segment.path, segment.file)
            await self._settle(source, segment)
        except SbpairError as error:
            self._unstored = error

    async def _settle(self, source: RawSource, segment: Segment) -> None:
        self._messages += segment.file.rows
        failures = await source.complete(segment.written)
        if failures:
            # They come again, and are copies then: the same key, told apart by nobody.
            why = failures[0][1]
            log.info("%s: %d of %d were not settled: %s", self._queue, len(failures), len(segment), why)
            if isinstance(why, Unavailable):
                raise why  # whoever does not answer on this connection is asked on another one


async def remaining_in_queues(job: TaskJob) -> dict[str, int]:
    """How many messages that were there when the run began are in each queue still, where there are any.

    Somebody else has them locked, or has deferred them. Raises Unavailable where the namespace stays away.
    """
    async with token_getter(job.pair()) as get_token:
        return await patiently(lambda: _left(job, get_token))


async def is_left(job: TaskJob) -> bool:
    """Whether there is any: to count them takes long where there are many. Raises Unavailable."""
    async with token_getter(job.pair()) as get_token:
        return bool(await patiently(lambda: _left(job, get_token, all_of_them=False)))


async def _left(job: TaskJob, get_token: GetToken | None, *, all_of_them: bool = True) -> dict[str, int]:
    found: Counter[str] = Counter()
    async with connect(job.secondary.endpoint(), get_token=get_token) as wire:
        for queue in job.run.queues:
            async for page in peek_queue(wire, queue):
                found[queue] += sum(is_ours(job.run, seen) for seen in page)
                if found[queue] and not all_of_them:
                    break
    return {queue: count for queue, count in found.items() if count}


def accepted_before(archive: Archive, queue: str) -> set[tuple[Any, ...]]:
    """What the syphon's journal says that the primary has of a queue, without the namespace: it is the run's."""
    try:
        keys = archive.read_json(JOURNAL)["keys"]
    except FileNotFoundError:
        return set()
    return {tuple(key[1:]) for key in keys if key[1] == queue.lower()}


def keep_accepted(archive: Archive, keys: list[Key]) -> None:
    """Have the tasks know what the primary has already."""
    archive.write_json(JOURNAL, {"at_ms": int(time.time() * 1000), "keys": keys})
