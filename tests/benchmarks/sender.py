"""The cost of the paired sender while the primary is healthy, against the plain one: CPU of this thread.

python -m tests.benchmarks.sender [--messages SMALL LARGE] [--rounds N] [--output json]
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair import Pair, PairedClient, aio
from sbpair.azure.atom import open_atom
from sbpair.model.queues import QueueSpec
from tests.benchmarks.engines import relayed
from tests.benchmarks.figures import Rounds, Run, cpu_slopes, emit, parser, ratio, spread
from tests.benchmarks.processes import emulator, endpoints

BODY = b"x" * 1024
CHUNK = 20
"""Messages of one turn: the two senders alternate, so another load of the machine affects both."""


def sync_seconds(pair: Pair, plain: str, messages: int) -> tuple[float, float]:
    """Return the CPU seconds of the plain and of the paired sender, each for all messages."""
    with ServiceBusClient.from_connection_string(plain) as one, PairedClient(pair) as other:
        senders = one.get_queue_sender("orders"), other.get_queue_sender("orders")
        spent = [0.0, 0.0]
        for sender in senders:
            sender.send_messages(ServiceBusMessage(BODY))
        for turn in range(2 * messages // CHUNK):
            which = (turn + turn // 2) % 2
            began = time.thread_time()
            for _ in range(CHUNK):
                senders[which].send_messages(ServiceBusMessage(BODY), timeout=60)
            spent[which] += time.thread_time() - began
        for sender in senders:
            sender.close()
    return spent[0], spent[1]


async def aio_seconds(pair: Pair, plain: str, messages: int) -> tuple[float, float]:
    async with AioClient.from_connection_string(plain) as one, aio.PairedClient(pair) as other:
        senders: Any = one.get_queue_sender("orders"), other.get_queue_sender("orders")
        spent = [0.0, 0.0]
        for sender in senders:
            await sender.send_messages(ServiceBusMessage(BODY))
        for turn in range(2 * messages // CHUNK):
            which = (turn + turn // 2) % 2
            began = time.thread_time()
            for _ in range(CHUNK):
                await senders[which].send_messages(ServiceBusMessage(BODY), timeout=60)
            spent[which] += time.thread_time() - began
        for sender in senders:
            await sender.close()
    return spent[0], spent[1]


def measured(sizes: list[int], rounds: int) -> dict[str, Any]:
    """Return CPU milliseconds a message, and their ratio, by kind of client."""
    with emulator("contoso", "contoso-dr") as (_, namespaces):
        pair = Pair("p", *endpoints(namespaces))
        plain = namespaces["contoso"]["connection_string"]
        asyncio.run(_create(pair))
        kinds: dict[str, Callable[[int], tuple[float, float]]] = {
            "sync": partial(sync_seconds, pair, plain),
            "aio": lambda messages: asyncio.run(aio_seconds(pair, plain, messages)),
        }
        turns = [_turn(sizes, kinds) for _ in range(rounds)]
    relays = [turn["relay"] for turn in turns]
    return {"relay_ms": spread((1000 * each for each in cpu_slopes(relays)), 6)} | {
        kind: _figures([turn[f"{kind} plain"] for turn in turns], [turn[f"{kind} paired"] for turn in turns])
        for kind in kinds
    }


def _turn(sizes: list[int], kinds: dict[str, Callable[[int], tuple[float, float]]]) -> dict[str, dict[int, Run]]:
    """Measure every kind of client, and the relay, once in each size."""
    found: defaultdict[str, dict[int, Run]] = defaultdict(dict)
    for size in sizes:
        found["relay"][size] = relayed("streams", size)
        for kind, seconds in kinds.items():
            for way, cpu_s in zip(("plain", "paired"), seconds(size), strict=True):
                found[f"{kind} {way}"][size] = Run(size, cpu_s, size / cpu_s)
    return found


async def _create(pair: Pair) -> None:
    async with open_atom(pair.primary) as queues:
        await queues.create(QueueSpec("orders"))


def _figures(plain: Rounds, paired: Rounds) -> dict[str, Any]:
    return {
        "plain_ms": spread((1000 * each for each in cpu_slopes(plain)), 4),
        "paired_ms": spread((1000 * each for each in cpu_slopes(paired)), 4),
        "ratio": ratio(paired, plain),
    }


def main() -> None:
    options = parser(__doc__, messages=(500, 2_500), rounds=5).parse_args()
    emit(options, {"rounds": options.rounds, "sender": measured(options.messages, options.rounds)})


if __name__ == "__main__":
    main()
