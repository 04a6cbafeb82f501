"""A sender and a listener of the relay for tests: thin ones, on aiohttp's client, that speak the protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from aiohttp import ClientResponse, ClientSession, ClientTimeout, ClientWebSocketResponse, WSMsgType
from multidict import CIMultiDict
from yarl import URL

from sbpair.amqp_server.shared_access import AuthorizationRule
from sbpair.emulator.clock import Clock
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.relay.hybrid_connection import HybridConnection, HybridConnectionDescription
from sbpair.testing import Emulator, EmulatorOptions
from tests.kit.sas import sign

PATH = "hyco"
HANDSHAKE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


@dataclass
class RelayBench:
    """An emulator with the hybrid connection `hyco`, and a session for its peers."""

    emulator: Emulator
    session: ClientSession
    entity: HybridConnection
    opened: list[ClientWebSocketResponse] = field(default_factory=list)

    async def open(self, url: URL, **options: Any) -> ClientWebSocketResponse:
        socket = await self.session.ws_connect(url, max_msg_size=0, **options)
        self.opened.append(socket)
        return socket

    @property
    def namespace(self) -> Namespace:
        return self.emulator.namespaces["contoso"]

    @property
    def authority(self) -> str:
        return self.namespace.authority

    def token(self, path: str = f"/{PATH}", rule: AuthorizationRule | None = None, seconds: int = 3600) -> str:
        expiry = self.emulator.clock.now_ms() // 1000 + seconds
        return sign(rule or self.namespace.keys[0], f"http://{self.authority}{path}", expiry)

    def url(self, target: str, scheme: str = "ws") -> URL:
        return URL(f"{scheme}://{self.authority}{target}", encoded=True)

    async def listen(self, path: str = PATH, *, identity: str = "", **headers: str) -> RelayPeer:
        own = {"ServiceBusAuthorization": self.token(f"/{path}"), **headers}
        query = f"sb-hc-action=listen{f'&sb-hc-id={identity}' if identity else ''}"
        return RelayPeer(self, await self.open(self.url(f"/$hc/{path}?{query}"), headers=own))

    async def connect(self, target: str = f"{PATH}?sb-hc-action=connect", **options: Any) -> ClientWebSocketResponse:
        headers = {"ServiceBusAuthorization": self.token(), **options.pop("headers", {})}
        return await self.open(self.url(f"/$hc/{target}"), headers=headers, **options)

    def request(self, method: str = "GET", target: str = f"/{PATH}", **options: Any) -> Any:
        headers = CIMultiDict({"ServiceBusAuthorization": self.token()})
        headers.extend(options.pop("headers", {}))
        return self.session.request(method, self.url(target, "http"), headers=headers, **options)

    def ask(self, method: str = "GET", target: str = f"/{PATH}", **options: Any) -> asyncio.Task[ClientResponse]:
        """Begin a request."""
        return asyncio.create_task(self.request(method, target, **options).__aenter__())

    async def asked(
        self, method: str = "GET", **options: Any
    ) -> tuple[RelayPeer, asyncio.Task[ClientResponse], dict[str, Any]]:
        """Begin a small request to a new listener; return the listener, the task and the request."""
        listener, asking = await self.listen(), self.ask(method, **options)
        return listener, asking, (await listener.request())[0]

    def target_of(self, address: str) -> str:
        """Return path and query of a rendezvous address."""
        return address.partition(self.authority)[2]

    async def refused(self, target: str, **headers: str) -> tuple[int, str]:
        """Return status and reason phrase with which a handshake is refused."""
        async with self.session.get(self.url(target, "http"), headers={**HANDSHAKE, **headers}) as answer:
            assert "Via" not in answer.headers
            return answer.status, str(answer.reason)

    def advance(self, seconds: float) -> None:
        self.emulator.advance(int(seconds * 1000))


class RelayPeer:
    """A listener on its control channel."""

    def __init__(self, bench: RelayBench, socket: ClientWebSocketResponse) -> None:
        self.bench = bench
        self.socket = socket

    async def next(self, kind: str) -> dict[str, Any]:
        message = json.loads(await self.socket.receive_str())
        assert list(message) == [kind], message
        return message[kind]

    async def request(self) -> tuple[dict[str, Any], bytes]:
        """Return the next request that comes over the control channel, and its body."""
        request = await self.next("request")
        return request, await self.socket.receive_bytes() if request.get("body") else b""

    async def serve(self, method: str = "GET", **options: Any) -> tuple[dict[str, Any], ClientResponse]:
        """Answer a request that a sender makes now. Return it and the answer."""
        asking = self.bench.ask(method, **options)
        request, _ = await self.request()
        await self.answer(request["id"], 200, b"" if method == "HEAD" else b"served")
        answer = await asking
        assert (answer.status, await answer.read()) == (200, b"" if method == "HEAD" else b"served")
        return request, answer

    async def offered(self) -> str:
        """Return path and query of the address at which a sender waits."""
        return self.bench.target_of((await self.next("accept"))["address"])

    async def meet(self, address: str, **options: Any) -> ClientWebSocketResponse:
        return await self.bench.open(URL(address, encoded=True), **options)

    async def accept(self, **options: Any) -> tuple[dict[str, Any], ClientWebSocketResponse]:
        offer = await self.next("accept")
        return offer, await self.meet(offer["address"], **options)

    async def answer(
        self, identity: str, status: Any = 200, body: bytes = b"", socket: Any = None, **head: Any
    ) -> None:
        socket = socket or self.socket
        response = {"requestId": identity, "statusCode": status, "body": bool(body), **head}
        await socket.send_str(json.dumps({"response": response}))
        if body:
            await socket.send_bytes(body)

    async def closed(self) -> int | None:
        """Return the code with which the service closes the channel."""
        message = await self.socket.receive()
        assert message.type in (WSMsgType.CLOSE, WSMsgType.CLOSED, WSMsgType.CLOSING), message
        return self.socket.close_code


@asynccontextmanager
async def open_bench(*, clock: Clock | None = None, **options: Any) -> AsyncIterator[RelayBench]:
    description = HybridConnectionDescription(**options.pop("description", {}))
    async with Emulator([("contoso", 0)], clock=clock, options=EmulatorOptions(**options)) as emulator:
        entity = emulator.namespaces["contoso"].hybrid_connections.create(PATH, description)
        async with ClientSession(timeout=ClientTimeout(total=None), auto_decompress=False) as session:
            bench = RelayBench(emulator, session, entity)
            try:
                yield bench
            finally:
                for socket in bench.opened:
                    socket._response.close()


async def refusal(answer: ClientResponse) -> tuple[int, str, str]:
    """Return status, code and text of a refusal, whose reason phrase is the same text."""
    error = (await answer.json())["error"]
    assert answer.reason == error["message"]
    assert "Via" not in answer.headers
    return answer.status, error["code"], error["message"]


def encoded(token: str) -> str:
    return quote(token, safe="")
