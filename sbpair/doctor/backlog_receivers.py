"""Receivers other than ours at the backlog queues, such as a running syphon of the original library.

Two peeks show whether messages leave a queue, and whether their delivery counts grow. Where neither happens, a receive
of one message, which is released at once, skips the messages that others have locked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from sbpair.amqp.link import Delivery
from sbpair.amqp.message import Header, Sections
from sbpair.amqp_client.client import AmqpClient
from sbpair.amqp_client.raw_links import RELEASED, RawReceiver
from sbpair.errors import first_error
from sbpair.management.calls import Sleep, shielded
from sbpair.move.message.envelope import ACTIVE, message_state, sequence_number
from sbpair.move.message.route import BACKLOG
from sbpair.move.peek.locked import PARTITION_BITS
from sbpair.move.peek.peeker import PAGE, read_peeked

WATCH_SECONDS = 5.0
NO_OTHERS = "no other receiver"
HINT = (
    "stop the syphon of the original library before others move the backlog: it loses or alters some bodies. An sbpair"
    " run on another machine, or one that was killed within the last minute, looks the same"
)


async def observe_receivers(client: AmqpClient, queues: Collection[str], seconds: float, sleep: Sleep) -> str:
    """Return what others do to the first messages of each queue. A receive waits up to `seconds`."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            tasks = {queue: group.create_task(_watch(client, queue, seconds, sleep)) for queue in queues}
    return "; ".join(f"{queue}: {task.result()}" for queue, task in tasks.items() if task.result()) or NO_OTHERS


async def _watch(client: AmqpClient, queue: str, seconds: float, sleep: Sleep) -> str:
    before = await _peek(client, queue)
    await sleep(WATCH_SECONDS)
    after = await _peek(client, queue, max(before, default=0))
    both = before.keys() & after.keys()
    grown = sum((after[each].delivery_count or 0) > (before[each].delivery_count or 0) for each in both)
    # One with a time to live may have expired.
    gone = sum(before[each].ttl is None for each in before.keys() - both)
    locked = 0 if grown or gone or not both else await _count_locked(client, queue, both, seconds)
    counts = {"with a higher delivery count": grown, "gone": gone, "locked": locked}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


async def _peek(client: AmqpClient, queue: str, last: int = 0) -> dict[int, Header]:
    """Return active messages by sequence number: those of the first page, and all up to `last`."""
    found: dict[int, Header] = {}
    start = 0
    while page := await client.peek(queue, start, PAGE, bodies=False):
        peeked = [read_peeked(queue, each, BACKLOG) for each in page]
        found |= {facts.sequence_number: each.read_header() for facts, each in peeked if message_state(each) == ACTIVE}
        highest = max(each.facts.sequence_number for each in peeked)
        if not start <= highest < last:
            break
        start = highest + 1
    return found


async def _count_locked(client: AmqpClient, queue: str, active: Collection[int], seconds: float) -> int:
    """Count messages that a receive skips: all if it delivers none, else those before the delivered one."""
    receiver = await client.receiver(queue)
    taken: list[Delivery] = []
    try:
        receiver.grant(1)
        taken += await receiver.take(1, seconds=seconds)
    finally:
        await shielded(_release(receiver, taken), always=True)
    if not taken:
        return len(active)
    free = sequence_number(Sections.split(taken[0].payload))
    return sum(each < free and each >> PARTITION_BITS == free >> PARTITION_BITS for each in active)


async def _release(receiver: RawReceiver, taken: list[Delivery]) -> None:
    taken += await receiver.stop()
    await receiver.settle_each(taken, RELEASED)
    receiver.close()
