"""The life of tokens over real sockets: by which clock they end, and what ends with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from aiohttp import ClientSession

from sbpair.amqp.link import LinkDetached
from sbpair.amqp.types import Map
from sbpair.emulator.bearer_tokens import ARM_AUDIENCES
from sbpair.emulator.clock import ManualClock, token_ms
from sbpair.emulator.relay.hybrid_connection import HybridConnection
from sbpair.testing import Emulator, EmulatorOptions
from tests.emulator.peer import Peer, Stage, plain
from tests.kit.async_tests import InLoop
from tests.kit.sas import sign

TWO_HOURS = 7_200_000
HYCO = "hyco"


class TokenStage(Stage):
    """A stage with a hybrid connection and an identity, and clients that sign with the time of `clock`."""

    def __init__(self, emulator: Emulator, http: ClientSession) -> None:
        super().__init__(emulator)
        self.http = http
        self.entity: HybridConnection = self.namespace.hybrid_connections.create(HYCO)

    def token(self, seconds: int = 3600) -> str:
        """Sign as a client does, whose clock is that of the machine."""
        expiry = token_ms(self.emulator.clock) // 1000 + seconds
        return sign(self.namespace.keys[0], f"sb://{self.namespace.authority}", expiry)

    async def put_token(self, peer: Peer, *, seconds: int = 3600, entity: str = "") -> Map:
        name = f"sb://127.0.0.1/{entity}"
        return await peer.ask("$cbs", "put-token", self.token(seconds), name=name)

    async def listen(self) -> Any:
        url = f"ws://{self.namespace.authority}/$hc/{HYCO}?sb-hc-action=listen"
        return await self.http.ws_connect(url, headers={"ServiceBusAuthorization": self.token()})

    async def statuses(self) -> dict[str, int]:
        """Present a fresh token to each frontend, and return the statuses."""
        identity = self.emulator.identity
        assert identity is not None
        base = f"http://{self.namespace.authority}"
        arm, _ = self.emulator.bearers.issue(ARM_AUDIENCES[0], token_ms(self.emulator.clock))
        found = {}
        for name, path, headers in (
            ("atom", "/orders?api-version=2021-05", {"Authorization": self.token()}),
            ("arm", f"{ARM}?api-version=2021-11-01", {"Authorization": f"Bearer {arm}"}),
            ("relay", f"/{HYCO}", {"ServiceBusAuthorization": self.token()}),
        ):
            async with self.http.get(base + path, headers=headers) as answer:
                found[name] = answer.status
        async with self.connect(signed_in=False) as peer:
            found["cbs"] = (await self.put_token(peer))["status-code"]
        return found


ARM = f"/subscriptions/{UUID(int=1)}/resourceGroups/g/providers/Microsoft.ServiceBus/namespaces/contoso"
ACCEPTED = {"atom": 200, "arm": 200, "relay": 404, "cbs": 202}
"""Without a listener the relay answers 404: the token was accepted."""


@asynccontextmanager
async def open_token_stage(**options: Any) -> AsyncIterator[TokenStage]:
    async with (
        Emulator([("contoso", 0)], options=EmulatorOptions(identity=True), **options) as emulator,
        ClientSession() as http,
    ):
        yield TokenStage(emulator, http)


@pytest.fixture
def tokens() -> InLoop:
    return InLoop(open_token_stage)


async def test_an_advanced_clock_ends_no_token(tokens: TokenStage) -> None:
    async with tokens.connect(signed_in=False) as peer:
        assert (await tokens.put_token(peer))["status-code"] == 202
        await peer.attach_sender("orders")
        listener = await tokens.listen()
        url = f"http://{tokens.namespace.authority}/$control/clock"
        for _ in range(2):
            async with tokens.http.post(url, json={"advance_ms": TWO_HOURS}) as answer:
                assert answer.status == 200
            # The link was idle for too long. Another one needs no new token.
            assert (await peer.wait(LinkDetached)).error.condition == "amqp:link:detach-forced"
            await peer.send(await peer.attach_sender("orders"), plain())
        assert (await peer.peek("orders"))["statusCode"] == 200
        assert len(tokens.entity.listeners) == 1
        await listener.close()
        assert await tokens.statuses() == ACCEPTED


async def test_an_identity_issues_tokens_by_the_clock_of_the_machine(tokens: TokenStage) -> None:
    tokens.emulator.advance(TWO_HOURS)
    identity = tokens.emulator.ready.identity
    assert identity is not None
    url = f"{identity.endpoint}?api-version=2019-08-01&resource=https://servicebus.azure.net"
    async with tokens.http.get(url, headers={"X-IDENTITY-HEADER": identity.header}) as answer:
        issued = await answer.json()
    left_s = int(issued["expires_on"]) - token_ms(tokens.emulator.clock) // 1000
    assert 86_300 < left_s <= 86_400
    async with tokens.connect(signed_in=False) as peer:
        answer = await peer.ask("$cbs", "put-token", issued["access_token"], name="sb://h/orders", type="jwt")
        assert answer["status-code"] == 202


async def test_links_end_with_their_token_unless_it_was_renewed() -> None:
    async with open_token_stage(clock=ManualClock()) as tokens, tokens.connect(signed_in=False) as peer:
        tokens.namespace.create_queue("other")
        for entity, seconds in (("orders", 600), ("other", 300), ("orders", 600)):
            assert (await tokens.put_token(peer, seconds=seconds, entity=entity))["status-code"] == 202
        kept, lost = await peer.attach_sender("orders"), await peer.attach_sender("other")
        tokens.emulator.advance(301_000)
        detached = await peer.wait(LinkDetached)
        assert detached.link is lost
        assert detached.error.condition == "amqp:unauthorized-access"
        assert detached.error.description.startswith("ExpiredToken: The token is expired. Expiration time: '2026-01-01")
        await peer.send(kept, plain())


# The fault that expires them


async def test_expired_tokens_end_links_and_channels_but_no_key(tokens: TokenStage) -> None:
    async with tokens.connect(signed_in=False) as peer, tokens.connect() as with_key:
        assert (await tokens.put_token(peer))["status-code"] == 202
        links = [await peer.attach_sender("orders"), await peer.attach_receiver("orders")]
        kept, listener = await with_key.attach_sender("orders"), await tokens.listen()
        identity = tokens.emulator.faults.expire_tokens("contoso")
        for link in links:
            error = (await peer.wait(LinkDetached, of=link)).error
            assert error.condition == "amqp:unauthorized-access"
            assert error.description.startswith("ExpiredToken: The token is expired.")
        await listener.receive()
        assert (listener.close_code, tokens.entity.listeners) == (1008, [])
        assert (await peer.refusal_of(peer.attach_sender("orders"))).condition == "amqp:unauthorized-access"
        await with_key.send(kept, plain())
        assert (await tokens.put_token(peer))["status-code"] == 202
        await peer.send(await peer.attach_sender("orders"), plain())
        assert (await tokens.statuses(), list(tokens.emulator.faults.active())) == (ACCEPTED, [identity])


async def test_so_many_tokens_are_refused_as_expired(tokens: TokenStage) -> None:
    base = f"http://{tokens.namespace.authority}/$control/faults"
    async with tokens.http.post(base, json={"kind": "expire-tokens", "namespace": "contoso", "count": 4}) as answer:
        assert answer.status == 201
    assert await tokens.statuses() == dict.fromkeys(ACCEPTED, 401)
    assert await tokens.statuses() == ACCEPTED
