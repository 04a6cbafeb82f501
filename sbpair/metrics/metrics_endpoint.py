"""The HTTP port of the metrics: one small page, for few scrapers.

Invariant: a run never waits for a scrape. A connection has MAX_SECONDS for all; at most MAX_CONNECTIONS are open, and
further ones wait in the kernel. Rendering takes at most one part in REST of the time, however many scrapes there are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import h11

from sbpair.errors import MachineLacks, PortInUse, UsageError

if TYPE_CHECKING:
    from sbpair.metrics.exposition import Render

log = logging.getLogger(__name__)

PATH: Final = "/metrics"
MAX_CONNECTIONS: Final = 16
MAX_WAITING: Final = 128
MAX_SECONDS: Final = 10.0
REST: Final = 50
MAX_REQUEST_BYTES: Final = 16_384
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""Time between attempts to accept a connection without a free file descriptor."""


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises UsageError for an unknown address, and MachineLacks if it is not free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _no_address(host) from error
    listening = socket.socket(family, kind, protocol)
    try:
        # A restarted run can use the port at once.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(MAX_WAITING)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop the process that uses it, or choose another port; 0 is any free one"
            raise PortInUse(f"--metrics-port: port {port} on {host} is in use", hint=hint) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host) from error
        hint = "choose a port above 1023"
        raise MachineLacks(f"--metrics-port: port {port} on {host}: {error.strerror}", hint=hint) from error
    listening.setblocking(False)
    return listening


def _no_address(host: str) -> UsageError:
    hint = "leave it out to serve this machine only; 0.0.0.0 serves others, too"
    return UsageError(f"--metrics-address: {host!r} is not an address of this machine", hint=hint)


def url_of(listening: socket.socket) -> str:
    """Return the address of the metrics on a socket that listens."""
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{PATH}"


class MetricsEndpoint:
    """Answers requests over a socket that listens, with the text that `render` returns."""

    def __init__(self, listening: socket.socket, render: Render) -> None:
        self._listening = listening
        self._render = render
        self._turn = asyncio.Lock()
        self._next_turn = 0.0

    async def serve(self) -> None:
        """Answer requests until cancelled. Never fails."""
        loop, free = asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONNECTIONS)
        async with asyncio.TaskGroup() as answers:
            while True:
                await free.acquire()
                try:
                    connection, _ = await loop.sock_accept(self._listening)
                except OSError as error:
                    free.release()
                    log.info("no connection to the metrics: %s", error)
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                    continue
                answers.create_task(self._handle(connection)).add_done_callback(lambda _: free.release())

    async def _handle(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with connection, suppress(OSError):
            async with asyncio.timeout(MAX_SECONDS):
                await loop.sock_sendall(connection, await self._answer(connection))

    async def _answer(self, connection: socket.socket) -> bytes:
        """Read a request, and return the answer; b"" for a client that has gone."""
        loop, http = asyncio.get_running_loop(), h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_BYTES)
        try:
            while (request := http.next_event()) is h11.NEED_DATA:
                http.receive_data(await loop.sock_recv(connection, MAX_REQUEST_BYTES))
        except h11.RemoteProtocolError:
            return _encode(http, 400, b"expected an HTTP request\n")
        if not isinstance(request, h11.Request):
            return b""
        if request.method not in (b"GET", b"HEAD"):
            return _encode(http, 405, b"expected GET\n")
        if request.target.partition(b"?")[0] != PATH.encode():
            return _encode(http, 404, f"the metrics are at {PATH}\n".encode())
        accept = b",".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        try:
            content, content_type = await self._rendered(accept)
        except Exception:
            log.exception("the metrics could not be rendered")
            return _encode(http, 500, b"the metrics could not be rendered\n")
        return _encode(http, 200, content, content_type, with_content=request.method == b"GET")

    async def _rendered(self, accept: str) -> tuple[bytes, str]:
        """Render the metrics when it is this request's turn."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next_turn - loop.time())
            started = loop.time()
            try:
                return self._render(accept)
            finally:
                self._next_turn = loop.time() + REST * (loop.time() - started)


def _encode(
    http: h11.Connection,
    status: int,
    content: bytes,
    content_type: str = "text/plain; charset=utf-8",
    *,
    with_content: bool = True,
) -> bytes:
    headers = [("Content-Type", content_type), ("Content-Length", str(len(content))), ("Connection", "close")]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        headers.append(("Allow", "GET, HEAD"))
    sent = [http.send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=headers))]
    if with_content:
        sent.append(http.send(h11.Data(data=content)))
    return b"".join(each for each in sent if each)
