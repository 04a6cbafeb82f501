"""The port of one namespace. It serves AMQP while the namespace is up, and HTTP always."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.amqp_server.port import Port
from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

if TYPE_CHECKING:
    import socket
    import ssl

    from sbpair.amqp_server.admission import Admission
    from sbpair.amqp_server.host_names import HostNames
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.frontends.http.http_connection import HttpServer

STOP_SECONDS: Final = 1.0


class NamespacePort:
    """The port of one namespace.

    `make_server` makes the server of its HTTP connections when the first one comes: aiohttp takes long to load.
    """

    def __init__(
        self,
        namespace: Namespace,
        listening: socket.socket,
        make_server: Callable[[], HttpServer],
        host_names: HostNames,
        admission: Admission,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._namespace = namespace
        self._make_server = make_server
        self._http: HttpServer | None = None
        self._port = Port(
            namespace.name,
            listening,
            self._make_amqp,
            host_names,
            admission,
            make_http=self._make_http,
            tls=None if tls is None else lambda: tls,
        )

    async def start(self) -> None:
        self._namespace.on_outage.add(self.break_connections)
        await self._port.start()

    def _make_amqp(self, on_opened: Callable[[], None]) -> asyncio.Protocol | None:
        return None if self._namespace.is_down else AmqpConnection(self._namespace, on_opened)

    def _make_http(self, on_opened: Callable[[], None]) -> asyncio.Protocol:
        # HTTP is served even while the namespace is down: the control API uses it.
        self._http = self._http or self._make_server()
        return self._http(on_opened)

    def break_connections(self) -> None:
        """Abort all connections but those with an HTTP request in progress: one of them may have begun the outage."""
        requests = self._http.connections if self._http else []
        in_progress = [each.transport for each in requests if each.transport is not None]
        self._port.abort_connections(but=[each for each in in_progress if not each.is_closing()])

    async def stop(self) -> None:
        self._namespace.on_outage.discard(self.break_connections)
        await self._port.stop_accepting()
        self.break_connections()
        # Senders that wait for a listener would wait until the time to stop is over.
        self._namespace.hybrid_connections.break_off()
        if self._http is not None:
            # Closes idle connections, so that shutdown() waits only for requests in progress.
            self._http.pre_shutdown()
            await self._http.shutdown(STOP_SECONDS)
        await self._port.stop()
