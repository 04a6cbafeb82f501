"""One client's AMQP connection to a namespace: its links, transactions and faults.

Invariant: while the peer does not read, nothing is taken from a queue for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from sbpair.amqp.connection import ConnectionOpened
from sbpair.amqp.link import Link, ReceivingLink, StatefulDelivery
from sbpair.amqp.performatives import Coordinator, TransactionalState
from sbpair.amqp_server.node_links import CBS_NODE, AmqpRequest, Reply, open_to_cbs, open_to_node, text_at
from sbpair.amqp_server.refusals import EntityFull, NotAllowed, ServiceError, ServiceUnavailable
from sbpair.amqp_server.server_connection import Handlers, LinkEndpoint, ServerConnection, address_of
from sbpair.amqp_server.shared_access import AccessRight, scope_of
from sbpair.emulator.entities.namespace import MANAGEMENT_SEGMENT
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.connection_faults import ConnectionFaults
from sbpair.emulator.frontends.amqp.link_owner import CoordinatorLink, LinkOwner
from sbpair.emulator.frontends.amqp.message_links import (
    EntityLink,
    IncomingLink,
    OutgoingLink,
    OutgoingSessionLink,
    open_to_messages,
)

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace

_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


class AmqpConnection(LinkOwner):
    """One client's connection to `namespace`. `on_opened` is called when the peer has opened it."""

    def __init__(self, namespace: Namespace, on_opened: Callable[[], None] = lambda: None) -> None:
        super().__init__(namespace, on_opened)
        self.faults: ConnectionFaults | None = None

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.namespace.on_outage.add(self._on_outage)
        self.namespace.on_refusing[self.close_forbidden_links] = None
        self.namespace.fault_points.connections.add(self)
        self.on_faults_changed()
        if self.namespace.is_down:
            self._on_outage()

    def data_received(self, data: bytes) -> None:
        if self.faults is None:
            self.process(data)
        else:
            self.faults.receive(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.namespace.fault_points.connections.discard(self)
        if self.faults is not None:
            self.faults.end()

    # Events

    def _on_connection_opened(self, event: ConnectionOpened) -> None:
        self.on_opened(event)
        points = self.namespace.fault_points
        if len(points.connections) > points.max_connections:
            self.fail(EntityFull(f"ConnectionsQuotaExceeded: the namespace has {points.max_connections} connections."))

    def _on_stateful_delivery(self, delivery: StatefulDelivery) -> None:
        endpoint = delivery.link.context
        if endpoint is None or not isinstance(delivery.state, TransactionalState):
            self.on_stateful(delivery)
            return
        try:
            transaction = self.transactions.find(delivery.state.txn_id)
        except ServiceError as error:
            self.close_link(delivery.link, error)
            return
        if isinstance(endpoint, IncomingLink):
            endpoint.receive_in(transaction, delivery)
            self._to_flush[endpoint] = None
        else:
            delivery.context = transaction
            self.on_stateful(delivery)

    HANDLERS: ClassVar[Handlers] = ServerConnection.HANDLERS | {
        ConnectionOpened: _on_connection_opened,
        StatefulDelivery: _on_stateful_delivery,
    }

    # Links

    def open_link(self, link: Link) -> LinkEndpoint:
        """Accept a link and return its endpoint: address and rights are checked before. Raises ServiceError."""
        if isinstance(link.remote.target, Coordinator):
            return self._open_coordinator(link)
        path = scope_of(address_of(link))
        if path == CBS_NODE:
            return open_to_cbs(self, link, self.namespace.clock.now_ms)
        self.claims.check_access()
        manage = partial(self._manage, address_of(link), path)
        if path.endswith(f"/{MANAGEMENT_SEGMENT}") and not self.claims.allow(_ANY, path):
            # Clients of Java attach before they have put their token: each request is checked.
            return open_to_node(self, link, path, (), manage)
        target = self._find(address_of(link), path)
        self.namespace.fault_points.check(path)
        if target.management:
            return open_to_node(self, link, path, _ANY, manage)
        return open_to_messages(self, link, path, target)

    def _find(self, address: str, path: str) -> AddressTarget:
        """Return what is at an address. Rights first: a client without any must not learn which entities exist."""
        self.claims.require(_ANY, path)
        return self.namespace.resolve(address, self.claims.endpoint)

    def _open_coordinator(self, link: Link) -> LinkEndpoint:
        if not isinstance(link, ReceivingLink):
            raise NotAllowed("Nothing can be received from a coordinator.")
        if not self.namespace.tier.has_all_features:
            raise NotAllowed(f"Transactions are not supported in the {self.namespace.tier.name} tier.")
        if not any(isinstance(other.context, EntityLink) for other in link.session.links):
            self.transactions.groups.setdefault(link.session)
        return CoordinatorLink(self, link)

    def _manage(self, address: str, path: str, request: AmqpRequest) -> Reply:
        try:
            target = self._find(address, path)
            self.namespace.fault_points.spend(1, path)
        except ServiceError as error:
            return Reply.for_error(error)
        name, session_id = text_at(request.properties, "associated-link-name"), None
        for link in self.links if name else ():
            if link.name == name and isinstance(link.context, (IncomingLink, OutgoingLink)):
                link.context.idle.postpone()  # the request is a use of the link
                session_id = link.context.held.id if isinstance(link.context, OutgoingSessionLink) else session_id
        return management_operations.execute(
            request, target, lambda right: self.claims.require((right,), path), session_id
        )

    # For faults

    def has_link_to(self, entity: str) -> bool:
        return not entity or bool(self.entity_links(entity))

    def take_down(self, entity: str, error: ServiceError) -> None:
        """Fail the transactions that have used an entity, and close the links to it."""
        self.transactions.doom(entity, error.message)
        self.detach(entity, error)

    def detach(self, entity: str, error: ServiceError) -> None:
        for link in self.entity_links(entity):
            self.close_link(link, error)

    def expire_tokens(self) -> None:
        self.claims.expire_tokens()

    def resume(self) -> None:
        """Continue deliveries that were held back."""
        for session in self._connection.sessions:
            self.pull(session)
        self.output.flush_soon()

    def on_faults_changed(self) -> None:
        """Apply the faults and the latency of connections as they are now."""
        points, output = self.namespace.fault_points, self.output
        are_active = bool(points.connection_faults or points.latency_seconds)
        if are_active and self.faults is None:
            self.faults = ConnectionFaults(
                output.transport, points, self.process, lambda: self._connection.unread, self.has_link_to
            )
            output.divert = self.faults.send
        if self.faults is not None:
            self.faults.apply(points.connection_faults)
            if not are_active and self.faults.hold_nothing:
                self.faults = output.divert = None

    # The end

    def _on_outage(self) -> None:
        self.fail(ServiceUnavailable(f"The namespace '{self.namespace.name}' is not available."))

    def release(self, *, peacefully: bool) -> None:
        """Release what is held in the namespace: waiters, credit and sessions. Locks of messages outlive it."""
        self.namespace.on_outage.discard(self._on_outage)
        self.namespace.on_refusing.pop(self.close_forbidden_links, None)
        super().release(peacefully=peacefully)
