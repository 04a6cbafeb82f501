"""Valid requests to the relay and valid messages of a listener, broken: each ends alone, and others are served.

`-m slow` runs more examples.
"""

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import ClientError, ClientSession
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from tests.emulator.relay_peers import HANDSHAKE
from tests.emulator.test_fuzz_arm import broken
from tests.emulator.test_fuzz_http import EFFORTS, TEXTS, Attacked, Frontend, attack
from tests.kit.sas import sign

Draw = Any
TARGETS = [
    "/$hc/hyco?sb-hc-action=connect", "/$hc/hyco/a/b?x=1&sb-hc-action=connect&sb-hc-id=mine", "/$hc/none",
    "/$hc/hyco?sb-hc-action=accept&sb-hc-id=x", "/$hc/hyco?sb-hc-action=request&sb-hc-id=x", "/$hc/hyco?sb-hc-token=x",
    "/hyco", "/hyco/a?b=c&&sb-hc-x", "/none", "/hyco?api-version=2016-07",
]  # fmt: skip
HEADERS = [
    "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 12", "Expect: 100-continue", "X: \x01",
    "Microsoft-Relay-AllowedListeners: ,", "X-PROCESS-AT: ServiceBus", "Transfer-Encoding: chunked",
    "ServiceBusAuthorization: x", "Content-Length: 5",
    "\r\n".join(f"{name}: {value}" for name, value in HANDSHAKE.items()),
]  # fmt: skip
RESPONSE = {
    "requestId": "ID",
    "statusCode": "200",
    "statusDescription": "OK",
    "responseHeaders": {"Content-Type": "text/plain", "Via": "x", "Content-Length": "2", "Set-Cookie": "a=b"},
    "body": True,
}
MESSAGES: list[Any] = [{"response": RESPONSE}, {"renewToken": {"token": "x"}}, {"request": {}}, {"accept": {}}]


@st.composite
def broken_requests(draw: Draw) -> tuple[str, str, str, bytes, int]:
    """Draw method, target, an extra header and body, and the position of a broken byte, if any."""
    target = draw(st.sampled_from(TARGETS))
    if draw(st.integers(0, 3)) == 0:
        target = target.replace("hyco", draw(st.sampled_from(["..", "%2e%2e", "%00", "a" * 300, "%ff", "", "$hc"])))
    method = draw(st.sampled_from(["GET"] * 4 + ["POST", "PUT", "DELETE", "HEAD", "PROPFIND"]))
    body = draw(st.sampled_from([b"", b"", b"hello", b"x" * 70_000]))
    return method, target, draw(st.sampled_from(HEADERS)), body, draw(st.sampled_from([-1] * 3) | st.integers(0, 800))


@st.composite
def broken_messages(draw: Draw) -> list[str | bytes]:
    """Draw what a listener sends; ID stands for the id of its request."""
    messages: list[str | bytes] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["message", "message", "message", "text", "bytes"]))
        if kind == "message":
            messages.append(json.dumps(broken(draw, draw(st.sampled_from(MESSAGES)))))
        elif kind == "text":
            messages.append(draw(st.sampled_from(TEXTS)))
        else:
            messages.append(draw(st.binary(max_size=20)))
    return messages


@pytest.fixture(scope="module")
def attacked() -> Iterator[Attacked]:
    with Attacked() as attacked:
        attacked.namespace.hybrid_connections.create("hyco")
        yield attacked


@pytest.mark.parametrize("effort", EFFORTS)
def test_broken_relay_requests_harm_no_other_client(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, effort: settings
) -> None:
    attack(attacked, caplog, Frontend(broken_requests(), (), "/$namespaceinfo", "api-version=2021-05", "100"), effort)


@pytest.mark.parametrize("effort", [settings(EFFORTS[0], max_examples=80), *EFFORTS[1:]])
def test_broken_messages_of_a_listener_harm_no_other(
    attacked: Attacked, caplog: pytest.LogCaptureFixture, effort: settings
) -> None:
    @effort
    @given(broken_messages(), st.booleans())
    def each(messages: list[str | bytes], at_rendezvous: bool) -> None:
        attacked._runner.run(misbehave(attacked, messages, at_rendezvous=at_rendezvous))
        assert not attacked.unheard
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]

    each()


async def misbehave(attacked: Attacked, messages: list[str | bytes], *, at_rendezvous: bool) -> None:
    """Let a listener send the messages as its response, and then another one answer a request."""
    authority = attacked.namespace.authority
    headers = {"ServiceBusAuthorization": sign(attacked.namespace.keys[0], f"http://{authority}/hyco", 2**33)}
    listen, ask = f"ws://{authority}/$hc/hyco?sb-hc-action=listen", f"http://{authority}/hyco"
    async with asyncio.timeout(20), ClientSession() as session:
        async with session.ws_connect(URL(listen, encoded=True), headers=headers) as bad:
            asking = asyncio.create_task(outcome(session, ask, headers))
            request = (await bad.receive_json())["request"]
            socket = await session.ws_connect(URL(request["address"], encoded=True)) if at_rendezvous else bad
            for message in messages:
                if isinstance(message, bytes):
                    await socket.send_bytes(message)
                else:
                    await socket.send_str(message.replace("ID", request["id"]))
            await socket.close()
        while not asking.done():
            attacked.emulator.advance(60_000)
            await asyncio.wait([asking], timeout=0.01)
        asking.result()
        async with session.ws_connect(URL(listen, encoded=True), headers=headers) as good:
            asking = asyncio.create_task(outcome(session, ask, headers))
            request = (await good.receive_json())["request"]
            await good.send_json({"response": {"requestId": request["id"], "statusCode": 200, "body": True}})
            await good.send_bytes(b"good")
            assert await asking == (200, b"good")


async def outcome(session: ClientSession, url: str, headers: dict[str, str]) -> tuple[int, bytes]:
    try:
        async with session.get(url, headers=headers) as answer:
            return answer.status, await answer.read()
    except ClientError:
        return 0, b""
