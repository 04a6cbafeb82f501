"""Answers of a hostile namespace or relay: no token goes elsewhere, and none fills the memory."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import pairwise
from time import process_time

import pytest

from sbpair import errors
from sbpair.azure.arm import open_arm, open_relay_arm
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import open_tokens
from sbpair.azure.sdk_administration import open_administration
from sbpair.model.entities import Queue, Topic
from sbpair.model.pair import Endpoint, Identity, ResourceGroup, SasKey
from sbpair.relay.relay_client import AsyncRelayClient
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair

KEY = SasKey("Root", "c2VjcmV0")
GROUP = ResourceGroup("12345678-1234-1234-1234-123456789012", "group")
TOKEN = (
    b'{"access_token": "t", "expires_in": "9999", "expires_on": "9999999999", "resource": "r", "token_type": "Bearer"}'
)


class Hostile:
    """A server that answers each request with `answer(port of another one)`, and notes the heads that it gets.

    Its answers end with `endless` again and again. It is an endpoint of managed identities, too, at `/token`.
    """

    def __init__(self, answer: Callable[[int], bytes], endless: bytes = b"") -> None:
        self._answer, self._endless = answer, endless
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

    def _serve(
        self, heads: list[str], answer: Callable[[], bytes]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
                is_token = heads[-1].startswith("GET /token")
                writer.write(json_answer(TOKEN) if is_token else answer())
                await writer.drain()
                while self._endless and not is_token:
                    writer.write(self._endless)
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
        with costs_little(), pytest.raises(errors.SbpairError) as caught:
            await queues.get("orders")
    assert hostile.elsewhere == []
    assert "SharedAccessSignature" in hostile.heads[0]
    assert "Signature" not in caught.value.message + caught.value.hint
    assert caught.value.exit_code == (3 if answer is redirect else 6)


async def get(endpoint: Endpoint) -> object:
    async with open_arm(endpoint, GROUP) as namespace:
        return await namespace.get("orders")


async def listed(endpoint: Endpoint) -> object:
    async with open_arm(endpoint, GROUP) as namespace:
        return await namespace.list_all(Queue)


async def capacity(endpoint: Endpoint) -> object:
    async with open_arm(endpoint, GROUP) as namespace:
        return await namespace.capacity()


async def found(endpoint: Endpoint) -> object:
    async with open_relay_arm(endpoint, GROUP) as namespace:
        return await namespace.find("orders")


async def written(endpoint: Endpoint) -> object:
    async with open_administration(endpoint, 60) as administration:
        return await administration.create(Topic("orders"))


def json_answer(body: bytes, head: bytes = b"Content-Type: application/json") -> bytes:
    return b"HTTP/1.1 200 OK\r\n%s\r\nContent-Length: %d\r\n\r\n%s" % (head, len(body), body)


XML = b"Content-Type: application/xml"
OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
UNREADABLE: dict[str, tuple[Callable[[Endpoint], Awaitable[object]], bytes, bytes]] = {
    "30 MB": (get, json_answer(b'{"value": ["%s"]}' % (b"x" * 30_000_000)), b""),
    "without an end": (get, OPEN + b"\r\n[", b'{"name": "x"},' * 1000),
    "compressed": (get, json_answer(gzip.compress(b" " * 200_000_000, 1), b"Content-Encoding: gzip"), b""),
    "lists in lists": (get, json_answer(b"[" * 100_000), b""),
    "lists in a value": (get, json_answer(b'{"properties": {"status": %s1%s}}' % (b"[" * 400, b"]" * 400)), b""),
    "many values": (get, json_answer(b"[%s0]" % (b'{"":0},' * 220_000)), b""),
    "many headers": (get, OPEN, b"X-A: %s\r\n" % (b"x" * 4000)),
    "a long header": (get, b"HTTP/1.1 200 OK\r\nX: ", b"x" * 60_000),
    "text for a number": (get, json_answer(b'{"properties": {"maxDeliveryCount": "many"}}'), b""),
    "a list": (get, json_answer(b"[]"), b""),
    "not JSON": (get, json_answer(b"hello"), b""),
    "an entity that is a number": (listed, json_answer(b'{"value": [1]}'), b""),
    "a page that leads to itself": (listed, json_answer(b'{"value": [], "nextLink": "https://contoso/a"}'), b""),
    "no tier": (capacity, json_answer(b"{}"), b""),
    "a relay's lists in lists": (found, json_answer(b"[" * 100_000), b""),
    "a written topic's elements": (written, json_answer(b"<a>%s</a>" % (b"<a/>" * 380_000), XML), b""),
    "a written topic's lists": (written, json_answer(b"[" * 100_000), b""),
}


@pytest.mark.parametrize("case", UNREADABLE)
async def test_an_unreadable_answer_to_azures_sdk_costs_little(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call, answer, endless = UNREADABLE[case]
    async with Hostile(lambda _: answer, endless).running() as hostile:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{hostile.port}/token")
        monkeypatch.setenv("IDENTITY_HEADER", "secret")
        with costs_little(), pytest.raises(errors.Unreachable) as caught:
            await call(hostile.endpoint)
    assert caught.value.hint


async def test_an_endless_token_of_an_identity_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Hostile(lambda _: OPEN + b"\r\n[", b" " * 100_000).running() as hostile:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{hostile.port}/other")
        monkeypatch.setenv("IDENTITY_HEADER", "secret")
        async with open_tokens() as token:
            assert token is not None
            with costs_little(), pytest.raises(errors.NotAuthenticated):
                await token(Identity(), "scope/.default")


@contextmanager
def costs_little() -> Iterator[None]:
    """Fail if the block takes more than 100 MB of memory. Most of its time is the tracing's."""
    started = process_time()
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000_000
    assert process_time() - started < 20


async def test_a_relay_client_follows_no_redirect() -> None:
    async with Hostile(redirect).running() as hostile, AsyncRelayClient(hostile.relay, first="primary") as client:
        with suppress(errors.SbpairError):
            await client.request("GET")
        with suppress(errors.SbpairError):
            async with asyncio.timeout(10):
                await client.connect()
    assert len(hostile.heads) >= 2
    assert hostile.elsewhere == []
