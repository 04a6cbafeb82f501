"""The ports of an emulator: listening sockets, and the connections of each namespace."""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, TypeAlias

from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.protocol_sniffer import ProtocolSniffer, WireProtocol
from sbpair.errors import MachineLacks, PortInUse, UsageError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence

    from aiohttp import web

AmqpFactory: TypeAlias = Callable[[Namespace], asyncio.Protocol]

STOP_SECONDS: Final = 1.0
EVERY_ADDRESS: Final = ("0.0.0.0", "::", "")  # noqa: S104  # compared with, not listened on


class Port:
    """The port of one namespace: its listening socket and its connections."""

    def __init__(
        self,
        namespace: Namespace,
        listening: socket.socket,
        amqp: AmqpFactory,
        http: web.Server,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._namespace = namespace
        self._tls = tls
        self._socket = listening
        self._amqp = amqp
        self._http = http
        self._connections: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        make = functools.partial(ProtocolSniffer, self._make_outer_frontend, self._connections.add)
        self._server = await asyncio.get_running_loop().create_server(make, sock=self._socket)
        self._namespace.on_outage.add(self.break_connections)

    def _make_outer_frontend(self, protocol: WireProtocol) -> asyncio.Protocol | None:
        if protocol == "tls" and self._tls is not None:
            from sbpair.emulator.tls import TlsFrontend

            # The connection below was already added to `_connections`.
            return TlsFrontend(self._tls, ProtocolSniffer(self._make_frontend, lambda _: None))
        return self._make_frontend(protocol)

    def _make_frontend(self, protocol: WireProtocol) -> asyncio.Protocol | None:
        if protocol == "tls":
            return None
        # HTTP is served even while the namespace is down: the control API uses it.
        if protocol == "http":
            return self._http()
        return None if self._namespace.is_down else self._amqp(self._namespace)

    def break_connections(self) -> None:
        """Abort all connections but those with an HTTP request in progress: one of them may have begun the outage."""
        in_progress = [each.transport for each in self._http.connections if each.transport is not None]
        kept = {socket_id(transport) for transport in in_progress if not transport.is_closing()}
        for transport in list(self._connections):
            if socket_id(transport) not in kept:
                transport.abort()

    async def stop(self) -> None:
        self._namespace.on_outage.discard(self.break_connections)
        if self._server is not None:
            self._server.close()
        self.break_connections()
        # Closes idle connections, so that shutdown() waits only for requests in progress.
        self._http.pre_shutdown()
        await self._http.shutdown(STOP_SECONDS)
        for transport in list(self._connections):
            transport.abort()
        if self._server is not None:
            await self._server.wait_closed()


def socket_id(transport: asyncio.BaseTransport) -> int:
    """Identify the socket below a transport, also through TLS."""
    return id(transport.get_extra_info("socket"))


def bind_ports(host: str, ports: Sequence[int]) -> list[socket.socket]:
    """Return a listening socket for each port. On an error, close those already open."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(bind_port(host, port)) for port in ports]
        stack.pop_all()
    return sockets


def bind_port(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"cannot listen on '{host}'", hint="use an address of this machine") from error
    listening = socket.socket(family, kind, protocol)
    try:
        # Lets a restarted emulator reuse the port at once.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        raise bind_error(host, port, error) from error
    listening.setblocking(False)
    return listening


def bind_error(host: str, port: int, error: OSError) -> MachineLacks:
    if error.errno == errno.EADDRINUSE:
        return PortInUse(f"port {port} on {host} is in use", hint="stop what uses it, or choose another port; 0 is any")
    return MachineLacks(
        f"port {port} on {host} cannot be opened: {error.strerror}", hint="choose a port above 1023 and a local address"
    )


def local_authority(host: str, port: int) -> str:
    """Return the `host:port` by which a client on this machine reaches a port."""
    if host in EVERY_ADDRESS:
        host = "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
