"""One client's AMQP connection, between its socket and a namespace, with the tokens and transactions it has made known.

Invariant: a misbehaving peer harms its own connection only. Everything read at once is answered in one write. While
the peer does not read, nothing is taken from a queue for it, and in the end nothing is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.amqp.connection import Connection, ConnectionClosed, ConnectionOpened, Event
from sbpair.amqp.link import CreditChanged, Delivery, Link, LinkAttaching, LinkDetached, ReceivingLink, StatefulDelivery
from sbpair.amqp.performatives import Coordinator, TransactionalState
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.session import Disposed, SessionEnded, WindowOpened
from sbpair.emulator.access_tokens import AccessRight, scope_of
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.connection_faults import ConnectionFaults
from sbpair.emulator.frontends.amqp.link_endpoints import (
    CBS_NODE,
    AmqpRequest,
    CoordinatorLink,
    Reply,
    address_of,
    open_to_cbs,
    open_to_node,
    text_at,
)
from sbpair.emulator.frontends.amqp.link_owner import ConnectionOutput, LinkEndpoint, LinkOwner, amqp_error
from sbpair.emulator.frontends.amqp.message_links import (
    IncomingLink,
    OutgoingLink,
    WaitingSessionLink,
    open_to_messages,
)
from sbpair.emulator.service_errors import (
    EntityFull,
    LinkStolen,
    NotAllowed,
    ServiceError,
    ServiceUnavailable,
)

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace

logger = logging.getLogger(__name__)

MAX_READ: Final = 131_072
"""Bytes of one read. asyncio's default is twice that, too much for a core's cache."""

CLOSE_SECONDS: Final = 5.0
"""Time for the peer to read the last output."""

MAX_LINKS: Final = 1_000
_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)


class AmqpConnection(LinkOwner, asyncio.Protocol):
    """One client's connection to `namespace`. `on_opened` is called when the peer has opened it."""

    def __init__(self, namespace: Namespace, on_opened: Callable[[], None] = lambda: None) -> None:
        super().__init__(namespace)
        self._announce_open = on_opened
        self._deadline: asyncio.TimerHandle | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
        self._released = False

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        transport.max_size = MAX_READ  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        sasl = SaslServer(self.claims.check_key)
        self._connection = Connection(sasl, container_id=self.namespace.name, now=self._loop.time())
        self.output = ConnectionOutput(self._connection, transport, self.namespace.store_changes)
        self.namespace.on_outage.add(self._on_outage)
        self.namespace.on_refusing[self.close_forbidden_links] = None
        self.namespace.fault_points.connections.add(self)
        self.on_faults_changed()
        self._set_heartbeat()
        if self.namespace.is_down:
            self._on_outage()

    def data_received(self, data: bytes) -> None:
        if self.output.faults is None:
            self.process(data)
        else:
            self.output.faults.receive(data)

    def process(self, data: bytes) -> None:
        """Take what the peer has sent, and answer it."""
        to_flush = self._to_flush
        for event in self._connection.receive(data, self._loop.time()):
            if type(event) is Delivery:
                endpoint = event.link.context
                if endpoint is not None:
                    to_flush[endpoint] = None
                    endpoint.receive(event)
            else:
                self._handle(event)
        self.flush_endpoints()
        self.output.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release(peacefully=False)
        if self._deadline is not None:
            self._deadline.cancel()
        self.namespace.fault_points.connections.discard(self)
        if self.output.faults is not None:
            self.output.faults.end()

    def pause_writing(self) -> None:
        self.output.blocked = True

    def resume_writing(self) -> None:
        self.output.blocked = False
        endpoints = [link.context for link in self.links if link.context is not None]
        for endpoint in sorted(endpoints, key=LinkEndpoint.has_unanswered, reverse=True):
            endpoint.pull()
        self.output.flush()
        if not any(endpoint.has_unanswered() for endpoint in endpoints):
            self.output.transport.resume_reading()

    # Time

    def _set_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        deadline = self._connection.deadline()
        self._heartbeat = self._loop.call_at(deadline, self._on_heartbeat) if deadline != float("inf") else None

    def _on_heartbeat(self) -> None:
        for event in self._connection.tick(self._loop.time()):
            self._handle(event)
        self.output.flush()
        if not self._released:
            self._set_heartbeat()

    # Events

    def _handle(self, event: Event) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None and not self._released:
            handler(self, event)

    def _on_opened(self, event: ConnectionOpened) -> None:
        self._announce_open()
        self.peer = event.open
        if event.open.hostname:
            self.claims.endpoint = f"sb://{event.open.hostname}"
        self._set_heartbeat()
        points = self.namespace.fault_points
        if len(points.connections) > points.max_connections:
            self._fail(EntityFull(f"ConnectionsQuotaExceeded: the namespace has {points.max_connections} connections."))

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        if len(self.links) > MAX_LINKS:
            # Refused links count until their peer has detached them too, so that it cannot pile them up.
            self._fail(EntityFull(f"A connection has at most {MAX_LINKS} links."))
            return
        self._close_namesakes(link)
        try:
            link.context = self._open(link)
        except ServiceError as error:
            link.close(amqp_error(error))

    def _open(self, link: Link) -> LinkEndpoint:
        """Accept a link and return its endpoint: address and rights are checked before. Raises ServiceError."""
        if isinstance(link.remote.target, Coordinator):
            return self._open_coordinator(link)
        path = scope_of(address_of(link))
        if path == CBS_NODE:
            return open_to_cbs(self, link)
        self.claims.check_access()
        # Rights first: a client without any must not learn which entities exist.
        self.claims.require(_ANY, path)
        target = self.namespace.resolve(address_of(link), self.claims.endpoint)
        self.namespace.fault_points.check(path)
        if target.management:
            return open_to_node(self, link, path, _ANY, partial(self._manage, target, path))
        return open_to_messages(self, link, path, target)

    def _open_coordinator(self, link: Link) -> LinkEndpoint:
        if not isinstance(link, ReceivingLink):
            raise NotAllowed("Nothing can be received from a coordinator.")
        if not self.namespace.tier.has_all_features:
            raise NotAllowed(f"Transactions are not supported in the {self.namespace.tier.name} tier.")
        to_entities = (IncomingLink, OutgoingLink, WaitingSessionLink)
        if not any(isinstance(other.context, to_entities) for other in link.session.links):
            self.transactions.groups.setdefault(link.session)
        return CoordinatorLink(self, link)

    def _manage(self, target: AddressTarget, path: str, request: AmqpRequest) -> Reply:
        try:
            self.namespace.fault_points.spend(1, path)
        except ServiceError as error:
            return Reply.for_error(error)
        if name := text_at(request.properties, "associated-link-name"):
            self._touch_links(name)
        return management_operations.execute(request, target, lambda right: self.claims.require((right,), path))

    def _touch_links(self, name: str) -> None:
        """Count a request that names one of the client's links as a use of that link."""
        for link in self.links:
            if link.name == name and isinstance(link.context, (IncomingLink, OutgoingLink)):
                link.context.idle.postpone()

    def _close_namesakes(self, link: Link) -> None:
        """Close the link that `link` replaces: one of its name in the same session, as the service does."""
        for other in link.session.links:
            if other.name == link.name and other.IS_RECEIVER is link.IS_RECEIVER and other.context is not None:
                self.close_link(other, LinkStolen(f"The link '{link.name[:100]}' has been attached again."))

    def _on_credit(self, event: CreditChanged) -> None:
        endpoint = event.link.context
        if endpoint is not None:
            endpoint.on_flow()
        self.pull(event.link.session)

    def _on_stateful(self, delivery: StatefulDelivery) -> None:
        endpoint = delivery.link.context
        if endpoint is None:
            return
        if isinstance(delivery.state, TransactionalState):
            try:
                transaction = self.transactions.find(delivery.state.txn_id)
            except ServiceError as error:
                self.close_link(delivery.link, error)
                return
            endpoint.receive_in(transaction, delivery)
        else:
            endpoint.receive(delivery)
        self._to_flush[endpoint] = None

    def _on_disposed(self, event: Disposed) -> None:
        for link, deliveries in groupby(event.deliveries, attrgetter("link")):
            if isinstance(link.context, OutgoingLink):
                # First: a settlement may close the link.
                self._to_flush[link.context] = None
                link.context.settle(list(deliveries), event.state, settled=event.settled)

    def _on_closed(self, event: ConnectionClosed) -> None:
        if event.error is not None:
            logger.info("A connection ends: %s: %s", event.error.condition, event.error.description)
        self._end(peacefully=event.by_peer and event.error is None)

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

    def abort(self) -> None:
        self.output.transport.abort()

    def on_faults_changed(self) -> None:
        """Apply the faults and the latency of connections as they are now."""
        points, output = self.namespace.fault_points, self.output
        are_active = bool(points.connection_faults or points.latency_seconds)
        if are_active and output.faults is None:
            output.faults = ConnectionFaults(
                output.transport, points, self.process, lambda: self._connection.unread, self.has_link_to
            )
        if output.faults is not None:
            output.faults.apply(points.connection_faults)
            if not are_active and output.faults.hold_nothing:
                output.faults = None

    # The end

    def _on_outage(self) -> None:
        self._fail(ServiceUnavailable(f"The namespace '{self.namespace.name}' is not available."))

    def _fail(self, error: ServiceError) -> None:
        self._connection.fail(amqp_error(error))
        self._end(peacefully=False)

    def _end(self, *, peacefully: bool) -> None:
        """Close after the last output is written, or after a few seconds if the peer does not read."""
        self._release(peacefully=peacefully)
        self.output.flush()
        self.output.send(None)
        self._deadline = self._loop.call_later(CLOSE_SECONDS, self.output.transport.abort)

    def _release(self, *, peacefully: bool) -> None:
        """Release what is held in the namespace: waiters, credit and sessions. Locks of messages outlive it."""
        if self._released:
            return
        self._released = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self.namespace.on_outage.discard(self._on_outage)
        self.namespace.on_refusing.pop(self.close_forbidden_links, None)
        for session in self._connection.sessions:
            self.end_session(session, peacefully=peacefully)
        self.claims.clear()


_HANDLERS: Final[dict[type, Callable[[AmqpConnection, Any], None]]] = {
    ConnectionOpened: AmqpConnection._on_opened,
    LinkAttaching: AmqpConnection._on_attaching,
    CreditChanged: AmqpConnection._on_credit,
    WindowOpened: lambda self, event: self.pull(event.session),
    Disposed: AmqpConnection._on_disposed,
    StatefulDelivery: AmqpConnection._on_stateful,
    LinkDetached: lambda self, event: self.release_link(event.link, peacefully=True),
    SessionEnded: lambda self, event: self.end_session(event.session, peacefully=event.error is None),
    ConnectionClosed: AmqpConnection._on_closed,
}
