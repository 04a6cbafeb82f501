"""The endpoint of a link on which a client sends messages to an entity."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from sbpair.amqp.link import Delivery, ReceivingLink
from sbpair.amqp.performatives import Accepted, Rejected
from sbpair.amqp.session import id_ranges
from sbpair.amqp.types import Symbol, ULong
from sbpair.emulator.access_tokens import AccessRight
from sbpair.emulator.entities import service_envelope
from sbpair.emulator.entities.queue import MAX_BATCH_BYTES, QueueEntity
from sbpair.emulator.entities.stored_message import StoredMessage
from sbpair.emulator.entities.transaction import SendTarget, SendVia, Transaction
from sbpair.emulator.frontends.amqp.link_endpoint import LinkEndpoint, LinkOwner, accepted_in, amqp_error
from sbpair.emulator.service_errors import ServiceError
from sbpair.errors import ProtocolError

SEND: Final = (AccessRight.SEND,)
OVERSIZE_FACTOR: Final = 4
"""A message up to this many times the limit is read and rejected; a larger one costs its link."""

_BATCH_SIZE = Symbol("com.microsoft:max-message-batch-size")


class IncomingLink(LinkEndpoint):
    """A link into an entity. A delivery is accepted once the entity has its messages."""

    _link: ReceivingLink

    def __init__(
        self,
        owner: LinkOwner,
        link: ReceivingLink,
        target: SendTarget,
        path: str,
        properties: dict[Symbol, str] | None = None,
    ) -> None:
        super().__init__(owner, link, path, SEND)
        self._queue = target
        self._with_id = target.description.requires_duplicate_detection
        self._received: list[Delivery] = []
        self._accepted: list[Delivery] = []
        limit = target.max_message_bytes
        properties_of = {_BATCH_SIZE: ULong(min(limit, MAX_BATCH_BYTES)), **(properties or {})}
        link.accept(max_message_size=limit, properties=properties_of)
        link.max_message_size = OVERSIZE_FACTOR * limit
        self.idle = owner.watch_idle(link)
        self.grant()

    def check_open(self) -> None:
        self._queue.check_send()

    def receive(self, delivery: Delivery) -> None:
        self._received.append(delivery)

    def _enqueue(self, deliveries: list[Delivery]) -> None:
        if len(deliveries) == 1 or not self._enqueue_together(deliveries):
            for delivery in deliveries:
                self._enqueue_one(delivery)

    def _enqueue_together(self, deliveries: list[Delivery]) -> bool:
        """Enqueue single messages at once; return False, without effect, if any needs separate handling."""
        if self._fault_points.meters or any(delivery.format for delivery in deliveries):
            return False
        try:
            read = [service_envelope.read_message(each.payload, with_id=self._with_id) for each in deliveries]
        except ProtocolError:
            return False
        if not self._queue.try_send_each([message for message in read if message is not None]):
            return False
        self._accepted += [delivery for delivery in deliveries if not delivery.settled]
        return True

    def _enqueue_one(self, delivery: Delivery) -> None:
        if self._store(delivery, self._queue.send) is None and not delivery.settled:
            self._accepted.append(delivery)

    def receive_in(self, transaction: Transaction, delivery: Delivery) -> None:
        """Keep the messages for the commit. A failure that the client does not wait for makes the commit fail."""
        error = self._store(delivery, partial(transaction.send, self._queue))
        if delivery.settled:
            if error is not None:
                transaction.doom(error.message)
        elif error is None and self._fault_points.acknowledged(self.path, [delivery]):
            self.dispose(delivery, accepted_in(transaction))

    def _store(
        self, delivery: Delivery, send: Callable[[list[StoredMessage]], None]
    ) -> ServiceError | ProtocolError | None:
        """Pass the messages of a delivery to `send`; if that fails, reject the delivery and return the error."""
        try:
            messages = service_envelope.read_delivery(delivery.payload, delivery.format, with_id=self._with_id)
            if messages:
                if self._fault_points.meters:
                    self._fault_points.spend(len(messages) * self._queue.credits_per_message, self.path)
                send(messages)
        except (ServiceError, ProtocolError) as error:
            if not delivery.settled:
                self.dispose(delivery, Rejected(amqp_error(error)))
            return error
        return None

    def flush(self) -> None:
        """Enqueue everything received since the last call and accept it in ranges."""
        received, self._received = self._received, []
        self._enqueue(received)
        self.idle.postpone()
        if self._fault_points.acting:
            self._accepted = self._fault_points.acknowledged(self.path, self._accepted)
        for first, last in id_ranges([each.id for each in self._accepted]):
            self._link.session.dispose(first, last, Accepted(), receiver=True, settled=True)
        self._accepted.clear()
        self.grant()

    def on_detached(self) -> None:
        """Stop the idle timer: every delivery received was enqueued."""
        self.idle.cancel()


class SendViaLink(IncomingLink):
    """A link into an entity by way of another. It needs the right to send to both; `other` is the one not in `path`."""

    def __init__(
        self,
        owner: LinkOwner,
        link: ReceivingLink,
        route: SendVia,
        path: str,
        other: QueueEntity,
        properties: dict[Symbol, str] | None = None,
    ) -> None:
        self._other = other.path.lower()
        owner.claims.require(SEND, self._other)
        super().__init__(owner, link, route, path, properties)

    def check_open(self) -> None:
        super().check_open()
        self._owner.claims.require(SEND, self._other)
        self._owner.namespace.resolve(self._other)
