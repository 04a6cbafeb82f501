"""What the paired sender costs while the primary is healthy, against the plain one: CPU of this process, in one run.

python -m tests.benchmarks.sender [--messages N] [--rounds N] [--output json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair import Pair, PairedClient, aio
from sbpair.azure.atom import open_atom
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.queues import QueueSpec
from tests.benchmarks.processes import emulator

BODY = b"x" * 1024
CHUNK = 20
"""The two take turns so often: whatever else the machine does then happens to both."""


def sync_seconds(pair: Pair, plain: str, messages: int) -> tuple[float, float]:
    """CPU seconds of the plain and of the paired sender, each for so many messages."""
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


def measured(messages: int, rounds: int) -> dict[str, Any]:
    """CPU milliseconds a message and their ratio, the median of the rounds, by kind of client."""
    with emulator("contoso", "contoso-dr") as (_, namespaces):
        ends = {
            name: endpoint_from_connection_string(each["connection_string"], name=name)
            for name, each in namespaces.items()
        }
        pair = Pair("p", ends["contoso"], ends["contoso-dr"])
        plain = namespaces["contoso"]["connection_string"]
        asyncio.run(_create(pair))
        kinds: dict[str, Callable[[], tuple[float, float]]] = {
            "sync": lambda: sync_seconds(pair, plain, messages),
            "aio": lambda: asyncio.run(aio_seconds(pair, plain, messages)),
        }
        return {kind: _figures([run() for _ in range(rounds)], messages) for kind, run in kinds.items()}


async def _create(pair: Pair) -> None:
    async with open_atom(pair.primary) as queues:
        await queues.create(QueueSpec("orders"))


def _figures(runs: list[tuple[float, float]], messages: int) -> dict[str, float]:
    plain, paired = (statistics.median(each[which] for each in runs) for which in (0, 1))
    ratios = [other / one for one, other in runs]
    return {
        "plain_ms": round(1000 * plain / messages, 4),
        "paired_ms": round(1000 * paired / messages, 4),
        "ratio": round(statistics.median(ratios), 3),
        "worst_ratio": round(max(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    chosen = parser.parse_args()
    figures = measured(chosen.messages, chosen.rounds)
    if chosen.output == "json":
        told = {"schema": "sbpair/benchmark/1", "messages": chosen.messages, "rounds": chosen.rounds, "sender": figures}
        sys.stdout.write(json.dumps(told) + "\n")
        return
    for kind, each in figures.items():
        sys.stdout.write(f"{kind:5} {'  '.join(f'{name} {value}' for name, value in each.items())}\n")


if __name__ == "__main__":
    main()
