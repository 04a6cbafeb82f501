"""A pair on an emulator with a gateway in front of it, all in the loop of a test, and peers that connect to it."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from sbpair.amqp.connection import ConnectionOpened
from sbpair.amqp.link import CreditChanged
from sbpair.amqp.message import Sections
from sbpair.amqp.performatives import Accepted
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp.session import Disposed
from sbpair.backlog import queue_path
from sbpair.emulator.entities.description import QueueDescription, default_of
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.failover.entity_states import State
from sbpair.gateway.gateway import Gateway, GatewayOptions
from sbpair.model.pair import Endpoint, SasKey
from sbpair.move.message.envelope import read_facts, restore
from sbpair.move.message.route import Send, route
from sbpair.syphon import runner
from sbpair.syphon.run_request import syphon_request
from sbpair.testing import Emulator
from tests.emulator.peer import Peer
from tests.kit.failover_rig import EventLog
from tests.kit.gateway_key import KEY, RULE
from tests.kit.pairs import BACKLOG, pair_on
from tests.kit.waiting import until

PING_SECONDS = 0.2
SECONDS = 4.0


class GatewayPair:
    """`orders` is a queue of the primary, beside the backlog queues of the secondary; `log` has the events."""

    def __init__(self, emulator: Emulator, queues: int, backlog: QueueDescription | None = None) -> None:
        self.emulator, self.faults, self.log = emulator, emulator.faults, EventLog()
        self.primary, self.secondary = emulator.namespaces["contoso"], emulator.namespaces["contoso-dr"]
        self.pair = replace(pair_on(emulator, queues), failover_interval=0)
        # Shorter than anybody may ask for.
        object.__setattr__(self.pair, "ping_interval", PING_SECONDS)
        self.paths = [queue_path("contoso", index) for index in range(queues)]
        backlog = backlog or default_of(BACKLOG, self.secondary.tier)
        self.backlog = [self.secondary.create_queue(path, backlog) for path in self.paths]
        self.orders = self.primary.create_queue("orders")

    @asynccontextmanager
    async def gateway(self, **options: Any) -> AsyncIterator[Gateway]:
        given = {"rule": RULE, "port": 0, "retries": 0, "timeout": SECONDS, **options}
        async with Gateway(self.pair, GatewayOptions(**given), self.log) as gateway:
            yield gateway

    def endpoint(self, gateway: Gateway) -> Endpoint:
        return replace(self.pair.primary, port=gateway.port, credential=SasKey(RULE.key_name, KEY))

    @asynccontextmanager
    async def peer(self, gateway: Gateway) -> AsyncIterator[Peer]:
        """Connect a scripted client with the gateway's key."""
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        peer = Peer(None, reader, writer, SaslClient("PLAIN", f"\0{RULE.key_name}\0{KEY}".encode()))
        try:
            await peer.wait(ConnectionOpened)
            yield peer
        finally:
            writer.transport.abort()

    @contextmanager
    def away(self, *names: str) -> Iterator[None]:
        """Take namespaces down for a block, by default the primary."""
        for name in names or ("contoso",):
            self.faults.namespace_down(name)
        try:
            yield
        finally:
            self.faults.end_all()

    async def is_back(self, gateway: Gateway) -> None:
        """End all faults, and wait until the gateway sends to the primary."""
        self.faults.end_all()
        await until(lambda: set(gateway.failover.states().values()) == {State.HEALTHY})

    def in_backlog(self) -> list[Sections]:
        return [each for queue in self.backlog for each in held(queue)]

    async def moved(self) -> list[Sections]:
        """Move the backlog by the syphon, and return what `orders` holds then."""
        result = await runner.run(syphon_request(self.pair, once=True))
        assert (result.exit_code, result.receipt.dead_lettered) == (0, 0), result
        assert not self.in_backlog()
        return held(self.orders)


@asynccontextmanager
async def gateway_pair(
    queues: int = 2,
    tiers: tuple[str, str] = ("standard", "standard"),
    backlog: QueueDescription | None = None,
    **options: Any,
) -> AsyncIterator[tuple[GatewayPair, Gateway]]:
    """Open a pair, of which the tiers and the backlog queues may differ, and a gateway with options."""
    names: Iterable[Any] = zip(("contoso", "contoso-dr"), (0, 0), tiers, strict=True)
    async with Emulator(names) as emulator:
        pair = GatewayPair(emulator, queues, backlog)
        async with pair.gateway(**options) as gateway:
            yield pair, gateway


def held(queue: QueueEntity) -> list[Sections]:
    return [each.sections for each in queue.messages.peek(0, 10_000)]


def restored(stranded: Sections, now_ms: int) -> bytes:
    """Return what the syphon sends for a message of the backlog."""
    sections, facts = read_facts("q", stranded.join())
    decision = route(facts)
    assert isinstance(decision, Send), facts.flaw
    return restore(sections, decision, now_ms)


async def accepted(peer: Peer, link: Any, *payloads: bytes, message_format: int = 0) -> None:
    """Send messages together, all of which must be accepted."""
    while link.credit < len(payloads):
        await peer.wait(CreditChanged, of=link)
    waiting = {
        link.send(payload, b"%d" % number, message_format=message_format) for number, payload in enumerate(payloads)
    }
    while waiting:
        answer = await peer.wait(Disposed)
        assert answer.state == Accepted(), answer.state
        waiting -= {each.id for each in answer.deliveries}
