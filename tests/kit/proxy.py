"""An HTTP proxy with the method CONNECT, with and without authentication, and the ways in which proxies fail."""

import asyncio
import base64
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import quote

import pytest
from aiohttp import ClientSession

SDK_BEHIND_A_PROXY = [
    # Of the SDK's use of aiohttp.
    pytest.mark.filterwarnings("ignore:The 'proxy_auth' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*BasicAuth:DeprecationWarning"),
]
"""Marks of a module whose clients of Azure's SDK use a proxy."""

CLOSE_SECONDS = 2.0
USER, PASSWORD = "o'neill", "p@ss:w/rd#%-nobody-may-see"


@dataclass
class Proxy:
    """A running proxy. `answer` replaces its own answers: bytes to send, b"" to close at once, None for silence.

    `routes` are the ports on this machine of targets that only the proxy knows, as in a network without DNS.
    """

    login: bool = False
    answer: bytes | None = b"connect"
    targets: list[str] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    routes: dict[str, int] = field(default_factory=dict)
    port: int = 0
    scheme: str = "http"
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address as users configure it, with the credentials that it wants, if any."""
        login = f"{quote(USER, safe='')}:{quote(PASSWORD, safe='')}@" if self.login else ""
        return f"{self.scheme}://{login}{self.address}"

    @property
    def open_tunnels(self) -> int:
        return len(self._writers) // 2

    def break_tunnels(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await self._serve(reader, writer)
        finally:
            await _closed(writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.headers.append(head)
        method, target, _ = head.split(None, 2)
        self.targets.append(target)
        if self.answer is None:
            await reader.read()
        elif self.answer != b"connect":
            writer.write(self.answer)
        elif method != "CONNECT":
            writer.write(b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
        elif self.login and f"Proxy-Authorization: {expected()}\r\n" not in head:
            challenge = b'Proxy-Authenticate: Basic realm="proxy"\r\nContent-Length: 0\r\n\r\n'
            writer.write(b"HTTP/1.1 407 Whatever\r\n" + challenge)
        else:
            await self._tunnel(target, reader, writer)

    async def _tunnel(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = (
            f"127.0.0.1:{self.routes[target]}".rpartition(":") if target in self.routes else target.rpartition(":")
        )
        try:
            back, forth = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 kit\r\n\r\n")
        both = {writer, forth}
        self._writers |= both
        try:
            await asyncio.gather(_pipe(reader, forth), _pipe(back, writer))
        finally:
            self._writers -= both
            await _closed(forth)


def expected() -> str:
    """Return the value of the header with the right user and password."""
    return f"Basic {base64.b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"


@asynccontextmanager
async def running_proxy(
    *, login: bool = False, answer: bytes | None = b"connect", context: ssl.SSLContext | None = None
) -> AsyncIterator[Proxy]:
    """Run a proxy on a port of its own. `context` puts TLS in front of it."""
    proxy = Proxy(login, answer, scheme="https" if context else "http")
    tasks: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(proxy.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


@contextmanager
def closed_port() -> Iterator[int]:
    """Yield a port that refuses connections: it is bound, and nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    writer.transport.abort()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def detach_sessions() -> None:
    """Detach the sessions that the SDK leaves open when it cannot connect: each one warns when it is deleted."""
    for each in gc.get_objects():
        if isinstance(each, ClientSession):
            each.detach()
    gc.collect()
