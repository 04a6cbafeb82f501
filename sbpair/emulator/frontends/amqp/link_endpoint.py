"""What the endpoints of all links have in common, and the output of their connection.

Output beyond OUTPUT_HIGH stops deliveries. Output beyond MAX_OUTPUT stops reading from the peer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.link import Delivery, Link, Sent, terminus_address
from sbpair.amqp.performatives import Accepted, Error, TransactionalState
from sbpair.amqp.types import Map
from sbpair.emulator.service_errors import ArgumentInvalid, ServiceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.amqp.connection import Connection
    from sbpair.emulator.access_tokens import AccessRight
    from sbpair.emulator.entities.transaction import Transaction
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection
    from sbpair.errors import ProtocolError

OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304
MAX_READ: Final = 131_072
"""Bytes of one read. asyncio's default is twice that, too much for a core's cache."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection. `close_seconds`: time for the peer to read the last output."""

    open_seconds: float = 30.0
    close_seconds: float = 5.0
    max_links: int = 1_000


DEFAULT_LIMITS: Final = ConnectionLimits()

CREDIT: Final = 1_000
"""Messages that a client may send before it needs new credit, which it gets at half of this."""

PRE_SETTLED: Final = 1
"""Settle mode of a sender whose deliveries are settled when sent (2.8.2)."""


class LinkEndpoint:
    """The `context` of a link. It stays open while any of `rights` is granted on `path`, "" for no entity."""

    ended_peacefully = False
    """Whether the peer ended the link without an error; set before `on_detached`."""

    def __init__(self, owner: AmqpConnection, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.rights = rights
        self._owner = owner
        self._link = link
        self._output = owner.output
        self._fault_points = owner.namespace.fault_points

    def check_open(self) -> None:
        """Raise EntityDisabled or NotAllowed if such a link could no longer be opened. Nodes are always open."""

    def receive(self, delivery: Delivery) -> None:
        """Take a delivery that the peer sent."""

    def receive_in(self, transaction: Transaction, delivery: Delivery) -> None:
        """Take a delivery that the peer sent as part of a transaction."""
        delivery.context = transaction
        self.receive(delivery)

    def flush(self) -> None:
        """Send the dispositions of everything received in one read, and grant new credit."""
        self.grant()

    def grant(self) -> None:
        """Give new credit when half of it is used."""
        if self._link.IS_RECEIVER and self._link.is_open and self._link.credit <= CREDIT // 2:
            self._link.grant(CREDIT)

    def dispose(self, delivery: Delivery | Sent, state: Any, *, settled: bool = True) -> None:
        """Send the state of one delivery."""
        receiver = self._link.IS_RECEIVER
        self._link.session.dispose(delivery.id, delivery.id, state, receiver=receiver, settled=settled)

    def pull(self) -> None:
        """Send as far as the peer takes messages."""

    def has_unanswered(self) -> bool:
        """Return whether requests wait until the peer reads: nothing more is read before."""
        return False

    def on_flow(self) -> None:
        """React to a change of the credit for sending."""

    def on_detached(self) -> None:
        """Stop."""


def amqp_error(error: ServiceError | ProtocolError) -> Error:
    return Error(error.condition, error.message, Map())


def accepted_in(transaction: Transaction | None) -> Accepted | TransactionalState:
    """Return the answer to a delivery that was accepted, as part of a transaction or of none."""
    return Accepted() if transaction is None else TransactionalState(transaction.id, Accepted())


def address_of(link: Link) -> str:
    """Return the address that a client attaches to: the target it sends to, or the source it receives from."""
    address = terminus_address(link.remote.target if link.IS_RECEIVER else link.remote.source)
    if not address:
        raise ArgumentInvalid("A link needs an address.")
    return address


class ConnectionOutput:
    """The writer of one connection. `blocked`: the peer does not read. Faults may replace `transport`.

    `store_changes` is called before each write. It returns False if what the output acknowledges cannot be stored: then
    the connection breaks, and nothing is written.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport, store_changes: Callable[[], bool]) -> None:
        self.blocked = False
        self.transport = transport
        self._connection = connection
        self._store_changes = store_changes
        self._loop = asyncio.get_running_loop()
        self._unwritten = 0
        self._flush_due = False
        self._to_pull: dict[LinkEndpoint, None] = {}
        transport.set_write_buffer_limits(OUTPUT_HIGH)

    def count(self, size: int) -> None:
        """Count `size` bytes of pending output; write all of it if it is much."""
        self._unwritten += size
        if self._unwritten >= OUTPUT_HIGH:
            self.flush()

    def flush(self) -> None:
        self._flush_due = False
        self._unwritten = 0
        out = self._connection.take()
        if out and not self._store_changes():
            self.transport.abort()
        if self.transport.is_closing():
            # Nothing more can be sent.
            self.blocked = True
            return
        if not out:
            return
        self._connection.wrote(self._loop.time())
        self.transport.write(out)
        if self.blocked and self.transport.get_write_buffer_size() > MAX_OUTPUT:
            self.transport.pause_reading()

    def flush_soon(self) -> None:
        """Write the pending output at the end of this turn of the event loop."""
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def pull_soon(self, outgoing: LinkEndpoint) -> None:
        """Call `outgoing.pull` again after other connections had their turn."""
        if not self._to_pull:
            self._loop.call_soon(self._pull_all)
        self._to_pull[outgoing] = None

    def forget(self, outgoing: LinkEndpoint) -> None:
        """Cancel `pull_soon`: the link is closed."""
        self._to_pull.pop(outgoing, None)

    def _pull_all(self) -> None:
        outgoing, self._to_pull = self._to_pull, {}
        for link in outgoing:
            link.pull()
        if outgoing:
            self.flush()
