"""A small HTTP/1.1 client over asyncio streams, for requests without a body to one host.

A general client takes a third of a second to load, longer than most commands run.
Invariant: a response is read whole, or its connection is closed. At most MAX_BODY_BYTES of one are read.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import SplitResult, unquote, urlsplit

from sbpair.azure.management_route import http_route, ssl_context
from sbpair.model.reachability import CONNECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from sbpair.model.pair import Endpoint

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
"""A page of a hundred descriptions has a third of a megabyte."""

_PORTS = {"http": 80, "https": 443}
_STATUS_LINE = re.compile(r"HTTP/1\.(?P<minor>[01]) (?P<status>[1-5]\d\d)(?: (?P<reason>.*))?", re.ASCII)
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\r?\n")
_LENGTH = re.compile(r"\d{1,12}", re.ASCII)


class NotHttp(Exception):
    """The peer's response is not HTTP/1.1, or exceeds the limits."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """`headers` have lower-case names."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def usable(self) -> bool:
        return not (self.reader.at_eof() or self.writer.is_closing())

    async def exchange(self, request: bytes) -> tuple[HttpResponse, bool]:
        """Return the response, and whether another may follow. Raises OSError; NotHttp."""
        with _translated():
            self.writer.write(request)
            await self.writer.drain()
            return await _read_response(self.reader)

    async def open_tunnel(self, request: bytes) -> int:
        """Return the status of a proxy's answer. Raises OSError; NotHttp."""
        with _translated():
            self.writer.write(request)
            return (await _read_head(self.reader))[0]

    def close(self) -> None:
        self.writer.transport.abort()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except asyncio.IncompleteReadError as error:
        raise ConnectionResetError("the connection was closed before the end of the response") from error
    except (asyncio.LimitOverrunError, ValueError) as error:
        raise NotHttp(str(error)) from error


class HttpClient:
    """Connections to the management side of one namespace, which coroutines may share. Connects when first used.

    Each request raises OSError (ssl.SSLError among them), TimeoutError if nothing accepts the connection, NotHttp, and
    MachineLacks for an unreadable CA file. A proxy of the environment is used with TLS: it leads out of this network,
    not to an emulator on this machine.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._route = http_route(endpoint)
        self._address = urlsplit(f"{self._route.scheme}://{self._route.netloc}")
        self._ca_file = endpoint.ca_file
        self._idle: list[_Connection] = []

    @property
    def netloc(self) -> str:
        return self._route.netloc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        while self._idle:
            self._idle.pop().close()

    async def request(self, method: str, target: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Send one request for a path with its query."""
        given = {"Host": self._route.authority, "User-Agent": "sbpair", "Accept": "*/*", **(headers or {})}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        request = "\r\n".join((*lines, "", "")).encode("latin-1")
        # The peer may have closed a connection that is idle: only a GET can be sent again.
        if method == "GET" and self._idle and (connection := self._idle.pop()).usable:
            with suppress(ConnectionError):
                return await self._exchange(connection, request)
        return await self._exchange(await self._connect(), request)

    async def _exchange(self, connection: _Connection, request: bytes) -> HttpResponse:
        reusable = False
        try:
            response, reusable = await connection.exchange(request)
        finally:
            if reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return response

    async def _connect(self) -> _Connection:
        host, port = self._address.hostname or "", self._address.port or _PORTS[self._address.scheme]
        async with asyncio.timeout(CONNECT_SECONDS):
            if self._address.scheme == "http":
                return _Connection(*await asyncio.open_connection(host, port, limit=MAX_HEAD_BYTES))
            context = ssl_context(self._ca_file)
            name = self._route.server_hostname
            proxy = _proxy_of(host)
            if proxy is None:
                return _Connection(
                    *await asyncio.open_connection(host, port, ssl=context, server_hostname=name, limit=MAX_HEAD_BYTES)
                )
            connection = await _tunnel(proxy, f"{host}:{port}")
            try:
                await connection.writer.start_tls(context, server_hostname=name)
            except BaseException:
                connection.close()
                raise
            return connection


async def _tunnel(proxy: SplitResult, address: str) -> _Connection:
    """Connect through a proxy. Raises OSError; NotHttp."""
    secured = ssl_context(None) if proxy.scheme == "https" else None
    port = proxy.port or _PORTS.get(proxy.scheme, 80)
    connection = _Connection(*await asyncio.open_connection(proxy.hostname, port, ssl=secured, limit=MAX_HEAD_BYTES))
    lines = [f"CONNECT {address} HTTP/1.1", f"Host: {address}"]
    if proxy.username is not None:
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        lines.append(f"Proxy-Authorization: Basic {base64.b64encode(user.encode()).decode()}")
    status = 0
    try:
        status = await connection.open_tunnel("\r\n".join((*lines, "", "")).encode("latin-1"))
    finally:
        if status != 200:
            connection.close()
    if status != 200:
        raise ConnectionRefusedError(f"the proxy {proxy.hostname} answered {status}")
    return connection


def _proxy_of(host: str) -> SplitResult | None:
    """Return the proxy for HTTPS to `host`, from the environment or, on Windows and macOS, the system's settings."""
    if sys.platform == "linux" and not any(name.lower() == "https_proxy" for name in os.environ):
        return None
    # It takes as long to load as all of this.
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get("https", "")
    if not address or proxy_bypass(host):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


async def _read_response(reader: asyncio.StreamReader) -> tuple[HttpResponse, bool]:
    status = 100
    while status < 200:
        status, minor, reason, headers = await _read_head(reader)
    connection = headers.get("connection", "").lower()
    reusable = "close" not in connection and (minor == "1" or "keep-alive" in connection)
    if status in (204, 304):
        body = b""
    elif "chunked" in headers.get("transfer-encoding", "").lower():
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(_length(headers["content-length"]))
    else:
        body, reusable = await _read_to_end(reader), False
    return HttpResponse(status, reason, headers, body), reusable


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, str, str, dict[str, str]]:
    """Return the status, HTTP's minor version, the reason and the headers."""
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.rstrip("\r\n").split("\r\n")
    found = _STATUS_LINE.fullmatch(first)
    if found is None:
        raise NotHttp("the first line is not a status line")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return int(found["status"]), found["minor"], found["reason"] or "", headers


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while True:
        line = _CHUNK_LINE.fullmatch(await reader.readuntil(b"\n"))
        if line is None:
            raise NotHttp("a chunk has no length")
        size = int(line[1], 16)
        if size == 0:
            break
        _check_size(len(body) + size)
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    while (await reader.readuntil(b"\n")).strip():
        pass
    return bytes(body)


async def _read_to_end(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while part := await reader.read(MAX_HEAD_BYTES):
        body += part
        _check_size(len(body))
    return bytes(body)


def _length(text: str) -> int:
    if _LENGTH.fullmatch(text) is None:
        raise NotHttp("the length is not a number")
    _check_size(int(text))
    return int(text)


def _check_size(size: int) -> None:
    if size > MAX_BODY_BYTES:
        raise NotHttp(f"the response is larger than {MAX_BODY_BYTES} bytes")
