"""The relay of an emulated pair on a simulated network, whose clients use aiohttp and websockets as they are."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final
from unittest.mock import patch

import aiohappyeyeballs
from aiohttp import connector, web

from sbpair.amqp_server.port import ProtocolSniffer
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.frontends.http.http_frontend import http_server
from sbpair.emulator.relay.hybrid_connection import HybridConnection
from sbpair.model.pair import SasKey, Side
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from tests.faults.simulation.loop import VirtualLoop
from tests.faults.simulation.network import Network
from tests.faults.simulation.world import PRIMARY, SECONDARY, World

HOSTS: Final[dict[Side, str]] = {"primary": PRIMARY, "secondary": SECONDARY}
PATHS: Final[dict[Side, str]] = {"primary": "service-east", "secondary": "service-west"}


class RelayLoop(VirtualLoop):
    """A virtual loop in which hosts have no addresses but their names."""

    async def getaddrinfo(self, host: Any, port: Any, **_options: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def create_connection(
        self, factory: Any, host: Any = None, port: Any = None, *, sock: Any = None, **options: Any
    ) -> Any:
        # aiohttp connects a socket first.
        host, port = sock or (host, port)
        return await super().create_connection(factory, host, port, **options)


@contextmanager
def without_sockets(loop: RelayLoop) -> Iterator[None]:
    """Let aiohttp take an address for a socket that is connected to it, and its connections age in virtual time.

    Requests that wait for one address go on in the order of the loop's sets, and not of their place in memory.
    """

    async def start_connection(addr_infos: Any, **_options: Any) -> Any:
        return addr_infos[0][4]

    with (
        patch.object(aiohappyeyeballs, "start_connection", start_connection),
        patch.object(connector, "monotonic", loop.time),
        patch.object(connector, "set", loop.sets, create=True),
    ):
        yield


class RelayWorld(World):
    """Two namespaces with a hybrid connection each, reached by HTTP and WebSocket only."""

    def __init__(self, loop: VirtualLoop, network: Network, random: Random) -> None:
        super().__init__(loop, network, queues=1)
        self.relay_pair = RelayPair(self._relay_endpoint("primary"), self._relay_endpoint("secondary"))
        for side in HOSTS:
            self.entity(side)
            self.namespaces[HOSTS[side]].hybrid_connections.chance = Random(random.random())

    def _namespace(self, name: str) -> Namespace:
        namespace = super()._namespace(name)
        made: list[web.Server] = []

        def frontend(protocol: str) -> asyncio.BaseProtocol | None:
            if not made:
                made.append(http_server(self, namespace))
            return made[0]() if protocol == "http" else None

        self.network.serve(name, lambda: ProtocolSniffer(frontend, lambda _: None))
        return namespace

    def _relay_endpoint(self, side: Side) -> RelayEndpoint:
        key = SasKey(ROOT_RULE.key_name, ROOT_RULE.primary_key)
        return RelayEndpoint(f"{HOSTS[side]}:5672", PATHS[side], key, tls=False)

    def entity(self, side: Side) -> HybridConnection:
        """Return the hybrid connection of a side, which the first call creates."""
        found = self.namespaces[HOSTS[side]].hybrid_connections
        return found.find(PATHS[side]) or found.create(PATHS[side])

    # RelayClock

    def now(self) -> float:
        return self.tool_time()

    latest = now

    def call_later(self, seconds: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, callback)

    def remains(self) -> Iterator[str]:
        """Yield each thing that the relay still has of connections that have ended."""
        for side in HOSTS:
            if waiting := self.namespaces[HOSTS[side]].hybrid_connections.waiting:
                yield f"{len(waiting)} senders wait in the {side}"
            if listeners := self.entity(side).listeners:
                yield f"the {side} has {len(listeners)} listeners"
        if open_lines := [line for line in self.network.lines if line.open]:
            yield f"{len(open_lines)} connections are open: {[line.number for line in open_lines]}"
        if self.timers.next_deadline_ms() is not None:
            yield "a deadline is set"
