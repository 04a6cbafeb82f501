"""A loop that receives all messages of backlog queues with sbpair's own client, and releases them: the least cost of
a filter.

python -m tests.benchmarks.release_loop COUNT QUEUE ...
"""

import asyncio
import gc
import os
import sys

from sbpair.amqp.link import Delivery
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import RELEASED
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.move.context import DEFAULT_BATCH_LIMITS

PREFETCH = DEFAULT_BATCH_LIMITS.prefetch
EMPTY_SECONDS = 1.0


async def release(queue: str) -> int:
    """Receive until nothing comes, then release. Return how many there were."""
    endpoint = endpoint_from_connection_string(os.environ["SBPAIR_SECONDARY_CONNECTION_STRING"])
    held: list[Delivery] = []
    async with connect(endpoint) as client:
        receiver = await client.receiver(queue)
        while True:
            if not PREFETCH // 2 < receiver.credit < PREFETCH:
                receiver.grant(PREFETCH)
            deliveries = await receiver.take(PREFETCH, seconds=EMPTY_SECONDS)
            if not deliveries:
                break
            for delivery in deliveries:
                delivery.payload = b""
            held += deliveries
        await receiver.stop()
        await receiver.settle(held, RELEASED)
    return len(held)


async def main(count: int, queues: list[str]) -> None:
    found = sum(await asyncio.gather(*map(release, queues)))
    if found != count:
        raise RuntimeError(f"received {found} messages of {count}")


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as a mover
    asyncio.run(main(int(sys.argv[1]), sys.argv[2:]))
