"""The control links of transactions, and what one connection knows of its transactions. AMQP 1.0, part 4.

A session whose control link was attached before any link to an entity is a transaction group, as with the service: the
first entity of its links is the one by way of which its other links send.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.message import VALUE, Sections
from sbpair.amqp.performatives import (
    Accepted,
    Coordinator,
    Declare,
    Declared,
    Discharge,
    Outcome,
    Rejected,
    composite_of,
)
from sbpair.amqp.types import Array, Symbol
from sbpair.emulator.entities.transaction import Transaction
from sbpair.emulator.frontends.amqp.link_endpoint import CREDIT, LinkEndpoint, amqp_error
from sbpair.emulator.service_errors import EntityFull, NotAllowed, ServiceError, TransactionUnknown
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery, LinkSession, ReceivingLink
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.frontends.amqp.amqp_connection import AmqpConnection

MAX_TRANSACTIONS: Final = 1_000
"""Transactions that a connection may have declared and not discharged."""

CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
CONTROL_BYTES: Final = 65_536


def new_id() -> bytes:
    """Return an id that can be read, since clients show ids; the standard allows 32 bytes."""
    return secrets.token_hex(16).encode()


class TransactionGroup:
    """The links of one session that take part in the same transactions. `via` is the entity of the first one."""

    def __init__(self) -> None:
        self.via: QueueEntity | None = None

    def join(self, entity: QueueEntity) -> QueueEntity:
        """Return the entity by way of which messages are sent to this one: the first that joined."""
        if self.via is None:
            self.via = entity.top_level
        return self.via

    def check_receive(self, entity: QueueEntity) -> None:
        """Raise NotAllowed if another entity came first: messages of no other one can be settled here."""
        if self.via not in (None, entity.top_level):
            raise NotAllowed("Local transactions cannot span multiple top-level entities such as queue or topic.")


class Transactions:
    """The transactions and the transaction groups of one connection."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._open: dict[bytes, Transaction] = {}
        self.groups: dict[LinkSession, TransactionGroup] = {}

    def find(self, txn_id: bytes | None) -> Transaction:
        """Return a transaction that was not discharged, also one whose time has run out. Raises TransactionUnknown."""
        transaction = self._open.get(txn_id or b"")
        if transaction is None:
            raise TransactionUnknown("Transaction hasn't been declared yet, or has already been discharged")
        return transaction

    def declare(self) -> Transaction:
        if len(self._open) >= MAX_TRANSACTIONS:
            raise EntityFull(f"A connection has at most {MAX_TRANSACTIONS} transactions.")
        transaction = Transaction(self._namespace, new_id())
        self._open[transaction.id] = transaction
        return transaction

    def remove(self, txn_id: bytes) -> Transaction:
        return self._open.pop(txn_id)

    def doom(self, entity: str, reason: str) -> None:
        """Let transactions with an operation on this entity fail: it went down."""
        for transaction in self._open.values():
            transaction.doom_within(entity, reason)


class CoordinatorLink(LinkEndpoint):
    """A control link: a client declares and discharges transactions on it. Those left are rolled back with it."""

    _link: ReceivingLink

    def __init__(self, connection: AmqpConnection, link: ReceivingLink) -> None:
        super().__init__(connection, link, "", ())
        self._transactions = connection.transactions
        self._declared: set[bytes] = set()
        capabilities = Array([Symbol(name) for name in CAPABILITIES], code=0xA3)
        link.accept(target=Coordinator(capabilities), max_message_size=CONTROL_BYTES)
        link.grant(CREDIT)

    def receive(self, delivery: Delivery) -> None:
        self._connection.flush_endpoints()
        if delivery.settled:
            self._connection.close_link(self._link, NotAllowed("Messages on a control link must not be settled."))
            return
        try:
            state = self._answer(_request(delivery.payload))
        except (ServiceError, ProtocolError) as error:
            state = Rejected(amqp_error(error))
        self._link.session.dispose(delivery.id, delivery.id, state, receiver=True, settled=True)
        if self._link.credit <= CREDIT // 2 and self._link.is_open:
            self._link.grant(CREDIT)

    def _answer(self, request: Any) -> Outcome | Declared:
        if isinstance(request, Declare):
            if request.global_id is not None:
                raise ProtocolError("Distributed transactions are not supported.", condition="amqp:not-implemented")
            transaction = self._transactions.declare()
            self._declared.add(transaction.id)
            return Declared(transaction.id)
        if not isinstance(request, Discharge):
            raise ProtocolError("A control message is a declare or a discharge.", condition="amqp:decode-error")
        return self._discharge(request.txn_id or b"", roll_back=bool(request.fail))

    def _discharge(self, txn_id: bytes, *, roll_back: bool) -> Accepted:
        if txn_id not in self._declared:
            raise TransactionUnknown("Transaction is not declared")
        self._declared.discard(txn_id)
        transaction = self._transactions.remove(txn_id)
        if transaction.is_over:
            raise TransactionUnknown("Transaction is not declared")
        if roll_back:
            transaction.roll_back()
        else:
            transaction.commit()
        return Accepted()

    def on_detached(self, *, peacefully: bool) -> None:
        """Roll back every transaction that was declared here and not discharged."""
        del peacefully
        for txn_id in self._declared:
            self._transactions.remove(txn_id).roll_back()
        self._declared.clear()


def _request(payload: bytes) -> Any:
    bodies = [value for code, value in Sections.split(payload).read_body() if code == VALUE]
    return composite_of(bodies[0]) if bodies else None
