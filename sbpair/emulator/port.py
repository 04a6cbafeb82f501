"""The ports of an emulator: listening sockets, and the connections of each namespace.

The first bytes of a connection select AMQP, WebSocket, HTTP or TLS on one shared port. A peer that sends nothing, sends
too slowly or sends anything else loses its own connection only.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

if TYPE_CHECKING:
    from aiohttp import web

WireProtocol: TypeAlias = Literal["amqp", "http", "tls", "websocket"]

STOP_SECONDS: Final = 1.0
SILENCE_LIMIT_SECONDS: Final = 30.0
_METHODS: Final = (
    "ACL BASELINE-CONTROL BIND CHECKIN COPY DELETE GET HEAD LABEL LINK LOCK MERGE MKACTIVITY MKCALENDAR MKCOL "
    "MKREDIRECTREF MKWORKSPACE MOVE NOTIFY OPTIONS ORDERPATCH PATCH POST PROPFIND PURGE PUT QUERY REBIND REPORT SEARCH "
    "SUBSCRIBE TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UNSUBSCRIBE UPDATE VERSION-CONTROL "
)
"""The registered methods of HTTP but CONNECT: the relay passes all on."""

_HTTP_OPENINGS: Final = tuple(f"{method} "[:4].encode() for method in _METHODS.split())
OPENINGS: Final[dict[bytes, WireProtocol]] = {b"AMQP": "amqp", **dict.fromkeys(_HTTP_OPENINGS, "http")}
WEBSOCKET_PATHS: Final = (b"/$servicebus/websocket", b"/%24servicebus/websocket")
TLS_HANDSHAKE: Final = b"\x16\x03"
EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not listened on


class Port:
    """The port of one namespace: its listening socket and its connections.

    `http` makes the server of its HTTP connections when the first one comes: aiohttp takes long to load.
    """

    def __init__(
        self,
        namespace: Namespace,
        listening: socket.socket,
        http: Callable[[], web.Server],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._namespace = namespace
        self._tls = tls
        self._socket = listening
        self._make_http = http
        self._http: web.Server | None = None
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        make = partial(ProtocolSniffer, self._make_frontend, self._connections.add)
        self._server = await asyncio.get_running_loop().create_server(make, sock=self._socket)
        self._namespace.on_outage.add(self.break_connections)

    def _make_frontend(self, protocol: WireProtocol, *, within_tls: bool = False) -> asyncio.BaseProtocol | None:
        if protocol == "tls":
            if self._tls is None or within_tls:
                return None
            from sbpair.emulator.tls import TlsFrontend

            # The connection below was already added to `_connections`.
            inside = ProtocolSniffer(partial(self._make_frontend, within_tls=True), lambda _: None)
            return TlsFrontend(self._tls, inside)
        # HTTP is served even while the namespace is down: the control API uses it.
        if protocol == "http":
            self._http = self._http or self._make_http()
            return self._http()
        if self._namespace.is_down:
            return None
        make_amqp = partial(AmqpConnection, self._namespace)
        if protocol == "websocket":
            from sbpair.emulator.frontends.amqp.websocket_frontend import WebSocketFrontend

            return WebSocketFrontend(make_amqp)
        return make_amqp()

    def break_connections(self) -> None:
        """Abort all connections but those with an HTTP request in progress: one of them may have begun the outage."""
        requests = self._http.connections if self._http else []
        in_progress = [each.transport for each in requests if each.transport is not None]
        kept = {socket_id(transport) for transport in in_progress if not transport.is_closing()}
        for transport in list(self._connections):
            if socket_id(transport) not in kept:
                transport.abort()

    async def stop(self) -> None:
        self._namespace.on_outage.discard(self.break_connections)
        if self._server is not None:
            self._server.close()
        self.break_connections()
        # Senders that wait for a listener would wait until the time to stop is over.
        self._namespace.hybrid_connections.break_off()
        if self._http is not None:
            # Closes idle connections, so that shutdown() waits only for requests in progress.
            self._http.pre_shutdown()
            await self._http.shutdown(STOP_SECONDS)
        for transport in list(self._connections):
            transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


def is_undecided(first: bytes) -> bool:
    """Return whether more bytes could still change the protocol that `first` selects."""
    if len(first) < 4:
        return TLS_HANDSHAKE.startswith(first[:2]) or any(opening.startswith(first) for opening in OPENINGS)
    method, path = first[:4], first[4:].lower()
    return method == b"GET " and any(len(path) < len(each) and each.startswith(path) for each in WEBSOCKET_PATHS)


def protocol_of(first: bytes) -> WireProtocol | None:
    if first.startswith(TLS_HANDSHAKE):
        return "tls"
    if first.startswith(b"GET ") and first[4:40].lower().startswith(WEBSOCKET_PATHS):
        return "websocket"
    return OPENINGS.get(first[:4])


class ProtocolSniffer(asyncio.Protocol):
    """Detector of a connection's protocol, which then passes the transport and the bytes read to its frontend.

    `make_frontend` returns the frontend, or None to refuse: the namespace is down, or TLS is not enabled.
    """

    def __init__(
        self,
        make_frontend: Callable[[WireProtocol], asyncio.BaseProtocol | None],
        on_connected: Callable[[asyncio.Transport], None],
    ) -> None:
        self._make_frontend = make_frontend
        self._on_connected = on_connected
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._on_connected(self._transport)
        self._limit = asyncio.get_running_loop().call_later(SILENCE_LIMIT_SECONDS, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if is_undecided(self._seen):
            return
        self._limit.cancel()
        transport, protocol = self._transport, protocol_of(self._seen)
        frontend = None if protocol is None else self._make_frontend(protocol)
        if frontend is None or transport.is_closing():
            transport.abort()
            return
        transport.set_protocol(frontend)
        frontend.connection_made(transport)
        cast("asyncio.Protocol", frontend).data_received(self._seen)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._limit.cancel()


def socket_id(transport: asyncio.BaseTransport) -> int:
    """Identify the socket below a transport, also through TLS."""
    return id(transport.get_extra_info("socket"))


def local_authority(host: str, port: int) -> str:
    """Return the `host:port` by which a client on this machine reaches a port."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
