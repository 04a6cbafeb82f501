"""Connections of a server without namespaces, to our own client: sign-in, links both ways, and the end of rights."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from sbpair import errors
from sbpair.amqp.link import Delivery, Link, Sent
from sbpair.amqp.performatives import Accepted
from sbpair.amqp.session import WindowOpened
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ACCEPTED
from sbpair.amqp_server.claims import Claims
from sbpair.amqp_server.node_links import CBS_NODE, open_to_cbs
from sbpair.amqp_server.refusals import NotAllowed, ServiceError
from sbpair.amqp_server.server_connection import LinkEndpoint, ServerConnection, address_of
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule, Grant, parse_token, scope_of, verify_token
from sbpair.model.connection_string import endpoint_from_connection_string
from sbpair.model.pair import Endpoint
from tests.emulator.peer import plain
from tests.kit.waiting import PATIENCE_SECONDS

SEND, LISTEN = AccessRight.SEND, AccessRight.LISTEN
KEY = AuthorizationRule("local", "first", "second", frozenset({SEND, LISTEN}))


class LocalClaims(Claims):
    """Grants by one key. The test moves the time."""

    now = 1_000_000_000_000

    def keys(self) -> list[AuthorizationRule]:
        return [KEY]

    def authenticate(self, token: str, name: str) -> Grant:
        return verify_token(parse_token(token), [("", KEY)], scope_of(name), self.now_ms())

    def now_ms(self) -> int:
        return self.now

    def expire_at(self, at_ms: int) -> None:
        self.expires_at = at_ms


class BoxLink(LinkEndpoint):
    """Takes every delivery into `box`, or sends all of it."""

    _owner: "BoxConnection"

    def receive(self, delivery: Delivery) -> None:
        self._owner.box.append(delivery.payload)
        self.dispose(delivery, Accepted())

    def on_flow(self) -> None:
        while self._owner.box and self._link.credit:
            self._link.send(self._owner.box.pop(0), len(self._owner.box).to_bytes(16))

    def settle(self, deliveries: list[Sent], state: Any, *, settled: bool) -> None:
        self._owner.settled += [state] * len(deliveries)
        if not settled:
            for each in deliveries:
                self.dispose(each, state)


class BoxConnection(ServerConnection):
    def __init__(self, box: list[bytes]) -> None:
        super().__init__("box", LocalClaims("sb://box", self.close_forbidden))
        self.box = box
        self.settled: list[Any] = []

    def open_link(self, link: Link) -> LinkEndpoint:
        path = scope_of(address_of(link))
        if path == CBS_NODE:
            return open_to_cbs(self, link, self.claims.now_ms)
        if path != "box":
            raise NotAllowed(f"'{path}' is not a box.")
        rights = (SEND,) if link.IS_RECEIVER else (LISTEN,)
        self.claims.require(rights, path)
        endpoint = BoxLink(self, link, path, rights)
        link.accept()
        endpoint.grant()
        return endpoint

    def close_forbidden(self) -> None:
        for link in self.links:
            try:
                if link.context is not None and link.context.path:
                    link.context.check_rights()
            except ServiceError as error:
                self.close_link(link, error)


@asynccontextmanager
async def serving(key: str = "first") -> AsyncIterator[tuple[Endpoint, list[BoxConnection]]]:
    box: list[bytes] = []
    made: list[BoxConnection] = []

    def make() -> BoxConnection:
        made.append(BoxConnection(box))
        return made[-1]

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    async with server, asyncio.timeout(PATIENCE_SECONDS):
        host, port = server.sockets[0].getsockname()
        text = (
            f"Endpoint=sb://{host}:{port};SharedAccessKeyName=local;SharedAccessKey={key};UseDevelopmentEmulator=true"
        )
        yield endpoint_from_connection_string(text, name="box"), made


@pytest.mark.parametrize("key", ["first", "second"])
async def test_deliveries_go_in_and_out_of_a_server(key: str) -> None:
    async with serving(key) as (endpoint, made), connect(endpoint) as wire:
        sender, receiver = await wire.sender("box"), await wire.receiver("box")
        for number in range(3):
            await sender.send(plain(str(number)))
        receiver.grant(3)
        deliveries = await receiver.take(3, seconds=PATIENCE_SECONDS)
        await receiver.settle(deliveries, ACCEPTED)
        assert [each.payload[-1:] for each in deliveries] == [b"0", b"1", b"2"]
        assert made[0].settled == [ACCEPTED] * 3


async def test_a_wrong_key_is_not_signed_in() -> None:
    async with serving("third") as (endpoint, _):
        with pytest.raises(errors.NotAuthenticated):
            async with connect(endpoint) as wire:
                await wire.sender("box")


def test_each_flow_that_may_open_the_window_has_a_handler() -> None:
    assert {WindowOpened, *WindowOpened.__subclasses__()} <= BoxConnection.HANDLERS.keys()


async def test_a_refused_link_leaves_the_connection() -> None:
    async with serving() as (endpoint, _), connect(endpoint) as wire:
        with pytest.raises(errors.SbpairError, match="'elsewhere' is not a box"):
            await wire.sender("elsewhere")
        await (await wire.sender("box")).send(plain())


async def test_the_end_of_a_token_ends_its_links() -> None:
    async with serving() as (endpoint, made), connect(endpoint) as wire:
        sender = await wire.sender("box")
        claims = made[0].claims
        assert isinstance(claims, LocalClaims)
        claims.now = claims.expires_at
        claims.expire()
        with pytest.raises(errors.Unavailable, match="expired"):
            await sender.send(plain())
