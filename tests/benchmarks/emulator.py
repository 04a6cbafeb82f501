"""The cost of a message in the emulator, in and out again, in its own CPU; and the memory of held messages.

python -m tests.benchmarks.emulator [--messages SMALL LARGE] [--held N …] [--rounds N] [--output json]

A bare relay, which copies the same bytes, takes turns with the emulator: the ratios hold on another machine too. The
ratios of WebSocket are to TCP; those of an emulator with --data, or --durable too, to one without a file.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

from sbpair.amqp.message import BATCH_FORMAT, Properties, Sections, batch_of, data_body
from sbpair.amqp_client.client import AmqpClient, connect
from sbpair.amqp_client.raw_links import ACCEPTED, RawReceiver, RawSender
from sbpair.azure.atom import open_atom
from sbpair.model.pair import Endpoint, Transport
from sbpair.model.queues import QueueSpec
from tests.benchmarks.engines import relayed
from tests.benchmarks.figures import Run, emit, interleaved, parser, ratio, summary
from tests.benchmarks.processes import cpu_seconds, emulator, endpoints, resident_mb, user_instructions

BATCH = 100
FLIGHT, SINGLE_FLIGHT = 8, 200
"""How many batches, and how many single messages, are in flight."""

IDLE_SECONDS = 10.0
RATIOS = [
    ("batches", "relay"),
    ("singly", "relay"),
    ("websocket_batches", "batches"),
    ("websocket_singly", "singly"),
    ("data_batches", "batches"),
    ("data_singly", "singly"),
    ("durable_batches", "batches"),
    ("durable_singly", "singly"),
]
FILES: dict[str, tuple[str, ...]] = {"data_": (), "durable_": ("--durable",)}
"""Options of emulators with a data file, by the prefix of their figures."""


def message(number: int) -> bytes:
    """Return an encoded message of 1 KB."""
    properties = Properties(message_id=f"benchmark-{number:09d}").encode()
    return Sections(properties=properties, body=data_body(b"x" * (1024 - len(properties) - 8))).join()


def batches(count: int) -> list[bytes]:
    return [batch_of([message(0)] * BATCH)] * (count // BATCH)


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
            raise RuntimeError(f"{left} messages did not arrive")
        left -= len(deliveries)
        if left:
            receiver.grant(min(left, 10 * BATCH))
        if singly:
            await asyncio.gather(*(receiver.settle([delivery], ACCEPTED) for delivery in deliveries))
        else:
            await receiver.settle(deliveries, ACCEPTED)


async def in_and_out(wire: AmqpClient, pid: int, queue: str, count: int, *, singly: bool) -> Run:
    """Send messages and receive them again. The cost is the emulator's."""
    sender, receiver = await wire.sender(queue), await wire.receiver(queue)
    payloads = [message(0)] * count if singly else batches(count)
    step = 1_000 if singly else 10
    with user_instructions(pid) as instructions:
        started, before = time.perf_counter(), cpu_seconds(pid)
        for start in range(0, len(payloads), step):
            chunk = payloads[start : start + step]
            await send(sender, chunk, 0 if singly else BATCH_FORMAT)
            await receive(receiver, len(chunk) * (1 if singly else BATCH), singly=singly)
        cpu_s, seconds = cpu_seconds(pid) - before, time.perf_counter() - started
    sender.close()
    receiver.close()
    return Run(count, cpu_s, count / seconds, resident_mb(pid), sum(instructions) or None)


async def held(wire: AmqpClient, pid: int, queue: str, count: int, already: int) -> dict[str, float]:
    """Fill a queue up to `count`, and move some messages through it."""
    sender = await wire.sender(queue)
    memory = resident_mb(pid)
    await send(sender, batches(count - already), BATCH_FORMAT)
    grown = resident_mb(pid) - memory
    sender.close()
    run = await in_and_out(wire, pid, queue, 20_000, singly=False)
    return {
        "cpu_s_per_1k": round(1000 * run.cpu_s / run.messages, 5),
        "msg_per_s": round(run.msg_per_s),
        "memory_per_byte": round(grown * 1e6 / ((count - already) * len(message(0))), 3),
    }


Started = tuple[int, dict[str, Any]]
"""An emulator's process, and its namespaces."""


def through(started: Started, count: int, *, transport: Transport = Transport.TCP, singly: bool = False) -> Run:
    async def run() -> Run:
        async with connect(replace(endpoint_of(started), transport=transport)) as wire:
            return await in_and_out(wire, started[0], "plain", count // 4 if singly else count, singly=singly)

    return asyncio.run(run())


def endpoint_of(started: Started) -> Endpoint:
    return endpoints(started[1])[0]


def measure(emulators: dict[str, Started], sizes: list[int], levels: list[int], rounds: int) -> dict[str, Any]:
    """Measure the emulator "", which has everything in memory, and those of FILES."""
    ways: dict[str, Callable[[int], Run]] = {}
    for prefix, started in emulators.items():
        asyncio.run(create(endpoint_of(started)))
        ways[f"{prefix}batches"] = partial(through, started)
        ways[f"{prefix}singly"] = partial(through, started, singly=True)
    memory = emulators[""]
    ways["websocket_batches"] = partial(through, memory, transport=Transport.WEBSOCKET)
    ways["websocket_singly"] = partial(through, memory, transport=Transport.WEBSOCKET, singly=True)
    ways["relay"] = partial(relayed, "streams")
    for way in ways.values():
        way(5_000)
    found = interleaved(rounds, sizes, ways)
    return {
        "emulator": {way: summary(each) for way, each in found.items()},
        "ratios": {f"{one}_to_{other}": ratio(found[one], found[other]) for one, other in RATIOS},
        "held": asyncio.run(fill_up(endpoint_of(memory), memory[0], sorted(levels))),
    }


async def create(endpoint: Endpoint) -> None:
    async with open_atom(endpoint) as control:
        for queue in ("plain", "held"):
            await control.create(QueueSpec(queue, max_size_in_megabytes=5120, default_message_time_to_live="P7D"))


async def fill_up(endpoint: Endpoint, pid: int, levels: list[int]) -> dict[str, Any]:
    async with connect(endpoint) as wire:
        return {str(level): await held(wire, pid, "held", level, already) for already, level in pairwise((0, *levels))}


def ready_seconds() -> dict[str, float]:
    """Return the seconds from start to ready, and the part of imports."""
    frontends = "sbpair.emulator.frontends.amqp.amqp_connection, sbpair.emulator.frontends.http.atom_frontend"
    imports = f"import sbpair.cli.commands.emulator, sbpair.emulator.server, {frontends}"
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", imports], check=True)
    imported = time.perf_counter() - started
    started = time.perf_counter()
    with emulator("bench"):
        whole = time.perf_counter() - started
    return {"imports_s": round(imported, 3), "ready_s": round(whole, 3), "beyond_imports_s": round(whole - imported, 3)}


def main() -> None:
    options_of = parser(__doc__, messages=(20_000, 100_000), rounds=5)
    options_of.add_argument("--held", type=int, nargs="*", default=[1_000, 100_000, 1_000_000])
    options = options_of.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory())
        emulators = {"": stack.enter_context(emulator("bench"))}
        for prefix, words in FILES.items():
            file = ("--data", f"{directory}/{prefix}.db")
            emulators[prefix] = stack.enter_context(emulator("bench", options=(*file, *words)))
        found = measure(emulators, options.messages, options.held, options.rounds)
    emit(options, {**found, "start": ready_seconds()})


if __name__ == "__main__":
    main()
