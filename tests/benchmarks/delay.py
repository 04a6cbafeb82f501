"""A TCP proxy that passes every byte on some milliseconds later, in order.

python delay.py MS PORT …: prints the ports in front of those, as a JSON list, and runs until it is stopped.
"""

import asyncio
import json
import sys
from collections import deque
from typing import Any


class Way(asyncio.Protocol):
    """The source of one direction: bytes read here are written to `other` when they are due."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._due: deque[tuple[float, bytes | None]] = deque()
        self._waiting = False
        self.transport: Any = None
        self.other: Way | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._later(data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  the other side sees an end, later
        self._later(None)

    def _later(self, data: bytes | None) -> None:
        self._due.append((self._loop.time() + self._seconds, data))
        if not self._waiting:
            self._wait()

    def _wait(self) -> None:
        self._waiting = bool(self._due)
        if self._due:
            self._loop.call_at(self._due[0][0], self._deliver)

    def _deliver(self) -> None:
        now, ready = self._loop.time() + 1e-4, []
        while self._due and self._due[0][0] <= now:
            ready.append(self._due.popleft()[1])
        if self.other is not None and self.other.transport is not None:
            self.other.transport.write(b"".join(data for data in ready if data is not None))
            if None in ready:
                self.other.transport.close()
        self._wait()


class Arriving(Way):
    """The side that clients connect to. It opens a connection to the target for each."""

    def __init__(self, seconds: float, port: int) -> None:
        super().__init__(seconds)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        self._opening = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            _, self.other = await self._loop.create_connection(lambda: Way(self._seconds), "127.0.0.1", self._port)
        except OSError:
            self.transport.abort()
            return
        self.other.other = self
        self.transport.resume_reading()


async def serve(milliseconds: float, ports: list[int]) -> None:
    loop = asyncio.get_running_loop()
    seconds = milliseconds / 1000
    servers = [await loop.create_server(lambda port=port: Arriving(seconds, port), "127.0.0.1", 0) for port in ports]
    sys.stdout.write(json.dumps([server.sockets[0].getsockname()[1] for server in servers]) + "\n")
    sys.stdout.flush()
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    asyncio.run(serve(float(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
