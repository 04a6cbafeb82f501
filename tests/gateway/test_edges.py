"""The edges of a client's links: what it may ask for, and moments at which something else ends too."""

from typing import Any

import pytest

from sbpair.amqp.endpoint import EndpointState
from sbpair.amqp.link import CreditChanged, LinkDetached
from sbpair.amqp.performatives import Accepted, TransactionalState
from sbpair.amqp.session import Disposed
from sbpair.emulator.entities.description import QueueDescription
from sbpair.failover.entity_states import State
from sbpair.failover.events import SendInDoubt, SettledLost
from sbpair.gateway.gateway import Gateway
from tests.emulator.peer import Peer, plain
from tests.kit.failover_rig import PAIRED_CLIENTS
from tests.kit.gateway_pair import accepted, gateway_pair, held
from tests.kit.waiting import until

KILOBYTE = 1024
pytestmark = PAIRED_CLIENTS


async def credited(peer: Peer, sender: Any) -> Any:
    """Return a sender once it has credit."""
    while not sender.credit:
        await peer.wait(CreditChanged, of=sender)
    return sender


async def all_sent(gateway: Gateway) -> None:
    """Wait until no message of a client waits."""
    await until(lambda: not any(each.sending for each in gateway.connections))


ODD = (
    "$management",
    "a b",
    "x" * 300,
    "orders/$DeadLetterQueue",
    "/",
    "a//b",
    "é",
    "a\0b",
    "//a",
    "sb://x",
    "$cbs/x",
    "..",
)


@pytest.mark.parametrize("address", ODD)
async def test_a_name_that_no_entity_has_is_refused_on_its_link(address: str) -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        link = await peer.attach_sender(address)
        assert (await peer.wait(LinkDetached, of=link)).error is not None
        await accepted(peer, await peer.attach_sender("orders"), plain("x"))


# Messages that are sent settled


async def test_a_settled_message_that_the_primary_refuses_ends_its_link() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        pair.primary.create_queue("ordered", QueueDescription(requires_session=True))
        sender = await credited(peer, await peer.attach_sender("ordered"))
        sender.send(plain("of no session"), b"1", settled=True)
        await peer.wait(LinkDetached, of=sender)
        assert [event.entity for event in pair.log.of(SettledLost)] == ["ordered"]


async def test_a_session_may_end_right_after_its_settled_messages() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        sender = await credited(peer, await peer.attach_sender("orders"))
        for number in range(50):
            sender.send(plain(), b"%d" % number, settled=True)
        sender.close()
        sender.session.end()
        await peer.flush()
        await until(lambda: len(held(pair.orders)) == 50)
        await all_sent(gateway)
        assert gateway.failover.states() == {"orders": State.HEALTHY}
        assert not pair.log.of(SendInDoubt)


async def test_a_link_waits_for_the_messages_of_the_one_that_it_replaces() -> None:
    async with gateway_pair(1) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await credited(peer, await peer.attach_sender("orders"))
        with pair.away():
            await accepted(peer, sender, plain(message_id="0"))
            pair.faults.latency("contoso-dr", 50)
            for number in range(1, 5):
                sender.send(plain(message_id=str(number)), b"%d" % number, settled=True)
            sender.close()
            while sender.state is not EndpointState.CLOSED:
                await peer.flush()
                await peer.read()
            again = await peer.attach_sender("orders", session=sender.session)
            await accepted(peer, again, plain(message_id="5"))
            assert [str(each.read_properties().message_id) for each in pair.in_backlog()] == list("012345")
        await pair.is_back(gateway)


async def test_a_message_that_its_client_settles_is_sent_once() -> None:
    """Without an answer from the namespace, it was sent again."""
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        sender = await credited(peer, await peer.attach_sender("orders"))
        # The second one waits until its size is checked.
        for text in ("x", "y" * 100 * KILOBYTE):
            number = sender.send(plain(text), text[:1].encode())
            sender.session.dispose(number, number, Accepted(), receiver=False, settled=True)
        await peer.flush()
        await until(lambda: len(held(pair.orders)) == 2)
        await all_sent(gateway)
        assert not pair.log.of(SendInDoubt)


# Transactions


async def test_a_large_message_is_sent_in_a_transaction() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        control, txn_id, sender = await peer.begin_sending("orders")
        await credited(peer, sender)
        sender.send(plain("x" * 100 * KILOBYTE), b"1", state=TransactionalState(txn_id))
        assert (await peer.wait(Disposed)).state == TransactionalState(txn_id, Accepted())
        await peer.discharge(control, txn_id)
        assert len(held(pair.orders)) == 1


async def test_transactions_go_on_after_the_primary_has_detached_a_link() -> None:
    """A namespace detaches a link that is idle for ten minutes."""
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        control = await peer.attach_coordinator()
        sender = await peer.attach_sender("orders", session=control.session)
        (mirror,) = [each.context for one in gateway.connections for each in one.links if each.name == sender.name]
        pair.faults.detach("contoso", "orders")
        await until(lambda: mirror.twin is None)
        txn_id = await peer.declare(control)
        assert await peer.send_in(txn_id, sender, plain()) == TransactionalState(txn_id, Accepted())
        await peer.discharge(control, txn_id)
        assert len(held(pair.orders)) == 1
