"""The interface between a connection and the endpoints of its links."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.link import SERIAL, Delivery, Link, terminus_address
from sbpair.amqp.performatives import Accepted, Error, TransactionalState
from sbpair.amqp.types import Map
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AccessRight
    from sbpair.emulator.entities.transaction import Transaction
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
    from sbpair.errors import ProtocolError

CREDIT: Final = 1_000
"""Messages that a client may send before it needs new credit, which it gets at half of this."""

PRE_SETTLED: Final = 1
"""Settle mode of a sender whose deliveries are settled when sent (2.8.2)."""


class LinkEndpoint:
    """The `context` of a link. It stays open while any of `rights` is granted on `path`, "" for no entity."""

    def __init__(self, connection: AmqpConnection, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.rights = rights
        self._connection = connection
        self._link = link
        self._output = connection.output
        self._fault_points = connection.namespace.fault_points

    def check_open(self) -> None:
        """Raise EntityDisabled or NotAllowed if such a link could no longer be opened. Nodes are always open."""

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery that the peer sent."""

    def receive_in(self, transaction: Transaction, delivery: Delivery) -> None:
        """Take a delivery that the peer sent as part of a transaction."""
        delivery.context = transaction
        self.receive(delivery)

    def flush(self) -> None:
        """Send the dispositions of everything received in one read."""

    def pull(self) -> None:
        """Send as far as the peer takes messages."""

    def on_flow(self) -> None:
        """React to a change of the credit for sending."""

    def on_detached(self, *, peacefully: bool) -> None:
        """Stop. `peacefully`: the peer ended the link without an error."""


def amqp_error(error: ServiceError | ProtocolError) -> Error:
    return Error(error.condition, error.message, Map())


def accepted_in(transaction: Transaction | None) -> Accepted | TransactionalState:
    """Return the answer to a delivery that was accepted, as part of a transaction or of none."""
    return Accepted() if transaction is None else TransactionalState(transaction.id, Accepted())


def id_ranges(deliveries: Iterable[Any]) -> Iterable[tuple[int, int]]:
    """Yield (first, last) of each run of consecutive delivery ids."""
    first = last = None
    for delivery in deliveries:
        if last is None or delivery.id != (last + 1) & SERIAL:
            if first is not None and last is not None:
                yield first, last
            first = delivery.id
        last = delivery.id
    if first is not None and last is not None:
        yield first, last


def address_of(link: Link) -> str:
    """Return the address that a client attaches to: the target it sends to, or the source it receives from."""
    address = terminus_address(link.remote.target if link.IS_RECEIVER else link.remote.source)
    if not address:
        raise ArgumentInvalid("A link needs an address.")
    return address
