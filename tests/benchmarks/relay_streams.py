"""The memory of large bodies and of many WebSockets in the relay: of emulator, listener and client, each in a process.

python -m tests.benchmarks.relay_streams [--megabytes SMALL LARGE] [--sockets FEW MANY] [--output json]

A body is streamed to a listener, which streams it back; so are the messages of a WebSocket. Both are sent through
either side, and compared. `grown_mb` is how much more memory the large size needs at its peak than the small one.
"""

import asyncio
import hashlib
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sbpair.model.pair import SIDES, Side
from sbpair.relay import RelayAnswer, RelayEndpoint, RelayPair
from sbpair.relay.aio import RelayClient, RelayListener
from tests.benchmarks.figures import emit, log, parser
from tests.benchmarks.processes import emulator, peak_mb, resident_mb, started
from tests.benchmarks.relay_proxy import until_ended

MODULE = "tests.benchmarks.relay_streams"
STRINGS = "SBPAIR_BENCHMARK_PRIMARY", "SBPAIR_BENCHMARK_SECONDARY"
MEGABYTE = 1_000_000
PART = 250_000
OPENING = 50


def pair_of(texts: list[str]) -> RelayPair:
    return RelayPair(*(RelayEndpoint.from_connection_string(text) for text in texts))


async def listen() -> None:
    """Return bodies and messages as they come."""

    async def echo(request: Any) -> RelayAnswer:
        return RelayAnswer(200, {"Content-Type": "application/octet-stream"}, request)

    async def echo_socket(offer: Any) -> None:
        socket = await offer.accept()
        async for message in socket:
            await socket.send_bytes(message.data)

    pair = pair_of([os.environ[each] for each in STRINGS])
    async with RelayListener(pair, echo, on_websocket=echo_socket, max_sockets=100_000):
        await until_ended("listening")


def part_of(number: int) -> bytes:
    return number.to_bytes(8, "big") * (PART // 8)


def digest(megabytes: int) -> str:
    found = hashlib.sha256()
    for number in range(megabytes * MEGABYTE // PART):
        found.update(part_of(number))
    return found.hexdigest()


async def body(pair: RelayPair, side: Side, megabytes: int) -> str:
    """Send a body, and return the digest of the answer."""

    async def parts() -> AsyncIterator[bytes]:
        for number in range(megabytes * MEGABYTE // PART):
            yield part_of(number)

    found = hashlib.sha256()
    async with RelayClient(pair, first=side) as client:
        response = await client.request("POST", body=parts())
        async for part in response:
            found.update(part)
    return found.hexdigest() if response.side == side else "another side"


async def socket(pair: RelayPair, side: Side, megabytes: int) -> str:
    """Send messages, and return the digest of those that come back."""
    found, count = hashlib.sha256(), megabytes * MEGABYTE // PART
    async with RelayClient(pair, first=side) as client:
        opened = await client.connect()

        async def send() -> None:
            for number in range(count):
                await opened.send_bytes(part_of(number))

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            for _ in range(count):
                found.update(await opened.receive_bytes())
        await opened.close()
    return found.hexdigest()


async def sockets(pair: RelayPair, count: int, measure: Callable[[], Any]) -> Any:
    """Open WebSockets, half of them through either side, and measure while all are open and have been used."""
    clients = [RelayClient(pair, first=side) for side in SIDES]
    limit = asyncio.Semaphore(OPENING)

    async def connect(number: int) -> Any:
        async with limit:
            return await clients[number % 2].connect(f"/{number}")

    try:
        opened = await asyncio.gather(*(connect(number) for number in range(count)))
        for number, each in enumerate(opened):
            await each.send_bytes(str(number).encode())
        texts = [await each.receive_bytes() for each in opened]
        if texts != [str(number).encode() for number in range(count)]:
            raise RuntimeError("a message reached another connection")
        return measure()
    finally:
        for client in clients:
            await client.close()


@contextmanager
def processes() -> Iterator[tuple[RelayPair, dict[str, int]]]:
    """Run an emulator and a listener; yields the pair, and the ids of all processes."""
    names = ("contoso", "contoso-dr")
    with emulator(*names, options=("--relay", "hyco")) as (emulator_pid, namespaces):
        texts = [namespaces[name]["hybrid_connections"][0] for name in names]
        environ = {**os.environ, **dict(zip(STRINGS, texts, strict=True))}
        with started([sys.executable, "-m", MODULE, "listen"], environ) as (listener_pid, _):
            yield pair_of(texts), {"emulator": emulator_pid, "listener": listener_pid, "client": os.getpid()}


def streamed(sizes: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, send in {"body": body, "socket": socket}.items():
        with processes() as (pair, pids):
            peaks = []
            for size in sizes:
                began, wanted = time.perf_counter(), digest(size)
                for side in SIDES:
                    if asyncio.run(send(pair, side, size)) != wanted:
                        raise RuntimeError(f"{name}: the bytes through the {side} differ")
                peaks.append({each: peak_mb(pid) or 0.0 for each, pid in pids.items()})
                log(f"{name}: {size} MB each way, {time.perf_counter() - began:.1f} s: {peaks[-1]}")
            grown = {each: round(peaks[-1][each] - peaks[0][each], 1) for each in pids}
            found[name] = {"peak_mb": peaks[-1], "grown_mb": grown}
    return found


def opened(counts: list[int]) -> dict[str, Any]:
    with processes() as (pair, pids):
        memory = []
        for count in counts:
            began = time.perf_counter()
            held = asyncio.run(sockets(pair, count, lambda: {each: resident_mb(pid) for each, pid in pids.items()}))
            log(f"{count} WebSockets, {time.perf_counter() - began:.1f} s: {held}")
            memory.append(held)
    more = counts[-1] - counts[0]
    each = {name: round((memory[-1][name] - memory[0][name]) * 1000 / more, 1) for name in pids}
    return {"count": counts[-1], "resident_mb": memory[-1], "kb_each": each}


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--megabytes", type=int, nargs=2, default=[10, 100], metavar="N")
    made.add_argument("--sockets", type=int, nargs=2, default=[500, 5_000], metavar="N")
    options = made.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    emit(options, {"streams": streamed(options.megabytes), "sockets": opened(options.sockets)})


if __name__ == "__main__":
    if sys.argv[1:2] == ["listen"]:
        asyncio.run(listen())
    else:
        main()
