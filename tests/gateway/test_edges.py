"""The edges of a client's links: what it may ask for, and moments at which something else ends too."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from sbpair.amqp.endpoint import EndpointState
from sbpair.amqp.link import CreditChanged, Delivery, LinkDetached
from sbpair.amqp.message import APPLICATION_PROPERTIES, BATCH_FORMAT, Properties, Sections, encode_map, value_body
from sbpair.amqp.performatives import Accepted, Rejected, TransactionalState
from sbpair.amqp.session import Disposed
from sbpair.amqp.types import Array, Long, Map
from sbpair.emulator.entities.description import QueueDescription
from sbpair.failover import raw_send
from sbpair.failover.entity_states import State
from sbpair.failover.events import SendInDoubt, SettledLost
from sbpair.gateway.gateway import Gateway
from sbpair.gateway.management_links import CANCEL
from tests.emulator.peer import Peer, plain
from tests.kit.failover_rig import PAIRED_CLIENTS, ids
from tests.kit.gateway_pair import accepted, gateway_pair, held
from tests.kit.waiting import until

KILOBYTE = 1024
pytestmark = PAIRED_CLIENTS


async def credited(peer: Peer, sender: Any) -> Any:
    """Return a sender once it has credit."""
    while not sender.credit:
        await peer.wait(CreditChanged, of=sender)
    return sender


async def all_sent_up(gateway: Gateway) -> None:
    """Wait until messages are on their way to the primary."""
    sending: Callable[[], list[Any]] = lambda: [each for one in gateway.connections for each in one.sending]  # noqa: E731
    await until(lambda: any(each._in_flight for each in sending()))


def cancelling(number: int) -> bytes:
    """Encode a request to cancel a scheduled message."""
    return Sections(
        properties=Properties(message_id="1").encode(),
        application_properties=encode_map(APPLICATION_PROPERTIES, {"operation": CANCEL}),
        body=value_body(Map([("sequence-numbers", Array([Long(number)], of=Long))])),
    ).join()


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


SPELLINGS = ("{}", "/{}/", "sb://h/{}/?a=b", "//h/{}", " {}", "{}/$DeadLetterQueue", "{}/$Management/", "{}?x")


@pytest.mark.parametrize("direction", ["attach_sender", "attach_receiver"])
async def test_no_spelling_of_a_backlog_queue_is_let_in(direction: str) -> None:
    paths = [
        "contoso/X-ServiceBus-transfer/0",
        "contoso//x-servicebus-transfer/./0",
        "contoso/x%2Dservicebus-transfer%2f0",
    ]
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        for address in [spelling.format(path) for spelling in SPELLINGS for path in paths]:
            error = await peer.refusal_of(getattr(peer, direction)(address))
            assert error.condition == "amqp:not-allowed", address


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


async def test_a_link_waits_for_the_messages_of_the_one_that_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_pair(1) as (pair, gateway), pair.peer(gateway) as peer:
        send = gateway.failover.send

        async def slowly(*arguments: Any) -> None:
            await asyncio.sleep(0.005)
            await send(*arguments)

        sender = await credited(peer, await peer.attach_sender("orders"))
        with pair.away():
            await accepted(peer, sender, plain(message_id="0"))
            monkeypatch.setattr(gateway.failover, "send", slowly)
            for number in range(1, 10):
                sender.send(plain(message_id=str(number)), b"%d" % number, settled=True)
            sender.close()
            while sender.state is not EndpointState.CLOSED:
                await peer.flush()
                await peer.read()
            again = await peer.attach_sender("orders", session=sender.session)
            await accepted(peer, again, plain(message_id="10"))
            assert ids(pair.in_backlog()) == [str(number) for number in range(11)]
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


# Ends of a connection, of credit and of the gateway


@pytest.mark.parametrize("is_lost", [False, True])
async def test_a_client_is_read_again_after_a_namespace_that_does_not_read(is_lost: bool) -> None:
    """Until then its socket was not read, and it is not again after a loss."""
    async with gateway_pair(timeout=2.0) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await credited(peer, await peer.attach_sender("orders"))
        (client,) = gateway.connections
        pair.faults.swallow_acks("contoso")
        sender.send(plain(message_id="1"), b"1")
        await peer.flush()
        await all_sent_up(gateway)
        client.upstream._stream.pause_writing()  # type: ignore[union-attr]  # as asyncio does once much is unwritten
        sender.send(plain(message_id="2"), b"2")
        await peer.flush()
        if is_lost:
            pair.faults.namespace_down("contoso")
        await peer.wait(Disposed)
        await until(lambda: sorted(ids(pair.in_backlog())) == ["1", "2"])
        await pair.is_back(gateway)


async def test_credit_that_is_given_during_a_drain_reaches_the_namespace() -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        receiver = await peer.attach_receiver("orders")
        (mirror,) = [each.context for one in gateway.connections for each in one.links]
        receiver.grant(10)
        await peer.flush()
        await until(lambda: mirror.twin.credit == 10)
        pair.faults.latency("contoso", 100)
        receiver.drain()
        await peer.flush()
        await until(lambda: mirror._link.draining)
        receiver.grant(10)
        await accepted(peer, await peer.attach_sender("orders"), plain())
        await peer.wait(Delivery, of=receiver)


async def test_requests_that_the_gateway_answers_use_up_no_credit() -> None:
    node = "orders/$management"
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        session = await peer.begin()
        requests = await credited(peer, await peer.attach_sender(node, session=session))
        replies = await peer.attach_receiver(node, session=session)
        replies.grant(5_000)
        for number in range(requests.credit + 1):
            await credited(peer, requests)
            requests.send(cancelling(-1), b"%d" % number)
            await peer.wait(Delivery, of=replies)


async def test_a_batch_without_messages_is_refused_while_the_primary_is_away() -> None:
    """In doubt, it ended the work of its link."""
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        pair.faults.swallow_acks("contoso")
        (answer,) = await peer.send(sender, value_body("no batch"), message_format=BATCH_FORMAT)
        assert isinstance(answer.state, Rejected)
        await accepted(peer, sender, plain())
        await pair.is_back(gateway)


def mistaken(*_: object) -> Sections:
    raise LookupError


async def test_a_send_that_fails_because_of_a_bug_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway_pair() as (pair, gateway), pair.peer(gateway) as peer:
        sender = await peer.attach_sender("orders")
        with pair.away():
            monkeypatch.setattr(raw_send, "aliased", mistaken)
            (answer,) = await peer.send(sender, plain())
            assert answer.state.error.condition == "com.microsoft:server-busy"
            monkeypatch.undo()
            await accepted(peer, sender, plain())
        await pair.is_back(gateway)


async def test_a_gateway_ends_while_the_primary_does_not_answer() -> None:
    async with asyncio.timeout(60), gateway_pair(timeout=300.0) as (pair, gateway), pair.peer(gateway) as peer:
        sender = await credited(peer, await peer.attach_sender("orders"))
        pair.faults.swallow_acks("contoso")
        sender.send(plain(), b"1")
        await peer.flush()
        await all_sent_up(gateway)
        pair.faults.stall("contoso-dr")
