"""Checks of what no client shows: raw HTTP requests, AMQP frames and WebSocket handshakes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import ClientSession
from azure.servicebus.management import AccessRights
from websockets.asyncio.client import connect

from sbpair.amqp.connection import ConnectionOpened
from sbpair.amqp.sasl import SaslClient
from sbpair.amqp_server.shared_access import AuthorizationRule
from tests.conformance import registry as of
from tests.conformance.bench import KEY, Bench, Service, access_rule
from tests.conformance.registry import check
from tests.emulator.peer import Peer
from tests.kit.sas import sign

TOKEN_SECONDS = 300
FOR_EVER = "P10675199DT2H48M5.4775807S"
AMQP_TLS_PORT, AMQP_PORT = 5671, 5672


async def ask(bench: Bench, method: str, path: str, authorization: str, body: str = "") -> tuple[int, str, str]:
    """Send a management request; return status, reason phrase and body."""
    url = f"{bench.service.management}/{path}?api-version=2021-05"
    async with (
        ClientSession() as session,
        session.request(method, url, data=body, headers={"Authorization": authorization}) as answer,
    ):
        return answer.status, answer.reason or "", await answer.text()


def token(service: Service, resource: str, rule: AuthorizationRule | None = None) -> str:
    root = AuthorizationRule(service.key_name, service.key, service.key)
    return sign(rule or root, resource, int(time.time()) + TOKEN_SECONDS)


def managing(bench: Bench, resource: str, rule: AuthorizationRule | None = None) -> str:
    """Return a token for management requests."""
    return token(bench.service.manager or bench.service, resource, rule)


@asynccontextmanager
async def opened(bench: Bench, sign_in: SaslClient | None = None) -> AsyncIterator[Peer]:
    """Open an AMQP connection, by default without rights."""
    host, _, port = bench.service.host.partition(":")
    plain = bench.service.plain
    number = int(port or (AMQP_PORT if plain else AMQP_TLS_PORT))
    reader, writer = await asyncio.open_connection(host, number, ssl=None if plain else True)
    peer = Peer(None, reader, writer, sign_in or SaslClient(), hostname=host)
    try:
        await peer.wait(ConnectionOpened)
        yield peer
    finally:
        writer.transport.abort()


@check("access", f"{of.GITHUB}Azure/azure-sdk-for-go/blob/main/sdk/messaging/azservicebus/CHANGELOG.md")
async def a_connection_has_one_pair_of_links_for_tokens(bench: Bench) -> None:
    async with opened(bench) as peer:
        await peer.attach_sender("$cbs")
        error = await peer.refusal_of(peer.attach_sender("$cbs", session=await peer.begin()))
    assert error.condition == "amqp:not-allowed", error
    assert "$cbs node has already been opened" in error.description, error


@check("access", f"{of.GITHUB}Azure/azure-service-bus/issues/451")
async def a_missing_entity_is_named_at_the_host_that_the_client_opened(bench: Bench) -> None:
    missing, host = bench.name(), bench.service.host.partition(":")[0]
    async with opened(bench) as peer:
        name = f"sb://{host}/{missing}"
        reply = await peer.ask(
            "$cbs", "put-token", token(bench.service, name), name=name, type="servicebus.windows.net:sastoken"
        )
    assert reply["status-code"] == 404, reply
    assert str(reply["status-description"]).startswith(f"The messaging entity '{name}' could not be found."), reply


@check("access", of.SAS)
async def a_signature_names_its_resource_with_any_scheme_and_case(bench: Bench) -> None:
    queue, host = await bench.queue(), bench.service.host
    for scheme in ("sb", "amqp", "amqps", "http", "https"):
        for resource in (f"{scheme}://{host}", f"{scheme}://{host}/", f"{scheme}://{host}/{queue}"):
            for written in (resource, resource.upper()):
                status, _, text = await ask(bench, "GET", queue, managing(bench, written))
                assert (status, "QueueDescription" in text) == (200, True), (written, status)


@check("access", f"{of.GO}internal/atom/entity_manager.go")
async def a_bearer_token_is_read_with_and_without_its_scheme(bench: Bench) -> None:
    # Of an issuer that nobody trusts: the refusals are the same.
    jwt = "eyJhbGciOiJSUzI1NiIsInR5cCI6IkpXVCJ9.eyJhdWQiOiJhIiwiaXNzIjoiYiIsImV4cCI6NDEwMjQ0NDgwMH0.c2lnbmF0dXJl"
    answers = [await ask(bench, "GET", "any", f"{scheme}{jwt}") for scheme in ("Bearer ", "")]
    told = [(status, text.partition("TrackingId")[0]) for status, _, text in answers]
    assert told[0] == told[1], told
    assert told[0][0] == 401, told


@check("access", f"{of.GO}admin/admin_client_test.go")
async def a_key_without_manage_is_refused_in_the_words_of_the_request(bench: Bench) -> None:
    listen = access_rule("listen", AccessRights.LISTEN)
    queue = await bench.queue(authorization_rules=[listen])
    topic = await bench.topic("there", authorization_rules=[listen])
    rule = AuthorizationRule("listen", KEY, KEY)
    for path in (queue, topic):
        for method, words in (
            ("GET", "Manage,EntityRead claims required for this operation"),
            ("PUT", "Authorization failed for specified action: Manage,EntityWrite"),
            ("DELETE", "Authorization failed for specified action: Manage,EntityDelete."),
        ):
            signed = managing(bench, f"https://{bench.service.host}/{path}", rule)
            status, _, text = await ask(bench, method, path, signed)
            assert (status, words in text) == (401, True), (method, text)
    for path, method, operation in (
        ("/there", "GET", "GetSubscription"),
        ("/missing", "GET", "GetSubscription"),
        ("", "GET", "EnumerateSubscriptions"),
        ("/missing", "PUT", "CreateOrUpdateSubscription"),
        ("/there", "DELETE", "DeleteSubscription"),
    ):
        signed = managing(bench, f"https://{bench.service.host}/{topic}", rule)
        status, reason, _ = await ask(bench, method, f"{topic}/Subscriptions{path}", signed)
        expected = f"SubCode=40100: Unauthorized : Unauthorized access for '{operation}' operation"
        assert (status, reason.startswith(expected)) == (401, True), (method, reason)


@check("WebSocket", f"{of.GO}client_test.go")
async def the_subprotocol_amqp_is_accepted(bench: Bench) -> None:
    scheme = "ws" if bench.service.plain else "wss"
    url = f"{scheme}://{bench.service.host}/$servicebus/websocket"
    for name in ("amqp", "AMQPWSB10"):
        async with connect(url, subprotocols=[name], ping_interval=None, proxy=None) as websocket:
            assert websocket.subprotocol == name
