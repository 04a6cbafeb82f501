"""The HTTP client of the management side against peers that answer byte by byte, and through a proxy."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from sbpair import http_tunnel
from sbpair.amqp_server.tls import tls_for
from sbpair.azure import http_client
from sbpair.azure.atom import open_atom
from sbpair.azure.http_client import HttpClient
from sbpair.azure.management_errors import NotHttp
from sbpair.errors import NetworkRefused
from sbpair.http_tunnel import client_context
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.testing import Emulator, EmulatorOptions
from tests.azure.answering_peer import AnsweringPeer, answering
from tests.kit.proxy import running_proxy
from tests.kit.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"
UNTIL_THE_END = b"HTTP/1.0 404 Not Found\r\n\r\nall of it"


@asynccontextmanager
async def connected(*answers: bytes, per_connection: int = 100) -> AsyncIterator[tuple[AnsweringPeer, HttpClient]]:
    async with answering(*answers, per_connection=per_connection) as peer, HttpClient(peer.endpoint) as client:
        yield peer, client


async def test_requests_share_a_connection_and_name_the_authority() -> None:
    async with connected(OK, CHUNKED, OK) as (peer, client):
        bodies = [(await client.request("GET", f"/{number}", {"Authorization": "x"})).body for number in range(3)]
    assert bodies == [b"hi", b"abcde", b"hi"]
    assert peer.connections == 1
    assert peer.requests[2].splitlines()[:2] == ["GET /2 HTTP/1.1", f"Host: 127.0.0.1:{peer.port}"]
    assert "Authorization: x" in peer.requests[2].splitlines()


async def test_a_connection_that_its_peer_ends_is_not_used_again() -> None:
    async with connected(LAST, UNTIL_THE_END, OK) as (peer, client):
        answers = [await client.request("GET", "/") for _ in range(3)]
    assert [(each.status, each.reason, each.body) for each in answers] == [
        (200, "OK", b"hi"),
        (404, "Not Found", b"all of it"),
        (200, "OK", b"hi"),
    ]
    assert peer.connections == 3


async def test_a_get_is_sent_again_where_an_idle_connection_was_closed() -> None:
    async with connected(OK, OK, per_connection=1) as (peer, client):
        assert (await client.request("GET", "/")).body == b"hi"
        assert (await client.request("GET", "/")).body == b"hi"
    assert peer.connections == 2


async def test_an_idle_connection_that_its_peer_ended_is_closed() -> None:
    async with connected(OK, OK, per_connection=1) as (_, client):
        await client.request("GET", "/")
        [ended] = client._idle
        await until(ended._reader.at_eof)
        await client.request("GET", "/")
        assert ended.writer.is_closing()


async def test_a_response_after_the_end_of_the_client_closes_its_connection() -> None:
    async with connected(OK) as (peer, client):
        asking = asyncio.create_task(client.request("GET", "/"))
        await until(lambda: peer.requests)
        await client.__aexit__()
        assert (await asking).body == b"hi"
        assert client._idle == []


async def test_a_deletion_has_a_connection_of_its_own() -> None:
    async with connected(OK, OK) as (peer, client):
        await client.request("GET", "/")
        await client.request("DELETE", "/")
        assert peer.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno length\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 4 * http_client.MAX_HEAD_BYTES + b"\r\n\r\n",
    ],
)
async def test_what_is_not_http_or_too_large_is_refused(answer: bytes) -> None:
    async with connected(answer) as (_, client):
        with pytest.raises(NotHttp):
            await client.request("GET", "/")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200", OK[:-1], CHUNKED[:60], CHUNKED.replace(b"3;", b"ffffffff;")])
async def test_an_answer_that_ends_early_is_a_broken_connection(answer: bytes) -> None:
    async with connected(answer) as (_, client):
        with pytest.raises(ConnectionResetError):
            await client.request("GET", "/")


async def test_a_cancelled_request_gives_its_connection_up() -> None:
    async with connected(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", OK, OK) as (peer, client):
        waiting = asyncio.ensure_future(client.request("GET", "/"))
        await until(lambda: len(peer.requests) == 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.request("GET", "/")).body == b"hi"
    assert peer.connections == 2


@pytest.mark.parametrize("secured", [False, True])
@pytest.mark.parametrize("login", ["right", "wrong", ""])
async def test_a_proxy_of_the_environment_is_used_with_tls(
    login: str, secured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with Emulator(options=EmulatorOptions(tls=True)) as emulator:
        found = endpoint_from_connection_string(emulator.ready.namespaces[0].tls_connection_string)
        endpoint = replace(found, ca_file=emulator.ready.ca_file)
        with tls_for("test", []) as own:
            trusted = client_context(str(own.ca_file))
            monkeypatch.setattr(http_tunnel, "client_context", lambda _ca_file: trusted)
            context = own.context if secured else None
            async with running_proxy(login=True, context=context) as proxy, open_atom(endpoint) as namespace:
                given = {"right": proxy.url, "wrong": proxy.url.replace("nobody", "anybody")}
                monkeypatch.setenv("HTTPS_PROXY", given.get(login, f"{proxy.scheme}://{proxy.address}"))
                if login == "right":
                    assert await namespace.list_under("") == []
                else:
                    with pytest.raises(NetworkRefused, match="407 Proxy Authentication Required") as refused:
                        await namespace.list_under("")
                    assert "HTTPS_PROXY" in refused.value.hint
                assert proxy.targets == [endpoint.authority]


async def test_one_tls_context_serves_until_its_file_changes(tmp_path: Path) -> None:
    async with Emulator(options=EmulatorOptions(tls=True, ca_file=tmp_path / "ca.pem")):
        trusted = str(tmp_path / "ca.pem")
        first = client_context(trusted)
        assert client_context(trusted) is first
        os.utime(trusted, ns=(0, 0))
        assert client_context(trusted) is not first
