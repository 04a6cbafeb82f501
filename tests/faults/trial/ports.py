"""Rounds with hostile clients of ports: health and metrics of a watch, the emulator, and a relay with its listener."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Final

from sbpair.emulator.access.sas import AuthorizationRule
from tests.faults.trial.command import Clock, Command, end_emulator
from tests.faults.trial.figures import Figures
from tests.kit.command import SIDES
from tests.kit.emulated import EmulatorProcess
from tests.kit.sas import sign

DAY: Final = 86_400
SLOW_CONNECTIONS: Final = 40
MAX_ANSWER_SECONDS: Final = 3.0
PATIENCE_SECONDS: Final = 2.0
EVIL: Final = b"x-injected: evil"

TARGETS: Final = (
    b"{path}",
    b"{path}?a=%0d%0aX-Injected:%20evil",
    b"{path}/../../etc/passwd",
    b"{path}/%2e%2e/%2e%2e/secret",
    b"{path}%00",
    b"{path}/" + b"x" * 10_000,
    b"{path}/%0d%0aX-Injected:%20evil",
    b"/../../etc/passwd",
    b"/%00",
    b"*",
    b"http://evil.example/{path}",
    b"//evil.example/",
    b"{path}#a\xff\xfe",
)
HEADERS: Final = (
    b"",
    b"Connection: X-A, keep-alive\r\nX-A: 1\r\nTE: trailers\r\nUpgrade: h2c\r\nProxy-Authorization: x\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 99999999999999999999999\r\n",
    b"X-A: b\rX-Injected: evil\r\n",
    b"X-A: b\nX-Injected: evil\r\n",
    b"X-A: b\r\n X-Injected: evil\r\n",
    b"X-A\x00: b\r\n",
    b": empty\r\n",
    b"X A: b\r\n",
    b"X-Forwarded-For: 1.2.3.4\r\nForwarded: for=evil\r\nX-Forwarded-Host: evil\r\n",
    b"Expect: 100-continue\r\n",
    b"Host: evil.example\r\n",
    b"Accept: " + b"a" * 12_000 + b"\r\n",
    b"X-" + b"a" * 70_000 + b": b\r\n",
    b"Cookie: a=b\r\n" * 300,
)
WHOLE: Final = (
    b"GET {path}\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"AMQP\x03\x01\x00\x00" + b"\xff" * 200,
    b"GET {path} HTTP/9.9\r\nHost: here\r\n\r\n",
    b"GET {path} HTTP/1.1\r\n\r\n",
    b"\r\n" * 5_000,
    b"\x00" * 5_000,
    b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n",
    b"A" * 200_000,
)
SMUGGLED: Final = b"0\r\n\r\nGET {path}/smuggled HTTP/1.1\r\nHost: here\r\nX-Injected: evil\r\n\r\n"


class Port:
    """A port under attack, and the path of its honest requests, which it answers with 200."""

    def __init__(self, name: str, url: str, token: str = "") -> None:
        self.name = name
        self.host, _, path = url.removeprefix("http://").partition("/")
        self.path = f"/{path}".encode()
        self.token = f"ServiceBusAuthorization: {token}\r\n".encode() if token else b""

    def filled(self, text: bytes) -> bytes:
        return text.replace(b"{path}", self.path)

    def request(self, target: bytes, method: bytes = b"GET", more: bytes = b"", body: bytes = b"") -> bytes:
        host = b"" if b"Host:" in more else f"Host: {self.host}\r\n".encode()
        return b"%s %s HTTP/1.1\r\n%s%s%sConnection: close\r\n\r\n%s" % (method, target, host, self.token, more, body)

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = self.host.partition(":")
        return await asyncio.open_connection(host, int(port))

    async def ask(self, request: bytes, seconds: float = PATIENCE_SECONDS) -> bytes:
        """Return what is answered within a time."""
        answer = b""
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(seconds):
                reader, writer = await self.open()
                try:
                    writer.write(request)
                    while data := await reader.read(65_536):
                        answer += data
                finally:
                    writer.close()
        return answer

    async def check(self, figures: Figures, when: str) -> None:
        """Send an honest request: its answer may not wait for others."""
        began = time.monotonic()
        answer = await self.ask(self.request(self.path), MAX_ANSWER_SECONDS)
        figures.longest_s = max(figures.longest_s, time.monotonic() - began)
        if not answer.startswith(b"HTTP/1.1 200 "):
            text = f"{self.name} answered {answer[:80]!r} within {MAX_ANSWER_SECONDS:g} s"
            figures.find("other", f"{text} {when}")

    def hostile(self, random: Random) -> bytes:
        """Draw a hostile request."""
        if random.random() < 0.3:
            return self.filled(random.choice(WHOLE))
        method = random.choice(
            (b"GET", b"GET", b"POST", b"HEAD", b"PUT", b"TRACE", b"CONNECT", b"OPTIONS", b"G\x00T", b"get")
        )
        body = random.choice(
            (b"", b"hello", b"5\r\nhello\r\n0\r\n\r\n", SMUGGLED, b"-1\r\n", b"ffffffffffffffffff\r\n")
        )
        return self.request(self.filled(random.choice(TARGETS)), method, random.choice(HEADERS), self.filled(body))

    async def attack(self, random: Random, figures: Figures) -> None:
        """Send hostile requests while slow clients hold connections, and honest ones in between."""
        async with self._slow(random.choice(("silent", "half", "trickle"))):
            await self.check(figures, f"beside {SLOW_CONNECTIONS} slow clients")
            for _ in range(12):
                requests = [self.hostile(random) for _ in range(3)]
                for request, answer in zip(requests, await asyncio.gather(*map(self.ask, requests)), strict=True):
                    self.judge(request, answer, figures)
            await self.check(figures, "between hostile requests")
        await self.check(figures, "after hostile requests")

    def judge(self, request: bytes, answer: bytes, figures: Figures) -> None:
        heads = re.findall(rb"^HTTP/1\.[01] (\d+)[^\r\n]*\r\n(.*?)\r\n\r\n", answer, re.MULTILINE | re.DOTALL)
        for status, head in heads:
            if int(status) in (500, 503) or int(status) > 504:
                figures.find("other", f"{self.name}: {status.decode()} to {request[:300]!r}")
            if EVIL in head.lower().split(b"\r\n"):
                figures.find("other", f"{self.name}: an injected header after {request[:300]!r}")
        if len(heads) > 2:
            figures.find("other", f"{self.name}: {len(heads)} answers to {request[:300]!r}")

    @asynccontextmanager
    async def _slow(self, kind: str) -> AsyncIterator[None]:
        """Hold connections whose requests never end; new ones in place of those that are cut off."""

        async def hold() -> None:
            while True:
                with suppress(OSError):
                    reader, writer = await self.open()
                    try:
                        writer.write(b"" if kind == "silent" else b"GET / HTTP/1.1\r\nHost: here\r\nX-A: ")
                        while not reader.at_eof():
                            # Not `wait_for`, which may swallow a cancellation.
                            with suppress(TimeoutError):
                                async with asyncio.timeout(0.5):
                                    await reader.read(100)
                            writer.write(b"a" if kind == "trickle" else b"")
                    finally:
                        writer.transport.abort()
                await asyncio.sleep(0.2)

        holding = [asyncio.create_task(hold()) for _ in range(SLOW_CONNECTIONS)]
        await asyncio.sleep(0.5)
        try:
            yield
        finally:
            for task in holding:
                task.cancel()
            await asyncio.gather(*holding, return_exceptions=True)


class Origin:
    """The server behind a relay's listener: it notes requests, and answers some with what no server should."""

    def __init__(self, random: Random, figures: Figures) -> None:
        self._random, self._figures = random, figures
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            head = await reader.readuntil(b"\r\n\r\n")
            if EVIL in head.lower().split(b"\r\n"):
                self._figures.find("other", f"a header was injected into a request: {head[:500]!r}")
            if b"servicebusauthorization" in head.lower():
                self._figures.find("other", f"the token reached the target: {head.splitlines()[0]!r}")
            writer.write(self._answer(head))
            await writer.drain()
        writer.close()

    def _answer(self, head: bytes) -> bytes:
        good = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
        if head.split()[1] == b"/":
            return good
        return self._random.choice(
            (
                good,
                good.replace(b"OK", b"O\x1b[2JK\x00"),
                good.replace(b"Connection", b"X-A: b\nX-Injected: evil\r\nConnection"),
                good.replace(b"Content-Length: 2", b"Transfer-Encoding: chunked\r\nContent-Length: 2"),
                good.replace(b"200", b"999"),
                good.replace(b"200", b"101"),
                good.replace(b"2\r\n", b"5000\r\n"),
                b"\x00" * 100,
                b"",
            )
        )


async def attacks(directory: Path, random: Random, figures: Figures) -> None:
    """Attack the ports of a watch, an emulator and a relay while their clocks jump. Then all of them end as always."""
    origin = Origin(random, figures)
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    origin.port = server.sockets[0].getsockname()[1]
    words = ("--namespace", "contoso=0", "--namespace", "contoso-dr=0", "--relay", "service")
    async with server, EmulatorProcess(directory / "emulator.db", *words) as emulator:
        env = emulator.environment(XDG_STATE_HOME=str(directory), NO_COLOR="1")
        for side in SIDES:
            text = f"{env[f'SBPAIR_{side}_CONNECTION_STRING']};EntityPath=service"
            env[f"SBPAIR_RELAY_{side}_CONNECTION_STRING"] = text
        jumping = Clock(directory)
        env |= jumping.environment
        options = ("--count", "1", "--health-port", "0", "--metrics-port", "0")
        watch = await Command.start("syphon", "--watch", *options, env=env, figures=figures)
        to = f"http://127.0.0.1:{origin.port}"
        listener = await Command.start("relay", "listen", "default", "--to", to, env=env, figures=figures)
        try:
            ports = await found(watch, listener, emulator, figures)
            async with asyncio.TaskGroup() as tasks:
                for port in ports:
                    tasks.create_task(port.attack(random, figures))
                await asyncio.sleep(random.uniform(1, 10))
                jumping.jump(random.choice((-DAY, DAY)))
        finally:
            for each in (watch, listener):
                each.signal(signal.SIGTERM)
                await each.end({0, 3} if each is listener else {0}, limit=60, max_mb=250)
        await end_emulator(emulator, figures)


async def found(watch: Command, listener: Command, emulator: EmulatorProcess, figures: Figures) -> list[Port]:
    """Wait until all ports are there."""
    base = emulator.namespaces[0]["endpoint"].replace("sb:", "http:").rstrip("/")
    key = re.search("SharedAccessKeyName=([^;]+);SharedAccessKey=([^;]+)", emulator.connection_string)
    assert key
    token = sign(AuthorizationRule(key[1], key[2], key[2]), f"{base}/service", 2**33)
    ports = [Port("the control API", f"{base}/$control/state"), Port("the relay", f"{base}/service", token)]
    for name, pattern in (("health", r"http://\S+/health/"), ("metrics", r"http://\S+/metrics")):
        if url := await watch.says(pattern):
            ports.append(Port(name, url[0] + "live" * (name == "health")))
        else:
            figures.find("other", f"no port for {name}: {watch.err}")
    if not await listener.says("(?i)listening|online|connected", 20):
        figures.find("other", f"the listener: {listener.err}{listener.out}")
    return ports
