"""What a message costs the emulator, in and out again, in its own CPU seconds; and what holding one costs.

Run it by hand: python -m tests.benchmarks.emulator [--messages N] [--held N …] [--rounds N] [--output json]

A machine's speed changes within minutes. So a bare relay, which takes the same bytes in and gives them out, takes turns
with the emulator: figures are medians over the rounds, and what can be compared with another machine's are the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from sbpair.amqp.codec import encode
from sbpair.amqp.message import BATCH_FORMAT, DATA, Properties, Sections, data_body, section
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.amqp_client.raw_links import ACCEPTED, RawReceiver, RawSender
from sbpair.azure.atom import open_atom
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.queues import QueueSpec
from tests.benchmarks.engines import relayed
from tests.benchmarks.processes import cpu_seconds, emulator, resident_mb

SCHEMA = "sbpair/benchmark/1"
BATCH = 100
FLIGHT, SINGLE_FLIGHT = 8, 200
"""How many batches, and how many single messages, are on their way at the same time."""

IDLE_SECONDS = 10.0


def message(number: int) -> bytes:
    """An encoded message of 1 KB."""
    properties = Properties(message_id=f"benchmark-{number:09d}").encode()
    return Sections(properties=properties, body=data_body(b"x" * (1024 - len(properties) - 8))).join()


def batches(count: int) -> list[bytes]:
    one = section(DATA, encode(message(0)))
    return [one * BATCH] * (count // BATCH)


async def send(sender: RawSender, payloads: list[bytes], message_format: int) -> None:
    flight = FLIGHT if message_format == BATCH_FORMAT else SINGLE_FLIGHT
    for start in range(0, len(payloads), flight):
        chunk = payloads[start : start + flight]
        await asyncio.gather(*(sender.send(payload, message_format=message_format) for payload in chunk))


async def receive(receiver: RawReceiver, count: int, *, singly: bool) -> None:
    left = count
    receiver.grant(10 * BATCH)
    while left:
        deliveries = await receiver.take(5 * BATCH, seconds=IDLE_SECONDS)
        if not deliveries:
            raise RuntimeError(f"{left} messages did not come")
        left -= len(deliveries)
        if left:
            receiver.grant(min(left, 10 * BATCH))
        if singly:
            await asyncio.gather(*(receiver.settle([delivery], ACCEPTED) for delivery in deliveries))
        else:
            await receiver.settle(deliveries, ACCEPTED)


async def in_and_out(wire: AmqpClient, pid: int, queue: str, count: int, *, singly: bool) -> dict[str, float]:
    """CPU seconds of the emulator per 1 000 messages, in and out."""
    sender, receiver = await wire.sender(queue), await wire.receiver(queue)
    payloads = [message(0)] * count if singly else batches(count)
    started, before = time.perf_counter(), cpu_seconds(pid)
    for start in range(0, len(payloads), 1_000 if singly else 10):
        chunk = payloads[start : start + (1_000 if singly else 10)]
        await send(sender, chunk, 0 if singly else BATCH_FORMAT)
        await receive(receiver, len(chunk) * (1 if singly else BATCH), singly=singly)
    spent, seconds = cpu_seconds(pid) - before, time.perf_counter() - started
    sender.close()
    receiver.close()
    return {"cpu_s_per_1k": round(1000 * spent / count, 5), "msg_per_s": round(count / seconds)}


async def held(wire: AmqpClient, pid: int, queue: str, count: int, already: int) -> dict[str, float]:
    """Fill a queue up to `count`, and move some through it meanwhile."""
    sender = await wire.sender(queue)
    memory = resident_mb(pid)
    await send(sender, batches(count - already), BATCH_FORMAT)
    grown = resident_mb(pid) - memory
    sender.close()
    figures = await in_and_out(wire, pid, queue, 20_000, singly=False)
    return {**figures, "memory_per_byte": round(grown * 1e6 / ((count - already) * len(message(0))), 3)}


async def turn(wire: AmqpClient, pid: int, count: int) -> dict[str, dict[str, float]]:
    relay = await asyncio.to_thread(relayed, "streams", count)
    return {
        "batches": await in_and_out(wire, pid, "plain", count, singly=False),
        "singly": await in_and_out(wire, pid, "plain", count // 4, singly=True),
        "relay": {"cpu_s_per_1k": 1000 * relay.cpu_s / relay.messages, "msg_per_s": relay.msg_per_s},
    }


def medians(figures: list[dict[str, float]]) -> dict[str, float]:
    costs = [each["cpu_s_per_1k"] for each in figures]
    rates = [each["msg_per_s"] for each in figures]
    return {
        "cpu_s_per_1k": round(statistics.median(costs), 5),
        "cpu_s_per_1k_least": round(min(costs), 5),
        "msg_per_s": round(statistics.median(rates)),
    }


async def measure(pid: int, namespaces: dict[str, Any], count: int, levels: list[int], rounds: int) -> dict[str, Any]:
    endpoint = endpoint_from_connection_string(namespaces["bench"]["connection_string"])
    async with open_atom(endpoint) as control, connect(endpoint) as wire:
        for queue in ("plain", "held"):
            await control.create(QueueSpec(queue, max_size_in_megabytes=5120, default_message_time_to_live="P7D"))
        await in_and_out(wire, pid, "plain", 5_000, singly=False)
        turns = [await turn(wire, pid, count) for _ in range(rounds)]
        figures: dict[str, Any] = {name: medians([each[name] for each in turns]) for name in turns[0]}
        relay = figures["relay"]["cpu_s_per_1k"]
        figures["ratios"] = {
            f"{name}_to_relay": round(figures[name]["cpu_s_per_1k"] / relay, 2) for name in ("batches", "singly")
        }
        figures["held"] = {}
        already = 0
        for level in sorted(levels):
            figures["held"][str(level)] = await held(wire, pid, "held", level, already)
            already = level
        return figures


def ready_seconds() -> dict[str, float]:
    """From start to ready, and what of it are the imports."""
    doors = "sbpair.emulator.frontends.amqp.amqp_connection, sbpair.emulator.frontends.atom.atom_frontend"
    imports = f"import sbpair.cli.commands.emulator, sbpair.emulator.server, {doors}"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", imports], check=True)
    imported = time.perf_counter() - started
    started = time.perf_counter()
    with emulator("bench"):
        whole = time.perf_counter() - started
    return {"imports_s": round(imported, 3), "ready_s": round(whole, 3), "beyond_imports_s": round(whole - imported, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--held", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    with emulator("bench") as (pid, namespaces):
        figures = asyncio.run(measure(pid, namespaces, options.messages, options.held, options.rounds))
    result = {"schema": SCHEMA, "messages": options.messages, "emulator": {**figures, "start": ready_seconds()}}
    if options.output == "json":
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
        return
    for name, figure in result["emulator"].items():
        sys.stdout.write(f"{name}: {figure}\n")


if __name__ == "__main__":
    main()
