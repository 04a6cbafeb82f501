"""Checks of transactions. The official clients of both languages have none.

A scripted AMQP peer begins and ends them, and the official client for Python sees the effect.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from azure.servicebus import ServiceBusMessage

from sbpair.amqp.link import LinkDetached
from sbpair.amqp.message import Properties, data_body
from sbpair.amqp.performatives import Accepted, Rejected
from sbpair.amqp.sasl import SaslClient
from tests.conformance import registry as of
from tests.conformance.bench import Bench, one, peek_all, texts
from tests.conformance.registry import check
from tests.conformance.wire_checks import opened
from tests.emulator.peer import Peer


@asynccontextmanager
async def connected(bench: Bench) -> AsyncIterator[tuple[Peer, Any]]:
    """Connect a peer with the namespace's key, and attach it to the coordinator."""
    sign_in = SaslClient("PLAIN", f"\0{bench.service.key_name}\0{bench.service.key}".encode())
    async with opened(bench, sign_in) as peer:
        yield peer, await peer.attach_coordinator()


def message(body: str) -> bytes:
    return Properties(message_id=body).encode() + data_body(body.encode())


async def held(bench: Bench, queue: str) -> list[str]:
    async with bench.receiver(queue) as receiver:
        return texts(await peek_all(receiver))


@check("transactions", of.TRANSACTIONS)
async def messages_sent_appear_with_the_commit(bench: Bench) -> None:
    queue = await bench.queue()
    async with connected(bench) as (peer, control):
        sender = await peer.attach_sender(queue)
        transaction = await peer.declare(control)
        for body in ("a", "b"):
            state = await peer.send_in(transaction, sender, message(body))
            assert state.outcome == Accepted(), state
        assert await held(bench, queue) == []
        assert await peer.discharge(control, transaction) == Accepted()
        assert await held(bench, queue) == ["a", "b"]


@check("transactions", of.TRANSACTIONS)
async def messages_sent_are_gone_after_a_rollback(bench: Bench) -> None:
    queue = await bench.queue()
    async with connected(bench) as (peer, control):
        sender = await peer.attach_sender(queue)
        transaction = await peer.declare(control)
        await peer.send_in(transaction, sender, message("a"))
        assert await peer.discharge(control, transaction, fail=True) == Accepted()
        await peer.send(sender, message("b"))
        assert await held(bench, queue) == ["b"]


@check("transactions", of.TRANSACTIONS)
async def a_message_is_completed_with_the_commit(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("in"))
    async with connected(bench) as (peer, control):
        (delivery,) = await peer.take(await peer.attach_receiver(queue), 1)
        sender = await peer.attach_sender(queue)
        transaction = await peer.declare(control)
        await peer.settle_in(transaction, delivery)
        await peer.send_in(transaction, sender, message("out"))
        assert await held(bench, queue) == ["in"]
        assert await peer.discharge(control, transaction) == Accepted()
        assert await held(bench, queue) == ["out"]


@check("transactions", of.PROTOCOL)
async def a_completion_that_is_rolled_back_can_be_repeated(bench: Bench) -> None:
    queue = await bench.queue()
    await bench.send(queue, ServiceBusMessage("in"))
    async with connected(bench) as (peer, control):
        (delivery,) = await peer.take(await peer.attach_receiver(queue), 1)
        for fail in (True, False):
            transaction = await peer.declare(control)
            await peer.settle_in(transaction, delivery)
            assert await peer.discharge(control, transaction, fail=fail) == Accepted()
            assert await held(bench, queue) == (["in"] if fail else [])


@check("transactions", of.TRANSACTIONS)
async def the_end_of_the_connection_rolls_back(bench: Bench) -> None:
    queue = await bench.queue()
    async with connected(bench) as (peer, control):
        transaction = await peer.declare(control)
        await peer.send_in(transaction, await peer.attach_sender(queue), message("a"))
    await bench.send(queue, ServiceBusMessage("b"))
    async with bench.receiver(queue) as receiver:
        await one(receiver)
        assert texts(await peek_all(receiver)) == ["b"]


@check("transactions", "https://docs.oasis-open.org/amqp/core/v1.0/os/amqp-core-transactions-v1.0-os.html")
async def an_unknown_transaction_is_refused(bench: Bench) -> None:
    queue = await bench.queue()
    async with connected(bench) as (peer, control):
        state = await peer.discharge(control, b"no such transaction")
        assert isinstance(state, Rejected)
        assert state.error is not None
        assert state.error.condition == "amqp:transaction:unknown-id"
        sender = await peer.attach_sender(queue)
        await peer.post_in(b"no such transaction", sender, message("a"))
        await peer.wait(LinkDetached)
    assert await held(bench, queue) == []
