"""Peers that are slow, silent or too many: how long each has, and how many there may be, as the loop's clock jumps."""

import asyncio
import logging
import re
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sbpair.amqp.frames import AMQP_HEADER, SASL_HEADER
from sbpair.amqp.message import data_body
from sbpair.amqp_server import admission
from sbpair.amqp_server.admission import (
    ACCEPT_AGAIN_SECONDS,
    HEAD_SECONDS,
    LOG_SECONDS,
    OPEN_SECONDS,
    PATIENCE_SECONDS,
    SILENCE_SECONDS,
)
from sbpair.emulator.frontends.http.http_connection import BODY_SECONDS, IDLE_SECONDS, HttpServer
from sbpair.operating_system import listen
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.peer import Stage, open_stage, raw_connection
from tests.emulator.relay_peers import PATH, RelayBench
from tests.emulator.test_websocket import handshake
from tests.kit.async_tests import InLoop
from tests.kit.command import environment, start
from tests.kit.waiting import until

# The clock that jumps is also that of the tests' own limit.
pytestmark = pytest.mark.timeout_seconds(500)

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\n"
TURNS = 30
"""Turns of the loop in which bytes arrive over a socket of this machine."""


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


class Time:
    """The clock of the event loop, which jumps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self._ahead = 0.0

    async def pass_by(self, seconds: float) -> None:
        """Let what was sent arrive, then jump, and run what is due."""
        await turns()
        self.jump(seconds)
        await turns()

    def jump(self, seconds: float) -> None:
        if not self._ahead:
            real = asyncio.get_running_loop().time
            self._set(lambda: real() + self._ahead)
        self._ahead += seconds

    def stop(self) -> None:
        now = asyncio.get_running_loop().time()
        self._set(lambda: now)

    def _set(self, clock: Callable[[], float]) -> None:
        self._monkeypatch.setattr(asyncio.get_running_loop(), "time", clock)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


async def is_open(streams: Streams) -> bool:
    """Return whether the other side has neither answered nor ended the connection."""
    await turns()
    reader, _ = streams
    return not reader.at_eof() and not reader._buffer  # type: ignore[attr-defined]


async def rest(reader: asyncio.StreamReader) -> bytes:
    """Read to the end of the connection."""
    try:
        return await reader.read()
    except ConnectionError:
        return b"reset"


HEADS = {
    "the method": b"GE",
    "the target of a WebSocket": b"GET /$servicebus/web",
    "a line": b"GET /health HTT",
    "the last line": HEALTH[:-2],
    "the last line of a WebSocket": handshake()[:-2],
    "an expectation": b"PUT /orders HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\n",
}


@pytest.mark.parametrize("begun", HEADS)
async def test_a_head_that_never_ends_is_answered_by_408(stage: Stage, time: Time, begun: str) -> None:
    async with raw_connection(stage.namespace.authority) as streams:
        streams[1].write(HEADS[begun])
        await time.pass_by(HEAD_SECONDS - 1)
        assert await is_open(streams)
        await time.pass_by(1)
        assert (await rest(streams[0])).startswith(TOO_SLOW)


async def test_slow_bytes_of_a_head_do_not_prolong_its_time(stage: Stage, time: Time) -> None:
    async with raw_connection(stage.namespace.authority) as streams:
        streams[1].write(HEALTH[:4])
        for byte in HEALTH[4:14]:
            streams[1].write(bytes([byte]))
            await time.pass_by(1)
        assert (await rest(streams[0])).startswith(TOO_SLOW)


async def test_a_connection_may_idle_between_requests_only(stage: Stage, time: Time) -> None:
    async with raw_connection(stage.namespace.authority) as idle, raw_connection(stage.namespace.authority) as slow:
        for reader, writer in (idle, slow):
            writer.write(HEALTH)
            await reader.readuntil(b'healthy."}')
        slow[1].write(b"G")
        await time.pass_by(HEAD_SECONDS)
        assert (await rest(slow[0])).startswith(TOO_SLOW)
        await time.pass_by(IDLE_SECONDS - HEAD_SECONDS - 1)
        idle[1].write(HEALTH)
        await idle[0].readuntil(b'healthy."}')
        await time.pass_by(IDLE_SECONDS - 1)
        assert await is_open(idle)
        await time.pass_by(2)
        assert await rest(idle[0]) == b""


BODIES = {
    "Atom": b"PUT /orders?api-version=2021-05 HTTP/1.1\r\n" + HOST + b"Content-Length: 100\r\n\r\n<entry",
    "in chunks": b"PUT /orders?api-version=2021-05 HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n9\r\n<e",
    "no byte": b"POST /$control/clock HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n",
    "the control API": b"POST /$control/clock HTTP/1.1\r\n" + HOST + b"Content-Length: 90\r\n\r\n{",
}


@pytest.mark.parametrize("begun", BODIES)
async def test_a_body_without_progress_is_answered_by_408(time: Time, begun: str) -> None:
    async with open_reader() as (authority, received), raw_connection(authority) as streams:
        streams[1].write(BODIES[begun])
        await time.pass_by(BODY_SECONDS - 1)
        streams[1].write(b"a")
        await time.pass_by(BODY_SECONDS - 1)
        assert await is_open(streams)
        await time.pass_by(2)
        assert (await rest(streams[0])).startswith(TOO_SLOW)
        # For the request, its sender is gone.
        assert isinstance(await received.get(), ConnectionError)


@asynccontextmanager
async def open_reader() -> AsyncIterator[tuple[str, asyncio.Queue[bytes | Exception]]]:
    """Serve requests whose bodies, or the errors of reading them, come to a queue."""
    received: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    async def handle(request: web.BaseRequest) -> web.Response:
        try:
            received.put_nowait(await request.read())
        except ConnectionError as error:
            received.put_nowait(error)
        return web.Response(text="read")

    http, listening = HttpServer(handle), listen("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(http, sock=listening):
        yield "{}:{}".format(*listening.getsockname()), received
        await http.shutdown(1)


async def test_a_management_request_without_its_body_is_answered_by_408(stage: Stage, time: Time) -> None:
    for name in ("Atom", "in chunks", "the control API"):
        async with raw_connection(stage.namespace.authority) as streams:
            streams[1].write(BODIES[name])
            await time.pass_by(BODY_SECONDS + 1)
            answer = await rest(streams[0])
            # Atom refuses a request without a token at once.
            assert answer.startswith((TOO_SLOW, b"HTTP/1.1 401 ")), name


async def test_a_body_waits_while_an_earlier_request_is_answered(time: Time) -> None:
    begun, answer = asyncio.Event(), asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.Response:
        begun.set()
        await answer.wait()
        return web.Response(text=(await request.read()).decode() or "first")

    http, listening = HttpServer(handle), listen("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(http, sock=listening):
        async with raw_connection("{}:{}".format(*listening.getsockname())) as (reader, writer):
            writer.write(HEALTH + b"PUT / HTTP/1.1\r\n" + HOST + b"Content-Length: 6\r\n\r\nsec")
            await begun.wait()
            await time.pass_by(3 * BODY_SECONDS)
            answer.set()
            await reader.readuntil(b"first")
            writer.write(b"ond" + HEALTH[:9])
            await reader.readuntil(b"second")
            await time.pass_by(HEAD_SECONDS)
            writer.write(HEALTH[9:])
            await reader.readuntil(b"first")
        await http.shutdown(1)


@pytest.mark.parametrize("size", [100, 100_000])
async def test_a_relayed_body_without_progress_is_answered_by_408(bench: RelayBench, time: Time, size: int) -> None:
    """A small body goes over the control channel, a large one over a rendezvous connection."""
    listener = await bench.listen()
    async with raw_connection(bench.authority) as streams:
        token = bench.token().encode()
        head = b"POST /%b HTTP/1.1\r\n%bServiceBusAuthorization: %b\r\n" % (PATH.encode(), HOST, token)
        streams[1].write(head + b"Content-Length: %d\r\nExpect: 100-continue\r\n\r\nabc" % size)
        assert (await streams[0].readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
        if size > 100:
            await listener.next("request")
        await time.pass_by(BODY_SECONDS)
        await time.pass_by(1)
        assert (await rest(streams[0])).startswith(TOO_SLOW)
    bench.advance(60)
    await until(lambda: not bench.namespace.hybrid_connections.waiting)


BROKEN_CHUNKS = {
    "no number": b"zz\r\n",
    "a number too large": b"F" * 18 + b"\r\n",
    "no end of a line": b"1\r\nabc",
    "a trailer too long": b"0\r\nX: " + b"a" * 20_000 + b"\r\n",
    "trailers without end": b"0\r\n" + b"X: a\r\n" * 10_000,
}


@pytest.mark.parametrize("broken", BROKEN_CHUNKS)
async def test_a_body_that_is_not_http_ends_its_connection(
    bench: RelayBench, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    """It comes after the head, whose request waits for it, or is refused without it."""
    listener = await bench.listen()
    for target in ("/orders?api-version=2021-05", "/$control/clock", f"/{PATH}", "/$identity"):
        async with raw_connection(bench.authority) as (reader, writer):
            writer.write(f"PUT {target} HTTP/1.1\r\nServiceBusAuthorization: {bench.token()}\r\n".encode() + HOST)
            writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
            if target == f"/{PATH}":
                await listener.next("request")
            await turns()
            writer.write(BROKEN_CHUNKS[broken])
            if target == f"/{PATH}":
                await turns()
                bench.advance(60)
            assert (await rest(reader)).startswith((b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.0 400", b"reset")), target
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


async def test_an_answer_that_is_not_read_ends_its_connection(time: Time) -> None:
    async def handle(_: web.BaseRequest) -> web.Response:
        return web.Response(body=bytes(30_000_000))

    http, listening = HttpServer(handle), listen("127.0.0.1", 0)
    async with await asyncio.get_running_loop().create_server(http, sock=listening):
        async with raw_connection("{}:{}".format(*listening.getsockname())) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(HEALTH)
            await until(lambda: any(each.writing_paused for each in http.connections))
            await time.pass_by(BODY_SECONDS + 1)
            await until(lambda: not http.connections)
        await http.shutdown(1)


# Connections that do not open

UNOPENED = {
    "nothing": b"",
    "a byte of AMQP": b"A",
    "AMQP": AMQP_HEADER,
    "SASL": SASL_HEADER,
    "TLS": b"\x16\x03\x01\x02\x00\x01",
    "a WebSocket": handshake(Host="localhost"),
}


@pytest.mark.parametrize("sent", UNOPENED)
async def test_a_connection_that_does_not_open_ends(sent: str, time: Time) -> None:
    options = EmulatorOptions(tls=True)
    async with (
        Emulator([("contoso", 0)], options=options) as emulator,
        raw_connection(emulator.namespaces["contoso"].authority) as (reader, writer),
    ):
        writer.write(UNOPENED[sent])
        await time.pass_by(OPEN_SECONDS - 1)
        assert not reader.at_eof()
        await time.pass_by(1)
        assert not (await rest(reader)).startswith(TOO_SLOW)


@pytest.mark.parametrize("inside", [b"", b"GET /", AMQP_HEADER])
async def test_a_connection_that_does_not_open_within_tls_ends(inside: bytes, time: Time) -> None:
    async with Emulator([("contoso", 0)], options=EmulatorOptions(tls=True)) as emulator:
        host, _, port = emulator.namespaces["contoso"].authority.rpartition(":")
        trust = ssl.create_default_context(cafile=emulator.ready.ca_file)
        reader, writer = await asyncio.open_connection(host, int(port), ssl=trust)
        writer.write(inside)
        await time.pass_by(HEAD_SECONDS)
        await time.pass_by(OPEN_SECONDS)
        answer = await rest(reader)
        assert answer.startswith(TOO_SLOW) is (inside == b"GET /")
        writer.transport.abort()


LIMIT = 8


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> InLoop:
    """Start an emulator of a process that may open few files."""
    monkeypatch.setattr(admission, "open_file_limit", lambda: 4 * LIMIT + 3)
    return InLoop(open_stage)


@pytest.mark.parametrize(("sent", "patience"), [(b"", SILENCE_SECONDS), (b"GET /h", PATIENCE_SECONDS)])
async def test_silent_connections_keep_no_client_out(
    few: Stage, time: Time, caplog: pytest.LogCaptureFixture, sent: bytes, patience: float
) -> None:
    async with AsyncExitStack() as stack:
        silent = [await stack.enter_async_context(raw_connection(few.namespace.authority)) for _ in range(3 * LIMIT)]
        for _, writer in silent:
            writer.write(sent)
        await turns()
        client = asyncio.create_task(served(few))
        ended = 0
        while not client.done():
            # The client is behind those that were there before.
            await time.pass_by(patience)
            now = sum(reader.at_eof() for reader, _ in silent)
            assert now - ended <= LIMIT
            ended = now
        await client
        assert 2 * LIMIT < ended < 3 * LIMIT
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert said == [f"{LIMIT} connections have not opened (limit: ulimit -n / 4): the oldest end."]


async def served(stage: Stage) -> None:
    async with stage.connect() as peer:
        await peer.send(await peer.attach_sender("orders"), data_body(b"x"))


async def test_a_client_is_not_ended_because_the_emulator_was_busy(few: Stage, time: Time) -> None:
    """The loop stalls, as by an import, before it reads what they have sent."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(raw_connection(few.namespace.authority)) for _ in range(5 * LIMIT)]
        for _, writer in clients:
            writer.write(HEALTH)
        time.jump(SILENCE_SECONDS)
        for reader, _ in clients:
            await reader.readuntil(b'healthy."}')


async def test_a_place_that_is_free_in_the_last_moment_is_taken(monkeypatch: pytest.MonkeyPatch, time: Time) -> None:
    monkeypatch.setattr(admission, "open_file_limit", lambda: 4)
    async with open_stage() as stage, raw_connection(stage.namespace.authority) as (reader, writer):
        await turns()
        client = asyncio.create_task(served(stage))
        await time.pass_by(SILENCE_SECONDS / 2)
        # Its first bytes are read in the turn in which its time is over.
        writer.write(HEALTH)
        time.jump(SILENCE_SECONDS)
        await reader.readuntil(b'healthy."}')
        await client


async def test_opened_connections_are_not_limited_to_a_quarter(few: Stage, time: Time) -> None:
    async with AsyncExitStack() as stack:
        peers = [await stack.enter_async_context(few.connect()) for _ in range(2 * LIMIT)]
        others = [await stack.enter_async_context(raw_connection(few.namespace.authority)) for _ in range(2 * LIMIT)]
        for reader, writer in others:
            writer.write(HEALTH)
            await reader.readuntil(b'healthy."}')
        await time.pass_by(OPEN_SECONDS + 1)
        for peer in peers:
            await peer.send(await peer.attach_sender("orders"), data_body(b"x"))
        for reader, writer in others:
            writer.write(HEALTH)
            await reader.readuntil(b'healthy."}')


async def test_a_burst_of_clients_is_served_without_a_refusal(few: Stage, time: Time) -> None:
    time.stop()
    async with asyncio.TaskGroup() as group:
        for number in range(10 * LIMIT):
            group.create_task(served(few), name=f"client {number}")
    assert few.queue.counts().active == 10 * LIMIT


async def test_the_log_of_a_flood_is_a_line_a_minute(
    stage: Stage, time: Time, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop, attempts = asyncio.get_running_loop(), 0
    accept = loop.sock_accept

    async def without_files(_: socket.socket) -> Any:
        nonlocal attempts
        attempts += 1
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(loop, "sock_accept", without_files)
    async with raw_connection(stage.namespace.authority):
        pass
    for _ in range(4 * int(LOG_SECONDS) - 20):
        await time.pass_by(ACCEPT_AGAIN_SECONDS)
    assert attempts < 4 * LOG_SECONDS
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all(re.fullmatch(r"No connection .*: Too many open files \(ulimit -n is \d+\)\.", text) for text in said)
    monkeypatch.setattr(loop, "sock_accept", accept)
    await time.pass_by(1)
    await served(stage)


async def test_a_process_without_free_files_serves_again_when_it_has(tmp_path: Path) -> None:
    """Clients that have opened hold every file that the process may open."""
    files, ready = 64, tmp_path / "ready.json"
    limit: Callable[[], object] = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files))
    words = ("emulator", "--namespace", "contoso=0", "--ready-file", str(ready))
    process = await start(*words, env=environment(None), prepare=limit)
    try:
        await until(ready.exists)
        authority = re.search(r"sb://([0-9.:]+)", ready.read_text())[1]  # type: ignore[index]
        async with AsyncExitStack() as stack:
            clients = []
            for _ in range(files):
                clients.append(await stack.enter_async_context(raw_connection(authority)))
                clients[-1][1].write(HEALTH)
            waiting = [asyncio.create_task(reader.readexactly(8)) for reader, _ in clients]
            await until(lambda: sum(each.done() for each in waiting) > files // 2)
            assert b"Too many open files" in await process.stderr.readuntil(b"Too many open files")
            assert not all(each.done() for each in waiting)
            for each, (_, writer) in zip(waiting, clients, strict=True):
                if each.done():
                    writer.transport.abort()
            # Those that waited in the kernel are served.
            assert set(await asyncio.gather(*waiting)) == {b"HTTP/1.1"}
    finally:
        process.terminate()
        _, said = await process.communicate()
    assert process.returncode == 0
    assert said.count(b"Too many open files") == 0
