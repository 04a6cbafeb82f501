"""A client's connection as its links use it, with the upstream connection behind it.

Invariant: neither socket is read while the other one's peer does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from sbpair.amqp_server.server_connection import LinkEndpoint, ServerConnection
from sbpair.gateway.upstream import Upstream

if TYPE_CHECKING:
    from sbpair.amqp_server.claims import Claims
    from sbpair.amqp_server.node_links import AmqpRequest
    from sbpair.gateway.gateway_core import GatewayCore

CONTAINER = "sbpair-gateway"


class MirroredConnection(ServerConnection):
    """`attaching` keeps the order of attaches; `sending` are the links with messages that no side has accepted yet."""

    def __init__(self, gateway: GatewayCore, claims: Claims, on_opened: Callable[[], None]) -> None:
        super().__init__(CONTAINER, claims, on_opened)
        self.gateway, self.figures = gateway, gateway.figures
        self.upstream = Upstream(gateway.endpoint, self._after_upstream_read, self._set_reading, gateway.spawn)
        self.attaching = asyncio.Lock()
        self.sending: set[LinkEndpoint] = set()
        self.open_requests: dict[tuple[str, str], AmqpRequest] = {}
        """Requests to the primary's nodes without a reply, by path and message id."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self.upstream.hold(holding=True)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.upstream.hold(holding=False)

    def _after_upstream_read(self) -> None:
        self.output.flush()

    def _set_reading(self, blocked: bool) -> None:
        transport = self.output.transport
        if not transport.is_closing():
            transport.pause_reading() if blocked else transport.resume_reading()
