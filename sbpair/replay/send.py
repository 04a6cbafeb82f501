"""One task of the send: the rows of its shards, moved by the mover that the syphon has, from the archive."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sbpair.bus.credentials import token_getter
from sbpair.move.guard import Guard
from sbpair.move.journal import Journal
from sbpair.move.mover import Mover
from sbpair.move.pace import Pace
from sbpair.move.receipt import Named, Tally
from sbpair.move.setting import Setting
from sbpair.move.wire_primary import WirePrimary
from sbpair.replay.lease import Permit
from sbpair.replay.ledger import Entry, Ledger
from sbpair.replay.shard_source import ShardSource
from sbpair.replay.task import run

if TYPE_CHECKING:
    from sbpair.replay.run import Job

TRIES = 5
"""How often in a row a destination may fail before the task leaves the rest to another run."""

WAIT_SECONDS = 1.0


def send(job: Job) -> Any:
    """For `mapInArrow` over rows of whole shards, each shard in order."""

    def task(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        messages = run(send_all(job, batches))
        yield pa.RecordBatch.from_pydict({"queue": [""], "messages": [messages]})

    return task


async def send_all(job: Job, batches: Iterator[Any]) -> int:
    """How many the primary has accepted. Raises where no message at all can be sent, or nothing written down."""
    ledger = Ledger(job.open(), job.run.shards)
    source = ShardSource(batches, job.open(), ledger)
    permit = Permit(job.open(), job.beacon)
    await permit.ready()
    setting = setting_of(job, permit, ledger)
    async with token_getter(job.pair()) as get_token:
        primary = WirePrimary(job.primary.endpoint(), get_token=get_token)
        try:
            await _move(source, primary, setting)
        finally:
            await primary.close()
            await source.write_accepted()
    if source.error is not None:
        raise source.error
    ledger.write_doubts()
    source.close()
    return setting.tally.receipt().sent


def setting_of(job: Job, permit: Permit, ledger: Ledger) -> Setting:
    """What a mover goes by that has no journal but a ledger."""
    options = job.run.options
    pace = None
    if options.rate is not None:
        pace = Pace(asyncio.get_running_loop().time(), rate=options.rate / max(job.tasks, job.senders))
    return Setting(
        namespace=job.run.pair["secondary"],
        tally=Naming(ledger),
        journal=Journal(may_send=permit.check),
        ordered=options.ordered,
        ttl=options.ttl,
        pace=pace,
        guard=Guard(trusted=options.allow_missing),
    )


class Naming(Tally):
    """It names all that was sent without an answer: each may be there twice."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def doubtful(self, named: Named) -> None:
        key = (named.queue, named.sequence_number, 0, named.message_id)
        self._ledger.doubt(Entry(key, named.destination, named.reason))


async def _move(source: ShardSource, primary: WirePrimary, setting: Setting) -> None:
    async with asyncio.TaskGroup() as tasks:
        mover = Mover(source, primary, tasks, setting)
        while mover.fatal is None and source.error is None and not source.is_stopped():
            if mover.room == 0 or source.ended:
                if mover.stuck(TRIES) or (source.ended and not mover.in_hand):
                    break
                await mover.changed(WAIT_SECONDS)
                continue
            arrivals = await source.take(mover.room)
            if arrivals:
                mover.accept(arrivals)
        await mover.finish()
        mover.write_off()
    if mover.fatal is not None:
        raise mover.fatal
