"""A small HTTP/1.1 client over asyncio streams and h11, for requests without a body to one host.

A general client takes a third of a second to load, longer than most commands run.
Invariant: a response is read whole, or its connection is closed. At most MAX_BODY_BYTES of one are read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import h11

from sbpair.azure.management_route import http_route
from sbpair.bounded_xml import MAX_BYTES
from sbpair.client_tls import client_context
from sbpair.http_tunnel import open_connection
from sbpair.model.reachability import CONNECT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.model.pair import Endpoint

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = MAX_BYTES

_TOO_LARGE = f"the response is larger than {MAX_BODY_BYTES} bytes"
_PORTS = {"http": 80, "https": 443}


class NotHttp(Exception):
    """The peer's response is not HTTP/1.1, or exceeds the limits."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """`headers` have lower-case names."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class _Connection:
    """A stream with the state of its HTTP conversation."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self._reader = reader
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def exchange(self, request: h11.Request) -> HttpResponse:
        """Return the whole response. Raises OSError; NotHttp."""
        head = await self.send(request)
        body = bytearray()
        while isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise NotHttp(_TOO_LARGE)
        return HttpResponse(head.status_code, head.reason.decode("latin-1"), _headers(head), bytes(body))

    async def send(self, request: h11.Request) -> h11.Response:
        """Return the head of the response. Raises OSError; NotHttp."""
        if self._reader.at_eof() or self.writer.is_closing():
            raise ConnectionResetError("the connection was closed before the request")
        self.writer.write((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        await self.writer.drain()
        while not isinstance(head := await self._next_event(), h11.Response):
            pass
        if int(_headers(head).get("content-length", 0)) > MAX_BODY_BYTES:
            raise NotHttp(_TOO_LARGE)
        return head

    async def _next_event(self) -> object:
        data: bytes | None = None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._reader.read(MAX_HEAD_BYTES)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            if data == b"":
                raise ConnectionResetError("the connection was closed before the end of the response") from error
            raise NotHttp(str(error)) from error
        return event

    def next_cycle(self) -> bool:
        """Return whether another request may follow, and prepare for it."""
        with suppress(h11.ProtocolError):
            self._http.start_next_cycle()
            return True
        return False

    def close(self) -> None:
        self.writer.transport.abort()


class HttpClient:
    """Connections to the management side of one namespace, which coroutines may share. Connects when first used.

    Each request raises OSError (ssl.SSLError among them), TimeoutError if nothing accepts the connection, NotHttp, and
    UsageError and MachineLacks for a CA file; for a proxy UsageError, Unreachable, NetworkRefused.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._route = http_route(endpoint)
        self._address = urlsplit(f"{self._route.scheme}://{self._route.netloc}")
        self._endpoint = endpoint
        self._idle: list[_Connection] = []
        self._closed = False

    @property
    def netloc(self) -> str:
        return self._route.netloc

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_details: object) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def request(self, method: str, target: str, headers: Mapping[str, str] | None = None) -> HttpResponse:
        """Send one request for a path with its query."""
        given = {"Host": self._route.authority, "User-Agent": "sbpair", "Accept": "*/*", **(headers or {})}
        request = h11.Request(method=method, target=target, headers=list(given.items()))
        # The peer may have closed a connection that is idle: only a GET can be sent again.
        if method == "GET" and self._idle:
            connection = self._idle.pop()
            with suppress(ConnectionError):
                return await self._exchange(connection, request)
        return await self._exchange(await self._connect(), request)

    async def _exchange(self, connection: _Connection, request: h11.Request) -> HttpResponse:
        reusable = False
        try:
            response = await connection.exchange(request)
            reusable = connection.next_cycle() and not self._closed
        finally:
            if reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return response

    async def _connect(self) -> _Connection:
        host, port = self._address.hostname or "", self._address.port or _PORTS[self._address.scheme]
        context = client_context(self._endpoint.ca_file) if self._address.scheme == "https" else None
        proxy, name = self._endpoint.web_proxy(), self._route.server_hostname
        async with asyncio.timeout(CONNECT_SECONDS):
            return _Connection(*await open_connection(host, port, proxy, context, name))


def _headers(head: h11.Response) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
