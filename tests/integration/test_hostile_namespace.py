"""Answers of a hostile namespace or relay: no token goes elsewhere, and none fills the memory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from sbpair import errors
from sbpair.azure.atom import open_atom
from sbpair.model.pair import Endpoint, SasKey
from sbpair.relay.relay_client import AsyncRelayClient
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair

KEY = SasKey("Root", "c2VjcmV0")


class Hostile:
    """A server that answers each request with `answer(port of another one)`, and notes the heads that it gets."""

    def __init__(self, answer: Callable[[int], bytes]) -> None:
        self._answer = answer
        self.heads: list[str] = []
        self.elsewhere: list[str] = []
        self.port = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Hostile]:
        other = await asyncio.start_server(self._serve(self.elsewhere, lambda: b""), "127.0.0.1", 0)
        there = other.sockets[0].getsockname()[1]
        server = await asyncio.start_server(self._serve(self.heads, lambda: self._answer(there)), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with other, server:
            yield self

    @staticmethod
    def _serve(
        heads: list[str], answer: Callable[[], bytes]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                writer.write(answer())
                await writer.drain()
            writer.close()

        return serve

    @property
    def endpoint(self) -> Endpoint:
        address = f"127.0.0.1:{self.port}"
        return Endpoint("contoso", address, "127.0.0.1", self.port, tls=False, credential=KEY, emulator=True)

    @property
    def relay(self) -> RelayPair:
        places = (f"127.0.0.1:{self.port}", "127.0.0.1:1")
        return RelayPair(*(RelayEndpoint(each, "service", KEY, tls=False) for each in places))


def redirect(port: int) -> bytes:
    return f"HTTP/1.1 307 Moved\r\nLocation: http://127.0.0.1:{port}/\r\nContent-Length: 0\r\n\r\n".encode()


def expanding(_port: int) -> bytes:
    """A feed whose text would have ten thousand million characters."""
    names = [f"a{number}" for number in range(10)]
    entities = "".join(f'<!ENTITY {name} "{f"&{below};" * 10}">' for below, name in pairwise(names))
    body = f'<!DOCTYPE feed [<!ENTITY a0 "xxxxxxxxxx">{entities}]><feed><title>&a9;</title></feed>'.encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def nested(_port: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: 4000000\r\n\r\n" + b"<abc" + b"><abc" * 799_998 + b">" * 6


def wide(_port: int) -> bytes:
    body = b"<a>" + b"<a/>" * 1_000_000 + b"</a>"
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def large(_port: int) -> bytes:
    """A body of 12 MB whose length is not declared."""
    part = b"<a>" * 100_000
    return b"HTTP/1.1 200 OK\r\n\r\n" + part * 40


@pytest.mark.parametrize("answer", [redirect, expanding, nested, wide, large])
async def test_management_follows_no_redirect_and_its_trees_are_bounded(answer: Callable[[int], bytes]) -> None:
    async with Hostile(answer).running() as hostile, open_atom(hostile.endpoint) as queues:
        tracemalloc.start()
        try:
            with pytest.raises(errors.SbpairError) as caught:
                await queues.get("orders")
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert hostile.elsewhere == []
    assert "SharedAccessSignature" in hostile.heads[0]
    assert "Signature" not in caught.value.message + caught.value.hint
    assert caught.value.exit_code == (3 if answer is redirect else 6)
    assert peak < 64 * 1024 * 1024


async def test_a_relay_client_follows_no_redirect() -> None:
    async with Hostile(redirect).running() as hostile, AsyncRelayClient(hostile.relay, first="primary") as client:
        with suppress(errors.SbpairError):
            await client.request("GET")
        with suppress(errors.SbpairError):
            async with asyncio.timeout(10):
                await client.connect()
    assert len(hostile.heads) >= 2
    assert hostile.elsewhere == []
