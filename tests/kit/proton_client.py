"""Qpid Proton as a client of the emulator: scripts that wait for its events, one after the other."""

import asyncio
import sys
from collections.abc import Callable, Generator, Iterator
from types import ModuleType
from typing import Any

import pytest

from sbpair.emulator.entities.queue import ROOT_RULE
from sbpair.testing import Emulator
from tests.integration import python_packages
from tests.integration.node.install import NotHere

Script = Callable[[Any], Generator[str, Any, None]]
SECONDS = 30


@pytest.fixture(scope="session")
def proton() -> Iterator[ModuleType]:
    try:
        folder = python_packages.folder(python_packages.PROTON)
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

    def __init__(self, proton: ModuleType, emulator: Emulator, script: Script) -> None:
        super().__init__(prefetch=0, auto_accept=False, auto_settle=False)  # type: ignore[call-arg]
        self.proton = proton
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

    def open_sender(self, address: str) -> Generator[str, Any, Any]:
        """Attach a sender and return it once it has credit."""
        sender = self.sender(address)
        yield "sendable"
        return sender

    def lock(self, sender: Any, body: str) -> Generator[str, Any, tuple[Any, Any]]:
        """Send a message and receive it under lock. Return the receiver and the delivery."""
        sender.send(self.proton.Message(body=body))
        yield "accepted"
        receiver = self.receiver(sender.target.address)
        return receiver, (yield "message").delivery

    def begin_transaction(self, **options: Any) -> Generator[str, Any, Any]:
        self.declare(**options)
        return (yield "transaction_declared").transaction

    def send_in(self, transaction: Any, sender: Any, body: str) -> Generator[str, Any, Any]:
        """Send a message in a transaction and return its delivery once that is settled."""
        delivery = transaction.send(sender, self.proton.Message(body=body))
        assert (yield "settled").delivery == delivery
        return delivery

    def end(self, transaction: Any, *, commits: bool = True) -> Generator[str, Any, None]:
        if commits:
            transaction.commit()
            yield "transaction_committed"
        else:
            transaction.abort()
            yield "transaction_aborted"

    def counts(self, *paths: str) -> list[tuple[int, int]]:
        """Return (messages, locked messages) of each queue, after all that the emulator has begun."""

        def read() -> list[tuple[int, int]]:
            queues = [self.namespace.queue(path).messages for path in paths or ["orders"]]
            return [(len(each), each.locked_count) for each in queues]

        return self._in_loop(read)

    def advance(self, ms: int) -> None:
        self._in_loop(lambda: self.emulator.advance(ms))

    def _in_loop(self, call: Callable[[], Any]) -> Any:
        async def in_loop() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(in_loop(), self.loop).result(SECONDS)


for _name in EVENTS:
    setattr(ScriptedClient, f"on_{_name}", lambda self, event, name=_name: self.resume_on(name, event))


async def run(proton: ModuleType, script: Script, *queues: str) -> Emulator:
    """Run a script against an emulator with these queues."""
    async with Emulator([("contoso", 0)]) as emulator:
        for path in queues or ("orders",):
            emulator.namespaces["contoso"].create_queue(path)
        bases = (ScriptedClient, proton.handlers.MessagingHandler, proton.handlers.TransactionHandler)
        client: Any = type("Client", bases, {})(proton, emulator, script)
        async with asyncio.timeout(SECONDS):
            await asyncio.to_thread(proton.reactor.Container(client).run)
        if client.failure is not None:
            raise client.failure
        assert client.wanted == "", f"still waiting for {client.wanted}"
    return emulator
