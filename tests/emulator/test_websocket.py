"""WebSocket handshakes and frames on a real port: what is accepted, what is refused, and what it costs."""

import asyncio
import logging
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import Protocol, Side

from sbpair.amqp.link import CreditChanged
from sbpair.amqp.message import data_body
from sbpair.amqp.session import Disposed
from sbpair.amqp_server import websocket_frontend
from sbpair.amqp_server.server_connection import MAX_OUTPUT
from sbpair.amqp_server.websocket_frontend import MAX_MESSAGE, MAX_PAYLOAD, WebSocketFrontend
from sbpair.emulator import namespace_port
from sbpair.testing import Emulator
from tests.emulator.peer import Echo, Stage, raw_connection
from tests.emulator.test_hostile_peers import served
from tests.kit.async_tests import InLoop

BINARY, TEXT, CONT = Opcode.BINARY, Opcode.TEXT, Opcode.CONT
PING, PONG, CLOSE = Opcode.PING, Opcode.PONG, Opcode.CLOSE
SECONDS = 20
HEADERS = {
    "Host": "localhost",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "AMQPWSB10",
    "Authorization": "secret",
}
PATH = "/$servicebus/websocket"


def handshake(path: str = PATH, *, line: str = "GET {} HTTP/1.1", extra: str = "", **changes: str | None) -> bytes:
    """Return a valid request with changed headers, where None leaves one out, and `extra` lines."""
    headers = HEADERS | {name.replace("_", "-"): value for name, value in changes.items()}
    lines = [line.format(path), *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join([*lines, *extra.splitlines(), "", ""]).encode()


def frame(opcode: Opcode, data: bytes = b"", *, fin: bool = True, mask: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=mask)


class RawSocket:
    """The client's side of a socket: writes any bytes, reads the answer and frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._frames = Protocol(Side.CLIENT, max_size=None)
        self._unread: list[Frame] = []

    async def ask(self, request: bytes) -> str:
        """Return the status line and headers of the answer."""
        self.writer.write(request)
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def frame(self) -> Frame | None:
        """Return the next frame, None at the end of the connection."""
        while not self._unread:
            data = await self.reader.read(65536)
            if not data:
                return None
            self._frames.receive_data(data)
            self._unread += cast("list[Frame]", self._frames.events_received())
        return self._unread.pop(0)

    async def is_held_back(self) -> bool:
        """Wait until all is written, or for a hundred turns of the loop in which the other side takes nothing."""
        turns, left = 0, self.writer.transport.get_write_buffer_size()
        while left and turns < 100:
            await asyncio.sleep(0.005)
            before, left = left, self.writer.transport.get_write_buffer_size()
            turns = turns + 1 if left == before else 0
        return left > 0

    async def payload(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            answer = await self.frame()
            assert answer is not None
            assert answer.opcode is BINARY
            received += answer.data
        return received

    async def close_code(self) -> int | None:
        """Read to the end of the connection; return the code of the close frame, None without one."""
        code = None
        try:
            while (each := await self.frame()) is not None:
                if each.opcode is CLOSE:
                    code = Close.parse(each.data).code
        except ConnectionError:
            pass
        return code


@asynccontextmanager
async def opened(emulator: Emulator, *, upgrade: bool = True) -> AsyncIterator[RawSocket]:
    async with raw_connection(emulator.namespaces["contoso"].authority) as streams:
        raw = RawSocket(*streams)
        if upgrade:
            assert (await raw.ask(handshake())).startswith("HTTP/1.1 101 ")
        yield raw


@asynccontextmanager
async def serving(above: type[asyncio.Protocol]) -> AsyncIterator[RawSocket]:
    """Connect to a frontend whose AMQP is another protocol."""
    loop = asyncio.get_running_loop()
    async with (
        await loop.create_server(lambda: WebSocketFrontend(above()), "127.0.0.1", 0) as server,
    ):
        host, port = server.sockets[0].getsockname()
        async with raw_connection(f"{host}:{port}") as streams:
            yield RawSocket(*streams)


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> InLoop:
    monkeypatch.setattr(namespace_port, "AmqpConnection", lambda *_: Echo())
    return InLoop(lambda: Emulator([("contoso", 0)]))


# Handshakes


@pytest.mark.parametrize(
    ("request_bytes", "chosen"),
    [
        (handshake(), "AMQPWSB10"),
        (handshake("/$ServiceBus/WebSocket"), "AMQPWSB10"),
        (handshake("/%24servicebus/websocket/"), "AMQPWSB10"),
        (handshake(f"{PATH}?x=y"), "AMQPWSB10"),
        *((handshake(f"{scheme}://127.0.0.1:1{PATH}"), "AMQPWSB10") for scheme in ("https", "HTTP", "wss", "ws")),
        (handshake(Connection="keep-alive, Upgrade", Upgrade="WebSocket"), "AMQPWSB10"),
        (handshake(Sec_WebSocket_Protocol="amqp, AMQPWSB10"), "AMQPWSB10"),
        (handshake(Sec_WebSocket_Protocol="mqtt, amqp"), "amqp"),
        (handshake(extra="Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"), "AMQPWSB10"),
    ],
)
async def test_a_valid_handshake_selects_the_subprotocol(echo: Emulator, request_bytes: bytes, chosen: str) -> None:
    async with opened(echo, upgrade=False) as raw:
        answer = await raw.ask(request_bytes)
        assert answer.startswith("HTTP/1.1 101 ")
        assert f"\r\nSec-WebSocket-Protocol: {chosen}\r\n" in answer
        assert "Extensions" not in answer
        raw.writer.write(frame(BINARY, b"hello"))
        assert await raw.payload(5) == b"hello"


REFUSED = {
    "another subprotocol": (handshake(Sec_WebSocket_Protocol="mqtt"), 400),
    "a subprotocol in another case": (handshake(Sec_WebSocket_Protocol="amqpwsb10"), 400),
    "no key": (handshake(Sec_WebSocket_Key=None), 400),
    "a request without upgrade": (handshake(Upgrade=None, Connection="keep-alive"), 426),
    "a body": (handshake(extra="Content-Length: 5"), 400),
    "HTTP/1.0": (handshake(line="GET {} HTTP/1.0"), 505),
    "a header of bytes": (handshake(extra="X: \x00\x01"), 400),
    "many headers": (handshake(extra="\r\n".join(f"X-{number}: secret" for number in range(500))), 431),
    "a frame too early": (handshake() + frame(BINARY, b"x"), 400),
    "a broken frame too early": (handshake() + frame(CONT, b"x"), 400),
    "an endless line": (f"GET {PATH}".encode() + b"x" * 100_000, 414),
}


async def test_an_invalid_handshake_is_refused(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="sbpair"):
        async with served(stage):
            for name, (request, status) in REFUSED.items():
                async with opened(stage.emulator, upgrade=False) as raw:
                    assert (await raw.ask(request)).startswith(f"HTTP/1.1 {status} "), name
                    await raw.reader.read()
    mine = [record for record in caplog.records if record.name.startswith("sbpair")]
    assert [record.levelname for record in mine] == ["INFO"] * len(REFUSED)
    assert "secret" not in caplog.text


async def test_a_post_to_the_path_is_a_request(stage: Stage) -> None:
    async with opened(stage.emulator, upgrade=False) as raw:
        answer = await raw.ask(handshake(line="POST {} HTTP/1.1"))
        assert answer.startswith("HTTP/1.1 4")


async def test_no_websocket_opens_while_the_namespace_is_down(stage: Stage) -> None:
    stage.emulator.faults.namespace_down("contoso")
    async with opened(stage.emulator, upgrade=False) as raw:
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await raw.ask(handshake())


# Frames


async def test_frames_are_parts_of_one_stream(echo: Emulator) -> None:
    async with opened(echo) as raw:
        pieces = [
            frame(BINARY, b"ab"),
            frame(BINARY),
            frame(BINARY, b"c", fin=False) + frame(PING, b"between") + frame(CONT, b"d", fin=False) + frame(CONT, b"e"),
            frame(PONG, b"not asked for"),
            frame(BINARY, b"f" * 200_000),
        ]
        raw.writer.write(b"".join(pieces))
        received, others = b"", []
        while len(received) < 200_005:
            each = await raw.frame()
            if each.opcode is BINARY:
                assert len(each.data) <= MAX_PAYLOAD
                received += each.data
            else:
                others.append((each.opcode, bytes(each.data)))
        assert received == b"abcde" + b"f" * 200_000
        assert others == [(PONG, b"between")]


BROKEN = {
    "text": (frame(TEXT, b"AMQP"), 1003),
    "text in two parts": (frame(TEXT, b"AM", fin=False) + frame(CONT, b"QP"), 1003),
    "a frame without a mask": (frame(BINARY, b"x", mask=False), 1002),
    "a close code that is none": (frame(CLOSE, b"\x00\x01"), 1002),
    "a reason that is not UTF-8": (frame(CLOSE, b"\x03\xe8\xff\xff"), 1007),
    "a frame of 5 MB": (b"\x82\xff" + (5 << 20).to_bytes(8), 1009),
    "garbage": (bytes(range(256)) * 20, 1002),
}


async def test_a_broken_frame_costs_its_own_connection(stage: Stage) -> None:
    async with served(stage):
        for name, (sent, code) in BROKEN.items():
            async with opened(stage.emulator) as raw:
                raw.writer.write(sent)
                assert await raw.close_code() == code, name


async def test_a_message_in_parts_is_limited_too(echo: Emulator) -> None:
    async with opened(echo) as raw:
        parts = MAX_MESSAGE // 65_536
        raw.writer.write(frame(BINARY, fin=False) + frame(CONT, bytes(65_536), fin=False) * parts + frame(CONT, b"x"))
        assert await raw.close_code() == 1009


async def test_a_close_frame_is_answered_and_ends_the_stream(echo: Emulator) -> None:
    async with opened(echo) as raw:
        raw.writer.write(frame(BINARY, b"before"))
        assert await raw.payload(6) == b"before"
        raw.writer.write(frame(CLOSE, b"\x03\xe9away") + frame(BINARY, b"after") + frame(TEXT, b"after"))
        answer = await raw.frame()
        assert (answer.opcode, answer.data) == (CLOSE, b"\x03\xe9away")
        assert await raw.frame() is None


async def test_payload_before_a_close_frame_is_processed(stage: Stage) -> None:
    async with stage.connect(websocket=True) as peer:
        sender = await peer.attach_sender("orders")
        sender.send(data_body(b"last"), b"t")
        await peer.flush()
        await peer.writer.websocket.close()
    async with stage.connect(websocket=True) as peer:
        (delivery,) = await peer.take(await peer.attach_receiver("orders"), 1)
        assert delivery.payload.endswith(b"last")


async def test_the_server_closes_with_a_close_frame(stage: Stage) -> None:
    async with stage.connect(websocket=True) as peer:
        peer.connection.close()
        await peer.flush()
        await peer.wait_closed()
        assert peer.writer.websocket.close_code == 1000


async def test_a_client_without_an_answer_to_close_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket_frontend, "CLOSE_SECONDS", 0.05)

    class Closes(Echo):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.transport.close()

    async with serving(Closes) as raw:
        await raw.ask(handshake())
        raw.writer.write(frame(BINARY, b"bye"))
        assert await raw.payload(3) == b"bye"
        raw.writer.write(frame(BINARY, b"too late"))
        assert await raw.close_code() == 1000


@pytest.mark.parametrize("opcode", [BINARY, PING])
async def test_a_client_that_reads_nothing_is_not_read_from(echo: Emulator, stage: Stage, opcode: Opcode) -> None:
    flood = frame(opcode, bytes(125)) * 10_000
    async with opened(echo if opcode is BINARY else stage.emulator) as raw:
        raw.writer.transport.pause_reading()
        tracemalloc.start()
        try:
            written = 0
            while written < 100_000_000 and not await raw.is_held_back():
                raw.writer.write(flood)
                written += len(flood)
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert written < 100_000_000  # how much the system takes before it waits differs
        assert held < 8 * MAX_OUTPUT
        raw.writer.transport.resume_reading()
        # Reading goes on, so nothing that was sent is lost.
        left = written // len(flood) * 10_000 * 125
        while left:
            left -= len((await raw.frame()).data)


# Faults


async def test_a_stalled_websocket_continues_where_it_stopped(stage: Stage) -> None:
    async with stage.connect(websocket=True) as peer, stage.connect(websocket=True) as other:
        stalled, unharmed = await peer.attach_sender("orders"), await other.attach_sender("orders")
        await peer.wait(CreditChanged, of=stalled)
        stall = stage.emulator.faults.stall("contoso", 1, count=1)
        for number in range(3):
            stalled.send(data_body(b"stalled"), b"%d" % number)
        await peer.flush()
        await peer.wait(Disposed)
        await other.send(unharmed, data_body(b"x"))
        assert stage.queue.counts().active == 2
        pong = await peer.writer.websocket.ping()
        await (await other.writer.websocket.ping())
        assert not pong.done()
        stage.emulator.faults.end(stall)
        assert len((await peer.wait(Disposed)).deliveries) == 2
        await pong
    assert stage.queue.counts().active == 4
