"""WebSockets through the relay, listeners and their tokens, over real sockets."""

import asyncio
import json
import random
from dataclasses import replace
from ssl import create_default_context
from typing import Any

import pytest
from aiohttp import WSMsgType, WSServerHandshakeError
from yarl import URL

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator import namespace_port
from sbpair.emulator.bearer_tokens import AUDIENCE
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.relay.hybrid_connection import AUDIENCES, MAX_LISTENERS
from tests.emulator.relay_peers import PATH, RelayBench, encoded, open_bench
from tests.kit.sas import sign
from tests.kit.waiting import until

LISTEN = f"/$hc/{PATH}?sb-hc-action=listen"
CONNECT = f"/$hc/{PATH}?sb-hc-action=connect"


async def paired(bench: RelayBench, target: str = PATH, **options: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Connect a sender to a new listener; return both sockets and the offer."""
    listener = await bench.listen()
    connecting = asyncio.create_task(bench.connect(target, **options))
    offer, accepted = await listener.accept(protocols=options.get("protocols", ())[-1:])
    return await connecting, accepted, offer


async def test_messages_pass_both_ways_and_keep_their_kind(bench: RelayBench) -> None:
    sender, accepted, _ = await paired(bench)

    await sender.send_str("Grüße")
    await sender.send_bytes(b"\x00" * 200_000)
    await accepted.send_bytes(b"")
    await accepted.send_str("x" * 300_000)

    assert await accepted.receive_str() == "Grüße"
    assert await accepted.receive_bytes() == b"\x00" * 200_000
    assert await sender.receive_bytes() == b""
    assert await sender.receive_str() == "x" * 300_000


async def test_an_offer_has_the_senders_headers_and_its_answer_a_protocol(bench: RelayBench) -> None:
    target = f"{PATH}/sub%20path?a=1&sb-hc-action=connect&sb-hc-id=mine&b=%2B"
    sender, accepted, offer = await paired(bench, target, headers={"X-A": "1"}, protocols=("first", "second"))

    assert sender.protocol == accepted.protocol == "second"
    assert offer["id"].startswith("mine")
    assert offer["address"] == (
        f"ws://{bench.authority}/$hc/{PATH}/sub%20path?a=1&b=%2B&sb-hc-action=accept&sb-hc-id={offer['id']}"
    )
    headers = {name.lower(): value for name, value in offer["connectHeaders"].items()}
    assert headers["host"] == bench.authority
    assert headers["upgrade"] == "websocket"
    assert headers["sec-websocket-key"]
    assert headers["sec-websocket-protocol"] == "first,second"
    assert headers["x-a"] == "1"
    assert "servicebusauthorization" not in headers
    assert offer["remoteEndpoint"]["address"] == "127.0.0.1"
    assert (await bench.refused(bench.target_of(offer["address"])))[0] == 403


@pytest.mark.parametrize("leaver", ["sender", "listener"])
async def test_close_code_and_reason_are_relayed(bench: RelayBench, leaver: str) -> None:
    sender, accepted, _ = await paired(bench)
    leaving, staying = (sender, accepted) if leaver == "sender" else (accepted, sender)

    closing = asyncio.create_task(leaving.close(code=4001, message=b"enough"))
    message = await staying.receive()

    assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "enough")
    await closing


@pytest.mark.parametrize(
    ("status", "of_listener", "of_sender"),
    [
        ("418&sb-hc-statusDescription=no%20tea%0d%0aA:%20b", 410, (418, "no tea??A: b")),
        *((invalid, 400, (502, None)) for invalid in ("101", "200", "abc", "", "99999", "-1")),
    ],
)
async def test_a_listener_rejects_with_a_valid_status_and_reason(
    bench: RelayBench, status: str, of_listener: int, of_sender: tuple[int, str | None]
) -> None:
    listener = await bench.listen()
    refused = asyncio.create_task(bench.refused(CONNECT, ServiceBusAuthorization=bench.token()))
    address = await listener.offered()
    assert (await bench.refused(f"{address}&sb-hc-statusCode={status}"))[0] == of_listener
    found, reason = await refused
    assert (found, of_sender[1] and reason) == of_sender


async def test_a_connection_that_no_listener_accepts_in_time_fails(bench: RelayBench) -> None:
    listener = await bench.listen()
    refused = asyncio.create_task(bench.refused(CONNECT, ServiceBusAuthorization=bench.token()))
    address = await listener.offered()
    bench.advance(30)

    status, text = await refused
    assert status == 504
    assert text.startswith("None of the connected listeners accepted the connections within the allowed timeout.")
    assert (await bench.refused(address))[0] == 403


async def test_an_emulator_stops_at_once_with_senders_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace_port, "STOP_SECONDS", 3600)
    async with open_bench() as bench:
        # It would connect again while the port closes.
        bench.session._retry_connection = False
        listener = await bench.listen()
        waiting = [asyncio.create_task(bench.connect()), bench.ask()]
        await listener.socket.receive()
        await listener.socket.receive()
    assert all(isinstance(each, Exception) for each in await asyncio.gather(*waiting, return_exceptions=True))


async def test_a_connection_that_is_reused_after_a_request_can_be_upgraded(bench: RelayBench) -> None:
    async with bench.request(target="/nowhere") as answer:
        assert answer.status == 404
        await answer.read()
    sender, accepted, _ = await paired(bench)
    await sender.send_str("over a pooled connection")
    assert await accepted.receive_str() == "over a pooled connection"


async def test_everything_works_over_tls_too() -> None:
    async with open_bench(tls=True) as bench:
        trusting = create_default_context(cafile=bench.emulator.ready.ca_file)
        headers = {"ServiceBusAuthorization": bench.token()}
        control = await bench.open(bench.url(LISTEN, "wss"), headers=headers, ssl=trusting)
        connecting = asyncio.create_task(bench.open(bench.url(CONNECT, "wss"), headers=headers, ssl=trusting))
        address = (await control.receive_json())["accept"]["address"]
        assert address.startswith(f"wss://{bench.authority}/")
        accepted, sender = await bench.open(URL(address, encoded=True), ssl=trusting), await connecting
        await sender.send_bytes(b"x" * 1_000_000)
        assert len(await accepted.receive_bytes()) == 1_000_000
        await accepted.close(code=4000)
        assert (await sender.receive()).data == 4000


# Listeners


async def test_listeners_are_counted_and_at_most_25(bench: RelayBench) -> None:
    listeners = [await bench.listen() for _ in range(MAX_LISTENERS)]
    status, text = await bench.refused(LISTEN, ServiceBusAuthorization=bench.token())
    assert (status, text.partition(".")[0]) == (403, "The endpoint already has 25 listeners")

    await listeners[0].socket.close()
    await until(lambda: len(bench.entity.listeners) == MAX_LISTENERS - 1)
    await bench.listen()


async def test_senders_are_spread_at_random_by_a_seed(bench: RelayBench) -> None:
    listeners = [await bench.listen() for _ in range(3)]
    bench.namespace.hybrid_connections.chance = random.Random(5)
    expected = random.Random(5)
    order = list(bench.entity.listeners)
    for _ in range(8):
        asking = bench.ask()
        # A request chooses twice: before its body is read, and after.
        expected.choice(order)
        chosen = listeners[order.index(expected.choice(order))]
        request, _ = await chosen.request()
        await chosen.answer(request["id"])
        assert (await asking).status == 200


async def test_senders_allow_and_disallow_listeners_by_id(bench: RelayBench) -> None:
    first, second = await bench.listen(identity="AAA"), await bench.listen(identity="bbb")
    chosen = [("AllowedListeners", "aaa, x", first), ("DisallowedListeners", "AAA", second)]
    for name, ids, listener in chosen * 3:
        await listener.serve(headers={f"Microsoft-Relay-{name}": ids})
    headers = {"ServiceBusAuthorization": bench.token(), "Microsoft-Relay-AllowedListeners": "c"}
    status, text = await bench.refused(CONNECT, **headers)
    assert status == 404
    assert text.startswith("None of the connected listeners meet the AllowedListeners/DisallowedListeners criteria")


async def test_messages_of_unknown_kinds_are_ignored(bench: RelayBench) -> None:
    listener = await bench.listen()
    await listener.socket.send_str('{"injected": true}')
    await listener.socket.send_bytes(b"body without a response")
    await listener.socket.send_bytes(b"")
    await listener.serve()


async def test_deleting_an_endpoint_closes_its_listeners(bench: RelayBench) -> None:
    listener = await bench.listen()
    bench.entity.delete()
    assert await listener.closed() == 1001
    assert (await bench.refused(LISTEN, ServiceBusAuthorization=bench.token()))[0] == 404


# Tokens


async def test_a_channel_ends_when_its_renewed_token_expires() -> None:
    async with open_bench(clock=ManualClock()) as bench:
        headers = {"ServiceBusAuthorization": bench.token(seconds=60)}
        socket = await bench.open(bench.url(LISTEN), headers=headers)
        await socket.send_json({"renewToken": {"token": bench.token(seconds=3600)}})
        asking = bench.ask()
        await socket.receive()  # the renewal was read before
        bench.advance(1800)
        assert len(bench.entity.listeners) == 1
        bench.advance(1800)
        assert not bench.entity.listeners
        await socket.receive()
        assert socket.close_code == 1008
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


@pytest.mark.parametrize("token", ["", "x", None, 5, "expired", "of another path", "of a sender"])
async def test_a_bad_renewal_closes_the_channel(bench: RelayBench, token: Any) -> None:
    tokens = {
        "expired": bench.token(seconds=-1),
        "of another path": bench.token("/other"),
        "of a sender": bench.token(rule=add_key(bench, AccessRight.SEND)),
    }
    listener = await bench.listen()
    await listener.socket.send_json({"renewToken": {"token": tokens.get(token, token)}})
    assert await listener.closed() == 1008
    assert not bench.entity.listeners


def add_key(bench: RelayBench, *rights: AccessRight, of_entity: bool = False) -> AuthorizationRule:
    rule = AuthorizationRule("own", "b3du", "b3duMg==", frozenset(rights))
    if of_entity:
        bench.entity.description = replace(bench.entity.description, authorization_rules=(rule,))
    else:
        bench.namespace.keys = (*bench.namespace.keys, rule)
    return rule


@pytest.mark.parametrize("resource", ["http://x/hyco", "http://x:443/HYCO/", "sb://x/", "sb://x", "https://x/hyco/sub"])
async def test_tokens_are_valid_for_any_host_and_prefix(bench: RelayBench, resource: str) -> None:
    listener = await bench.listen()
    signed = sign(bench.namespace.keys[0], resource, bench.emulator.clock.now_ms() // 1000 + 60)
    asking = asyncio.create_task(
        bench.session.get(bench.url("/hyco/sub", "http"), headers={"Authorization": signed, "X": "1"})
    )
    request, _ = await listener.request()
    await listener.answer(request["id"])
    assert "Authorization" not in request["requestHeaders"]
    assert (await asking).status == 200


async def test_a_token_in_the_query_is_as_good_as_in_the_header(bench: RelayBench) -> None:
    query = f"sb-hc-action=listen&sb-hc-token={encoded(bench.token())}"
    socket = await bench.open(bench.url(f"/$hc/{PATH}?{query}"))
    asking = asyncio.create_task(
        bench.session.get(bench.url(f"/{PATH}?a=b&sb-hc-token={encoded(bench.token())}&c", "http"))
    )
    request = json.loads(await socket.receive_str())["request"]
    assert request["requestTarget"] == f"/{PATH}?a=b&c"
    await socket.send_json({"response": {"requestId": request["id"], "statusCode": 200}})
    assert (await asking).status == 200


@pytest.mark.parametrize("of_entity", [True, False])
async def test_claims_decide_who_may_listen_and_send(bench: RelayBench, of_entity: bool) -> None:
    may_send = bench.token(rule=add_key(bench, AccessRight.SEND, of_entity=of_entity))
    status, text = await bench.refused(LISTEN, ServiceBusAuthorization=may_send)
    assert status == 403
    assert text.startswith("Unauthorized access. 'Listen' claim(s) are required to perform this operation. TrackingId:")
    status, _ = await bench.refused(CONNECT, ServiceBusAuthorization=may_send)
    assert status == 404


async def test_bearer_tokens_of_the_relay_are_accepted_in_both_forms() -> None:
    async with open_bench(identity=True) as bench:
        assert bench.emulator.identity is not None
        token, _ = bench.emulator.bearers.issue(f"{AUDIENCES[0]}/", bench.emulator.clock.now_ms())
        for header in (f"Bearer {token}", token):
            socket = await bench.open(bench.url(LISTEN), headers={"ServiceBusAuthorization": header})
            await socket.close()
        other, _ = bench.emulator.bearers.issue(AUDIENCE, bench.emulator.clock.now_ms())
        status, text = await bench.refused(LISTEN, ServiceBusAuthorization=f"Bearer {other}")
        assert status == 401
        assert text.startswith("InvalidAudience")


@pytest.mark.parametrize(
    ("target", "changes", "status"),
    [
        ("/$hc/", {}, 404),
        ("/$hc", {}, 404),
        ("/$hc/hyco?sb-hc-action=dance", {}, 400),
        ("/$hc/hyco?sb-hc-action=accept", {}, 403),
        ("/$hc/hyco?sb-hc-action=request&sb-hc-id=x", {}, 403),
        ("/$hc/hyco/sub?sb-hc-action=listen", {}, 404),
        ("/%24hc/none?SB-HC-ACTION=LISTEN", {}, 404),
        *((CONNECT, {name: "x"}, 400) for name in ("Upgrade", "Sec-WebSocket-Key", "Sec-WebSocket-Version")),
    ],
)
async def test_a_handshake_for_nothing_or_that_is_none_is_refused(
    bench: RelayBench, target: str, changes: dict[str, str], status: int
) -> None:
    assert (await bench.refused(target, **changes, ServiceBusAuthorization=bench.token("/")))[0] == status


async def test_senders_of_an_open_endpoint_need_no_token_but_listeners_do() -> None:
    async with open_bench(description={"requires_client_authorization": False}) as bench:
        with pytest.raises(WSServerHandshakeError):
            await bench.open(bench.url(LISTEN))
        listener = await bench.listen()
        connecting = asyncio.create_task(bench.open(bench.url(CONNECT)))
        _, accepted = await listener.accept()
        await (await connecting).send_str("anonymous")
        assert await accepted.receive_str() == "anonymous"
