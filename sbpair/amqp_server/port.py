"""A port: a listening socket, and the protocols of its connections.

The first bytes of a connection select AMQP, WebSocket, HTTP or TLS on one shared port. A peer that sends nothing, sends
too slowly or sends anything else loses its own connection only.
"""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from sbpair.amqp_server.admission import HEAD_SECONDS, TOO_SLOW, AcceptedSocket, Admission

if TYPE_CHECKING:
    from sbpair.amqp_server.host_names import HostNames

MakeProtocol: TypeAlias = Callable[[Callable[[], None]], asyncio.Protocol | None]
WireProtocol: TypeAlias = Literal["amqp", "http", "tls", "websocket"]

BATCH: Final = 64
"""Connections that are accepted in one turn of the event loop."""

_METHODS: Final = (
    "ACL BASELINE-CONTROL BIND CHECKIN COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL "
    "MKREDIRECTREF MKWORKSPACE MOVE NOTIFY OPTIONS ORDERPATCH PATCH POST PROPFIND PURGE PUT QUERY REBIND REPORT SEARCH "
    "SUBSCRIBE TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UNSUBSCRIBE UPDATE VERSION-CONTROL "
)
"""The registered methods of HTTP but CONNECT: the relay passes all on."""

_HTTP_OPENINGS: Final = tuple(f"{method} "[:4].encode() for method in _METHODS.split())
OPENINGS: Final[dict[bytes, WireProtocol]] = {b"AMQP": "amqp", **dict.fromkeys(_HTTP_OPENINGS, "http")}
_HTTP_BEGINNINGS: Final = tuple({opening[:1] for opening in _HTTP_OPENINGS} - {b"A"})
"""Of one byte; that of AMQP can also be the first one of a method."""

WEBSOCKET_PATHS: Final = (b"/$servicebus/websocket", b"/%24servicebus/websocket")
_SCHEMES: Final = (b"http://", b"https://", b"ws://", b"wss://")
_ORIGIN: Final = re.compile(rb"(?:http|ws)s?://[^/?# ]{1,255}")
"""The beginning of a request target in the absolute form, which Java's clients send (RFC 9112, 3.2.2)."""

TLS_HANDSHAKE: Final = b"\x16\x03"


class Port:
    """A listening socket and its connections. `name` is for logs.

    `make_amqp` and `make_http` return the protocol of a connection, or None to refuse it. Each gets a function to
    call when the peer has opened the connection. Without `make_http`, HTTP is refused; without `tls`, TLS, whose
    context it returns for each connection.
    `admit` returns whether a connection that was just accepted may stay.
    """

    def __init__(
        self,
        name: str,
        listening: socket.socket,
        make_amqp: MakeProtocol,
        host_names: HostNames,
        admission: Admission,
        *,
        make_http: MakeProtocol = lambda _: None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        admit: Callable[[AcceptedSocket], bool] = lambda _: True,
    ) -> None:
        self._name = name
        self._socket = listening
        self._make_amqp, self._make_http = make_amqp, make_http
        self._host_names = host_names
        self._admission = admission
        self._tls = tls
        self._admit = admit
        self._connections: set[AcceptedSocket] = set()
        self._closed = asyncio.Event()
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._serving = asyncio.create_task(self._serve(), name=f"accept connections of {self._name}")
        # What was scheduled before, such as transfers of restored messages, is done before a client comes.
        await asyncio.sleep(0)

    async def _serve(self) -> None:
        async with asyncio.TaskGroup() as connecting:
            # Cancelled to stop: what was accepted is connected nevertheless, so that it can be aborted.
            with suppress(asyncio.CancelledError):
                for number in count(1):
                    connection = await self._admission.accept(self._socket, self._on_close)
                    if self._admit(connection):
                        self._connections.add(connection)
                        connecting.create_task(self._connect(connection))
                    else:
                        connection.close()
                    if number % BATCH == 0:
                        await asyncio.sleep(0)

    async def _connect(self, connection: AcceptedSocket) -> None:
        make = partial(ProtocolSniffer, partial(self._make_frontend, connection), connection.attach)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(make, connection)
        except OSError:
            connection.close()

    def _on_close(self, connection: AcceptedSocket) -> None:
        self._admission.opened(connection)
        self._connections.discard(connection)
        self._closed.set()

    def _make_frontend(
        self, connection: AcceptedSocket, protocol: WireProtocol, *, within_tls: bool = False
    ) -> asyncio.BaseProtocol | None:
        self._admission.begun(connection)
        on_opened = partial(self._admission.opened, connection)
        if protocol == "tls":
            if self._tls is None or within_tls:
                return None
            from sbpair.amqp_server.tls import TlsFrontend

            # The transport below is already attached.
            make = partial(self._make_frontend, connection, within_tls=True)
            return TlsFrontend(self._tls(), ProtocolSniffer(make, lambda _: None))
        if protocol == "http":
            return self._make_http(on_opened)
        amqp = self._make_amqp(on_opened)
        if amqp is None or protocol == "amqp":
            return amqp
        from sbpair.amqp_server.websocket_frontend import WebSocketFrontend

        return WebSocketFrontend(amqp, self._host_names.refusal_of)

    def abort_connections(self, but: Iterable[asyncio.BaseTransport] = ()) -> None:
        """Abort all connections but those of these transports."""
        kept = {socket_id(transport) for transport in but}
        for connection in list(self._connections):
            if connection.transport is None or socket_id(connection.transport) not in kept:
                connection.abort()

    async def stop_accepting(self) -> None:
        """Close the listening socket. Connections stay."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait([self._serving])
        self._socket.close()

    async def stop(self) -> None:
        """Close the listening socket, and abort all connections."""
        await self.stop_accepting()
        while self._connections:
            self.abort_connections()
            self._closed.clear()
            await self._closed.wait()


def is_undecided(first: bytes) -> bool:
    """Return whether more bytes could still change the protocol that `first` selects."""
    if len(first) < 4:
        return TLS_HANDSHAKE.startswith(first[:2]) or any(opening.startswith(first) for opening in OPENINGS)
    path = _path_of(first)
    expected = _SCHEMES + WEBSOCKET_PATHS if path == first[4:].lower() else WEBSOCKET_PATHS
    return first.startswith(b"GET ") and any(len(path) < len(each) and each.startswith(path) for each in expected)


def _path_of(first: bytes) -> bytes:
    """Return the path of a request target as far as it came, in lower case."""
    target = first[4:].lower()
    origin = _ORIGIN.match(target)
    return target[origin.end() :] if origin else target


def protocol_of(first: bytes) -> WireProtocol | None:
    if first.startswith(TLS_HANDSHAKE):
        return "tls"
    if first.startswith(b"GET ") and _path_of(first).startswith(WEBSOCKET_PATHS):
        return "websocket"
    return OPENINGS.get(first[:4])


class ProtocolSniffer(asyncio.Protocol):
    """Detector of a connection's protocol, which then passes the transport and the bytes read to its frontend.

    `make_frontend` returns the frontend, or None to refuse.
    """

    def __init__(
        self,
        make_frontend: Callable[[WireProtocol], asyncio.BaseProtocol | None],
        on_connected: Callable[[asyncio.Transport], None],
    ) -> None:
        self._make_frontend = make_frontend
        self._on_connected = on_connected
        self._seen = b""
        self._limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_connected(self._transport)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if is_undecided(self._seen):
            if self._limit is None and self._seen.startswith(_HTTP_BEGINNINGS):
                self._limit = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._refuse)
            return
        self._end_limit()
        transport, protocol = self._transport, protocol_of(self._seen)
        frontend = None if protocol is None else self._make_frontend(protocol)
        if frontend is None or transport.is_closing():
            transport.abort()
            return
        transport.set_protocol(frontend)
        frontend.connection_made(transport)
        cast("asyncio.Protocol", frontend).data_received(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._end_limit()

    def _refuse(self) -> None:
        self._transport.write(TOO_SLOW)
        self._transport.close()

    def _end_limit(self) -> None:
        if self._limit is not None:
            self._limit.cancel()


def socket_id(transport: asyncio.BaseTransport) -> int:
    """Identify the socket below a transport, also through TLS."""
    return id(transport.get_extra_info("socket"))
