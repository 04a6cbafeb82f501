"""Hostile peers of the relay over raw sockets: each gets the service's refusal, and reaches no other connection."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType
from websockets.frames import Close, Frame

from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from tests.emulator.relay_peers import PATH, RelayBench, RelayPeer
from tests.emulator.test_websocket import CLOSE, PING, TEXT, RawSocket, frame, handshake, opened
from tests.kit.waiting import until

WAYS = {
    "listen": f"/$hc/{PATH}?sb-hc-action=listen",
    "connect": f"/$hc/{PATH}?sb-hc-action=connect",
    "http": f"/{PATH}",
}


def raw(bench: RelayBench) -> AbstractAsyncContextManager[RawSocket]:
    return opened(bench.emulator, upgrade=False)


def opening(target: str, token: str | None) -> bytes:
    """Return a handshake, or a plain request for a target outside `/$hc/`."""
    line = f"ServiceBusAuthorization: {token}" if token else ""
    if "$hc" in target:
        return handshake(target, extra=line, Authorization=None, Sec_WebSocket_Protocol=None)
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n{line or 'X: y'}\r\n\r\n".encode()


async def refusal(bench: RelayBench, request: bytes) -> tuple[int, str, str]:
    """Return status, code of the JSON body, if any, and reason without the tracking id."""
    async with raw(bench) as peer:
        head = await peer.ask(request)
        _, status, reason = head.partition("\r\n")[0].split(" ", 2)
        body = await peer.reader.read(4096) if "application/json" in head else b""
    assert "\r\nVia:" not in head
    code = json.loads(body)["error"]["code"] if body else ""
    return int(status), code, reason.partition(" TrackingId:")[0]


async def close_code(peer: RawSocket) -> int | None:
    """Return the code of the next close frame, None if the connection ends without one."""
    while (each := await peer.frame()) is not None:
        if each.opcode is CLOSE:
            return Close.parse(each.data).code
    return None


class Bystander:
    """A WebSocket and a listener that must notice nothing."""

    def __init__(self, bench: RelayBench) -> None:
        self._bench = bench

    async def __aenter__(self) -> Bystander:
        hybrid_connections = self._bench.namespace.hybrid_connections
        hybrid_connections.create("other")
        self._listener = await self._bench.listen("other")
        connecting = asyncio.create_task(self._ask("ws"))
        _, self._accepted = await self._listener.accept()
        self._sender = await connecting
        return self

    async def __aexit__(self, *details: object) -> None:
        """Check that the next messages are those of its own."""
        if details[0] is not None:
            return
        await self._sender.send_str("up")
        await self._accepted.send_str("down")
        assert (await self._accepted.receive_str(), await self._sender.receive_str()) == ("up", "down")
        asking = asyncio.create_task(self._ask("http"))
        request, _ = await self._listener.request()
        await self._listener.answer(request["id"], 200, b"own")
        assert await (await asking).read() == b"own"

    async def _ask(self, scheme: str) -> Any:
        headers = {"ServiceBusAuthorization": self._bench.token("/other")}
        if scheme == "ws":
            return await self._bench.open(self._bench.url("/$hc/other"), headers=headers)
        return await self._bench.session.get(self._bench.url("/other", "http"), headers=headers)


# Tokens and addresses

MALFORMED = "MalformedToken: The credentials contained in the authorization header are not valid."
SIGNATURE = "InvalidSignature: The token has an invalid signature."
CAUSES = {
    "wrong key": (401, SIGNATURE),
    "unknown key": (401, SIGNATURE),
    "expired": (401, "ExpiredToken: The token is expired."),
    "of another endpoint": (401, "InvalidAudience: The authorization header contains a token with a wrong audience."),
    "without the claim": (403, "Unauthorized access. '{}' claim(s) are required to perform this operation."),
    "none": (401, "MissingToken: The relay security token is missing."),
    "altered": (401, SIGNATURE),
    "of the namespace, by an endpoint's key": (401, SIGNATURE),
    "garbage": (401, MALFORMED),
    "half": (401, MALFORMED),
    "basic": (401, MALFORMED),
}


@pytest.mark.parametrize("way", WAYS)
async def test_wrong_tokens_get_the_services_refusal(bench: RelayBench, way: str) -> None:
    right, missing = (
        (AccessRight.LISTEN, AccessRight.SEND) if way == "listen" else (AccessRight.SEND, AccessRight.LISTEN)
    )
    genuine = bench.namespace.keys[0]
    forged = AuthorizationRule(genuine.key_name, "d3Jvbmc=", "d3Jvbmc=", frozenset({right}))
    unknown = AuthorizationRule("nobody", "d3Jvbmc=", "d3Jvbmc=", frozenset({right}))
    other = AuthorizationRule("other", "b3du", "b3duMg==", frozenset({missing}))
    own = AuthorizationRule("own", "b3du", "b3duMg==", frozenset({right}))
    bench.namespace.keys = (genuine, other)
    bench.entity.description = replace(bench.entity.description, authorization_rules=(own,))
    tokens = {
        "wrong key": bench.token(rule=forged),
        "unknown key": bench.token(rule=unknown),
        "expired": bench.token(seconds=-1),
        "of another endpoint": bench.token("/hycos"),
        "without the claim": bench.token(rule=other),
        "none": None,
        "altered": bench.token().replace("se=", "se=1"),
        "of the namespace, by an endpoint's key": bench.token("/", own),
        "garbage": "garbage",
        "half": "SharedAccessSignature sr=x",
        "basic": "Basic eDp5",
    }
    async with Bystander(bench):
        for cause, (status, text) in CAUSES.items():
            code = ("Forbidden" if status == 403 else "TokenMissingOrInvalid") if way == "http" else ""
            found = await refusal(bench, opening(WAYS[way], tokens[cause]))
            assert found[:2] == (status, code), cause
            assert found[2].startswith(text.format(right.value)), cause
            assert (tokens[cause] or "none") not in found[2], cause
    assert not bench.entity.listeners


NOT_VALID = "The path of the URL is not valid."
CLIMBING = ["/../other", "/%2e%2e/other", "/.%2E%2fother", "/..%5cother", "/..\\other", "/x/../../other", "/%00"]


async def test_a_suffix_that_climbs_reaches_no_other_endpoint(bench: RelayBench) -> None:
    async with Bystander(bench):
        for suffix in CLIMBING:
            for way in ("connect", "http"):
                target = WAYS[way].replace(PATH, PATH + suffix)
                status, code, reason = await refusal(bench, opening(target, bench.token("/")))
                assert (status, code, reason) == (400, "BadRequest" if way == "http" else "", NOT_VALID), target


@pytest.mark.parametrize("way", WAYS)
async def test_an_unknown_endpoint_is_named_by_its_refusal(bench: RelayBench, way: str) -> None:
    target = WAYS[way].replace(PATH, "nowhere")
    code = "EndpointNotFound" if way == "http" else ""
    assert await refusal(bench, opening(target, bench.token("/"))) == (404, code, "Endpoint does not exist.")


# Requests of a sender

INJECTIONS = {
    "a bare carriage return": "X: a\rSet-Cookie: b",
    "a bare line feed": "X: a\nSet-Cookie: b",
    "a folded line": "X: a\r\n Set-Cookie: b",
    "a null": "X: a\0b",
    "a name with a space": "X Y: a",
    "a name without an end": "X",
    "two lengths": "Content-Length: 3\r\nContent-Length: 5",
    "a length and chunks": "Content-Length: 3\r\nTransfer-Encoding: chunked",
    "a length that is none": "Content-Length: -1",
}


async def test_injected_headers_of_a_sender_reach_no_listener(bench: RelayBench) -> None:
    async with Bystander(bench):
        for how in INJECTIONS:
            await inject(bench, how)


async def inject(bench: RelayBench, how: str) -> None:
    listener = await bench.listen()
    async with raw(bench) as sender:
        head = (
            f"POST /{PATH} HTTP/1.1\r\nHost: localhost\r\nServiceBusAuthorization: {bench.token()}\r\n"
            f"{INJECTIONS[how]}\r\n\r\n"
        )
        sender.writer.write(head.encode())
        status = asyncio.create_task(sender.reader.readline())
        message = asyncio.create_task(listener.next("request"))
        await asyncio.wait([status, message], return_when=asyncio.FIRST_COMPLETED)
        if message.done():
            # A folded line: its value is one line, and no other header comes of it.
            headers = message.result()["requestHeaders"]
            assert {name.lower() for name in headers} == {"x", "via"}, how
            assert not set("\r\n\0") & set("".join(headers.values())), how
            await listener.answer(message.result()["id"])
            assert (await status).startswith(b"HTTP/1.1 200 "), how
        else:
            assert status.result().split()[1] == b"400", how
            message.cancel()
            await asyncio.gather(message, return_exceptions=True)
    await listener.socket.close()
    await until(lambda: not bench.entity.listeners)


async def test_a_sender_that_closes_its_half_gets_no_other_answer(bench: RelayBench) -> None:
    listener = await bench.listen()
    async with Bystander(bench):
        async with raw(bench) as sender:
            sender.writer.write(opening(WAYS["http"], bench.token()))
            request, _ = await listener.request()
            sender.writer.write_eof()
            assert await sender.reader.read() == b""
        await listener.answer(request["id"], 200, b"late")
    second, _ = await listener.serve()
    assert second["id"] != request["id"]


# Frames


def crude(first: int, data: bytes = b"", *, length: bytes | None = None) -> bytes:
    """Return a masked frame, whether valid or not."""
    size = bytes([0x80 | len(data)]) if length is None else bytes([length[0] | 0x80]) + length[1:]
    return bytes([first]) + size + bytes(4) + data


BROKEN_FRAMES = {
    "not masked": (Frame(TEXT, b"{}").serialize(mask=False), 1002),
    "with reserved bits": (crude(0xF1), 1002),
    "of an unknown kind": (crude(0x83), 1002),
    "a continuation of nothing": (crude(0x80, b"x"), 1002),
    "a text in another message": (crude(0x01, b"x") + crude(0x81, b"y"), 1002),
    "a ping in parts": (crude(0x09, b"x"), 1002),
    "a ping of 126 bytes": (crude(0x89, bytes(126), length=b"\x7e\x00\x7e"), 1002),
    "a close of one byte": (crude(0x88, b"x"), 1002),
    "a close with a reserved code": (crude(0x88, b"\x03\xed"), 1002),
    "a close of 200 bytes": (crude(0x88, b"\x03\xe8" + bytes(198), length=b"\x7e\x00\xc8"), 1002),
    "of half of all bytes": (crude(0x81, length=b"\x7f" + b"\x7f" + b"\xff" * 7), 1009),
}


async def test_a_broken_frame_ends_its_control_channel_only(bench: RelayBench) -> None:
    async with Bystander(bench):
        for what, (data, code) in BROKEN_FRAMES.items():
            async with raw(bench) as listener:
                assert " 101 " in await listener.ask(opening(WAYS["listen"], bench.token()))
                listener.writer.write(data)
                assert await close_code(listener) == code, what
                await until(lambda: not bench.entity.listeners)


@pytest.mark.parametrize("of_sender", [True, False])
async def test_a_broken_frame_ends_its_relayed_socket_only(bench: RelayBench, of_sender: bool) -> None:
    listener = await bench.listen()
    async with Bystander(bench):
        for what, (data, code) in BROKEN_FRAMES.items():
            async with half_raw(bench, listener, of_sender=of_sender) as (bad, good):
                bad.writer.write(data)
                assert await close_code(bad) == code, what
                while (message := await good.receive()).type in (WSMsgType.TEXT, WSMsgType.BINARY):
                    assert message.data == "x"
                assert good.close_code == (1001 if of_sender else 1006), what


@asynccontextmanager
async def half_raw(
    bench: RelayBench, listener: RelayPeer, *, of_sender: bool
) -> AsyncIterator[tuple[RawSocket, ClientWebSocketResponse]]:
    """Open a relayed WebSocket, one end of which is a raw one."""
    async with raw(bench) as bad:
        if of_sender:
            bad.writer.write(opening(WAYS["connect"], bench.token()))
            _, good = await listener.accept()
        else:
            connecting = asyncio.create_task(bench.connect())
            bad.writer.write(opening(await listener.offered(), None))
            good = await connecting
        assert b" 101 " in await bad.reader.readuntil(b"\r\n\r\n")
        yield bad, good


async def test_a_broken_frame_on_a_rendezvous_is_a_bad_gateway(bench: RelayBench) -> None:
    listener = await bench.listen()
    async with Bystander(bench):
        for what, (data, code) in BROKEN_FRAMES.items():
            asking = bench.ask()
            request, _ = await listener.request()
            async with raw(bench) as bad:
                assert " 101 " in await bad.ask(opening(bench.target_of(request["address"]), None))
                bad.writer.write(data)
                assert await close_code(bad) in (code, 1008), what
            answer = await asking
            assert (answer.status, (await answer.json())["error"]["code"]) == (502, "BadGateway"), what


async def test_a_message_in_parts_that_is_too_large_ends_the_channel(bench: RelayBench) -> None:
    async with Bystander(bench), raw(bench) as listener:
        await listener.ask(opening(WAYS["listen"], bench.token()))
        listener.writer.write(
            crude(0x01, b"x") + crude(0x00, bytes(100_000), length=b"\x7f" + (100_000).to_bytes(8)) * 3
        )
        assert await close_code(listener) == 1009


GARBAGE = [
    *(b"", b"{", b"[]", b"null", b'"x"', b"\0", b"[" * 100_000, b'{"response": 1}'),
    *(b"\xff\xfe", b'{"response":\xff}', b'{"response":{"requestId":"\xed\xa0\x80"}}'),
]


@pytest.mark.parametrize("text", GARBAGE, ids=lambda text: repr(text[:20]))
async def test_a_listener_that_sends_garbage_loses_its_channel_only(bench: RelayBench, text: bytes) -> None:
    async with Bystander(bench), raw(bench) as bad:
        await bad.ask(opening(WAYS["listen"], bench.token()))
        good = await bench.listen(identity="good")
        bad.writer.write(frame(TEXT, text))
        assert await close_code(bad) == 1008
        assert [each.listener_id for each in bench.entity.listeners] == ["good"]
        await good.serve()


async def test_pings_are_answered_and_not_passed_on(bench: RelayBench) -> None:
    listener = await bench.listen()
    async with raw(bench) as sender:
        sender.writer.write(opening(WAYS["connect"], bench.token()))
        _, accepted = await listener.accept(autoping=False)
        await sender.reader.readuntil(b"\r\n\r\n")
        sender.writer.write(frame(PING, bytes(125)) + frame(TEXT, b"text"))
        assert (await sender.frame()).data == bytes(125)
        assert await accepted.receive_str() == "text"


# Half-open connections, and frames before the answer to a handshake


@pytest.mark.parametrize("of_sender", [True, False])
async def test_a_relayed_socket_that_is_half_open_ends(bench: RelayBench, of_sender: bool) -> None:
    listener = await bench.listen()
    async with Bystander(bench), half_raw(bench, listener, of_sender=of_sender) as (bad, good):
        bad.writer.write_eof()
        await good.receive()
        assert good.close_code == (1001 if of_sender else 1006)


async def test_a_control_channel_that_is_half_open_gets_no_more_requests(bench: RelayBench) -> None:
    async with Bystander(bench), raw(bench) as listener:
        await listener.ask(opening(WAYS["listen"], bench.token()))
        listener.writer.write_eof()
        await until(lambda: not bench.entity.listeners)
        status, code, _ = await refusal(bench, opening(WAYS["http"], bench.token()))
        assert (status, code) == (404, "EndpointNotFound")


async def test_a_sender_that_is_half_open_cannot_be_accepted(bench: RelayBench) -> None:
    listener = await bench.listen()
    async with Bystander(bench), raw(bench) as sender:
        sender.writer.write(opening(WAYS["connect"], bench.token()))
        address = await listener.offered()
        sender.writer.write_eof()
        assert await sender.reader.read() == b""
        assert (await refusal(bench, opening(address, None)))[0] == 403


async def test_frames_that_come_with_the_handshake_are_relayed(bench: RelayBench) -> None:
    listener = await bench.listen()
    sent = b"".join(crude(0x82, bytes([number]) * 60_000, length=b"\x7e\xea\x60") for number in range(4))
    async with raw(bench) as sender:
        sender.writer.write(opening(WAYS["connect"], bench.token()) + crude(0x81, b"early") + sent)
        _, accepted = await listener.accept()
        assert await accepted.receive_str() == "early"
        for number in range(4):
            assert await accepted.receive_bytes() == bytes([number]) * 60_000


async def test_garbage_that_comes_with_the_handshake_ends_the_channel(bench: RelayBench) -> None:
    async with Bystander(bench), raw(bench) as listener:
        assert " 101 " in await listener.ask(opening(WAYS["listen"], bench.token()) + crude(0x81, b"garbage"))
        assert await close_code(listener) == 1008


# Addresses and ids of others


async def test_an_answer_with_the_id_of_another_request_reaches_neither(bench: RelayBench) -> None:
    first, second = await bench.listen(identity="first"), await bench.listen(identity="second")
    pending = []
    for name, listener in (("first", first), ("second", second)):
        headers = {"Microsoft-Relay-AllowedListeners": name}
        asking = bench.ask(headers=headers)
        pending.append((asking, (await listener.request())[0]))
    (of_first, request_1), (of_second, request_2) = pending

    await first.answer(request_2["id"], 200, b"forged")
    meeting = await first.meet(request_1["address"])
    await first.answer(request_2["id"], 200, b"forged too", meeting)
    assert (await of_first).status == 502

    await second.answer(request_2["id"], 200, b"genuine")
    assert await (await of_second).read() == b"genuine"
