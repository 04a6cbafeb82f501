"""AMQP over WebSocket against the emulator, through a proxy, and against servers that do what no good server does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from websockets.frames import CloseCode
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from sbpair import errors
from sbpair.amqp.message import Sections
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.amqp_client.stream import open_stream
from sbpair.model.pair import Endpoint, Transport
from sbpair.model.proxy import Proxy, parse_proxy
from sbpair.testing import Emulator, Fault
from tests.amqp_client import peers
from tests.amqp_client.peers import message, take
from tests.kit.proxy import running_proxy
from tests.kit.waiting import until

AMQP = Subprotocol("AMQPWSB10")


@asynccontextmanager
async def emulated(*, tls: bool) -> AsyncIterator[tuple[Emulator, Endpoint]]:
    async with peers.emulated(tls=tls) as (emulator, endpoint):
        yield emulator, replace(endpoint, transport=Transport.WEBSOCKET)


async def round_trip(endpoint: Endpoint, payloads: list[bytes]) -> None:
    """Send messages, receive and complete them, and compare what the namespace does not add to."""
    async with connect(endpoint) as wire:
        sender, receiver = await wire.sender("orders"), await wire.receiver("orders")
        receiver.grant(len(payloads))
        for payload in payloads:
            await sender.send(payload)
        taken = await take(receiver, len(payloads))
        for sent, got in zip(map(Sections.split, payloads), taken, strict=True):
            found = Sections.split(got.payload)
            assert (found.properties, found.application_properties) == (sent.properties, sent.application_properties)
            assert found.body == sent.body
            await receiver.settle([got], ACCEPTED)
        assert await wire.peek("orders", 0, 1) == []


@pytest.mark.parametrize("tls", [False, True])
async def test_messages_of_every_size_arrive_unaltered(tls: bool) -> None:
    async with emulated(tls=tls) as (_, endpoint):
        await round_trip(endpoint, [message(size, size) for size in (0, 4, 100, 65_536, 200_000)])
        await round_trip(endpoint, [message(number, 100) for number in range(300)])


# Through a proxy


def through(endpoint: Endpoint, proxy: Any) -> Endpoint:
    return replace(endpoint, proxy=parse_proxy(proxy.url, "SBPAIR_PRIMARY_PROXY"))


async def test_a_proxy_that_breaks_the_connection_is_used_again() -> None:
    async with running_proxy(login=True) as proxy, emulated(tls=True) as (_, direct):
        endpoint = through(direct, proxy)
        async with connect(endpoint) as wire:
            await wire.sender("orders")
            assert proxy.open_tunnels == 1
            proxy.break_tunnels()
            await wire.lost()
            assert isinstance(wire.error, errors.Unreachable)
            assert "broke" in wire.error.message
            assert wire.error.hint
        await round_trip(endpoint, [message()])
        assert proxy.targets == [endpoint.authority] * 2


async def test_a_proxy_that_is_not_there_is_named() -> None:
    endpoint = Endpoint("contoso", "contoso", "contoso", 5671, tls=True, credential=None)  # type: ignore[arg-type]
    for host, why in (("127.0.0.1", "connection refused"), ("proxy.invalid", "name not known")):
        proxy = Proxy(host, 1, user="me", password="nobody-may-see", source="HTTPS_PROXY")
        with pytest.raises(errors.Unreachable, match=f"the proxy {host}:1 cannot be reached: {why}") as refused:
            await open_stream(replace(endpoint, transport=Transport.WEBSOCKET, proxy=proxy), "test")
        assert "HTTPS_PROXY" in refused.value.hint
        assert "nobody-may-see" not in repr(proxy) + repr(endpoint) + repr(refused.value)


# Servers

Behaviour = Callable[["Server"], object]


class Server(asyncio.Protocol):
    """A WebSocket server that accepts the handshake, behaves, and then passes the bytes to AMQP on another port."""

    def __init__(self, behaviour: Behaviour, port: int) -> None:
        self.frames = ServerProtocol(subprotocols=[AMQP])
        self._behaviour, self._port = behaviour, port
        self.received: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.frames.receive_data(data)
        for event in self.frames.events_received():
            if self.frames.state is State.CONNECTING:
                self.frames.send_response(self.frames.accept(event))  # type: ignore[arg-type]
                self._behaviour(self)
                self._tasks.append(asyncio.ensure_future(self._relay()))
            else:
                self.received.append(event)
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        for task in self._tasks:
            task.cancel()

    def flush(self) -> None:
        for piece in self.frames.data_to_send():
            self.transport.write(piece)

    async def _relay(self) -> None:
        """Send every burst of AMQP as a message of three fragments, with pings between them."""
        if not self._port:
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            await asyncio.gather(self._forth(writer), self._back(reader))
        finally:
            writer.close()

    async def _forth(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await until(lambda: self.received)
            writer.write(b"".join(each.data for each in self.received if each.opcode in (0, 2)))
            self.received.clear()

    async def _back(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            third = len(data) // 3
            self.frames.send_binary(data[:third], fin=False)
            self.frames.send_ping(b"still there?")
            self.frames.send_continuation(data[third : 2 * third], fin=False)
            self.frames.send_continuation(data[2 * third :], fin=True)
            self.flush()


@asynccontextmanager
async def serving(make: Callable[[], asyncio.Protocol]) -> AsyncIterator[Endpoint]:
    async with peers.listening(make) as endpoint:
        yield replace(endpoint, emulator=True, transport=Transport.WEBSOCKET)


def relaying(endpoint: Endpoint) -> Callable[[], asyncio.Protocol]:
    return lambda: Server(lambda _server: None, endpoint.port)


async def test_fragments_and_pings_do_not_matter() -> None:
    async with emulated(tls=False) as (_, there), serving(relaying(there)) as here:
        await round_trip(replace(here, credential=there.credential), [message(4, size) for size in (4, 300, 150_000)])


async def opened(endpoint: Endpoint) -> errors.SbpairError:
    with pytest.raises(errors.SbpairError) as refused:
        await open_stream(endpoint, "test", seconds=1)
    assert refused.value.hint
    return refused.value


def status(line: str, *headers: str) -> bytes:
    return "\r\n".join((f"HTTP/1.1 {line}", *headers, "", "")).encode()


SWITCH = ("Upgrade: websocket", "Connection: Upgrade")


@pytest.mark.parametrize(
    ("answer", "kind", "text"),
    [
        (status("400 Bad Request", "Content-Length: 0"), errors.Unreachable, "refuses WebSockets: 400 Bad Request"),
        (status("401 Unauthorized", "Content-Length: 0"), errors.NetworkRefused, "401 Unauthorized"),
        (status("403 Forbidden", "Content-Length: 0"), errors.NetworkRefused, "403 Forbidden"),
        (status("404 Not Found"), errors.Unreachable, "404 Not Found"),
        (status("503 Busy", "Content-Length: 0"), errors.Unreachable, "503 Service Unavailable"),
        (status("302 Found", "Location: http://elsewhere/", "Content-Length: 0"), errors.Unreachable, "302 Found"),
        (status("200 OK", "Content-Length: 2") + b"hi", errors.Unreachable, "200 OK"),
        (status("599 What", "Content-Length: 0"), errors.Unreachable, "refuses WebSockets: 599"),
        (status("101 Switching Protocols", *SWITCH), errors.Unreachable, "does not speak AMQP"),
        (status("101 Switching", *SWITCH, "Sec-WebSocket-Accept: x"), errors.Unreachable, "does not speak AMQP"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", errors.Unreachable, "does not speak AMQP"),
        (b"\x00" * 100_000, errors.Unreachable, "does not speak AMQP"),
        (b"HTTP/1.1 101 x\r\n" + b"x: y\r\n" * 10_000, errors.Unreachable, "does not speak AMQP"),
        (b"HTTP/1.1 10", errors.Unreachable, "closed the connection during the handshake"),
        (b"", errors.Unreachable, "closed the connection during the handshake"),
    ],
)
async def test_a_server_that_refuses_the_handshake_is_named(answer: bytes, kind: type[Exception], text: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        with suppress(OSError):
            writer.write(answer)
            writer.close()
            await writer.wait_closed()

    def make() -> asyncio.Protocol:
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(), serve)

    async with serving(make) as endpoint:
        error = await opened(endpoint)
        assert type(error) is kind
        assert text in error.message
        assert endpoint.authority in error.message


async def test_a_server_that_never_answers_is_silent() -> None:
    async with serving(asyncio.Protocol) as endpoint:
        assert type(await opened(endpoint)) is errors.Silent


HOSTILE: dict[str, Behaviour] = {
    "text": lambda server: server.frames.send_text(b"AMQP\x03\x01\x00\x00"),
    "masked": lambda server: server.transport.write(b"\x82\x81\x00\x00\x00\x00x"),
    "reserved bits": lambda server: server.transport.write(b"\xf2\x01x"),
    "no beginning": lambda server: server.transport.write(b"\x80\x01x"),
    "too large": lambda server: server.transport.write(b"\x82\x7f" + (2**40).to_bytes(8)),
    "long ping": lambda server: server.transport.write(b"\x89\x7e\x01\x00" + b"x" * 256),
    "closed": lambda server: server.frames.send_close(CloseCode.INTERNAL_ERROR, "nobody-may-see"),
    "closed normally": lambda server: server.frames.send_close(CloseCode.NORMAL_CLOSURE),
    "not AMQP": lambda server: server.frames.send_binary(b"HTTP/1.1 200 OK"),
    "empty, then closed": lambda server: (server.frames.send_binary(b""), server.frames.send_close(1000)),
}


@pytest.mark.parametrize("behaviour", HOSTILE)
async def test_a_server_that_violates_the_protocol_ends_the_connection(behaviour: str) -> None:
    def behave(server: Server) -> None:
        server.flush()
        HOSTILE[behaviour](server)

    async with serving(lambda: Server(behave, 0)) as endpoint:
        error = await opened(endpoint)
        assert isinstance(error, errors.Unreachable)
        assert not isinstance(error, errors.Silent)
        assert "nobody-may-see" not in error.message


@pytest.mark.odd_messages
async def test_writing_waits_for_a_server_that_does_not_read() -> None:
    async with emulated(tls=False) as (emulator, endpoint), connect(endpoint) as wire:
        sender = await wire.sender("orders")
        emulator.faults.begin(Fault("stall", "contoso"))
        stream = sender.stream
        writes = 0
        while stream.is_writable:
            stream._transport.write(bytes(65_536))  # type: ignore[union-attr]  # no frame of AMQP
            writes += 1
            await asyncio.sleep(0)
        assert 1 < writes < 1_000
        wire.abort(errors.Unreachable("enough"))
