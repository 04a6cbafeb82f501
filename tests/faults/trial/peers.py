"""Rounds with a hostile namespace: commands that end are run against servers that answer what no namespace would."""

import asyncio
import gzip
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

from sbpair.amqp import transfer
from sbpair.amqp.frames import AMQP_FRAME, AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, frame
from sbpair.amqp.performatives import Close, Detach, Error, SaslOutcome, decode_composite
from sbpair.backlog import queue_path
from sbpair.emulator import tls
from sbpair.testing import Emulator
from tests.emulator.test_hostile_peers import LISTS_IN_LISTS, described
from tests.faults.trial.command import Command
from tests.faults.trial.figures import Figures
from tests.integration.test_hostile_namespace import expanding, large, nested, redirect, wide
from tests.kit.command import SIDES, environment
from tests.kit.stranded import put, stranded

COMMANDS: Final = (
    ("audit",),
    ("status",),
    ("status", "--timeout", "3s"),
    ("doctor", "--timeout", "4s"),
    ("syphon", "--once", "--no-wait-for-locks"),
    ("provision", "--dry-run"),
)
DESIGNED: Final = frozenset({0, 2, 3, 4, 5, 6, 7})
TEXT: Final = "\x1b[31m\x1b]0;title\x07 \x9b2J \u202e evil\r\nerror: forged\x00"
MARKUP: Final = "&#x9b;31m &#x85; \u202e &#x2066; 'evil' "
FLOW, TRANSFER = 0x13, 0x14
MOST: Final = 64_000_000
"""Bytes that an endless answer has."""


@dataclass
class Served:
    """A hostile server in front of an honest namespace: how it answers, and what reached it."""

    random: Random
    behind: int = 0
    http: str = "honest"
    amqp: str = "honest"
    port: int = 0
    elsewhere: int = 0
    received: int = 0
    redirected: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(
            OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, asyncio.CancelledError
        ):
            start = await reader.readexactly(4)
            self.received += len(start)
            how = self.amqp if start == b"AMQP" else self.http
            if how == "silence":
                await ignored(reader)
            elif start != b"AMQP" and how not in CHANGED:
                await reader.readuntil(b"\r\n\r\n")
                await self._answer(writer)
            else:
                await self._pass(start, reader, writer)
        writer.close()

    async def _answer(self, writer: asyncio.StreamWriter) -> None:
        start, part, pause = ENDLESS.get(self.http, (ANSWERS.get(self.http, b""), b"", 0.0))
        writer.write(MADE[self.http](self.elsewhere) if self.http in MADE else start)
        if part:
            await endless(writer, part, pause)
        await writer.drain()

    async def _pass(self, start: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a connection to the honest namespace, whose answers are changed on the way back."""
        back, forth = await asyncio.open_connection("127.0.0.1", self.behind)
        forth.write(start)
        there = asyncio.create_task(copied(reader, forth))
        try:
            if start == b"AMQP":
                await changed(back, writer, self)
            while data := await back.read(1 << 20):
                writer.write(CHANGED[self.http](data, self.random))
                await writer.drain()
        finally:
            there.cancel()
            forth.close()


async def ignored(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()


async def endless(writer: asyncio.StreamWriter, part: bytes, pause: float = 0.0) -> None:
    """Write until the peer has enough."""
    for _ in range(MOST // len(part)):
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(pause)


# Over HTTP


def head(more: str = "", status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: application/atom+xml\r\n{more}\r\n".encode("latin-1", "replace")


def with_body(body: bytes, more: str = "", status: str = "200 OK") -> bytes:
    return head(f"Content-Length: {len(body)}\r\n{more}", status) + body


def error(status: int, detail: str) -> bytes:
    body = f"<Error><Code>{status}</Code><Detail>{detail}</Detail></Error>".encode()
    return with_body(body, status=f"{status} {TEXT.splitlines()[0]}")


ENDLESS: Final[dict[str, tuple[bytes, bytes, float]]] = {
    "endless chunks": (head("Transfer-Encoding: chunked\r\n"), b"10000\r\n" + b"<a>" * 21845 + b"a\r\n", 0.0),
    "endless body": (head(), b"<feed>" * 10_000, 0.0),
    "endless header": (b"HTTP/1.1 200 OK\r\nX-A: ", b"a" * 60_000, 0.0),
    "endless headers": (b"HTTP/1.1 200 OK\r\n", b"X-A: a\r\n" * 5_000, 0.0),
    "endless 100": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000, 0.0),
    "trickle of body": (head("Content-Length: 1000000\r\n"), b"<", 0.2),
    "trickle of head": (b"HTTP/1.1 200 OK\r\n", b"a", 0.2),
}
ANSWERS: Final[dict[str, bytes]] = {
    "garbage": bytes(range(256)) * 20,
    "close": b"",
    "length of words": head("Content-Length: many\r\n"),
    "negative length": head("Content-Length: -1\r\n"),
    "two lengths": head("Content-Length: 3\r\nContent-Length: 4\r\n") + b"<a/>",
    "both lengths": head("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + b"<a/>",
    "too short": head("Content-Length: 5000000\r\n") + b"<feed>",
    "too long": head("Content-Length: 4\r\n") + b"<a/>" * 10_000,
    "huge header": head(f"X-A: {'a' * 5_000_000}\r\n"),
    "401": error(401, MARKUP),
    "404": error(404, MARKUP),
    "409": error(409, MARKUP * 100_000),
    "429": with_body(b"", "Retry-After: 99999999999999999999\r\n", "429 Busy"),
    "500": error(500, "x" * 3_000_000),
    "503": with_body(TEXT.encode(), "Retry-After: -5\r\n", f"503 {TEXT}"),
    "999": with_body(b"", status="999 \x1b[2J"),
    "status of words": b"HTTP/1.1 OK\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"<feed/>",
    "gzip bomb": with_body(gzip.compress(bytes(200_000_000)), "Content-Encoding: gzip\r\n"),
    "not gzip": with_body(b"<feed/>", "Content-Encoding: gzip\r\n"),
    "empty feed": with_body(b"<feed xmlns='http://www.w3.org/2005/Atom'/>"),
    "other XML": with_body(f"<html><title>{MARKUP}</title></html>".encode()),
    "other encoding": with_body(b"<?xml version='1.0' encoding='utf-7'?><feed/>"),
    "JSON": with_body(b'{"a":' * 100_000),
    "204": b"HTTP/1.1 204 No Content\r\nContent-Length: 10\r\n\r\n0123456789",
    "cookie": with_body(b"<feed/>", "Set-Cookie: a=b\r\n" * 200),
}


def flipped(data: bytes, random: Random) -> bytes:
    """Change a few bytes of an answer's body, in place of digits with markup and long numbers."""
    start, _, body = data.partition(b"\r\n\r\n")
    if not body:
        return data
    changed = bytearray(body)
    for _ in range(random.randint(1, 8)):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return start + b"\r\n\r\n" + bytes(changed)


def renamed(data: bytes, random: Random) -> bytes:
    """Replace texts of an honest answer by others of the same length, with control characters."""
    for word in random.sample((b"Active", b"Standard", b"PT1M", b"contoso", b"false", b"orders", b"transfer"), 3):
        data = data.replace(word, "\x9b\u202e9".encode()[: len(word)].ljust(len(word), b"9"))
    return data


MADE: Final = {make.__name__: make for make in (expanding, large, nested, redirect, wide)}
CHANGED: Final = {"honest": lambda data, _: data, "flipped": flipped, "renamed": renamed}
HTTP: Final = ("silence", *ANSWERS, *ENDLESS, *MADE, *CHANGED)


# Over AMQP: the honest namespace's frames, one of which is changed


def endless_part(body: bytes) -> bytes:
    """Return a part of a message that never ends, in place of a transfer."""
    found: Any = decode_composite(body)[0]
    return transfer.encode_transfer(found.handle, 7, b"t" * 16, 0, settled=False, more=True) + bytes(30_000)


def changes(server: Served, kind: int, channel: int, body: bytes) -> dict[str, bytes]:
    """Return what is written in place of a frame, by the name of the change."""
    random, whole = server.random, frame(body, channel=channel, kind=kind)
    evil = Error("amqp:internal-error", TEXT)
    if kind == SASL_FRAME:
        refused = frame(SaslOutcome(random.choice((1, 2, 3, 99))).encode(), kind=SASL_FRAME)
        closed = detached = refused
    else:
        closed = frame(Close(Error(random.choice(("amqp:unauthorized-access", "\x1b[2J\x07")), TEXT)).encode())
        detached = frame(Detach(0, True, evil).encode(), channel=channel) + whole
    damaged = bytearray(body)
    for _ in range(random.randint(1, 4)):
        damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
    return {
        "wrong size": struct.pack(">I", random.choice((0, 7, len(whole) - 3, len(whole) + 9, 2**32 - 1))) + whole[4:],
        "wrong channel": frame(body, channel=random.choice((1, 255, 65_535)), kind=kind),
        "wrong type": frame(body, channel=channel, kind=random.choice((0, 1, 9))),
        "flipped": frame(bytes(damaged), channel=channel, kind=kind),
        "twice": whole * 2,
        "dropped": b"",
        "cut": whole[: random.randrange(len(whole))],
        "garbage": random.randbytes(500),
        "closed": closed,
        "detached": detached,
        "no performative": frame(b"\x54\x01", channel=channel, kind=kind),
        "lists in lists": frame(described(0x12, LISTS_IN_LISTS), channel=channel, kind=kind),
        "huge list": frame(described(0x14, b"\xd0\xff\xff\xff\xff\xff\xff\xff\xff"), channel=channel, kind=kind),
        "header again": AMQP_HEADER + whole,
        "other version": b"AMQP\x00\x02\x00\x00",
    }


ONCE: Final = tuple(changes(Served(Random(0)), AMQP_FRAME, 0, b"\x00\x53\x10\xc0\x01\x00"))


ALL: Final = ("no credit", "endless transfer", "idle", "heartbeats", "trickle")
AMQP: Final = ("silence", "honest", *ONCE, *ALL)


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, int, bytes]]:
    """Yield headers as (-1, 0, bytes), and frames as (type, channel, body)."""
    while True:
        head = await reader.readexactly(8)
        if head.startswith(b"AMQP"):
            yield -1, 0, head
        else:
            size, offset, kind, channel = struct.unpack(">IBBH", head)
            yield kind, channel, (await reader.readexactly(size - 8))[4 * offset - 8 :]


async def changed(back: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Served) -> None:
    """Pass AMQP on; change one frame of the namespace, or all that come after it."""
    how, left = server.amqp, server.random.choice((0, 1, 2, 3, 4, 6, 8, 12, 16, 24))
    async for kind, channel, body in frames(back):
        left -= 1
        whole = body if kind < 0 else frame(body, channel=channel, kind=kind)
        code = body[2] if kind == AMQP_FRAME and len(body) > 2 else 0
        if how == "no credit" and code == FLOW:
            continue
        if how == "endless transfer" and code == TRANSFER:
            await endless(writer, frame(endless_part(body), channel=channel))
        elif left < 0 and how == "idle":
            await ignored(back)
        elif left < 0 and how == "heartbeats":
            await endless(writer, EMPTY_FRAME * 100, 0.01)
        elif left < 0 and how == "trickle":
            for number in range(len(whole)):
                writer.write(whole[number : number + 1])
                await asyncio.sleep(0.02)
            continue
        elif (left == 0 or (left < 0 and server.random.random() < 0.05)) and how in ONCE and kind >= 0 and body:
            whole = changes(server, kind, channel, body)[how]
        writer.write(whole)
        await writer.drain()


@asynccontextmanager
async def serving(server: Served, context: ssl.SSLContext | None = None) -> AsyncIterator[Served]:
    """Run a hostile server, and another one to which it redirects."""
    tasks: list[asyncio.Task[None]] = []

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.append(asyncio.create_task(server.serve(reader, writer)))

    async def elsewhere(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.redirected += 1
        writer.close()

    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(await asyncio.start_server(elsewhere, "127.0.0.1", 0))
        server.elsewhere = other.sockets[0].getsockname()[1]
        # Not `async with`: its end waits for connections that the peer keeps.
        listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context, limit=1 << 20)
        server.port = listening.sockets[0].getsockname()[1]
        try:
            yield server
        finally:
            listening.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def honest_pair() -> AsyncIterator[Emulator]:
    """Run an emulated pair with a backlog."""
    async with Emulator() as emulator:
        emulator.namespaces["contoso"].create_queue("orders")
        for index in range(3):
            queue = emulator.namespaces["contoso-dr"].create_queue(queue_path("contoso", index))
            for number in range(20):
                put(queue, stranded(f"m{index}-{number}", "orders"))
        yield emulator


def port_of(emulator: Emulator, number: int) -> int:
    return int(emulator.ready.namespaces[number].endpoint.rstrip("/").rpartition(":")[2])


async def peers(directory: Path, random: Random, figures: Figures) -> None:
    """Run the commands, one or both of whose namespaces are hostile."""
    async with honest_pair() as emulator, AsyncExitStack() as stack:
        env = environment(emulator, XDG_STATE_HOME=str(directory), NO_COLOR="1", COLUMNS="200")
        context = None
        if random.random() < 0.3:
            env["SSL_CERT_FILE"], context = certified(directory, ["127.0.0.1"])
        hostile = []
        for number in random.choice(((0,), (1,), (0, 1))):
            how = random.choice(({"http": random.choice(HTTP)}, {"amqp": random.choice(AMQP)}))
            server = Served(random, port_of(emulator, number), **how)
            hostile.append(await stack.enter_async_context(serving(server, context)))
            variable = f"SBPAIR_{SIDES[number]}_CONNECTION_STRING"
            env[variable] = env[variable].replace(f":{server.behind}", f":{server.port}")
            if context:
                env[variable] = env[variable].removesuffix(";UseDevelopmentEmulator=true")
        what = [f"{SIDES[each.behind == port_of(emulator, 1)]}: {each.http}, {each.amqp}" for each in hostile]
        for words in random.sample(COMMANDS, 3):
            before = len(figures.findings)
            started = await Command.start(*words, *random.choice(((), ("-o", "json"))), env=env, figures=figures)
            # Each link may hold a message of 256 MB that is not complete.
            max_mb = 1_000 if any(each.amqp == "endless transfer" for each in hostile) else 250
            await started.end(DESIGNED, secrets=env["SBPAIR_PRIMARY_CONNECTION_STRING"], max_mb=max_mb)
            figures.findings[before:] = [f"{each} {what}" for each in figures.findings[before:]]
        if any(each.redirected for each in hostile):
            figures.find("other", f"a redirect was followed: {what}")


# Certificates


def certified(directory: Path, hosts: list[str], life: timedelta = tls.LIFE) -> tuple[str, ssl.SSLContext]:
    """Return the file of a new authority, and a context with a certificate of it."""
    with patch.object(tls, "LIFE", life):
        authority, server = tls.certificates(hosts)
    path = directory / f"ca-{len(list(directory.iterdir()))}.pem"
    path.write_bytes(authority)
    return str(path), tls.server_context(server, directory / "server.pem")


async def certificates(directory: Path, random: Random, figures: Figures) -> None:
    """Run the commands against a namespace whose certificate must not be trusted. Nothing is sent to it."""
    trusted, _ = certified(directory, ["127.0.0.1"])
    authority, expired = certified(directory, ["127.0.0.1"], -timedelta(hours=1))
    other, of_another = certified(directory, ["elsewhere.example"])
    _, of_nobody = certified(directory, ["127.0.0.1"])
    name, ca_file, context = random.choice(
        (
            ("expired", authority, expired),
            ("another name", other, of_another),
            ("unknown", trusted, of_nobody),
            ("plain", trusted, None),
        )
    )
    async with (
        honest_pair() as emulator,
        serving(Served(random, port_of(emulator, 1), "silence", "silence"), context) as server,
    ):
        env = environment(emulator, XDG_STATE_HOME=str(directory), NO_COLOR="1", SSL_CERT_FILE=ca_file)
        text = env["SBPAIR_SECONDARY_CONNECTION_STRING"].removesuffix(";UseDevelopmentEmulator=true")
        env["SBPAIR_SECONDARY_CONNECTION_STRING"] = text.replace(f":{server.behind}", f":{server.port}")
        options = random.choice(((), ("--transport", "websocket")))
        for words in random.sample(COMMANDS, 3):
            started = await Command.start(*words, *(options if words[0] == "syphon" else ()), env=env, figures=figures)
            await started.end({3, 6} if words[0] == "doctor" else {6}, secrets=text, limit=120)
        if name != "plain" and server.received:
            figures.find("other", f"{server.received} bytes were sent to a server with a certificate that is {name}")
