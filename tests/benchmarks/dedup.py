"""How fast DedupReceiver removes second copies, against the official client that receives and completes as many.

python -m tests.benchmarks.dedup [--messages N] [--rounds N] [--output json]
"""

import asyncio
import time
from typing import Any

from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AioClient

from sbpair import DedupReceiver, Pair, aio
from sbpair.azure.atom import open_atom
from sbpair.model.queues import QueueSpec
from sbpair.replication.events import DuplicateCompleted
from sbpair.replication.keys import KeyStatus
from tests.benchmarks.figures import emit, log, parser, spread
from tests.benchmarks.processes import emulator, endpoints

BODY = b"x" * 1024
BATCH = 100
KINDS = ("sync", "aio")


class LastRemoval:
    """Counts removed duplicates, and knows when the last one was reported."""

    def __init__(self) -> None:
        self.count, self.at = 0, 0.0

    def __call__(self, event: object) -> None:
        if isinstance(event, DuplicateCompleted):
            self.count, self.at = self.count + 1, time.perf_counter()


def fill(connection_string: str, messages: int) -> list[str]:
    """Send messages, and return their ids."""
    names = [f"m{number}" for number in range(messages)]
    with ServiceBusClient.from_connection_string(connection_string) as client, client.get_queue_sender("orders") as to:
        for start in range(0, messages, BATCH):
            to.send_messages([ServiceBusMessage(BODY, message_id=name) for name in names[start : start + BATCH]])
    return names


def sdk_seconds(connection_string: str, messages: int) -> float:
    """Return how long the official client takes to receive and complete all."""
    began, left = time.perf_counter(), messages
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("orders") as of,
    ):
        while left > 0:
            for message in of.receive_messages(BATCH, max_wait_time=5):
                of.complete_message(message)
                left -= 1
        return time.perf_counter() - began


async def sdk_seconds_aio(connection_string: str, messages: int) -> float:
    began, left = time.perf_counter(), messages
    async with (
        AioClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver("orders") as of,
    ):
        while left > 0:
            for message in await of.receive_messages(BATCH, max_wait_time=5):
                await of.complete_message(message)
                left -= 1
        return time.perf_counter() - began


def removal_seconds(pair: Pair, names: list[str]) -> float:
    """Return how long a DedupReceiver takes to remove copies of messages that the application has completed."""
    last = LastRemoval()
    with DedupReceiver(pair, "orders", on_event=last) as receiver:
        know(receiver, names)
        began = time.perf_counter()
        while last.count < len(names):
            assert receiver.receive_messages(1, max_wait_time=1) == []
    return last.at - began


async def removal_seconds_aio(pair: Pair, names: list[str]) -> float:
    last = LastRemoval()
    async with aio.DedupReceiver(pair, "orders", on_event=last) as receiver:
        know(receiver, names)
        began = time.perf_counter()
        while last.count < len(names):
            assert await receiver.receive_messages(1, max_wait_time=1) == []
    return last.at - began


def know(receiver: Any, names: list[str]) -> None:
    """Record keys as completed: receiving the first copies would take longer than all else."""
    for name in names:
        receiver._store.mark(name, KeyStatus.DONE, time.time())


def measured(messages: int, rounds: int) -> dict[str, Any]:
    """Return the rates of both clients by kind, and how many times as long the removal takes, in interleaved rounds."""
    with emulator("contoso", "contoso-dr") as (_, namespaces):
        pair, side = Pair("p", *endpoints(namespaces)), namespaces["contoso-dr"]["connection_string"]
        asyncio.run(_create(pair))
        found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
        for number in range(rounds):
            for kind in KINDS:
                names = fill(side, messages)
                removal = (
                    removal_seconds(pair, names) if kind == "sync" else asyncio.run(removal_seconds_aio(pair, names))
                )
                fill(side, messages)
                sdk = sdk_seconds(side, messages) if kind == "sync" else asyncio.run(sdk_seconds_aio(side, messages))
                found[kind].append((removal, sdk))
                log(f"round {number + 1} of {rounds}: {kind}: removal {removal:.2f} s, official client {sdk:.2f} s")
    return {
        kind: {
            "removed_per_s": spread((messages / removal for removal, _ in turns), 0),
            "sdk_per_s": spread((messages / sdk for _, sdk in turns), 0),
            "ratio": spread((removal / sdk for removal, sdk in turns), 2),
        }
        for kind, turns in found.items()
    }


async def _create(pair: Pair) -> None:
    for endpoint in (pair.primary, pair.secondary):
        async with open_atom(endpoint) as queues:
            await queues.create(QueueSpec("orders"))


def main() -> None:
    options_of = parser(__doc__, rounds=5)
    options_of.add_argument("--messages", type=int, default=5_000)
    options = options_of.parse_args()
    emit(options, {"rounds": options.rounds, "dedup": measured(options.messages, options.rounds)})


if __name__ == "__main__":
    main()
