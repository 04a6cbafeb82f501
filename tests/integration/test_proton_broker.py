"""The product's client against a broker on Qpid Proton, which ends a connection for a frame that breaks the rules."""

import asyncio
import threading
from collections import defaultdict, deque
from types import ModuleType
from typing import Any

from sbpair.amqp.performatives import Outcome
from sbpair.amqp_client.client import connect
from sbpair.amqp_client.raw_links import ABANDONED, ACCEPTED, RELEASED, dead_letter
from sbpair.model.pair import Endpoint, SasKey
from tests.amqp_client.peers import ids, message, take

KEY = SasKey("RootManageSharedAccessKey", "no secret")
OUTCOMES: dict[str, Outcome] = {
    "ACCEPTED": ACCEPTED,
    "RELEASED": RELEASED,
    "MODIFIED": ABANDONED,
    "REJECTED": dead_letter("reason", "text"),
}
LARGE = 200_000


class Broker:
    """Handlers for Proton: queues in memory, and a $cbs that accepts every token. `seen` is outcomes, then errors."""

    def __init__(self, proton: ModuleType) -> None:
        super().__init__(prefetch=10, auto_accept=False, auto_settle=False)  # type: ignore[call-arg]
        self.proton = proton
        self.queues: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.seen: list[Any] = []
        self.listening = threading.Event()
        self.sent = 0

    def on_start(self, event: Any) -> None:
        self.acceptor = event.container.listen("127.0.0.1:0")
        self.port = self.acceptor._selectable._delegate.getsockname()[1]
        self.listening.set()

    def on_link_opening(self, event: Any) -> None:
        event.link.source.copy(event.link.remote_source)
        event.link.target.copy(event.link.remote_target)

    def on_message(self, event: Any) -> None:
        event.delivery.update(self.proton.Delivery.ACCEPTED)
        event.delivery.settle()
        address, kept = event.link.target.address, event.message
        if address == "$cbs":
            kept = self.proton.Message(correlation_id=kept.id, properties={"status-code": self.proton.int32(202)})
        self.queues[address].append(kept.encode())
        link = event.connection.link_head(0)
        while link is not None:
            self.push(link)
            link = link.next(0)

    def on_link_flow(self, event: Any) -> None:
        self.push(event.link)
        if event.link.is_sender and event.link.drain_mode:
            event.link.drained()

    def push(self, link: Any) -> None:
        queue = self.queues[link.source.address] if link.is_sender else deque[bytes]()
        while link.credit and queue:
            self.sent += 1
            link.delivery(f"{self.sent:016}")
            link.stream(queue.popleft())
            link.advance()

    def on_delivery(self, event: Any) -> None:
        delivery = event.delivery
        if delivery.link.is_sender and delivery.updated:
            self.seen.append(delivery.remote_state.name)
            delivery.update(delivery.remote_state)
            delivery.settle()

    def on_transport_error(self, event: Any) -> None:
        self.seen.append(str(event.transport.condition))

    def on_connection_error(self, event: Any) -> None:
        self.seen.append(str(event.connection.remote_condition))

    def on_connection_closed(self, event: Any) -> None:  # noqa: ARG002
        self.acceptor.close()


async def test_proton_finds_no_fault_with_the_client(proton: ModuleType) -> None:
    broker: Any = type("ProtonBroker", (Broker, proton.handlers.MessagingHandler), {})(proton)
    # A daemon: Proton has no way to stop it from here if the test fails.
    thread = threading.Thread(target=proton.reactor.Container(broker).run, daemon=True)
    thread.start()
    await asyncio.to_thread(broker.listening.wait)
    endpoint = Endpoint("contoso", "127.0.0.1", "127.0.0.1", broker.port, tls=False, credential=KEY, emulator=True)
    async with connect(endpoint) as wire:
        sender = await wire.sender("orders")
        for number in range(len(OUTCOMES)):
            await sender.send(message(number, size=LARGE if number else 10))
        receiver = await wire.receiver("orders")
        receiver.grant(10)
        received = await take(receiver, len(OUTCOMES))
        assert ids(received) == [f"m{number}" for number in range(len(OUTCOMES))]
        for delivery, outcome in zip(received, OUTCOMES.values(), strict=True):
            await receiver.settle([delivery], outcome)
        await receiver.drain(seconds=600)
        assert receiver.credit == 0
    await asyncio.to_thread(thread.join)
    assert broker.seen == ["ACCEPTED", *OUTCOMES]  # the first is that of the reply of $cbs
