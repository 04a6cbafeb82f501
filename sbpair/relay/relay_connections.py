"""Connections of the relay's clients: time, tokens, HTTP sessions, WebSockets frame by frame, and the errors of both.

Invariant: no error holds a token, a header or a URL. No redirect is followed: it would take a token elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from weakref import WeakKeyDictionary

import aiohttp
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidProxyStatus, InvalidStatus, ProxyError
from yarl import URL

from sbpair.errors import (
    EntityMissing,
    NotAuthenticated,
    NotAuthorized,
    SbpairError,
    ServiceRefused,
    Silent,
    Throttled,
    Unavailable,
    Unreachable,
)
from sbpair.http_tunnel import client_context, refused_by_proxy
from sbpair.model.connect_errors import CONNECT_SECONDS, DOCTOR_HINT, cause_of, key_hint, refused, unreachable
from sbpair.model.namespace_clock import NamespaceClock
from sbpair.model.pair import Identity, SasKey, SasToken
from sbpair.model.rotated_key import has_another
from sbpair.model.signature import Token, expired_at, signed_token
from sbpair.operating_system.shortages import shortage_of

if TYPE_CHECKING:
    from asyncio.trsock import TransportSocket
    from collections.abc import Mapping
    from types import SimpleNamespace

    from sbpair.model.proxy import Proxy
    from sbpair.relay.relay_endpoint import RelayEndpoint, TokenProvider

T = TypeVar("T")

MAX_CONTROL_MESSAGE: Final = 1024 * 1024
MAX_FRAGMENT: Final = 16 * 1024 * 1024
MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
PING_SECONDS: Final = 30.0
"""A control channel whose ping is not answered in this time has failed."""

CONTROL_CLOSE_SECONDS: Final = 10.0
FLUSH_SECONDS: Final = 60.0
"""Time for the end of an answer whose sender pauses: the service allows as much."""

TLS_CLOSE_SECONDS: Final = 1.0
"""Time for the end of TLS on connections that have been closed."""

MAX_TEXT: Final = 300

RESOLUTION: Final = 0.001
"""Seconds by which a timer may be early, for clocks that round."""

RELAY_SCOPE: Final = "https://relay.azure.net/.default"
RENEW_SECONDS: Final = 300.0
"""A token is replaced when it expires sooner."""

LOST: Final = (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError)
"""The errors of aiohttp for a connection that could not be opened, was lost, or was too slow."""

_quiet = logging.getLogger(f"{__name__}.frames")
# The library logs headers and payloads, and they could hold a token or a key.
_quiet.setLevel(logging.CRITICAL)

_handshake_reasons: ContextVar[list[str]] = ContextVar("handshake_reasons")
"""Collects the reason phrase of a handshake, which the error of aiohttp lacks."""

_transports: WeakKeyDictionary[aiohttp.ClientSession, WeakKeyDictionary[asyncio.Transport, TransportSocket]]
_transports = WeakKeyDictionary()
"""The connections with TLS of each session, with their sockets.

A session forgets those that it closed, but their sockets stay open until the peer has ended its TLS as well.
"""


class RelayClock:
    """The clock of this machine, in seconds since 1970. A subclass may tell another time, and make other timers.

    `now` never jumps, for limits of time; `latest` also follows the clock where that is set forward, for signatures.
    """

    def __init__(self) -> None:
        self._local = NamespaceClock()

    def now(self) -> float:
        return self._local.now()

    def latest(self) -> float:
        return max(self.now(), self._local.latest())

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(seconds, callback)


class TimeLimit:
    """A limit of the block that it encloses, which raises TimeoutError. `postpone` starts it again."""

    def __init__(self, clock: RelayClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self.postpone()
        self._timer = self._clock.call_later(self._seconds, self._on_timer)
        return self

    async def __aexit__(self, *details: object) -> None:
        self._timer.cancel()
        await self._limit.__aexit__(*details)  # type: ignore[arg-type]

    def postpone(self) -> None:
        """Let the time begin now."""
        self._due = self._clock.now() + self._seconds

    def _on_timer(self) -> None:
        left = self._due - self._clock.now()
        if left > RESOLUTION:
            self._timer = self._clock.call_later(left, self._on_timer)
        else:
            self._limit.reschedule(asyncio.get_running_loop().time())


async def sleep(clock: RelayClock, seconds: float, until: asyncio.Event | None = None) -> None:
    """Wait for some seconds of a clock, or until an event."""
    with suppress(TimeoutError):
        async with TimeLimit(clock, seconds):
            await (until or asyncio.Event()).wait()


class RelayTokens:
    """The tokens of an endpoint, each kept until it is to be replaced. Coroutines may share it."""

    def __init__(self, endpoint: RelayEndpoint, clock: RelayClock) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._stack = AsyncExitStack()
        self._tokens: Any = None
        self._token: Token | None = None
        self._key: SasKey | SasToken | None = None

    async def get(self) -> Token:
        """Return a token. Raises NotAuthenticated and NoToken from an identity provider; UsageError."""
        key = self._endpoint.present
        if not isinstance(key, SasKey | SasToken):
            return await self._request(key)
        kept = self._token if self._key == key else None
        if kept is None or kept.expires_at - self._clock.now() <= RENEW_SECONDS:
            kept = signed_token(key, self._endpoint.audience, self._clock.latest())
            self._key, self._token = key, kept
        return kept

    async def spend(self, use: Callable[[Token], Awaitable[T]], may_repeat: Callable[[], bool] = lambda: True) -> T:
        """Return the result of `use(token)`, which is called again if that is refused and there is another key."""
        token, key = await self.get(), self._key
        try:
            return await use(token)
        except NotAuthenticated:
            if key is None or not may_repeat() or not await has_another(self._endpoint.rotated, key):
                raise
        return await self.spend(use, may_repeat)

    async def close(self) -> None:
        await self._stack.aclose()

    async def _request(self, credential: Identity | TokenProvider) -> Token:
        if self._tokens is None:
            # It loads azure-identity, and most users have a key.
            from sbpair.azure.identity_tokens import IdentityTokens, shared

            clock = self._clock
            given = IdentityTokens(credential, now=clock.now, sleep=partial(sleep, clock))
            opening = shared(credential) if isinstance(credential, Identity) else given
            self._tokens = await self._stack.enter_async_context(opening)
        token = await self._tokens.get_token(RELAY_SCOPE)
        return Token(f"Bearer {token.token}", float(token.expires_on))


@dataclass
class SentMark:
    """How often the head of a request has begun to leave this machine.

    aiohttp repeats a request with an idempotent method once if its connection is lost.
    """

    times: int = 0


def http_options(endpoint: RelayEndpoint) -> dict[str, Any]:
    """Return the options of aiohttp's requests to an endpoint. Raises UsageError, MachineLacks."""
    options: dict[str, Any] = {"ssl": client_context(endpoint.ca_file)} if endpoint.tls else {}
    proxy = endpoint.web_proxy()
    if proxy is not None:
        options["proxy"] = proxy.url
        if proxy.authorization is not None:
            options["proxy_headers"] = {"Proxy-Authorization": proxy.authorization}
    return options


def open_session() -> aiohttp.ClientSession:
    """Open a session that sends and returns bytes, headers and statuses as they are, over any number of connections."""
    tracing = aiohttp.TraceConfig()
    tracing.on_request_headers_sent.append(_on_headers_sent)
    tracing.on_request_redirect.append(_on_redirect)
    tracing.on_request_end.append(_on_end)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        trace_configs=[tracing],
    )


async def close_session(session: aiohttp.ClientSession) -> None:
    """Close a session, and return when all its connections have ended, so that the event loop may end too."""
    await session.close()
    with suppress(TimeoutError):
        async with asyncio.timeout(TLS_CLOSE_SECONDS):
            while _still_open(session):  # noqa: ASYNC110 - asyncio has no event for it
                await asyncio.sleep(0.005)
    for transport in _still_open(session):
        transport.abort()
    await asyncio.sleep(0)  # the event loop closes aborted sockets in its next turn


def _still_open(session: aiohttp.ClientSession) -> list[asyncio.Transport]:
    return [transport for transport, socket in _transports.get(session, {}).items() if socket.fileno() != -1]


async def _on_headers_sent(_session: object, context: SimpleNamespace, _params: object) -> None:
    mark = context.trace_request_ctx
    if isinstance(mark, SentMark):
        mark.times += 1


async def _on_redirect(_session: object, _context: object, _params: object) -> None:
    raise aiohttp.ClientError("redirected")


async def _on_end(session: aiohttp.ClientSession, _context: object, params: aiohttp.TraceRequestEndParams) -> None:
    connection = params.response.connection
    transport = None if connection is None else connection.transport
    if transport is not None and transport.get_extra_info("ssl_object") is not None:
        _transports.setdefault(session, WeakKeyDictionary())[transport] = transport.get_extra_info("socket")
    reasons = _handshake_reasons.get(None)
    if reasons is not None:
        reasons.append(params.response.reason or "")


async def open_socket(session: aiohttp.ClientSession, url: str, **options: Any) -> aiohttp.ClientWebSocketResponse:
    """Open a WebSocket of whole messages. Raises WSServerHandshakeError with the reason phrase; the errors of LOST."""
    reasons: list[str] = []
    collecting = _handshake_reasons.set(reasons)
    try:
        socket: aiohttp.ClientWebSocketResponse = await session.ws_connect(URL(url, encoded=True), **options)
    except aiohttp.WSServerHandshakeError as error:
        error.message = reasons[-1] if reasons else ""
        raise
    else:
        return socket
    finally:
        _handshake_reasons.reset(collecting)


class _Connect(connect):
    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def open_frames(
    url: str,
    endpoint: RelayEndpoint,
    clock: RelayClock,
    headers: Mapping[str, str] | None = None,
    *,
    is_control: bool = False,
) -> ClientConnection:
    """Open a WebSocket frame by frame. Raises Unavailable, AccessError, EntityMissing, ServiceRefused; UsageError."""
    proxy = endpoint.web_proxy()
    options: dict[str, Any] = {"ssl": client_context(endpoint.ca_file)} if url.startswith("wss:") else {}
    try:
        async with TimeLimit(clock, CONNECT_SECONDS):
            return await _Connect(
                url,
                additional_headers=headers,
                user_agent_header="sbpair",
                compression=None,
                proxy=_proxy_url(proxy) if proxy else None,
                open_timeout=None,
                ping_interval=PING_SECONDS,
                ping_timeout=PING_SECONDS,
                close_timeout=CONTROL_CLOSE_SECONDS if is_control else FLUSH_SECONDS,
                max_size=MAX_CONTROL_MESSAGE if is_control else (None, MAX_FRAGMENT),
                logger=_quiet,
                **options,
            )
    except (OSError, TimeoutError, InvalidHandshake, ConnectionClosed, EOFError, ValueError) as error:
        raise _frames_error(error, endpoint, proxy) from None


async def send_message(connection: ClientConnection, text: str, body: bytes) -> None:
    """Send a message and the body that belongs to it as neighbours, in one write. Raises ConnectionClosed."""
    async with connection.send_context():
        protocol = connection.protocol
        protocol.send_text(text.encode())
        if body:
            protocol.send_binary(body)
        protocol.writes = [b"".join(protocol.writes)]


def _proxy_url(proxy: Proxy) -> str:
    url = URL(proxy.url)
    return str(url if proxy.user is None else url.with_user(proxy.user).with_password(proxy.password or ""))


def _frames_error(error: Exception, endpoint: RelayEndpoint, proxy: Proxy | None) -> SbpairError:
    if isinstance(error, InvalidStatus):
        return service_error(endpoint, error.response.status_code, error.response.reason_phrase)
    if isinstance(error, InvalidProxyStatus) and proxy is not None:
        what = f"the proxy {proxy.address} refuses connections to {endpoint.namespace}"
        return refused_by_proxy(what, error.response.status_code, proxy)
    if isinstance(error, ProxyError) and proxy is not None:
        return Unreachable(f"the proxy {proxy.address} opens no connection", hint=f"check the proxy{DOCTOR_HINT}")
    if isinstance(error, (OSError, TimeoutError)):
        return _not_reached(error, endpoint)
    if isinstance(error.__cause__, (EOFError, OSError)) or isinstance(error, (EOFError, ConnectionClosed)):
        return Unreachable(
            f"{endpoint}: the server at {endpoint.namespace} closed the connection during the handshake",
            hint=f"check the namespace's address and firewall{DOCTOR_HINT}",
        )
    return Unreachable(
        f"{endpoint}: the server at {endpoint.namespace} does not answer a WebSocket handshake as a relay does",
        hint=f"check the namespace's address{DOCTOR_HINT}",
    )


def _not_reached(error: Exception, endpoint: RelayEndpoint) -> Unavailable:
    if isinstance(error, TimeoutError):
        return unreachable(str(endpoint), endpoint.namespace, CONNECT_SECONDS)
    return unreachable(str(endpoint), endpoint.namespace, error)


def failure_of(error: Exception, endpoint: RelayEndpoint, *, was_sent: bool, seconds: float) -> SbpairError:
    """Return the error for a request or handshake of aiohttp that got no answer."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return refused_by_proxy(
            f"a proxy refuses connections to {endpoint.namespace}", error.status, endpoint.web_proxy()
        )
    if not was_sent and (lack := shortage_of(error, str(endpoint))) is not None:
        return lack
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return Unreachable(
            f"{endpoint}: the proxy cannot be reached: {cause_of(error)}", hint=f"check the proxy{DOCTOR_HINT}"
        )
    if not was_sent:
        return _not_reached(error, endpoint)
    if isinstance(error, TimeoutError):
        return Silent(f"{endpoint}: no answer within {seconds:g} s", hint="check whether the request was executed")
    if isinstance(error, aiohttp.ClientResponseError):
        return Unreachable(f"{endpoint}: the answer is not HTTP", hint=f"check the namespace's address{DOCTOR_HINT}")
    return Unreachable(
        f"{endpoint}: the connection was lost before the answer", hint="check whether the request was executed"
    )


def service_error(endpoint: RelayEndpoint, status: int, text: str) -> SbpairError:
    """Return the error for a refusal of the service itself."""
    said = one_line(text) or f"status {status}"
    what = f"{endpoint}: {said}"
    if status == 401:
        when = expired_at(endpoint.present, time.time())
        return refused(f"{what}: it expired at {when}" if when else what, said, key_hint(""))
    if status == 403 and "quota" not in said.lower() and "already has" not in said:
        return NotAuthorized(what, hint="use a key or a role with the claim: listeners need Listen, senders need Send")
    if status == 404 and "no listeners" not in said.lower() and "criteria" not in said.lower():
        hint = "create the hybrid connection, or check its path and namespace"
        return EntityMissing(what, entity=endpoint.path, hint=hint)
    if status == 404:
        return Unavailable(what, hint="start a listener, or check the running one")
    if status == 429:
        return Throttled(what, hint="retry more slowly")
    if status in (500, 502, 503, 504):
        return Unavailable(what, hint="retry in a minute")
    return ServiceRefused(what, condition=str(status), hint="check the request")


def one_line(text: str) -> str:
    """Return a text of the service for an error: one line, without control characters, bounded."""
    line = re.sub(r"[^ -~]+", " ", text).strip()
    return line if len(line) <= MAX_TEXT else f"{line[:MAX_TEXT]}…"
