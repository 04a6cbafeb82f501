"""An emulated namespace for the client, and a peer that does what a test tells it. Real sockets throughout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from sbpair.amqp.connection import Connection, ConnectionClosed
from sbpair.amqp.link import Delivery, Link, LinkAttaching, ReceivingLink, SendingLink, terminus_address
from sbpair.amqp.message import APPLICATION_PROPERTIES, Properties, Sections, data_body, encode_map, value_body
from sbpair.amqp.performatives import Accepted
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.types import Int
from sbpair.amqp_client.client import AmqpClient
from sbpair.amqp_client.raw_links import RawReceiver
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint, SasKey
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.waiting import until

QUEUE = "orders"
TEST_SECONDS = 240.0


@asynccontextmanager
async def emulated(**options: Any) -> AsyncIterator[tuple[Emulator, Endpoint]]:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(**options)) as emulator:
        emulator.namespaces["contoso"].create_queue(QUEUE)
        yield emulator, endpoint_of(emulator)


def endpoint_of(emulator: Emulator) -> Endpoint:
    ready = emulator.ready.namespaces[0]
    text = ready.tls_connection_string or ready.connection_string
    return endpoint_from_connection_string(text, name="contoso", ca_file=emulator.ready.ca_file)


@asynccontextmanager
async def listening(make: Callable[[], Any]) -> AsyncIterator[Endpoint]:
    """Serve each connection by a protocol. If it keeps its `transport`, that is aborted at the end."""
    made: list[Any] = []

    def remember() -> asyncio.Protocol:
        made.append(make())
        return cast("asyncio.Protocol", made[-1])

    server = await asyncio.get_running_loop().create_server(remember, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Endpoint("contoso", f"127.0.0.1:{port}", "127.0.0.1", port, False, SasKey("k", "key"))
    finally:
        for each in made:
            if (transport := getattr(each, "transport", None)) is not None:
                transport.abort()
        server.close()
        await server.wait_closed()


def message(number: int = 0, size: int = 10) -> bytes:
    return Sections(
        properties=Properties(message_id=f"m{number}").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {"number": Int(number)}),
        body=data_body(bytes([number % 256]) * size),
    ).join()


def ids(deliveries: list[Delivery]) -> list[str]:
    return [Sections.split(each.payload).read_properties().message_id for each in deliveries]


async def take(receiver: Any, count: int) -> list[Delivery]:
    taken: list[Delivery] = []
    while len(taken) < count:
        taken += await receiver.take(count - len(taken), seconds=TEST_SECONDS)
    return taken


async def receive_one(wire: AmqpClient) -> tuple[RawReceiver, list[Delivery]]:
    """Send a message, and take it under lock."""
    await (await wire.sender(QUEUE)).send(message())
    receiver = await wire.receiver(QUEUE)
    receiver.grant(1)
    return receiver, await take(receiver, 1)


# A peer that does what a test tells it.


class Peer(asyncio.Protocol):
    """A server whose every answer can be replaced: `script` is told each event first, and answers True to keep it."""

    def __init__(self, script: Act, terms: dict[str, Any]) -> None:
        self.script = script
        self.tokens: list[str] = []
        self.said: list[Any] = []
        self.heard = asyncio.Event()
        self.transport: Any = None
        self.connection = Connection(SaslServer(), container_id="peer", now=asyncio.get_running_loop().time(), **terms)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        for event in self.connection.receive(data, asyncio.get_running_loop().time()):
            self.said.append(event)
            if not self.script(self, event):
                self.usual(event)
        self.heard.set()
        self.flush()

    def flush(self) -> None:
        self.transport.write(self.connection.take())

    def usual(self, event: Any) -> None:
        if isinstance(event, LinkAttaching):
            event.link.accept()
            if isinstance(event.link, ReceivingLink):
                event.link.grant(100)
        elif isinstance(event, Delivery):
            accept(event)
            if terminus_address(event.link.remote.target) == "$cbs":
                self.reply(event)
        elif isinstance(event, ConnectionClosed):
            self.flush()
            self.transport.close()

    def reply(self, request: Delivery, status: int = 202) -> None:
        asked = Sections.split(request.payload)
        name = asked.read_application_properties().get("name")
        self.tokens.append(name)
        answer = Sections(
            properties=Properties(correlation_id=asked.read_properties().message_id).encode(),
            application_properties=encode_map(APPLICATION_PROPERTIES, {"status-code": Int(status)}),
            body=value_body(None),
        )
        node = terminus_address(request.link.remote.target)
        self.links(node, SendingLink)[0].send(answer.join(), b"reply", settled=True)

    async def granted(self, credit: int) -> SendingLink:
        """Wait for this credit on the link that sends from the queue."""
        await until(lambda: [link.credit for link in self.links(QUEUE, SendingLink)] == [credit])
        return cast("SendingLink", self.links(QUEUE, SendingLink)[0])

    def links(self, address: str, kind: type[Link]) -> list[Any]:
        return [
            link
            for session in self.connection.sessions
            for link in session.links
            if isinstance(link, kind)
            and terminus_address(link.remote.source if kind is SendingLink else link.remote.target) == address
        ]


def accept(delivery: Delivery) -> None:
    delivery.link.session.dispose(delivery.id, delivery.id, Accepted(), receiver=True, settled=True)


Act = Callable[[Peer, Any], object]


def instead(kind: type[Any], act: Act = lambda _peer, _event: None, address: str | None = None) -> Act:
    """Return a script that acts in place of the usual answer to such events, of links to an address if one is given."""

    def script(peer: Peer, event: Any) -> bool:
        ours = isinstance(event, kind)
        if ours and address is not None:
            ours = terminus_address(event.link.remote.target) == address
        if ours:
            act(peer, event)
        return ours

    return script


def on_message(act: Act = lambda _peer, _event: None) -> Act:
    """Return a script that acts in place of an answer to messages for the queue."""
    return instead(Delivery, act, QUEUE)


def replying(*statuses: int) -> Act:
    """Answer each request with the next status."""
    remaining = list(statuses)

    def act(peer: Peer, event: Any) -> None:
        accept(event)
        peer.reply(event, remaining.pop(0))

    return instead(Delivery, act)


@asynccontextmanager
async def scripted(
    script: Act = lambda _peer, _event: None,
    **terms: Any,
) -> AsyncIterator[tuple[list[Peer], Endpoint]]:
    peers: list[Peer] = []

    def make() -> Peer:
        peers.append(Peer(script, terms))
        return peers[-1]

    async with listening(make) as endpoint:
        yield peers, endpoint
