"""HTTP to the management side of a namespace: its route, its time limits, a small client, and a check of its health.

The client sends requests without a body to one host, over asyncio streams and h11: a general one takes a third of a
second to load, longer than most commands run. Azure's SDKs take the same route, within the same limits, and their
logs lose a proxy's credentials.
Invariant: a response is read whole, or its connection is closed. At most MAX_BODY_BYTES of one are read.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Self
from urllib.parse import urlsplit, urlunsplit

import h11

from sbpair.azure.management_errors import NotHttp
from sbpair.bounded_xml import MAX_BYTES
from sbpair.errors import Unreachable
from sbpair.http_tunnel import client_context, open_connection
from sbpair.model.connect_errors import (
    CONNECT_SECONDS,
    DOCTOR_HINT,
    FIRST_ANSWER_SECONDS,
    REACH_HINT,
    REPORT_SECONDS,
    FirstAnswerTimeout,
    unreachable,
)
from sbpair.model.namespace_clock import DATE_STEP_SECONDS
from sbpair.model.pair import Endpoint, authority_of, is_loopback

log = logging.getLogger(__name__)

CALL_SECONDS = 60.0

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = MAX_BYTES

_TOO_LARGE = f"the response is larger than {MAX_BODY_BYTES} bytes"
_PORTS = {"http": 80, "https": 443}


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
        reusable, asked = False, time.monotonic()
        try:
            response = await connection.exchange(request)
            self._endpoint.clock.observe_date(response.headers.get("date"), time.monotonic() - asked)
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


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """The scheme and address to connect to, and the host of the certificate and the Host header."""

    scheme: str
    netloc: str
    authority: str

    @property
    def server_hostname(self) -> str | None:
        return urlsplit(f"//{self.authority}").hostname if self.scheme == "https" else None

    def apply(self, url: str) -> str:
        """Return `url` with this route's scheme and address; the path keeps its escapes."""
        return urlunsplit(urlsplit(url)._replace(scheme=self.scheme, netloc=self.netloc))


def http_route(endpoint: Endpoint) -> HttpRoute:
    """Return the route to a namespace: the HTTPS port beside AMQPS, else the one port that serves both."""
    port = endpoint.port if endpoint.shares_port else None
    scheme = "https" if endpoint.tls else "http"
    return HttpRoute(scheme, authority_of(endpoint.host, port), endpoint.authority)


def is_local(endpoint: Endpoint) -> bool:
    """Return whether the endpoint is an emulator, which is its own Resource Manager, too."""
    return endpoint.emulator or is_loopback(endpoint.host)


class AnswerLimit:
    """The limit of each request to `address`: `call_seconds` after the first answer, FIRST_ANSWER_SECONDS before."""

    def __init__(self, address: str, call_seconds: float) -> None:
        self._address = address
        self._call_seconds = call_seconds
        self._asked = self._answered = False

    @asynccontextmanager
    async def one_request(self) -> AsyncIterator[None]:
        """Limit the block. Raises FirstAnswerTimeout before the first answer, TimeoutError after it."""
        if self._answered:
            async with asyncio.timeout(self._call_seconds):
                yield
            return
        seconds = min(self._call_seconds, FIRST_ANSWER_SECONDS)
        first, self._asked = not self._asked, True
        limit = asyncio.timeout(seconds)
        try:
            with silence_reported(self._address, seconds) if first else nullcontext():
                async with limit:
                    yield
        except TimeoutError as error:
            raise FirstAnswerTimeout(self._address, seconds if limit.expired() else CONNECT_SECONDS) from error
        self._answered = True


@contextmanager
def silence_reported(address: str, seconds: float) -> Iterator[None]:
    """Log a warning if the block still waits for an answer after REPORT_SECONDS. `seconds` is its time limit."""
    warning = "no answer from %s for %g s; waiting %g s at most"
    timer = asyncio.get_running_loop().call_later(
        REPORT_SECONDS, log.warning, warning, address, REPORT_SECONDS, seconds
    )
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True)
class HealthResponse:
    """An HTTP status, and the seconds by which the namespace's clock is ahead, with an error of `margin_seconds`.

    `ahead_seconds` is None for a response without a date.
    """

    status: int
    ahead_seconds: float | None
    margin_seconds: float


async def check_health(endpoint: Endpoint, *, seconds: float) -> HealthResponse:
    """Request the namespace's properties without a token. Raises as HttpClient does, but Unavailable for an OSError."""
    side = f"the management side of {endpoint.name}"
    async with HttpClient(endpoint) as http:
        try:
            before = time.time()
            with silence_reported(http.netloc, seconds):
                async with asyncio.timeout(seconds):
                    answer = await http.request("GET", "/$namespaceinfo?api-version=2021-05")
            after = time.time()
        except NotHttp as error:
            raise Unreachable(
                f"the server at {http.netloc} for {endpoint.name} does not speak HTTP ({error})",
                hint="check the address and the proxy",
            ) from error
        except TimeoutError:
            raise unreachable(side, http.netloc, seconds) from None
        except OSError as error:
            raised = unreachable(side, http.netloc, error)
            if raised.hint == REACH_HINT and endpoint.tls:
                raised.hint = f"let HTTPS out to {http.netloc}, or set HTTPS_PROXY to your proxy{DOCTOR_HINT}"
            raise raised from error
    return _health(answer.status, answer.headers.get("date"), before, after)


def _health(status: int, date: str | None, before: float, after: float) -> HealthResponse:
    margin = (after - before + DATE_STEP_SECONDS) / 2
    try:
        at = parsedate_to_datetime(date or "").timestamp()
    except (ValueError, TypeError):
        return HealthResponse(status, None, margin)
    return HealthResponse(status, at + DATE_STEP_SECONDS / 2 - (before + after) / 2, margin)


_CREDENTIALS = re.compile(r"(\bBasic )(?!realm)[\w+/=-]+|(\bBasicAuth\().*, encoding='[^']*'(?=\))", re.DOTALL)


class _Redaction(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if "Basic" in text:
            record.msg, record.args = _CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}***", text), ()
        return True


_redaction = _Redaction()


def redact_proxy_credentials() -> None:
    """Remove a proxy's credentials from the records of each logger of Azure's packages.

    The SDK logs the exceptions of aiohttp in full, with the headers of the request to the proxy. Records do not pass
    the filters of parent loggers.
    """
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith("azure."):
            logging.getLogger(name).addFilter(_redaction)
