"""A client's connection as its links use it, with the upstream connection behind it.

Invariant: neither socket is read while the other one's peer does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sbpair.amqp_server.server_connection import LinkEndpoint, ServerConnection
from sbpair.gateway.upstream import Upstream

if TYPE_CHECKING:
    from sbpair.amqp_server.claims import Claims
    from sbpair.amqp_server.node_links import AmqpRequest
    from sbpair.gateway.gateway_core import GatewayCore

CONTAINER = "sbpair-gateway"
MAX_HELD_BYTES = 192 * 1024 * 1024
"""Bytes of messages that no side has accepted yet. Credit keeps a client far below; some overrun theirs."""


class MirroredConnection(ServerConnection):
    """`attaching` keeps the order of attaches; `sending` are the links with messages that no side has accepted yet."""

    def __init__(self, gateway: GatewayCore, claims: Claims, on_opened: Callable[[], None]) -> None:
        super().__init__(CONTAINER, claims, on_opened)
        self.gateway, self.figures = gateway, gateway.figures
        set_blocked = partial(self._set_unread, "the namespace does not read")
        self.upstream = Upstream(gateway.endpoint, self._after_upstream_read, set_blocked, gateway.spawn)
        self.attaching = asyncio.Lock()
        self.sending: set[LinkEndpoint] = set()
        self.open_requests: dict[tuple[str, str], AmqpRequest] = {}
        """Requests to the primary's nodes without a reply, by path and message id."""

        self._held_bytes = 0
        self._unread: set[str] = set()

    def hold(self, size: int) -> None:
        """Count bytes that no side has accepted yet, negative ones once they are. Too many stop reading."""
        self._held_bytes += size
        self._set_unread("too much is held", self._held_bytes > MAX_HELD_BYTES)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.upstream.hold(holding=True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self.output.transport.pause_reading()
        self.upstream.hold(holding=False)

    def _after_upstream_read(self) -> None:
        self.output.flush()

    def _set_unread(self, reason: str, unread: bool) -> None:
        """Stop reading from the client for a reason, or go on once there is none."""
        if unread is (reason in self._unread):
            return
        self._unread ^= {reason}
        transport = self.output.transport
        if not transport.is_closing():
            transport.pause_reading() if self._unread else transport.resume_reading()
