"""The emulator's transactions with Qpid Proton, a client that shares no code with anything here."""

from collections.abc import Generator
from types import ModuleType
from typing import Any

import pytest

from sbpair.emulator.entities.transaction import TIMEOUT_MS
from tests.kit.proton_client import run


async def test_messages_are_there_after_the_commit(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = yield from client.open_sender("orders")
        for commits in (False, True):
            transaction = yield from client.begin_transaction()
            for number in range(3):
                delivery = yield from client.send_in(transaction, sender, f"{number}")
                delivery.settle()
            assert client.counts() == [(0, 0)]
            yield from client.end(transaction, commits=commits)
            assert client.counts() == [(3 if commits else 0, 0)]

    await run(proton, script)


@pytest.mark.parametrize("first", [False, True], ids=["settled after the commit", "settled first"])
async def test_a_message_is_exchanged_for_another(proton: ModuleType, first: bool) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = yield from client.open_sender("orders")
        receiver, delivery = yield from client.lock(sender, "in")
        transaction = yield from client.begin_transaction(settle_before_discharge=first)
        transaction.accept(delivery)
        transaction.send(sender, proton.Message(body="out"))
        yield "settled"
        assert client.counts() == [(1, 1)]
        yield from client.end(transaction)
        assert client.counts() == [(1, 0)]
        receiver.flow(1)
        event = yield "message"
        assert event.message.body == "out"

    await run(proton, script)


async def test_a_rolled_back_message_is_released_and_comes_again(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = yield from client.open_sender("orders")
        receiver, delivery = yield from client.lock(sender, "in")
        transaction = yield from client.begin_transaction()
        transaction.accept(delivery)
        # Proton releases what it has accepted in the transaction.
        yield from client.end(transaction, commits=False)
        receiver.flow(1)
        event = yield "message"
        assert (event.message.body, event.message.delivery_count) == ("in", 0)

    await run(proton, script)


async def test_a_message_moves_to_other_queues(proton: ModuleType) -> None:
    """The control link comes first, so that the links of the session can all take part."""

    def script(client: Any) -> Generator[str, Any, None]:
        transaction = yield from client.begin_transaction()
        seed = yield from client.open_sender("orders")
        _, delivery = yield from client.lock(seed, "in")
        transaction.accept(delivery)
        for path in ("b", "c"):
            sender = yield from client.open_sender(path)
            transaction.send(sender, proton.Message(body="out"))
            yield "settled"
        assert client.counts("orders", "b", "c") == [(1, 1), (0, 0), (0, 0)]
        yield from client.end(transaction)
        assert client.counts("orders", "b", "c") == [(0, 0), (1, 0), (1, 0)]
        client.receiver("b")
        error = (yield "link_error").link.remote_condition
        assert error.name == "amqp:not-allowed"

    await run(proton, script, "orders", "b", "c")


async def test_a_second_queue_is_refused_without_a_group(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        first = yield from client.open_sender("orders")
        second = yield from client.open_sender("b")
        transaction = yield from client.begin_transaction()
        transaction.send(first, proton.Message(body="x"))
        yield "settled"
        delivery = transaction.send(second, proton.Message(body="x"))
        yield "rejected"
        assert "cannot span multiple entities" in delivery.remote.condition.description
        yield from client.end(transaction)
        assert client.counts("orders", "b") == [(1, 0), (0, 0)]

    await run(proton, script, "orders", "b")


@pytest.mark.parametrize("ms", [60_000, TIMEOUT_MS], ids=["the lock is lost", "the time is over"])
async def test_a_commit_that_comes_too_late_fails(proton: ModuleType, ms: int) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = yield from client.open_sender("orders")
        _, delivery = yield from client.lock(sender, "in")
        transaction = yield from client.begin_transaction()
        transaction.accept(delivery)
        transaction.send(sender, proton.Message(body="out"))
        yield "settled"
        client.advance(ms)
        transaction.commit()
        yield "transaction_commit_failed"
        assert client.counts() == [(1, 0)]

    await run(proton, script)


async def test_a_connection_that_ends_rolls_back(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = yield from client.open_sender("orders")
        transaction = yield from client.begin_transaction()
        transaction.send(sender, proton.Message(body="out"))
        yield "settled"

    emulator = await run(proton, script)
    assert len(emulator.namespaces["contoso"].queue("orders").messages) == 0
