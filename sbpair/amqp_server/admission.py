"""The way into a server: its listening sockets, and the connections that have not opened yet.

A connection opens with AMQP's `open` or the first complete head of an HTTP request. Invariant: the connections that
have not hold at most a quarter of the files that the process may open, and each of them ends after OPEN_SECONDS.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from operator import itemgetter
from typing import Final

from sbpair.operating_system import open_file_limit

logger = logging.getLogger(__name__)

OPEN_SECONDS: Final = 30.0
HEAD_SECONDS: Final = 10.0
"""Time for the head of an HTTP request, from its first bytes."""

PATIENCE_SECONDS: Final = 2.0
"""Time that a connection has, after its first bytes, before another one may take its place."""

SILENCE_SECONDS: Final = 0.25
"""The same for the first bytes. Clients send them at once."""

ACCEPT_AGAIN_SECONDS: Final = 0.5
"""Time between attempts to accept a connection without a free file."""

LOG_SECONDS: Final = 60.0
TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
"""The answer to an HTTP request that does not arrive in time."""


class AcceptedSocket(socket.socket):
    """The socket of a connection, which reports when it is closed. `transport` is there soon after the start."""

    __slots__ = ("_on_close", "transport")

    def __init__(self, accepted: socket.socket, on_close: Callable[[AcceptedSocket], None]) -> None:
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self.setblocking(False)
        self._on_close = on_close
        self.transport: asyncio.Transport | None = None

    def attach(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def has_input(self) -> bool:
        """Return whether bytes have come that are not read yet."""
        try:
            return bool(self.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def close(self) -> None:
        super().close()
        self._on_close(self)


class Admission:
    """The connections that have not opened yet, of all ports: `limit` of them at most.

    A further one waits until one of them has opened, or takes the place of the oldest one: of those that are silent
    after SILENCE_SECONDS, of the others after PATIENCE_SECONDS.
    """

    def __init__(self) -> None:
        self._files = open_file_limit()
        self.limit = max(1, self._files // 4)
        self._timers: dict[AcceptedSocket, asyncio.TimerHandle] = {}
        self._silent: dict[AcceptedSocket, float] = {}
        """Since when, the oldest first; and those whose first bytes have come."""

        self._begun: dict[AcceptedSocket, float] = {}
        self._changed = asyncio.Event()
        self._logged: dict[str, float] = {}

    async def accept(self, listening: socket.socket, on_close: Callable[[AcceptedSocket], None]) -> AcceptedSocket:
        """Return the next connection of a listening socket, once it may enter."""
        loop = asyncio.get_running_loop()
        while True:
            await self._room()
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._warn("No connection is accepted for now: %s (ulimit -n is %d).", error.strerror, self._files)
                await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                continue
            connection = AcceptedSocket(accepted, on_close)
            self._timers[connection] = loop.call_later(OPEN_SECONDS, self._on_timeout, connection)
            self._silent[connection] = loop.time()
            return connection

    async def _room(self) -> None:
        """Wait until there is room for one more connection, and make it once the time of another one is over."""
        while len(self._timers) >= self.limit:
            due, oldest = self._next_to_end()
            if asyncio.get_running_loop().time() < due:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        self._changed.clear()
                        await self._changed.wait()
                continue
            was_silent = oldest in self._silent
            # The loop may have been busy for long: what has come meanwhile is read first.
            await asyncio.sleep(0)
            if was_silent and (oldest not in self._silent or oldest.has_input()):
                self.begun(oldest)
            elif oldest in self._timers:
                self._warn("%d connections have not opened (limit: ulimit -n / 4): the oldest end.", self.limit)
                self._end(oldest)

    def _next_to_end(self) -> tuple[float, AcceptedSocket]:
        """Return the connection, of one or more, whose place is free first, and from when on."""
        firsts = [
            (since + patience, connection)
            for patience, found in ((SILENCE_SECONDS, self._silent), (PATIENCE_SECONDS, self._begun))
            for connection, since in islice(found.items(), 1)
        ]
        return min(firsts, key=itemgetter(0))

    def begun(self, connection: AcceptedSocket) -> None:
        """Note that the first bytes of a connection have come."""
        if self._silent.pop(connection, None) is not None:
            self._begun[connection] = asyncio.get_running_loop().time()

    def opened(self, connection: AcceptedSocket) -> None:
        """Forget a connection that has opened, or is closed."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()
            self._silent.pop(connection, None)
            self._begun.pop(connection, None)
            self._changed.set()

    def _on_timeout(self, connection: AcceptedSocket) -> None:
        logger.info("A client did not open its connection within %g seconds.", OPEN_SECONDS)
        self._end(connection)

    def _end(self, connection: AcceptedSocket) -> None:
        self.opened(connection)
        connection.abort()

    def _warn(self, text: str, *values: object) -> None:
        """Log a warning, once in LOG_SECONDS."""
        now = asyncio.get_running_loop().time()
        if now >= self._logged.get(text, 0.0):
            self._logged[text] = now + LOG_SECONDS
            logger.warning(text, *values)
