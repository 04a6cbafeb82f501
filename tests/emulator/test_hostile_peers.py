"""Peers that send garbage, incomplete frames and floods: each harms its own connection only."""

import asyncio
import random
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sbpair.amqp import transfer
from sbpair.amqp.connection import CHANNEL_MAX
from sbpair.amqp.frames import AMQP_HEADER, SASL_HEADER, frame
from sbpair.amqp.link import LinkAttached, LinkDetached
from sbpair.amqp.message import Sections, data_body, encode_map, value_body
from sbpair.amqp.performatives import Attach, Begin, Error, Flow, Open, SaslInit, Source, Target
from sbpair.amqp.session import NO_HANDLE, SessionEnded
from sbpair.amqp.types import Long, Map
from sbpair.amqp_server import admission, server_connection
from sbpair.emulator.frontends.amqp.message_links import OVERSIZE_FACTOR
from tests.emulator.peer import Stage

SECONDS = 20

SIGN_IN = SASL_HEADER + frame(SaslInit("ANONYMOUS").encode(), kind=1) + AMQP_HEADER
OPENED = SIGN_IN + frame(Open("hostile", "h").encode())
BEGUN = OPENED + frame(Begin(None, 0, 5000, 5000).encode())


def described(code: int, body: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + body


GARBAGE = random.Random(7).randbytes(4000)
LISTS_IN_LISTS = b"\xd0" + b"\x00\x00\x10\x00\x00\x00\x00\x01\xd0" * 400

HOSTILE = {
    "nothing of AMQP": b"\x16\x03\x01\x02\x00" + GARBAGE,
    "garbage after a header": SASL_HEADER + GARBAGE,
    "another version": b"AMQP\x00\x02\x00\x00",
    "garbage after signing in": SIGN_IN + GARBAGE,
    "a frame of 4 GB": SIGN_IN + struct.pack(">IBBH", 0xFFFFFFFF, 2, 0, 0) + GARBAGE,
    "a frame of no bytes": SIGN_IN + struct.pack(">IBBH", 0, 2, 0, 0),
    "a frame that is all header": SIGN_IN + struct.pack(">IBBH", 8, 255, 0, 0),
    "a frame of another type": SIGN_IN + struct.pack(">IBBH", 8, 2, 9, 0),
    "SASL twice": SIGN_IN + SASL_HEADER,
    "a mechanism that is none": SASL_HEADER + frame(SaslInit("MAGIC").encode(), kind=1),
    "no performative": OPENED + frame(b"\x54\x01"),
    "a performative of SASL": BEGUN + frame(SaslInit("PLAIN").encode()),
    "opening twice": OPENED + frame(Open("again").encode()),
    "a list of 4 billion": OPENED + frame(described(0x11, b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff")),
    "an array of 4 billion nulls": OPENED + frame(described(0x11, b"\xf0\x00\x00\x00\x05\xff\xff\xff\xff\x40")),
    "a string longer than its frame": OPENED + frame(described(0x10, b"\xc0\x06\x01\xb1\x7f\xff\xff\xff")),
    "lists in lists": OPENED + frame(described(0x12, LISTS_IN_LISTS)),
    "a channel too far": OPENED + frame(Begin(None, 0, 1, 1).encode(), channel=0xFFFF),
    "a transfer of nothing": BEGUN + frame(described(0x14, b"")),
    "attaching what is not there": BEGUN + frame(described(0x12, b"\xc0\x02\x01\x40")),
}


@asynccontextmanager
async def served(stage: Stage) -> AsyncIterator[None]:
    """Let a good client send and receive: it is served during the block, and still is at its end."""
    done, ready, stop = 0, asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal done
        async with stage.connect() as peer:
            sender, receiver = await peer.attach_sender("orders"), await peer.attach_receiver("orders")
            while not stop.is_set():
                await peer.send(sender, data_body(b"good"))
                (delivery,) = await peer.take(receiver, 1)
                await peer.settle(delivery)
                done += 1
                ready.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(work(), name="good client")
        await ready.wait()
        before = done
        yield
        while done < before + 3:
            ready.clear()
            await ready.wait()
        stop.set()


async def raw(stage: Stage) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = stage.namespace.authority.rpartition(":")
    connected = socket.socket()
    # Small socket buffers keep unread output out of the kernel.
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    connected.connect((host, int(port)))
    return await asyncio.open_connection(sock=connected)


async def until_cut_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    output = b""
    try:
        while data := await reader.read(65536):
            output += data
    except ConnectionError:
        pass
    writer.transport.abort()
    return output


async def test_a_protocol_error_costs_its_own_connection(stage: Stage) -> None:
    async def hostile(sent: bytes) -> None:
        reader, writer = await raw(stage)
        writer.write(sent)
        await until_cut_off(reader, writer)

    async with served(stage), asyncio.TaskGroup() as group:
        for name, sent in HOSTILE.items():
            group.create_task(hostile(sent), name=name)


async def test_incomplete_handshakes_are_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "OPEN_SECONDS", 0.2)
    async with served(stage):

        async def half(size: int) -> None:
            reader, writer = await raw(stage)
            writer.write(OPENED[:size])
            await until_cut_off(reader, writer)

        # The first four bytes select the protocol, which starts the handshake timer.
        await asyncio.gather(*(half(size) for size in range(4, len(OPENED))))


async def test_slow_bytes_are_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "OPEN_SECONDS", 0.2)
    async with served(stage):
        reader, writer = await raw(stage)
        cut_off = asyncio.create_task(until_cut_off(reader, writer), name="reading")
        for byte in SIGN_IN + struct.pack(">IBBH", 60_000, 2, 0, 0) + bytes(59_000):
            if cut_off.done():
                break
            writer.write(bytes((byte,)))
            await asyncio.wait([cut_off], timeout=0.001)
        await cut_off


async def test_too_many_links_are_cut_off(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "MAX_LINKS", 20)
    async with served(stage):
        reader, writer = await raw(stage)
        writer.write(BEGUN)
        for handle in range(30):
            attach = Attach(f"link {handle}", handle, True, source=Source("orders"), target=Target("t"))
            writer.write(frame(attach.encode()))
        assert b"amqp:resource-limit-exceeded" in await until_cut_off(reader, writer)


async def test_a_client_may_have_a_session_for_each_of_its_links(stage: Stage) -> None:
    """As .NET's clients do: a session for $cbs, and 4 999 with a link each."""
    async with stage.connect() as peer:
        links = []
        for number in range(CHANNEL_MAX + 1):
            link = peer.connection.begin().receiver(str(number))
            link.open(source=Source("orders" if number else "$cbs"), target=Target("peer"))
            links.append(link)
        assert len(links) == 5_000
        await peer.flush()
        while not links[-1].is_open:
            await peer.read()
        peer.events.clear()
        await peer.send(await peer.attach_sender("orders", session=links[-1].session), data_body(b"x"))
        assert len(await peer.take(links[-1], 1)) == 1


async def test_a_link_beyond_the_handles_ends_its_session_alone(stage: Stage) -> None:
    async with stage.connect() as peer:
        kept, session = await peer.attach_sender("orders"), await peer.begin()
        links = [session.sender(str(number)) for number in range(256)]
        for link in links:
            link.open(source=Source("peer"), target=Target("orders"))
        for link in links:
            await peer.wait(LinkAttached, of=link)
        session.put(Attach("one more", 256, False, source=Source("peer"), target=Target("orders")))
        error = (await peer.wait(SessionEnded)).error
        assert (error.condition, error.description) == ("amqp:resource-limit-exceeded", NO_HANDLE)
        assert "handles allowed is 255." in NO_HANDLE
        await peer.send(kept, data_body(b"x"))


async def test_a_connection_without_links_ends(stage: Stage) -> None:
    """One to $cbs does not count. Links that have ended leave more time."""
    closed = "The connection was closed by container 'contoso_G0' because it did not have any active links in the past"
    async with stage.connect() as new, stage.connect() as used, stage.connect() as linked:
        await new.attach_node("$cbs")
        session = await used.begin()
        link = await used.attach_receiver("orders", session=session)
        await linked.attach_sender("orders")
        stage.emulator.advance(50_000)
        link.close()
        await used.attach_node("$cbs")
        stage.emulator.advance(10_000)
        ended = await new.wait_closed()
        assert ended is not None
        assert ended.error == Error("amqp:connection:forced", f"{closed} 60000 milliseconds.", Map())
        stage.emulator.advance(280_000)
        await used.begin()
        stage.emulator.advance(20_000)
        ended = await used.wait_closed()
        assert ended is not None
        assert ended.error == Error("amqp:connection:forced", f"{closed} 300000 milliseconds.", Map())
        await linked.send(await linked.attach_sender("orders"), data_body(b"x"))


async def test_a_message_in_endless_parts_costs_its_link(stage: Stage) -> None:
    async with served(stage), stage.connect() as peer:
        link = await peer.attach_sender("orders")
        part = transfer.encode_transfer(link.handle, 0, b"t", 0, settled=False, more=True) + bytes(60_000)
        for _ in range(OVERSIZE_FACTOR * 262_144 // 60_000 + 2):
            peer.connection.put(link.session.channel, part)
        detached = await peer.wait(LinkDetached)
        assert detached.error.condition == "amqp:link:message-size-exceeded"


async def test_empty_parts_use_no_memory(stage: Stage) -> None:
    async with stage.connect() as peer, stage.connect() as other:
        out = await other.attach_sender("orders")
        link = await peer.attach_sender("orders")
        part = transfer.encode_transfer(link.handle, 0, b"t", 0, settled=False, more=True)
        flood = frame(part, channel=link.session.channel) * 1_000
        tracemalloc.start()
        try:
            for _ in range(20):
                peer.writer.write(flood)
                await peer.writer.drain()
                await other.send(out, data_body(b"x"))
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # A byte kept of each of the 20 000 parts would be 700 kB.
        assert held < 500_000
        last = transfer.encode_transfer(link.handle, 0, b"t", 0, settled=False, more=False)
        peer.connection.put(link.session.channel, last + data_body(b"whole"))
        await peer.flush()
        delivery = (await peer.take(await peer.attach_receiver("orders"), 21))[-1]
        assert delivery.payload.endswith(b"whole")


@pytest.mark.parametrize("how", ["does not read", "goes away", "closes its window"])
async def test_a_flood_of_requests_is_answered_as_replies_are_read(stage: Stage, how: str) -> None:
    """Each small request has a reply of 200 KB; without a reader, requests are no longer read."""
    stage.namespace.create_queue("large")
    body = Map([("from-sequence-number", Long(0)), ("message-count", Long(1))])
    operation = encode_map(0x74, Map([("operation", "com.microsoft:peek-message")]))
    request = Sections(application_properties=operation, body=value_body(body)).join()
    tracemalloc.start()
    try:
        async with served(stage), stage.connect() as peer:
            await peer.send(await peer.attach_sender("large"), data_body(bytes(200_000)))
            session = await peer.begin()
            requests = await peer.attach_sender("large/$management", session=session)
            replies = await peer.attach_receiver("large/$management", session=session)
            replies.grant(100_000)
            if how == "does not read":
                peer.writer.transport.pause_reading()
            if how == "closes its window":
                peer.connection.put(session.channel, Flow(0, 0, 0, 5_000).encode())
            for number in range(4_000):
                requests.credit = 1
                requests.send(request, b"%d" % number, settled=True)
            peer.writer.write(peer.connection.take())
            if how != "goes away":
                async with stage.connect() as other:
                    await other.attach_receiver("orders")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30_000_000
