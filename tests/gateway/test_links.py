"""Links of a client through the gateway: how they end and attach again, and what is refused on them."""

import asyncio
from typing import Any

import pytest

from sbpair.amqp.link import LinkAttached, LinkDetached
from sbpair.amqp.performatives import Accepted, Declare, Rejected, Source, Target
from sbpair.amqp.types import Symbol
from sbpair.errors import Unavailable
from sbpair.gateway import client_connection
from sbpair.gateway.upstream import Upstream
from sbpair.testing import QueueDescription
from tests.emulator.peer import Peer, plain
from tests.kit.async_tests import InLoop
from tests.kit.failover_rig import PAIRED_CLIENTS
from tests.kit.running_gateway import GatewayStage, open_gateway

SESSION_FILTER = Symbol("com.microsoft:session-filter")


pytestmark = PAIRED_CLIENTS


@pytest.fixture
def stage() -> InLoop:
    return InLoop(open_gateway)


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Is set when the primary has not taken a connection, and soon the gateway tries again."""
    refused, open_client = asyncio.Event(), Upstream.client

    async def client(self: Upstream) -> Any:
        try:
            return await open_client(self)
        except Unavailable:
            refused.set()
            raise

    monkeypatch.setattr(Upstream, "client", client)
    monkeypatch.setattr(client_connection, "RETRY_SECONDS", 0.01)
    return refused


async def attaching(peer: Peer, address: str, session: str | None) -> Any:
    """Ask for a receiver without waiting for it."""
    link: Any = (await peer.begin()).receiver(f"again-{address}")
    link.open(source=Source(address, filter=session and {SESSION_FILTER: session}), target=Target("peer"))
    await peer.flush()
    return link


@pytest.mark.parametrize(
    ("session", "condition"), [(None, "amqp:link:detach-forced"), ("s", "com.microsoft:session-lock-lost")]
)
async def test_a_receiver_ends_with_its_primary_and_waits_to_attach_again(
    stage: GatewayStage, refused: asyncio.Event, session: str | None, condition: str
) -> None:
    """Each condition is the one after which every SDK attaches again."""
    stage.namespace.create_queue("kept", QueueDescription(requires_session=session is not None))
    async with stage.connect() as peer:
        receiver = await peer.attach_receiver("kept", of=session)
        outage = stage.emulator.faults.namespace_down("contoso")
        ended = await peer.wait(LinkDetached, of=receiver)
        assert ended.error is not None
        assert (ended.error.condition, ended.closed) == (condition, True)
        again = await attaching(peer, "kept", session)
        await refused.wait()
        stage.emulator.faults.end(outage)
        await peer.wait(LinkAttached, of=again)
        assert again.remote.source is not None
        assert not [event for event in peer.events if isinstance(event, LinkDetached)]


async def test_an_attach_is_refused_once_the_primary_has_been_away_for_long(refused: asyncio.Event) -> None:
    async with open_gateway(timeout=0.2) as stage, stage.connect() as peer:
        stage.emulator.faults.namespace_down("contoso")
        again = await attaching(peer, "orders", None)
        assert (await peer.wait(LinkDetached, of=again)).error.condition == "amqp:link:detach-forced"
        assert refused.is_set()


async def test_a_transaction_begins_only_after_a_sign_in(stage: GatewayStage) -> None:
    """The client for Java attaches the coordinator before it signs in."""
    async with stage.connect(signed_in=False) as peer:
        state = await peer.control(await peer.attach_coordinator(), Declare())
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert state.error.condition == "amqp:unauthorized-access"


async def test_a_message_too_large_for_the_primary_is_rejected_alone(stage: GatewayStage) -> None:
    async with stage.connect() as peer:
        sender = await peer.attach_sender("orders")
        limit = sender.remote.max_message_size
        [refusal] = await peer.send(sender, plain("x" * limit))
        assert refusal.state.error.condition == "amqp:link:message-size-exceeded"
        assert [each.state for each in await peer.send(sender, plain("fits"))] == [Accepted()]
    assert stage.queue.counts().active == 1


async def test_a_rejected_message_is_not_sent_again_at_once(stage: GatewayStage) -> None:
    """It would be for ever, and the client would get no answer."""
    stage.namespace.create_queue("full", QueueDescription(max_size_in_megabytes=0))
    async with stage.connect() as peer:
        [refusal] = await peer.send(await peer.attach_sender("full"), plain("x"))
    assert refusal.state.error.condition == "amqp:resource-limit-exceeded"


async def test_a_link_that_refuses_a_transaction_ends_with_the_reason(stage: GatewayStage) -> None:
    async with stage.connect() as peer:
        sender = await peer.attach_sender("orders")
        await peer.post_in(b"unknown", sender, plain("x"))
        ended = await peer.wait(LinkDetached, of=sender)
    assert ended.error is not None
    assert ended.error.condition == "amqp:transaction:unknown-id"
