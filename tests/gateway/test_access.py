"""Who gets in: only the gateway's own key counts, and no web page of another host may use it."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from sbpair.amqp.sasl import SaslClient
from sbpair.amqp_server.shared_access import AuthorizationRule
from tests.emulator.peer import ROOT_SIGN_IN
from tests.kit.async_tests import InLoop
from tests.kit.failover_rig import PAIRED_CLIENTS
from tests.kit.gateway_key import RULE
from tests.kit.running_gateway import GatewayStage, open_gateway
from tests.kit.sas import sign

pytestmark = PAIRED_CLIENTS
SOON = 86_400  # the tokens are made before the first test of all
WRONG = SaslClient("PLAIN", b"\0sbpair-gateway\0wrong")
OTHER: AuthorizationRule = replace(RULE, primary_key="another", secondary_key="another")


@pytest.fixture
def stage() -> InLoop:
    return InLoop(open_gateway)


def signed(rule: AuthorizationRule, path: str, seconds: int = SOON) -> str:
    return sign(rule, f"sb://localhost/{path}", int(time.time()) + seconds)


TOKENS = {
    "its own key": (signed(RULE, "orders"), 202, ""),
    "another key": (signed(OTHER, "orders"), 401, "InvalidSignature"),
    "an expired one": (signed(RULE, "orders", -SOON), 401, "ExpiredToken"),
    "of another entity": (signed(RULE, "others"), 401, "InvalidAudience"),
    "of an identity": ("header.claims.signature", 401, "The gateway takes no token of an identity"),
}


@pytest.mark.parametrize(("token", "status", "text"), TOKENS.values(), ids=TOKENS)
async def test_a_token_counts_if_the_own_key_signed_it(stage: GatewayStage, token: str, status: int, text: str) -> None:
    async with stage.connect(signed_in=False) as peer:
        assert (await peer.refusal_of(peer.attach_sender("orders"))).condition == "amqp:unauthorized-access"
        reply = await peer.ask("$cbs", "put-token", token, name="sb://localhost/orders", type="jwt")
        assert (reply["status-code"], text in str(reply["status-description"])) == (status, True), reply
        if status == 202:
            await peer.attach_sender("orders")
        else:
            assert (await peer.refusal_of(peer.attach_sender("orders"))).condition == "amqp:unauthorized-access"


@pytest.mark.parametrize("sasl", [ROOT_SIGN_IN, WRONG], ids=["the primary's", "wrong"])
async def test_another_key_does_not_sign_in(stage: GatewayStage, sasl: SaslClient) -> None:
    with pytest.raises(AssertionError, match="the connection ended before ConnectionOpened"):
        async with stage.connect(sasl=sasl):
            pass


PAGES: dict[str, tuple[dict[str, str], int]] = {
    "a client": ({}, 101),
    "the primary's name": ({"Host": "contoso.servicebus.windows.net"}, 101),
    "a page of this machine": ({"Origin": "http://localhost:8000"}, 101),
    "a page of another host": ({"Origin": "https://example.com"}, 403),
    "a name that leads here": ({"Host": "example.com"}, 403),
}


@pytest.mark.parametrize(("headers", "status"), PAGES.values(), ids=PAGES)
async def test_a_web_page_of_another_host_is_refused(stage: GatewayStage, headers: dict[str, str], status: int) -> None:
    opening: dict[str, Any] = {
        "Host": stage.authority,
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Protocol": "AMQPWSB10",
    } | headers
    host, _, port = stage.authority.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        lines = ["GET /$servicebus/websocket HTTP/1.1", *(f"{name}: {value}" for name, value in opening.items())]
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode())
        assert int((await reader.readline()).split()[1]) == status
        # A page that was refused is no connection that a stop would wait for.
        assert len(stage.gateway.connections) == (status == 101)
    finally:
        writer.transport.abort()
