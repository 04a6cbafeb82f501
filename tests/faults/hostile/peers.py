"""Hostile peers: clients that flood an emulator with few files while a syphon works, and a namespace of damage.

An emulator must serve the syphon, write little to its log, and answer at once when they are gone. Commands must end in
time, and with a refusal.
"""

from __future__ import annotations

import asyncio
import resource
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final

from tests.benchmarks.stranded import PRIMARY, QUEUES
from tests.faults.emulated_pair import SIDES, EmulatedPair
from tests.faults.hostile.trial import SYPHON, Trial, bring_back, strand
from tests.kit.fork_server import STRICT

FILES: Final = 256
AT_ONCE: Final = 500
ATTACK_SECONDS: Final = 25.0
ANSWER_SECONDS: Final = 20.0
COMMAND_SECONDS: Final = 240.0
MAX_LOG: Final = 1_000_000
HEADER: Final = b"AMQP\0\1\0\0"
SASL: Final = b"AMQP\3\1\0\0"
HTTP: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/atom+xml\r\n"
COMMANDS: Final = (
    ("audit", "--count", str(QUEUES)),
    ("status",),
    ("ping", "orders"),
    ("peek", "orders"),
    (*SYPHON, "--no-reconnect"),
)


def frame(random: Random) -> bytes:
    """Return a frame whose size, offset or body is wrong."""
    size = random.choice((0, 7, 8, 9, 200, 0xFFFFFFFF, random.randrange(2**32)))
    body = b"\0\x53" + bytes([random.choice((0x10, 0x11, 0x12, 0x14, 0x40, 0x44, 255))]) + random.randbytes(40)
    return struct.pack(">IBBH", size, random.choice((0, 1, 2, 255)), random.choice((0, 1, 9)), 0) + body


PARTS: Final[tuple[Callable[[Random], bytes], ...]] = (
    lambda random: random.randbytes(random.randrange(1, 3_000)),
    lambda random: random.choice((HEADER, SASL)) + b"".join(frame(random) for _ in range(random.randrange(1, 30))),
    lambda _: HEADER + struct.pack(">IBBH", 500, 2, 0, 0) + b"\0\x53\x10\xc0" + b"\xc0\xff\xff" * 160,
    lambda _: b"GET /$Resources/queues HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: ",
    lambda _: b"PUT /q HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9000000\r\n\r\n<entry>",
    lambda _: b"PUT /q HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    lambda _: b"GET /$control/state HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 200,
    lambda _: b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: x\r\n" % each for each in range(3_000)),
    lambda random: b"\x16\x03\x01\x02\x00\x01" + random.randbytes(500),
    lambda _: b"GET /$servicebus/websocket HTTP/1.1\r\nUpgrade: websocket\r\n",
    lambda _: b"",
)
ANSWERS: Final[tuple[Callable[[Random], bytes], ...]] = (
    *PARTS[:3],
    lambda _: b"",
    lambda _: HTTP + b"X-Long: ",
    lambda _: HTTP + b"Content-Length: 99999999999\r\n\r\n<feed>",
    lambda _: HTTP + b"Transfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b"<entry>" * 10_000,
    lambda _: HTTP + b'\r\n<!DOCTYPE a [<!ENTITY b "c"><!ENTITY d "&b;&b;&b;&b;">]><feed>&d;</feed>',
    lambda _: b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    lambda random: SASL + struct.pack(">IBBH", 24, 2, 1, 0) + random.randbytes(16) + HEADER,
)


async def play(trial: Trial) -> None:
    pair = trial.pair()
    pair.options = ("--tls",)
    pair.prepare = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (FILES, FILES))
    async with pair.running():
        stranded = await strand(trial, pair, 4_000)
        await asyncio.gather(_flood(trial, pair), _move(trial, pair))
        for side in SIDES:
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await pair.control(side, "GET", "state")
            except (TimeoutError, OSError) as error:
                trial.figures.find("other", f"{side} does not answer after the flood: {error!r}")
        await bring_back(pair)
        await pair.judge(stranded, ordered=False)
        await _serve_damage(trial, pair)
    if trial.figures.peak_log > MAX_LOG:
        trial.figures.find("other", f"a log of {trial.figures.peak_log} bytes")


async def _move(trial: Trial, pair: EmulatedPair) -> None:
    terms = {"random": trial.random, "kills": 1, "faults": False, "starts": 20}
    await pair.repeat(*SYPHON, until=pair.is_empty, **terms)


async def _flood(trial: Trial, pair: EmulatedPair) -> None:
    """Keep hundreds of connections open for a while, each of which is a nuisance of its own."""
    loop = asyncio.get_running_loop()
    until = loop.time() + ATTACK_SECONDS

    async def attack(number: int) -> None:
        random = Random(f"{trial.number} {number}")
        while loop.time() < until:
            with suppress(OSError, asyncio.LimitOverrunError):
                _, writer = await asyncio.open_connection("127.0.0.1", pair.endpoint(random.choice(SIDES)).port)
                trial.figures.messages += 1
                try:
                    writer.write(random.choice(PARTS)(random))
                    for _ in range(random.randrange(30)):
                        # It reads nothing, and goes on byte for byte.
                        await asyncio.sleep(random.uniform(0, 0.5))
                        if writer.is_closing():
                            break
                        writer.write(b"x")
                finally:
                    writer.transport.abort()
            await asyncio.sleep(0.05)

    await asyncio.gather(*map(attack, range(AT_ONCE)))


async def _serve_damage(trial: Trial, pair: EmulatedPair) -> None:
    """Let commands connect to a namespace that answers with damage."""
    pair.python = (*STRICT, "-W", "ignore::ResourceWarning")  # the SDK leaves sockets of failed connections open
    for answer in trial.random.sample(ANSWERS, 3):
        server = await asyncio.start_server(partial(_answer, Random(trial.number), answer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        right = f"sb://127.0.0.1:{pair.endpoint(PRIMARY).port}"
        text = pair.environment["SBPAIR_PRIMARY_CONNECTION_STRING"].replace(right, f"sb://127.0.0.1:{port}")
        for words in trial.random.sample(COMMANDS, 2):
            trial.figures.messages += 1
            code = await pair.run(*words, codes={4, 5}, limit=COMMAND_SECONDS, SBPAIR_PRIMARY_CONNECTION_STRING=text)
            if code == 0 and words[0] in ("ping", "peek"):
                trial.figures.find("let_in", f"{' '.join(words)}: 0 from damage {ANSWERS.index(answer)}")
        server.close()


async def _answer(
    random: Random,
    answer: Callable[[Random], bytes],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    with suppress(OSError):
        await reader.read(8)
        writer.write(answer(random))
        await writer.drain()
        # As long as the client stays, or a part of its patience.
        with suppress(TimeoutError):
            async with asyncio.timeout(random.choice((0.1, 5, 300))):
                await reader.read()
    writer.transport.abort()
