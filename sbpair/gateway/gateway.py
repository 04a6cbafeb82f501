"""The gateway listens on loopback, and passes clients' links on to a pair.

Invariant: an error of one connection ends no other. After `stop`, no message that was accepted waits in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from sbpair.amqp_server.admission import Admission
from sbpair.amqp_server.host_names import HostNames
from sbpair.amqp_server.port import Port
from sbpair.errors import MachineLacks, PortInUse, Unreachable, UsageError
from sbpair.gateway.client_connection import ClientConnection
from sbpair.gateway.gateway_core import GatewayCore, GatewayFigures, GatewayOptions
from sbpair.operating_system import listen

if TYPE_CHECKING:
    import socket

    from sbpair.failover.events import SenderEvent
    from sbpair.failover.raw_send import RawFailoverClient
    from sbpair.model.pair import Pair

__all__ = ["Gateway", "GatewayOptions"]

IPV4, IPV6 = "127.0.0.1", "::1"
BIND_ATTEMPTS: Final = 20


class Gateway:
    """`async with Gateway(pair, options) as gateway` listens on `gateway.port` until the end of the block."""

    def __init__(
        self, pair: Pair, options: GatewayOptions, on_event: Callable[[SenderEvent], None] | None = None
    ) -> None:
        self._core = GatewayCore(pair, options, on_event)
        self.connections: set[ClientConnection] = set()
        self.port = 0
        self._ports: list[Port] = []
        self._stack = AsyncExitStack()

    @property
    def failover(self) -> RawFailoverClient:
        return self._core.failover

    @property
    def figures(self) -> GatewayFigures:
        return self._core.figures

    @property
    def is_stopping(self) -> bool:
        return self._core.is_stopping

    async def __aenter__(self) -> Self:
        core, options = self._core, self._core.options
        async with AsyncExitStack() as stack:
            sockets = [stack.enter_context(each) for each in _bind(options.port)]
            self.port = sockets[0].getsockname()[1]
            await stack.enter_async_context(core.failover)
            await stack.enter_async_context(core.tasks)
            admission, make = Admission(), partial(ClientConnection, core, self.connections)
            for each in sockets:
                names = HostNames(
                    each.getsockname()[0], (core.pair.primary.name,), options.allow_hosts, server="the gateway"
                )
                port = Port("the gateway", each, make, names, admission, tls=options.tls, admit=options.admit)
                await port.start()
                self._ports.append(port)
            core.spawn(core.ask_backlog_limit(), "ask the backlog for its limit")
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.stop(0.0)
        self._core.cancel_all()
        await self._stack.aclose()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more links, wait until deliveries in flight have ended, then end all connections."""
        self._core.is_stopping = True
        for port in self._ports:
            await port.stop_accepting()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                while any(not each.is_idle for each in self.connections):
                    self._core.changed.clear()
                    await self._core.changed.wait()
        for port in self._ports:
            await port.stop()
        self._ports.clear()

    def reread_loss(self, *, lost: bool) -> None:
        """Send to the secondary's own entities from now on, if the primary is lost: clients attach again."""
        if lost and not self.failover.failover_state.lost:
            self.failover.primary_lost()
            for each in list(self.connections):
                each.break_off(Unreachable("the primary is declared lost", hint="attach again"))


def _bind(port: int) -> list[socket.socket]:
    """Return a listening socket for each loopback address, both on one port. Raises PortInUse, MachineLacks."""
    for _ in range(BIND_ATTEMPTS):
        first = listen(IPV4, port, "--port")
        try:
            return [first, listen(IPV6, first.getsockname()[1], "--port")]
        except PortInUse:
            first.close()
            if port:
                raise
        except (UsageError, MachineLacks):
            return [first]  # this machine has no IPv6
    raise PortInUse("no port is free on 127.0.0.1 and [::1]", hint="choose one by --port")
