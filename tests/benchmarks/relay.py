"""The floor: bytes from one socket to another through asyncio, and nothing done with them.

python relay.py: prints its port, takes two connections, carries the first's bytes to the second until they end, and
prints what that cost: {"cpu_s", "seconds", "rss_mb", "bytes"}.
python relay.py PORT BYTES: the other process, which feeds and drains it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

CHUNK = 256 * 1024


class End(asyncio.Protocol):
    """One of the two connections: what comes here leaves at the other, no faster than that takes it."""

    def __init__(self, ends: list[End], over: asyncio.Event) -> None:
        self._ends = ends
        self._over = over
        self._other: End | None = None
        self.transport: Any = None
        self.carried = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._ends.append(self)
        if len(self._ends) == 2:
            first, second = self._ends
            first._other, second._other = second, first
            first.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        self.carried += len(data)
        cast("End", self._other).transport.write(data)

    def pause_writing(self) -> None:
        cast("End", self._other).transport.pause_reading()

    def resume_writing(self) -> None:
        cast("End", self._other).transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  either way it is over
        self._over.set()
        cast("End", self._other).transport.close()


def spent() -> tuple[float, float]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, time.perf_counter()


async def relay() -> None:
    ends: list[End] = []
    over = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: End(ends, over), "127.0.0.1", 0)
    before = spent()
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await over.wait()
    cpu_s, seconds = (after - was for after, was in zip(spent(), before, strict=True))
    server.close()
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    told = {"cpu_s": cpu_s, "seconds": seconds, "rss_mb": int(peak.split()[1]) * 1024 / 1e6, "bytes": ends[0].carried}
    sys.stdout.write(json.dumps(told) + "\n")


def feed(port: int, count: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as source, socket.create_connection(("127.0.0.1", port)) as sink:
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
    if len(sys.argv) == 1:
        asyncio.run(relay())
    else:
        feed(*map(int, sys.argv[1:]))
