"""The HTTP port of a run: small pages, for few readers such as a scraper of metrics or a health probe.

Invariant: a run never waits for a reader. A connection has MAX_SECONDS for all; at most MAX_CONNECTIONS are open, and
further ones wait in the kernel. Rendering takes at most one part in REST of the time, however many scrapes there are.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple, TypeAlias, TypeVar

import h11

from sbpair.errors import MachineLacks, PortInUse, UsageError
from sbpair.operating_system import rebind_at_once

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 16
MAX_WAITING: Final = 128
MAX_SECONDS: Final = 10.0
REST: Final = 50
MAX_REQUEST_BYTES: Final = 16_384
ACCEPT_AGAIN_SECONDS: Final = 1.0
"""Time between attempts to accept a connection without a free file descriptor."""

Result = TypeVar("Result")


class Page(NamedTuple):
    """The answer to a request for a path."""

    content: bytes
    content_type: str
    status: int = HTTPStatus.OK


Render: TypeAlias = Callable[[str], Page]
"""Returns the page for a request's Accept header."""


def listen(host: str, port: int, port_option: str, address_option: str) -> socket.socket:
    """Return a socket that listens. The options name host and port in errors.

    Raises UsageError for an unknown address, and MachineLacks if it is not free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _no_address(host, address_option) from error
    listening = socket.socket(family, kind, protocol)
    try:
        rebind_at_once(listening)
        listening.bind(address)
        listening.listen(MAX_WAITING)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            hint = "stop the process that uses it, or choose another port; 0 is any free one"
            raise PortInUse(f"{port_option}: port {port} on {host} is in use", hint=hint) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host, address_option) from error
        hint = "choose a port above 1023"
        raise MachineLacks(f"{port_option}: port {port} on {host}: {error.strerror}", hint=hint) from error
    listening.setblocking(False)
    return listening


def _no_address(host: str, option: str) -> UsageError:
    hint = "leave it out to serve this machine only; 0.0.0.0 serves others, too"
    return UsageError(f"{option}: {host!r} is not an address of this machine", hint=hint)


def url_of(listening: socket.socket, path: str) -> str:
    """Return the address of a page on a socket that listens."""
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"


class HttpPort:
    """Answers requests over a socket that listens, with the pages by their paths. `title` names them in answers."""

    def __init__(self, listening: socket.socket, title: str, pages: Mapping[str, Render]) -> None:
        self._listening = listening
        self._title = title
        self._pages = pages
        self._turn = asyncio.Lock()
        self._next_turn = 0.0

    async def serve_during(self, run: Awaitable[Result]) -> Result:
        """Run to the end, and answer requests until then."""
        serving = asyncio.create_task(self.serve(), name=f"serve {self._title}")
        try:
            return await run
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving

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
                    log.info("no connection to the %s: %s", self._title, error)
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
        render = self._pages.get(request.target.partition(b"?")[0].decode("latin-1"))
        if render is None:
            return _encode(http, 404, f"the {self._title} are at {' and '.join(self._pages)}\n".encode())
        accept = b",".join(value for name, value in request.headers if name == b"accept").decode("latin-1")
        try:
            page = await self._rendered(render, accept)
        except Exception:
            log.exception("the %s could not be rendered", self._title)
            return _encode(http, 500, f"the {self._title} could not be rendered\n".encode())
        return _encode(http, page.status, page.content, page.content_type, with_content=request.method == b"GET")

    async def _rendered(self, render: Render, accept: str) -> Page:
        """Render a page when it is this request's turn."""
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._next_turn - loop.time())
            started = loop.time()
            try:
                return render(accept)
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
