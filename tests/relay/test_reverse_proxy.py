"""The reverse proxy of a relay listener over real sockets: headers, streams, WebSockets, a target that is away."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from sbpair.errors import RelayRejected, UsageError
from sbpair.model.pair import SasKey
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from sbpair.relay.reverse_proxy import ProxiedRequest, ReverseProxy, checked_target
from tests.relay.relay_pairs import RelayPairBench


async def answer(request: web.Request) -> web.StreamResponse:
    """Answer with the body; the header X-Seen has those of the request."""
    if "break" in request.query:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 100_000)
        assert request.transport is not None
        request.transport.abort()
        return response
    if request.headers.get("Upgrade", "").lower() == "websocket":
        if "refuse" in request.query:
            return web.Response(status=418, reason="No tea")
        served = web.WebSocketResponse(protocols=["two"])
        await served.prepare(request)
        async for message in served:
            if message.data == "bye":
                await served.close(code=4000)
            elif message.type is WSMsgType.TEXT:
                await served.send_str(message.data)
            else:
                await served.send_bytes(message.data)
        return served
    response = web.StreamResponse(status=int(request.query.get("status", 200)))
    seen = "; ".join(f"{name}={value}" for name, value in request.headers.items())
    response.headers.update({"X-Seen": seen, "X-Path": request.raw_path, "Keep-Alive": "5"})
    if "length" in request.query:
        response.content_length = int(request.query["length"])
    await response.prepare(request)
    async for part in request.content.iter_any():
        await response.write(part)
    return response


@asynccontextmanager
async def target() -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def proxied(bench: RelayPairBench, to: str) -> AsyncIterator[list[ProxiedRequest]]:
    noted: list[ProxiedRequest] = []
    async with ReverseProxy(bench.pair, to, lambda each: each in noted or noted.append(each)) as proxy:
        listener = await bench.listen(proxy.handle, on_websocket=proxy.serve_socket)
        yield noted
        await listener.close(0)


async def test_headers_of_the_connection_stay_and_the_way_is_named(bench: RelayPairBench) -> None:
    async with target() as to, proxied(bench, f"{to}/base/") as noted:
        client = await bench.client()
        headers = {"X-A": "1", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Host": "evil", "X-Forwarded-Proto": "x"}
        response = await client.request("GET", "/a%20b?x=1", headers=headers)
        await response.read()
        seen = response.headers["X-Seen"]
        assert response.headers["X-Path"] == "/base/a%20b?x=1"
        assert "X-A=1" in seen
        assert "X-Forwarded-For=192.0.2.1, 127.0.0.1" in seen
        assert f"X-Forwarded-Host={bench.pair.primary.namespace}" in seen
        assert "X-Forwarded-Proto=http;" in f"{seen};"
        assert f"Host={to.removeprefix('http://')}" in seen
        assert "evil" not in seen
        assert "ServiceBusAuthorization" not in seen
        assert "Keep-Alive" not in response.headers
    assert [(each.side, each.method, each.path, each.status, each.problem) for each in noted] == [
        ("primary", "GET", "/a%20b", 200, "")
    ]


@pytest.mark.parametrize("size", [0, 10, 300_000, 5_000_000])
async def test_bodies_pass_both_ways(bench: RelayPairBench, size: int) -> None:
    async with target() as to, proxied(bench, to):
        client = await bench.client(first="secondary")
        response = await client.request("POST", body=b"y" * size)
        assert await response.read() == b"y" * size
        assert response.side == "secondary"


@pytest.mark.parametrize("status", [204, 304, 404, 500, 503])
async def test_the_targets_status_is_an_answer_and_swaps_nothing(bench: RelayPairBench, status: int) -> None:
    async with target() as to, proxied(bench, to):
        client = await bench.client()
        response = await client.request("GET", f"?status={status}")
        assert (response.status, client.active) == (status, "primary")
        assert "Via" in response.headers


async def test_a_head_keeps_the_length_that_a_get_would_have(bench: RelayPairBench) -> None:
    async with target() as to, proxied(bench, to) as noted:
        client = await bench.client()
        response = await client.request("HEAD", "?length=12345")
        assert (response.status, response.headers["Content-Length"], await response.read()) == (200, "12345", b"")
    assert [(each.method, each.status, each.problem) for each in noted] == [("HEAD", 200, "")]


async def test_a_target_that_is_down_is_502_of_the_listener(bench: RelayPairBench) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        async with proxied(bench, f"http://127.0.0.1:{held.getsockname()[1]}") as noted:
            client = await bench.client()
            response = await client.request("POST", body=b"x")
            assert (response.status, await response.read()) == (502, b"Bad Gateway\n")
            assert "Via" in response.headers
            assert client.active == "primary"
            with pytest.raises(RelayRejected) as rejected:
                await client.connect()
            assert rejected.value.status == 502
    assert [(each.status, each.problem) for each in noted] == [(502, "the target cannot be reached")] * 2


async def test_websockets_pass_messages_protocol_and_close_code(bench: RelayPairBench) -> None:
    async with target() as to, proxied(bench, to) as noted:
        client = await bench.client()
        opened = await client.connect("/chat", protocols=["one", "two"])
        assert opened.protocol == "two"
        await opened.send_str("text")
        await opened.send_bytes(b"\0\1" * 100_000)
        assert await opened.receive_str() == "text"
        assert await opened.receive_bytes() == b"\0\1" * 100_000
        await opened.send_str("bye")
        assert (await opened.receive()).type is WSMsgType.CLOSE
        assert opened.close_code == 4000
        # The target did not choose it.
        assert (await client.connect("/one", protocols=["one"])).protocol is None
    assert [(each.method, each.path, each.status) for each in noted] == [
        ("WEBSOCKET", "/chat", 101),
        ("WEBSOCKET", "/one", 101),
    ]


async def test_the_targets_refusal_of_a_websocket_is_the_senders(bench: RelayPairBench) -> None:
    async with target() as to, proxied(bench, to):
        client = await bench.client()
        with pytest.raises(RelayRejected) as rejected:
            await client.connect("?refuse=1")
        assert (rejected.value.status, rejected.value.reason) == (418, "No tea")


async def test_an_answer_that_breaks_is_no_whole_answer(bench: RelayPairBench) -> None:
    async with target() as to, proxied(bench, to) as noted:
        client = await bench.client()
        response: Any = await client.request("POST", "?break=1")
        if response.status == 200:
            with pytest.raises(Exception, match="too soon"):
                await response.read()
        else:
            assert response.status == 500
    assert noted[0].problem == "the target's answer ended too soon"


@pytest.mark.parametrize(
    "text",
    [
        *("", "localhost:8080", "ftp://localhost", "//localhost", "http://", "http://:80", "http://a:b@localhost"),
        *("http://a@localhost", "http://localhost:99999", "http://localhost:0", "http://localhost:x", "http://a b"),
        *("http://localhost/?x", "http://localhost/#x", "http://localhost/a/../b", "http://localhost/%2e%2e/b"),
        *("http://localhost/a b", "http://localhost\r\nX: 1", "file:///etc/passwd", "ws://localhost"),
    ],
)
def test_a_wrong_target_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_target(text)
    assert refused.value.hint


@pytest.mark.parametrize("text", ["http://localhost:8080/", "https://[::1]:8443/api/", "http://10.0.0.4"])
def test_a_target_is_an_address(text: str) -> None:
    assert checked_target(text) == text.rstrip("/")


@pytest.mark.parametrize(
    "rest",
    [
        "@127.0.0.1:1/",
        ":80@127.0.0.1/",
        ".example/",
        "/../admin",
        "/%2e%2E/admin",
        "/a\\..\\b",
        "/a b",
        "/\r\nX: 1",
        "/ä",
    ],
)
def test_a_request_leaves_neither_the_endpoint_nor_the_target(rest: str) -> None:
    places = (RelayEndpoint(host, "service", SasKey("a", "Yg==")) for host in ("contoso.example", "fabrikam.example"))
    proxy = ReverseProxy(RelayPair(*places), "http://127.0.0.1:8080")
    assert proxy._suffix("primary", f"/service{rest}") is None
    assert proxy._suffix("primary", "/service//127.0.0.1:1/?x") == "//127.0.0.1:1/?x"  # after the target's host: a path
