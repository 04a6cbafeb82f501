"""WebSockets from client to listener over real sockets: accept, reject, protocols, swaps, large messages."""

import asyncio
from typing import Any

import pytest
from aiohttp import WSMsgType

from sbpair.errors import RelayRejected, UsageError
from sbpair.relay import relay_connections
from sbpair.relay.handled_request import RelayOffer
from sbpair.relay.relay_connections import TLS_CLOSE_SECONDS
from sbpair.relay.relay_endpoint import RelayEndpoint, RelayPair
from tests.kit.waiting import until
from tests.relay.relay_pairs import PATHS, RelayPairBench, echo_socket, open_pair


async def test_messages_pass_both_ways_and_a_close_ends_both(bench: RelayPairBench) -> None:
    ended = asyncio.Event()
    offers: list[RelayOffer] = []

    async def serve(offer: RelayOffer) -> None:
        offers.append(offer)
        await echo_socket(offer)
        ended.set()

    client = await bench.served(on_websocket=serve)
    socket = await client.connect("/a%20b?x=1", headers={"X-A": "1"})
    await socket.send_str("text")
    await socket.send_bytes(b"\0\1")
    assert await socket.receive_str() == "text"
    assert await socket.receive_bytes() == b"\0\1"
    await socket.close()
    await ended.wait()
    assert (offers[0].side, offers[0].target) == ("primary", "/service-east/a%20b?x=1")
    assert offers[0].headers["X-A"] == "1"
    assert "sig=" not in str(dict(offers[0].headers))


@pytest.mark.parametrize("seconds", [TLS_CLOSE_SECONDS, 0.0], ids=["in time", "too slowly"])
async def test_a_closed_client_has_no_socket_that_waits_for_the_end_of_tls(
    monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(relay_connections, "TLS_CLOSE_SECONDS", seconds)
    async with open_pair(tls=True) as bench:
        ready = bench.emulator.ready
        secured = RelayPair(
            *(
                RelayEndpoint.from_connection_string(each.tls_connection_string, path, ca_file=ready.ca_file)
                for each, path in zip(ready.namespaces, PATHS.values(), strict=True)
            )
        )
        listener = await bench.listen(on_websocket=echo_socket)
        client = await bench.client(secured)
        socket = await client.connect()
        used = socket.get_extra_info("socket")
        await socket.close()
        assert used.fileno() != -1
        await client.close()
        assert used.fileno() == -1
        await listener.close()


async def test_the_listener_chooses_the_protocol(bench: RelayPairBench) -> None:
    async def serve(offer: RelayOffer) -> None:
        assert offer.protocols == ("one", "two")
        with pytest.raises(UsageError):
            await offer.accept("three")
        await offer.accept("two")

    client = await bench.served(on_websocket=serve)
    socket = await client.connect(protocols=["one", "two"])
    assert socket.protocol == "two"
    assert (await socket.receive()).type is WSMsgType.CLOSE
    assert socket.close_code == 1000


async def test_a_rejection_has_the_listeners_status_and_does_not_swap(bench: RelayPairBench) -> None:
    async def serve(offer: RelayOffer) -> None:
        with pytest.raises(UsageError):
            await offer.reject(200)
        await offer.reject(503, "Not now\r\nX: 1")
        with pytest.raises(UsageError):
            await offer.accept()

    client = await bench.served(on_websocket=serve)
    with pytest.raises(RelayRejected) as rejected:
        await client.connect()
    assert (rejected.value.status, rejected.value.reason) == (503, "Not now X: 1")
    assert client.active == "primary"


@pytest.mark.parametrize(("how", "status"), [("returns", 400), ("fails", 502), ("none", 501)])
async def test_a_handler_that_does_not_decide_rejects(bench: RelayPairBench, how: str, status: int) -> None:
    async def serve(_offer: RelayOffer) -> None:
        if how == "fails":
            raise RuntimeError("secret")

    client = await bench.served(on_websocket=None if how == "none" else serve)
    with pytest.raises(RelayRejected) as rejected:
        await client.connect()
    assert rejected.value.status == status
    assert "secret" not in str(bench.events)


@pytest.mark.parametrize("fault", ["relay-no-listeners", "relay-down", "relay-down 503"])
async def test_a_connect_goes_to_the_backup_and_swaps(bench: RelayPairBench, fault: str) -> None:
    sides: list[Any] = []

    async def serve(offer: RelayOffer) -> None:
        sides.append(offer.side)
        await echo_socket(offer)

    client = await bench.served(on_websocket=serve)
    kind, _, status = fault.partition(" ")
    with bench.emulator.faults.during(kind, "contoso", **({"status": int(status)} if status else {})):
        socket = await client.connect()
    await socket.send_str("x")
    assert await socket.receive_str() == "x"
    assert (sides, client.active) == (["secondary"], "secondary")
    await socket.close()


async def test_open_sockets_survive_the_restart_of_their_channel(bench: RelayPairBench) -> None:
    client = await bench.served(on_websocket=echo_socket)
    socket = await client.connect()
    bench.emulator.faults.relay_drop_listeners("contoso")
    await until(lambda: len(bench.kinds("SideUp")) == 3)
    await socket.send_str("still")
    assert await socket.receive_str() == "still"
    await socket.close()


async def test_more_sockets_than_allowed_are_rejected(bench: RelayPairBench) -> None:
    client = await bench.served(on_websocket=echo_socket, max_sockets=2)
    opened = [await client.connect() for _ in range(2)]
    with pytest.raises(RelayRejected) as rejected:
        await client.connect()
    assert rejected.value.status == 503
    for each in opened:
        await each.close()


async def test_closing_the_listener_ends_open_sockets_after_a_time(bench: RelayPairBench) -> None:
    listener = await bench.listen(on_websocket=echo_socket)
    client = await bench.client()
    socket = await client.connect()
    await socket.send_str("x")
    await socket.receive_str()
    closing = asyncio.create_task(listener.close(3))
    await until(lambda: 3.0 in bench.clock.waits)
    bench.clock.advance(3)
    message = await socket.receive()
    await closing
    assert message.type is WSMsgType.CLOSE
    assert socket.close_code == 1001


async def test_large_messages_pass_to_the_byte(bench: RelayPairBench) -> None:
    client = await bench.served(on_websocket=echo_socket)
    socket = await client.connect()
    sent = bytes(range(256)) * 20_000
    for _ in range(3):
        await socket.send_bytes(sent)
        assert await socket.receive_bytes() == sent
    await socket.close()
