"""As many backlog queues as a pair may have, with messages in each: all are audited and moved."""

from __future__ import annotations

import asyncio
from typing import Final

from sbpair.amqp.message import BATCH_FORMAT, batch_of
from sbpair.amqp_client.client import connect
from sbpair.azure.atom import open_atom
from sbpair.backlog import queue_path, queue_spec
from sbpair.model.pair import MAX_BACKLOG_QUEUES
from tests.benchmarks.stranded import PRIMARY, SECONDARY, Stranded
from tests.faults.emulated_pair import EmulatedPair
from tests.faults.hostile.trial import SYPHON, Trial

EACH: Final = 50
AT_ONCE: Final = 8
LIMIT_SECONDS: Final = 3_600.0


class Wide(Stranded):
    """Messages in as many backlog queues as it takes."""

    def source(self, number: int) -> int:
        return number // EACH


async def play(trial: Trial) -> None:
    queues = min(MAX_BACKLOG_QUEUES, trial.amount(MAX_BACKLOG_QUEUES))
    stranded = Wide(queues * EACH, 0)
    trial.figures.messages += stranded.count
    async with trial.pair().running() as pair:
        await stranded.create(*pair.endpoints)
        await asyncio.gather(*(_fill(pair, stranded, range(part, queues, AT_ONCE)) for part in range(AT_ONCE)))
        await _audit(pair, queues, stranded.count)
        await pair.run(*SYPHON[:2], "--count", str(queues), *SYPHON[4:], limit=LIMIT_SECONDS)
        await _audit(pair, queues, 0)
        await pair.judge(stranded)


async def _audit(pair: EmulatedPair, queues: int, messages: int) -> None:
    await pair.run("audit", "--count", str(queues), limit=LIMIT_SECONDS)
    found = pair.receipt.get("backlog", {}).get("messages")
    if (len(pair.receipt.get("ok", ())), found) != (queues, messages):
        pair.figures.find("other", f"audit has {found} messages in {queues} queues, not {messages}")


async def _fill(pair: EmulatedPair, stranded: Stranded, queues: range) -> None:
    async with open_atom(pair.endpoint(SECONDARY)) as control, connect(pair.endpoint(SECONDARY)) as wire:
        for queue in queues:
            await control.create(queue_spec(PRIMARY, queue))
            sender = await wire.sender(queue_path(PRIMARY, queue))
            numbers = range(queue * EACH, (queue + 1) * EACH)
            await sender.send(batch_of([*map(stranded.message, numbers)]), message_format=BATCH_FORMAT)
            sender.close()
