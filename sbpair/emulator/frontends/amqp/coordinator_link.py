"""The control links of transactions: AMQP 1.0, part 4."""

from __future__ import annotations

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
from sbpair.amqp_server.refusals import NotAllowed, ServiceError, amqp_error
from sbpair.amqp_server.server_connection import LinkEndpoint
from sbpair.emulator.service_errors import TransactionUnknown
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery, ReceivingLink
    from sbpair.emulator.frontends.amqp.link_owner import LinkOwner

CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
CONTROL_BYTES: Final = 65_536


class CoordinatorLink(LinkEndpoint):
    """A control link: a client declares and discharges transactions on it. Those left are rolled back with it."""

    _link: ReceivingLink

    def __init__(self, owner: LinkOwner, link: ReceivingLink) -> None:
        super().__init__(owner, link, "", ())
        self._transactions = owner.transactions
        self._declared: set[bytes] = set()
        capabilities = Array(map(Symbol, CAPABILITIES))
        link.accept(target=Coordinator(capabilities), max_message_size=CONTROL_BYTES)
        self.grant()

    def receive(self, delivery: Delivery) -> None:
        self._owner.flush_endpoints()
        if delivery.settled:
            self._owner.close_link(self._link, NotAllowed("Messages on a control link must not be settled."))
            return
        try:
            state = self._answer(_read_control(delivery.payload))
        except (ServiceError, ProtocolError) as error:
            state = Rejected(amqp_error(error))
        self.dispose(delivery, state)

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

    def on_detached(self) -> None:
        """Roll back every transaction that was declared here and not discharged."""
        for txn_id in self._declared:
            self._transactions.remove(txn_id).roll_back()
        self._declared.clear()


def _read_control(payload: bytes) -> Any:
    bodies = [value for code, value in Sections.split(payload).read_body() if code == VALUE]
    return composite_of(bodies[0]) if bodies else None
