"""HTTP requests through the relay, over real sockets: small ones, large ones, streams, refusals and deadlines."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientConnectionError, ClientPayloadError, WSMsgType

from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from tests.emulator.relay_peers import RelayBench, open_bench, refusal
from tests.kit.waiting import until


async def test_a_request_and_its_answer_pass_with_their_bodies(bench: RelayBench) -> None:
    listener = await bench.listen()
    asking = bench.ask("POST", "/hyco/a%20b?x=1&&sb-hc-undefined&SB-HC-y=2&y=%2F", data=b"ping")

    request, body = await listener.request()
    await listener.answer(request["id"], 201, b"pong", statusDescription="Made", responseHeaders={"X-A": "1"})
    answer = await asking

    assert body == b"ping"
    assert request["method"] == "POST"
    assert request["requestTarget"] == "/hyco/a%20b?x=1&&sb-hc-undefined&y=%2F"
    assert request["address"].endswith(f"&sb-hc-action=request&sb-hc-id={request['id']}")
    assert request["requestHeaders"]["Via"] == "1.1 contoso.servicebus.windows.net"
    assert request["remoteEndpoint"]["address"] == "127.0.0.1"
    assert (answer.status, answer.reason, await answer.read()) == (201, "Made", b"pong")
    assert (answer.headers["Via"], answer.headers["X-A"]) == ("1.1 contoso.servicebus.windows.net", "1")


async def test_headers_of_the_connection_and_of_the_relay_are_not_passed(bench: RelayBench) -> None:
    headers = {"Authorization": "mine", "TE": "trailers", "Via": "1.0 proxy", "x-b": "1", "Content-Type": "text/x"}
    headers["Microsoft-Relay-DisallowedListeners"] = "none"
    listener, asking, request = await bench.asked("PUT", data=b"x", headers=headers)

    hop = {"Connection": "close", "Transfer-Encoding": "chunked", "Content-Length": "400", "Keep-Alive": "x"}
    await listener.answer(request["id"], "200", b"body", responseHeaders={**hop, "Via": "1.0 x", "A": ["1", "2"]})
    answer = await asking

    passed = request["requestHeaders"]
    assert passed["Authorization"] == "mine"
    assert passed["x-b"] == "1"
    assert passed["Via"] == "1.0 proxy, 1.1 contoso.servicebus.windows.net"
    lost = {"host", "connection", "content-length", "te", "servicebusauthorization", "transfer-encoding"}
    assert {name.lower() for name in passed} & {*lost, "microsoft-relay-disallowedlisteners"} == set()
    assert await answer.read() == b"body"
    assert answer.headers["Via"] == "1.0 x, 1.1 contoso.servicebus.windows.net"
    assert answer.headers.getall("A") == ["1", "2"]


@pytest.mark.parametrize("method", ["GET", "PATCH", "OPTIONS", "PROPFIND", "TRACE", "MKCOL"])
async def test_a_request_of_any_method_passes_and_repeated_headers_are_joined(bench: RelayBench, method: str) -> None:
    listener = await bench.listen()
    request, _ = await listener.serve(method, headers=[("A", "1"), ("A", "2")])

    assert (request["method"], request["requestHeaders"]["A"]) == (method, "1, 2")


@pytest.mark.parametrize("how", ["large", "chunked"])
async def test_a_large_or_chunked_request_comes_over_a_rendezvous(bench: RelayBench, how: str) -> None:
    listener = await bench.listen()
    sent = b"abc" * 30_000

    async def parts() -> Any:
        for number in range(0, len(sent), 10_000):
            await asyncio.sleep(0)
            yield sent[number : number + 10_000]

    asking = bench.ask("POST", data=sent if how == "large" else parts())
    pointer = await listener.next("request")
    assert list(pointer) == ["address"]
    meeting = await listener.meet(pointer["address"])
    request = (await meeting.receive_json())["request"]
    assert await meeting.receive_bytes() == sent
    await listener.answer(request["id"], 200, sent[::-1], socket=meeting)
    answer = await asking

    assert await answer.read() == sent[::-1]
    assert (await meeting.receive()).type is WSMsgType.CLOSE


async def test_an_answer_to_a_head_or_without_content_has_no_body(bench: RelayBench) -> None:
    listener = await bench.listen()
    for method, status in (("HEAD", 200), ("GET", 204), ("GET", 304)):
        asking = bench.ask(method)
        request, _ = await listener.request()
        await listener.answer(request["id"], status, b"ignored", responseHeaders={"Content-Length": "7"})
        answer = await asking
        assert (answer.status, await answer.read()) == (status, b"")


@pytest.mark.parametrize("options", [{"expect100": True}, {"headers": {"Content-Encoding": "gzip"}}])
async def test_an_expected_or_compressed_body_passes_as_it_is(bench: RelayBench, options: dict[str, Any]) -> None:
    listener = await bench.listen()
    asking = bench.ask("POST", data=b"not gzip", **options)

    request, body = await listener.request()
    await listener.answer(request["id"], 200, body, responseHeaders=options.get("headers", {}))

    assert "Expect" not in request["requestHeaders"]
    assert body == await (await asking).read() == b"not gzip"


async def test_the_longest_registered_path_is_the_entity(bench: RelayBench) -> None:
    below = bench.namespace.hybrid_connections.create("hyco/inner")
    outer, inner = await bench.listen(), await bench.listen("hyco/inner")
    for target, listener in (("/hyco/inner/x", inner), ("/HYCO/Inner", inner), ("/hyco/innermost", outer)):
        request, _ = await listener.serve(target=target)
        assert request["requestTarget"] == target
    assert len(below.listeners) == 1


# Refusals


async def test_a_request_without_listeners_is_refused(bench: RelayBench) -> None:
    async with bench.request() as answer:
        status, code, text = await refusal(answer)
    assert (status, code) == (404, "EndpointNotFound")
    assert text.startswith("There are no listeners connected for the endpoint. TrackingId:")
    assert f"SystemTracker:sb://{bench.authority}/hyco, Timestamp:20" in text


async def test_a_listener_that_does_not_answer_in_time_costs_a_time_out(bench: RelayBench) -> None:
    listener, asking, request = await bench.asked()
    bench.advance(59)
    bench.advance(1)

    status, code, text = await refusal(await asking)
    assert (status, code) == (504, "GatewayTimeout")
    assert text.startswith("The request was routed to the listener but the listener did not respond in the required")
    # A late answer reaches nobody, and the listener goes on.
    await listener.answer(request["id"], 200, b"late")
    await listener.serve()


@pytest.mark.parametrize("how", ["stops in the middle", "text in place of a body", "wrong length"])
async def test_an_answer_that_is_broken_ends_the_connection(bench: RelayBench, how: str) -> None:
    listener, asking, request = await bench.asked()
    meeting = await listener.meet(request["address"])
    if how == "wrong length":
        await listener.answer(request["id"], 200, b"xyz", meeting, responseHeaders={"Content-Length": "5"})
    else:
        for _ in range(1 if how == "stops in the middle" else 2):
            await meeting.send_json({"response": {"requestId": request["id"], "statusCode": 200, "body": True}})
    answer = await asking
    bench.advance(60)

    with pytest.raises(ClientPayloadError):
        await answer.read()


@pytest.mark.parametrize(
    "head",
    [
        {"statusCode": 101},
        {"statusCode": "abc"},
        {"statusCode": None},
        {"statusCode": 1000},
        {"statusCode": True},
        {"responseHeaders": {"A": "1\r\nSet-Cookie: b=c"}},
        {"responseHeaders": {"A\r\nB": "1"}},
        {"responseHeaders": {"A B": "1"}},
        {"responseHeaders": {"A": {"b": 1}}},
        {"responseHeaders": {"A": "\ud800"}},
        {"responseHeaders": [1]},
        {"statusDescription": "OK\r\nA: b"},
        {"statusDescription": 5},
    ],
)
@pytest.mark.parametrize("way", ["control", "rendezvous"])
async def test_an_invalid_response_is_a_bad_gateway(bench: RelayBench, head: dict[str, Any], way: str) -> None:
    listener, asking, request = await bench.asked()
    socket = listener.socket if way == "control" else await listener.meet(request["address"])
    rest = {name: value for name, value in head.items() if name != "statusCode"}
    await listener.answer(request["id"], head.get("statusCode", 200), body=b"body", socket=socket, **rest)

    status, code, text = await refusal(await asking)
    assert (status, code) == (502, "BadGateway")
    assert "Set-Cookie" not in text
    if way == "control":
        await listener.serve()


async def test_a_rendezvous_address_works_once_and_for_its_action(bench: RelayBench) -> None:
    listener, asking, request = await bench.asked()
    address = bench.target_of(request["address"])
    for wrong in (address.replace("=request", "=accept"), address[:-3], address.replace("hc-id=", "hc-id=x")):
        status, text = await bench.refused(wrong)
        assert (status, text.partition(" TrackingId")[0]) == (
            403,
            "The rendezvous address is invalid, has expired, or was used before.",
        )
    meeting = await listener.meet(request["address"])
    assert (await bench.refused(address))[0] == 403
    await listener.answer(request["id"], socket=meeting)
    assert (await asking).status == 200
    assert (await bench.refused(address))[0] == 403


async def test_messages_after_a_response_are_not_part_of_it(bench: RelayBench) -> None:
    listener, asking, request = await bench.asked()
    meeting = await listener.meet(request["address"])
    for body in (b"first", b"second"):
        await listener.answer(request["id"], 200, body, meeting)

    assert await (await asking).read() == b"first"


async def test_an_outage_ends_waiting_senders_and_listeners(bench: RelayBench) -> None:
    listener, asking, _ = await bench.asked()
    with bench.emulator.faults.during("namespace-down", "contoso"):
        assert isinstance((await asyncio.gather(asking, return_exceptions=True))[0], ClientConnectionError)
        assert await listener.closed() == 1006
        await until(lambda: not bench.entity.listeners)


async def test_an_endpoint_that_is_open_to_all_passes_authorization_on() -> None:
    async with open_bench(description={"requires_client_authorization": False}) as bench:
        listener = await bench.listen()
        url = bench.url("/hyco?sb-hc-token=x", "http")
        asking = asyncio.create_task(bench.session.get(url, headers={"Authorization": "Basic abc"}))
        request, _ = await listener.request()
        await listener.answer(request["id"])
        assert request["requestHeaders"]["Authorization"] == "Basic abc"
        assert request["requestTarget"] == "/hyco"
        assert (await asking).status == 200


async def test_paths_of_queues_still_belong_to_atom(bench: RelayBench) -> None:
    bench.namespace.create_queue("orders")
    async with bench.session.get(bench.url("/orders?api-version=2021-05", "http")) as answer:
        assert answer.status == 401
        assert "xml" in answer.headers["Content-Type"]
    bench.namespace.hybrid_connections.create("plain", HybridConnectionDescription(False))
    async with bench.session.get(bench.url("/plain", "http")) as answer:
        assert (await refusal(answer))[0] == 404
