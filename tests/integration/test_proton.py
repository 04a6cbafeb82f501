"""The emulator's transactions with Qpid Proton, a client that shares no code with anything here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any

import pytest

from sbpair.emulator.entities.namespace import ROOT_RULE
from sbpair.emulator.entities.transaction import TIMEOUT_MS
from sbpair.testing import Emulator
from tests.integration import proton_package
from tests.integration.node.install import NotHere

Script = Callable[[Any], Generator[str, Any, None]]
SECONDS = 30


@pytest.fixture(scope="module")
def proton() -> Iterator[ModuleType]:
    try:
        folder = proton_package.folder()
    except NotHere as error:
        pytest.skip(str(error))
    sys.path.append(str(folder))
    import proton.handlers
    import proton.reactor

    yield proton
    sys.path.remove(str(folder))


EVENTS = (
    *("sendable", "message", "settled", "accepted", "rejected", "link_error"),
    *("transaction_declared", "transaction_committed", "transaction_aborted", "transaction_commit_failed"),
)


class ScriptedClient:
    """A handler for Proton that runs a script: it yields the name of the next event to wait for, and gets the event."""

    def __init__(self, emulator: Emulator, script: Script) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)  # type: ignore[call-arg]
        self.emulator = emulator
        self.namespace = emulator.namespaces["contoso"]
        self.loop = asyncio.get_running_loop()
        self.steps = script(self)
        self.failure: Exception | None = None
        self.wanted = ""

    def on_start(self, event: Any) -> None:
        self.container = event.container
        self.connection = event.container.connect(
            f"amqp://{self.namespace.authority}",
            user=ROOT_RULE.key_name,
            password=ROOT_RULE.primary_key,
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        self.resume(None)

    def resume(self, event: Any) -> None:
        try:
            self.wanted = self.steps.send(event)
        except StopIteration:
            self.wanted = ""
            self.connection.close()
        except Exception as error:  # noqa: BLE001  # the test raises it
            self.failure = error
            self.connection.close()

    def resume_on(self, name: str, event: Any) -> None:
        if name == self.wanted:
            self.resume(event)

    def on_transport_error(self, event: Any) -> None:
        self.failure = self.failure or AssertionError(f"the transport failed: {event.transport.condition}")

    # For scripts

    def declare(self, **options: Any) -> None:
        self.container.declare_transaction(self.connection, handler=self, **options)

    def sender(self, address: str) -> Any:
        return self.container.create_sender(self.connection, address)

    def receiver(self, address: str) -> Any:
        receiver = self.container.create_receiver(self.connection, address)
        receiver.flow(1)
        return receiver

    def counts(self, *paths: str) -> list[tuple[int, int]]:
        """Return (messages, locked messages) of each queue."""
        queues = [self.namespace.queue(path).messages for path in paths or ["orders"]]
        return [(len(each), each.locked_count) for each in queues]

    def advance(self, ms: int) -> None:
        async def in_loop() -> None:
            self.emulator.advance(ms)

        asyncio.run_coroutine_threadsafe(in_loop(), self.loop).result(SECONDS)


for _name in EVENTS:
    setattr(ScriptedClient, f"on_{_name}", lambda self, event, name=_name: self.resume_on(name, event))


async def run(proton: ModuleType, script: Script, *queues: str) -> Emulator:
    """Run a script against an emulator with these queues."""
    async with Emulator([("contoso", 0)]) as emulator:
        for path in queues or ("orders",):
            emulator.namespaces["contoso"].create_queue(path)
        bases = (ScriptedClient, proton.handlers.MessagingHandler, proton.handlers.TransactionHandler)
        client: Any = type("Client", bases, {})(emulator, script)
        async with asyncio.timeout(SECONDS):
            await asyncio.to_thread(proton.reactor.Container(client).run)
        if client.failure is not None:
            raise client.failure
        assert client.wanted == "", f"still waiting for {client.wanted}"
    return emulator


async def test_messages_are_there_after_the_commit(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = client.sender("orders")
        yield "sendable"
        for commits in (False, True):
            client.declare()
            transaction = (yield "transaction_declared").transaction
            for number in range(3):
                delivery = transaction.send(sender, proton.Message(body=f"{number}"))
                assert (yield "settled").delivery == delivery
                delivery.settle()
            assert client.counts() == [(0, 0)]
            if commits:
                transaction.commit()
                yield "transaction_committed"
            else:
                transaction.abort()
                yield "transaction_aborted"
            assert client.counts() == [(3 if commits else 0, 0)]

    await run(proton, script)


@pytest.mark.parametrize("first", [False, True], ids=["settled after the commit", "settled first"])
async def test_a_message_is_exchanged_for_another(proton: ModuleType, first: bool) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = client.sender("orders")
        yield "sendable"
        sender.send(proton.Message(body="in"))
        yield "accepted"
        receiver = client.receiver("orders")
        delivery = (yield "message").delivery
        client.declare(settle_before_discharge=first)
        transaction = (yield "transaction_declared").transaction
        transaction.accept(delivery)
        transaction.send(sender, proton.Message(body="out"))
        yield "settled"
        assert client.counts() == [(1, 1)]
        transaction.commit()
        yield "transaction_committed"
        assert client.counts() == [(1, 0)]
        receiver.flow(1)
        event = yield "message"
        assert event.message.body == "out"

    await run(proton, script)


async def test_a_rolled_back_message_is_released_and_comes_again(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = client.sender("orders")
        yield "sendable"
        sender.send(proton.Message(body="in"))
        yield "accepted"
        receiver = client.receiver("orders")
        delivery = (yield "message").delivery
        client.declare()
        transaction = (yield "transaction_declared").transaction
        transaction.accept(delivery)
        transaction.abort()  # Proton releases what it has accepted in the transaction.
        yield "transaction_aborted"
        receiver.flow(1)
        event = yield "message"
        assert (event.message.body, event.message.delivery_count) == ("in", 0)

    await run(proton, script)


async def test_a_message_moves_to_other_queues(proton: ModuleType) -> None:
    """The control link comes first, so that the links of the session can all take part."""

    def script(client: Any) -> Generator[str, Any, None]:
        client.declare()
        transaction = (yield "transaction_declared").transaction
        seed = client.sender("orders")
        yield "sendable"
        seed.send(proton.Message(body="in"))
        yield "accepted"
        client.receiver("orders")
        delivery = (yield "message").delivery
        transaction.accept(delivery)
        for path in ("b", "c"):
            sender = client.sender(path)
            yield "sendable"
            transaction.send(sender, proton.Message(body="out"))
            yield "settled"
        assert client.counts("orders", "b", "c") == [(1, 1), (0, 0), (0, 0)]
        transaction.commit()
        yield "transaction_committed"
        assert client.counts("orders", "b", "c") == [(0, 0), (1, 0), (1, 0)]
        client.receiver("b")
        error = (yield "link_error").link.remote_condition
        assert error.name == "amqp:not-allowed"

    await run(proton, script, "orders", "b", "c")


async def test_a_second_queue_is_refused_without_a_group(proton: ModuleType) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        first = client.sender("orders")
        yield "sendable"
        second = client.sender("b")
        yield "sendable"
        client.declare()
        transaction = (yield "transaction_declared").transaction
        transaction.send(first, proton.Message(body="x"))
        yield "settled"
        delivery = transaction.send(second, proton.Message(body="x"))
        yield "rejected"
        assert "cannot span multiple entities" in delivery.remote.condition.description
        transaction.commit()
        yield "transaction_committed"
        assert client.counts("orders", "b") == [(1, 0), (0, 0)]

    await run(proton, script, "orders", "b")


@pytest.mark.parametrize("ms", [60_000, TIMEOUT_MS], ids=["the lock is lost", "the time is over"])
async def test_a_commit_that_comes_too_late_fails(proton: ModuleType, ms: int) -> None:
    def script(client: Any) -> Generator[str, Any, None]:
        sender = client.sender("orders")
        yield "sendable"
        sender.send(proton.Message(body="in"))
        yield "accepted"
        client.receiver("orders")
        delivery = (yield "message").delivery
        client.declare()
        transaction = (yield "transaction_declared").transaction
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
        sender = client.sender("orders")
        yield "sendable"
        client.declare()
        transaction = (yield "transaction_declared").transaction
        transaction.send(sender, proton.Message(body="out"))
        yield "settled"

    emulator = await run(proton, script)
    assert len(emulator.namespaces["contoso"].queue("orders").messages) == 0
