"""A scripted peer of the emulator's AMQP frontend, on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed as WebSocketClosed

from sbpair.amqp import frames
from sbpair.amqp.connection import MAX_FRAME_SIZE, Connection, ConnectionClosed, ConnectionOpened
from sbpair.amqp.link import CreditChanged, Delivery, LinkAttached, LinkDetached, Sent
from sbpair.amqp.message import VALUE, Properties, Sections, data_body, encode_map, section, value_body
from sbpair.amqp.performatives import (
    Accepted,
    Composite,
    Coordinator,
    Declare,
    Discharge,
    Disposition,
    Source,
    Target,
    TransactionalState,
    Transfer,
    decode_composite,
)
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp.session import Disposed, SessionBegun
from sbpair.amqp.types import Int, Long, Map, Symbol
from sbpair.amqp_server.websocket_frontend import SUBPROTOCOLS
from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.emulator.server import Emulator
from tests.kit.waiting import PATIENCE_SECONDS

E = TypeVar("E")
ROOT_SIGN_IN = SaslClient("PLAIN", f"\0{ROOT_RULE.key_name}\0{ROOT_RULE.primary_key}".encode())


@asynccontextmanager
async def raw_connection(authority: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to an emulator without a protocol."""
    host, _, port = authority.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def eof(reader: asyncio.StreamReader) -> bool:
    """Return whether the other side closes the connection without output."""
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


class Echo(asyncio.Protocol):
    """Returns what it receives, in place of an AMQP connection."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)

    def pause_writing(self) -> None:
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.transport.resume_reading()


def plain(text: str = "x", **properties: Any) -> bytes:
    """Encode a message of one text."""
    encoded = Properties(**properties).encode() if properties else b""
    return Sections(properties=encoded, body=data_body(text.encode())).join()


class WebSocketStream:
    """The reader and writer of a peer, over a WebSocket."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.transport = websocket.transport
        self._unsent = b""

    async def read(self, _: int) -> bytes:
        try:
            return cast("bytes", await self.websocket.recv())
        except WebSocketClosed:
            return b""

    def write(self, data: bytes) -> None:
        self._unsent += data

    async def drain(self) -> None:
        data, self._unsent = self._unsent, b""
        if data:
            with suppress(WebSocketClosed):
                await self.websocket.send(data)


async def open_websocket(authority: str) -> WebSocketStream:
    url = f"ws://{authority}/$servicebus/websocket"
    return WebSocketStream(await connect(url, subprotocols=SUBPROTOCOLS[:1], ping_interval=None, proxy=None))


class Peer:
    """A client that sends what the test decides and keeps every event."""

    def __init__(self, stage: Any, reader: Any, writer: Any, sasl: SaslClient, *, hostname: str = "127.0.0.1") -> None:
        self.stage = stage
        self.connection = Connection(sasl, container_id="peer", hostname=hostname)
        self.events: list[Any] = []
        self.eof = False
        self._reader = reader
        self.writer = writer
        self.pairs: dict[str, tuple[Any, Any]] = {}

    async def flush(self) -> None:
        self.writer.write(self.connection.take())
        await self.writer.drain()

    async def read(self) -> None:
        """Read one piece of the emulator's output."""
        try:
            data = await self._reader.read(1 << 20)
        except ConnectionResetError:  # by the answer to a close
            data = b""
        self.eof = not data
        self.events += self.connection.receive(data, 0.0)
        with suppress(ConnectionError):  # the answer to a close may come too late
            await self.flush()

    async def wait(self, kind: type[E], *, of: Any = None) -> E:
        """Remove and return the next event of a kind, of the link `of`."""
        await self.flush()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                for event in self.events:
                    if type(event) is kind and (of is None or event.link is of):
                        self.events.remove(event)
                        return event
                assert not self.eof, f"the connection ended before {kind.__name__}; there was {self.events}"
                await self.read()

    async def wait_closed(self) -> ConnectionClosed | None:
        """Read to the end of the connection and return its closing event, if any."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.eof:
                await self.read()
        return next((event for event in self.events if isinstance(event, ConnectionClosed)), None)

    async def read_frames(self) -> list[tuple[Any, ...]]:
        """Send what there is in one write. Return the names of all frames that come; role and id of dispositions."""
        found: list[tuple[Any, ...]] = []
        buffer = frames.FrameBuffer(MAX_FRAME_SIZE)
        await self.flush()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while data := await self._reader.read(1 << 20):
                buffer.feed(data)
                for _, read, start, end in buffer.frames(frames.AMQP_FRAME):
                    body = decode_composite(read[start:end])[0]
                    found.append(
                        (body.NAME.split(":")[1], *((body.role, body.first) if isinstance(body, Disposition) else ()))
                    )
        return found

    async def begin(self) -> Any:
        session = self.connection.begin()
        await self.wait(SessionBegun)
        return session

    async def attach_sender(self, address: str, *, session: Any = None) -> Any:
        link = (session or await self.begin()).sender(f"to-{address}")
        link.open(source=Source("peer"), target=Target(address))
        await self.wait(LinkAttached, of=link)
        return link

    async def attach_receiver(self, address: str, *, session: Any = None, of: str | None = None) -> Any:
        """Attach a receiver, of the messages of one session id if there is one."""
        link = (session or await self.begin()).receiver(f"from-{address}")
        wanted = None if of is None else {Symbol("com.microsoft:session-filter"): of}
        link.open(source=Source(address, filter=wanted), target=Target("peer"))
        await self.wait(LinkAttached, of=link)
        return link

    async def send(self, link: Any, *payloads: bytes, message_format: int = 0) -> list[Disposed]:
        """Send payloads and return their dispositions."""
        while link.credit < len(payloads):
            await self.wait(CreditChanged, of=link)
        ids = {link.send(payload, payload[:1], message_format=message_format) for payload in payloads}
        answers = []
        while ids:
            answer = await self.wait(Disposed)
            ids -= {delivery.id for delivery in answer.deliveries}
            answers.append(answer)
        return answers

    async def attach_coordinator(self, *, session: Any = None) -> Any:
        link = (session or await self.begin()).sender("transactions")
        link.open(source=Source("peer"), target=Coordinator())
        await self.wait(LinkAttached, of=link)
        return link

    async def control(self, link: Any, request: Composite) -> Any:
        """Send a declare or a discharge, and return the state that answers it."""
        answers = await self.send(link, section(VALUE, request.encode()))
        # Settlements that a commit confirms come before its answer.
        self.events = [answer for answer in answers if answer.deliveries[0].link is not link] + self.events
        return answers[-1].state

    async def declare(self, link: Any) -> bytes:
        return (await self.control(link, Declare())).txn_id

    async def begin_transaction(self, *, session: Any = None) -> tuple[Any, bytes]:
        """Declare a transaction. Return the control link and the id."""
        control = await self.attach_coordinator(session=session)
        return control, await self.declare(control)

    async def begin_sending(self, address: str, *, session: Any = None) -> tuple[Any, bytes, Any]:
        """Declare a transaction and attach a sender. Return the control link, the id and the sender."""
        control, txn_id = await self.begin_transaction(session=session)
        return control, txn_id, await self.attach_sender(address, session=session)

    async def lock(self, address: str, *payloads: bytes) -> list[Delivery]:
        """Send messages to a queue and receive them under lock."""
        await self.send(await self.attach_sender(address), *payloads)
        return await self.take(await self.attach_receiver(address), len(payloads))

    async def discharge(self, link: Any, txn_id: bytes, *, fail: bool = False) -> Any:
        return await self.control(link, Discharge(txn_id, fail))

    async def post_in(self, txn_id: bytes, link: Any, payload: bytes, **fields: Any) -> None:
        """Send a payload in a transaction."""
        await self.queue_in(txn_id, link, payload, **fields)
        await self.flush()

    async def queue_in(self, txn_id: bytes, link: Any, payload: bytes, **fields: Any) -> None:
        while link.credit < 1:
            await self.wait(CreditChanged, of=link)
        session = link.session
        delivery_id = session.next_delivery_id()
        link.credit -= 1
        session.sent[delivery_id] = Sent(link, delivery_id, None)
        transfer = Transfer(link.handle, delivery_id, b"in", state=TransactionalState(txn_id), **fields)
        session.put_transfer(link, transfer.encode(), payload, last=True)

    async def send_in(self, txn_id: bytes, link: Any, payload: bytes, **fields: Any) -> Any:
        """Send a payload in a transaction and return the state that answers it."""
        await self.post_in(txn_id, link, payload, **fields)
        return (await self.wait(Disposed)).state

    async def settle_in(self, txn_id: bytes, delivery: Delivery, outcome: Any = None) -> Disposed:
        return await self.settle(delivery, TransactionalState(txn_id, outcome or Accepted()))

    async def take(self, link: Any, count: int) -> list[Delivery]:
        link.grant(count)
        return [await self.wait(Delivery, of=link) for _ in range(count)]

    async def settle(self, delivery: Delivery, state: Any = None, *, last: Delivery | None = None) -> Disposed:
        session = delivery.link.session
        last_id = (last or delivery).id
        session.dispose(delivery.id, last_id, state or Accepted(), receiver=True, settled=False)
        return await self.wait(Disposed)

    async def ask(self, node: str, operation: str, body: Any, *, txn_id: bytes = b"", **properties: Any) -> Map:
        """Send a request to a node, in a transaction if there is an id; return the reply's properties and "body"."""
        requests, replies = await self._links_to(node)
        replies.grant(1)
        request = Sections(
            properties=Properties(message_id="ask-1").encode(),
            application_properties=encode_map(0x74, Map([("operation", operation), *properties.items()])),
            body=value_body(body),
        )
        if txn_id:
            assert await self.send_in(txn_id, requests, request.join()) == TransactionalState(txn_id, Accepted())
        else:
            await self.send(requests, request.join())
        reply = Sections.split((await self.wait(Delivery, of=replies)).payload)
        assert reply.read_properties().correlation_id == "ask-1"
        return Map([*reply.read_application_properties().pairs, ("body", reply.read_body()[0][1])])

    async def peek(self, entity: str, count: int = 10, **arguments: Any) -> Map:
        body = Map([("from-sequence-number", Long(0)), ("message-count", Int(count)), *arguments.items()])
        return await self.ask(f"{entity}/$management", "com.microsoft:peek-message", body)

    async def attach_node(self, node: str) -> tuple[Any, Any]:
        """Attach a pair of links to a node; `ask` uses it while it is open. A connection has only one to `$cbs`."""
        session = await self.begin()
        pair = await self.attach_sender(node, session=session), await self.attach_receiver(node, session=session)
        self.pairs[node] = pair
        return pair

    async def _links_to(self, node: str) -> tuple[Any, Any]:
        found = self.pairs.get(node)
        return found if found and all(link.is_open for link in found) else await self.attach_node(node)

    async def refusal_of(self, attaching: Awaitable[Any]) -> Any:
        """Return the error with which a link is refused."""
        await attaching
        return (await self.wait(LinkDetached)).error


class Stage:
    """An emulator with one namespace and one queue. Peers connect to `authority` with `sign_in`."""

    sign_in = ROOT_SIGN_IN

    def __init__(self, emulator: Emulator) -> None:
        self.emulator = emulator
        self.namespace = emulator.namespaces["contoso"]
        self.queue = self.namespace.create_queue("orders")

    @property
    def authority(self) -> str:
        return self.namespace.authority

    @asynccontextmanager
    async def connect(
        self, *, signed_in: bool = True, websocket: bool = False, sasl: SaslClient | None = None
    ) -> AsyncIterator[Peer]:
        """Connect a peer with the namespace's key, or another, or without rights."""
        reader: Any
        writer: Any
        if websocket:
            reader = writer = await open_websocket(self.authority)
        else:
            host, _, port = self.authority.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
        peer = Peer(self, reader, writer, (sasl or self.sign_in) if signed_in else SaslClient())
        try:
            await peer.wait(ConnectionOpened)
            yield peer
        finally:
            writer.transport.abort()


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    async with Emulator([("contoso", 0)]) as emulator:
        yield Stage(emulator)


@asynccontextmanager
async def open_peer() -> AsyncIterator[Peer]:
    async with open_stage() as stage, stage.connect() as peer:
        yield peer
