"""A relay: it copies bytes from one socket to another through asyncio, the least that any mover must do.

With KIND it prints its port, accepts two connections, copies from the first to the second until the end, and prints
the cost: {"cpu_s", "seconds", "rss_mb", "bytes"}. `streams` reads and writes 64 KB at a time through streams;
`protocol` uses the least of asyncio. With PORT BYTES it is the other process, which feeds and drains.
"""

import asyncio
import json
import os
import resource
import socket
import sys
import threading
import time
from typing import Any

from tests.benchmarks.processes import peak_mb

READ, CHUNK = 64 * 1024, 256 * 1024
LOCAL = "127.0.0.1"


class Ends:
    """Both connections, in order, and the number of bytes carried."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.both = asyncio.Event()
        self.over = asyncio.Event()
        self.carried = 0

    def add(self, end: Any) -> None:
        self.made.append(end)
        if len(self.made) == 2:
            self.both.set()


async def streams(ends: Ends) -> asyncio.Server:
    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.add((reader, writer))
        if len(ends.made) == 2:
            (source, _), (_, sink) = ends.made
            while data := await source.read(READ):
                ends.carried += len(data)
                sink.write(data)
                await sink.drain()
            ends.over.set()
        await ends.over.wait()
        writer.close()

    return await asyncio.start_server(on_connection, LOCAL, 0)


class End(asyncio.Protocol):
    """One of the two connections: the first is read no faster than the second is written."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._ends.add(self)
        if len(self._ends.made) == 1:
            self.transport.pause_reading()
        else:
            self._ends.made[0].transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._ends.carried += len(data)
        self._ends.made[1].transport.write(data)

    def pause_writing(self) -> None:
        self._ends.made[0].transport.pause_reading()

    def resume_writing(self) -> None:
        self._ends.made[0].transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  either way it is over
        self._ends.over.set()
        self._ends.made[1].transport.close()


async def protocol(ends: Ends) -> asyncio.Server:
    return await asyncio.get_running_loop().create_server(lambda: End(ends), LOCAL, 0)


def spent() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, time.perf_counter()


async def relay(kind: str) -> None:
    ends = Ends()
    server = await {"streams": streams, "protocol": protocol}[kind](ends)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await ends.both.wait()
    before = spent()
    await ends.over.wait()
    cpu_s, seconds = (after - was for after, was in zip(spent(), before, strict=True))
    server.close()
    cost = {"cpu_s": cpu_s, "seconds": seconds, "rss_mb": peak_mb(os.getpid()), "bytes": ends.carried}
    sys.stdout.write(json.dumps(cost) + "\n")


def feed(port: int, count: int) -> None:
    with socket.create_connection((LOCAL, port)) as source, socket.create_connection((LOCAL, port)) as sink:
        feeder = threading.Thread(target=_write, args=(source, count))
        feeder.start()
        while sink.recv(CHUNK):
            pass
        feeder.join()


def _write(source: socket.socket, count: int) -> None:
    chunk = b"x" * CHUNK
    for start in range(0, count, CHUNK):
        source.sendall(chunk[: count - start])
    source.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        asyncio.run(relay(sys.argv[1]))
    else:
        feed(*map(int, sys.argv[1:]))
