"""One task of the send: the rows of its shards, moved by the mover that the syphon has, from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.azure.credentials import token_getter
from sbpair.move.context import MoveContext
from sbpair.move.mover import Mover
from sbpair.move.rate_limit import RateLimiter
from sbpair.move.raw_primary import RawPrimary
from sbpair.move.receipt import NamedMessage, Tally
from sbpair.move.wrong_primary import WrongPrimaryBreaker
from sbpair.replay.event_loop import run
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.shard_source import ShardSource
from sbpair.replay.task_lease import TaskLease
from sbpair.runs.journal import Journal

if TYPE_CHECKING:
    from sbpair.replay.run import TaskJob

TRIES = 5
"""How often in a row a destination may fail before the task leaves the rest to another run."""

WAIT_SECONDS = 1.0


def send(job: TaskJob) -> Any:
    """For `mapInArrow` over rows of whole shards, each shard in order."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        messages = run(send_all(job, batches))
        yield pa.RecordBatch.from_pydict({"queue": [""], "messages": [messages]})

    return task


async def send_all(job: TaskJob, batches: Iterator[Any]) -> int:
    """How many the primary has accepted. Raises where no message at all can be sent, or nothing written down."""
    ledger = Ledger(job.open(), job.run.shards)
    source = ShardSource(batches, job.open(), ledger)
    permit = TaskLease(job.open(), job.beacon)
    await permit.ready()
    context = move_context(job, permit, ledger)
    async with token_getter(job.pair()) as get_token:
        primary = RawPrimary(job.primary.endpoint(), get_token=get_token)
        try:
            await _move(source, primary, context)
        finally:
            await primary.close()
            await source.write_accepted()
    if source.error is not None:
        raise source.error
    ledger.write_doubts()
    source.close()
    return context.tally.receipt().sent


def move_context(job: TaskJob, permit: TaskLease, ledger: Ledger) -> MoveContext:
    """What a mover goes by that has no journal but a ledger."""
    options = job.run.options
    pace = None
    if options.rate is not None:
        pace = RateLimiter(asyncio.get_running_loop().time(), rate=options.rate / max(job.tasks, job.senders))
    return MoveContext(
        namespace=job.run.pair["secondary"],
        tally=Naming(ledger),
        journal=Journal(may_send=permit.check),
        ordered=options.ordered,
        ttl=options.ttl,
        rate_limiter=pace,
        breaker=WrongPrimaryBreaker(trusted=options.allow_missing),
    )


class Naming(Tally):
    """It names all that was sent without an answer: each may be there twice."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def doubtful(self, named: NamedMessage) -> None:
        key = (named.queue, named.sequence_number, 0, named.message_id)
        self._ledger.doubt(Entry(key, named.destination, named.reason))


async def _move(source: ShardSource, primary: RawPrimary, context: MoveContext) -> None:
    async with asyncio.TaskGroup() as tasks:
        mover = Mover(source, primary, tasks, context)
        while mover.fatal is None and source.error is None and not source.is_stopped():
            if mover.room == 0 or source.ended:
                if mover.stuck(TRIES) or (source.ended and not mover.held):
                    break
                await mover.wait_changed(WAIT_SECONDS)
                continue
            arrivals = await source.receive(mover.room)
            if arrivals:
                mover.accept(arrivals)
        await mover.finish()
        mover.abandon_all()
    if mover.fatal is not None:
        raise mover.fatal
