"""One client's AMQP connection, between its socket and a namespace.

Invariant: a misbehaving peer harms its own connection only. Everything read at once is answered in one write. While
the peer does not read, nothing is taken from a queue for it, and in the end nothing is read from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

from sbpair.amqp.connection import Connection, ConnectionClosed, ConnectionOpened, Event
from sbpair.amqp.link import CreditChanged, Delivery, Link, LinkAttaching, LinkDetached, StatefulDelivery
from sbpair.amqp.performatives import TransactionalState
from sbpair.amqp.sasl import SaslServer
from sbpair.amqp.session import Disposed, SessionEnded, WindowOpened
from sbpair.emulator.frontends.amqp.faulty_connection import FaultyConnection
from sbpair.emulator.frontends.amqp.link_endpoint import (
    DEFAULT_LIMITS,
    MAX_READ,
    ConnectionLimits,
    ConnectionOutput,
    LinkEndpoint,
    LinkOwner,
    amqp_error,
)
from sbpair.emulator.frontends.amqp.link_opening import open_link
from sbpair.emulator.frontends.amqp.outgoing_link import OutgoingLink
from sbpair.emulator.service_errors import EntityFull, LinkStolen, ServiceError, ServiceUnavailable

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

logger = logging.getLogger(__name__)


class AmqpConnection(LinkOwner):
    """One client's connection to `namespace`."""

    def __init__(self, namespace: Namespace, limits: ConnectionLimits = DEFAULT_LIMITS) -> None:
        super().__init__(namespace)
        self._limits = limits
        self._heartbeat: asyncio.TimerHandle | None = None
        self._released = False
        self._faulty: FaultyConnection | None = None

    # The socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast("asyncio.Transport", transport)
        transport.max_size = MAX_READ  # type: ignore[attr-defined]
        self._loop = asyncio.get_running_loop()
        sasl = SaslServer(self.claims.check_key)
        self._connection = Connection(sasl, container_id=self.namespace.name, now=self._loop.time())
        self.output = ConnectionOutput(self._connection, transport, self.namespace.store_changes)
        self._deadline = self._loop.call_later(self._limits.open_seconds, self._on_open_timeout)
        self.namespace.on_outage.add(self._on_outage)
        self.namespace.on_refusing[self.close_forbidden_links] = None
        self.namespace.fault_points.register(self)
        self._set_heartbeat()
        if self.namespace.is_down:
            self._on_outage()

    def data_received(self, data: bytes) -> None:
        to_flush = self._to_flush
        for event in self._connection.receive(data, self._loop.time()):
            if type(event) is Delivery:
                endpoint = event.link.context
                if endpoint is not None:
                    to_flush[endpoint] = None
                    endpoint.receive(event)
            else:
                self._handle(event)
        for endpoint in to_flush:
            endpoint.flush()
        to_flush.clear()
        self.output.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release(peacefully=False)
        self._deadline.cancel()

    def pause_writing(self) -> None:
        self.output.blocked = True

    def resume_writing(self) -> None:
        self.output.blocked = False
        links = [link for session in self._connection.sessions for link in session.links]
        endpoints = [link.context for link in links if link.context is not None]
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

    def _on_open_timeout(self) -> None:
        logger.info("A client did not open its connection within %g seconds.", self._limits.open_seconds)
        self.output.transport.abort()

    # Events

    def _handle(self, event: Event) -> None:
        handler = _HANDLERS.get(type(event))
        if handler is not None and not self._released:
            handler(self, event)

    def _on_opened(self, event: ConnectionOpened) -> None:
        self._deadline.cancel()
        self.peer = event.open
        if event.open.hostname:
            self.claims.endpoint = f"sb://{event.open.hostname}"
        self._set_heartbeat()
        try:
            self.namespace.fault_points.check_connections()
        except ServiceError as error:
            self._fail(error)

    def _on_attaching(self, event: LinkAttaching) -> None:
        link = event.link
        if sum(len(session.links) for session in self._connection.sessions) > self._limits.max_links:
            # Refused links count until their peer has detached them too, so that it cannot pile them up.
            self._fail(EntityFull(f"A connection has at most {self._limits.max_links} links."))
            return
        self._close_namesakes(link)
        try:
            link.context = open_link(self, link)
        except ServiceError as error:
            link.close(amqp_error(error))

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

    def on_faults_changed(self) -> None:
        points = self.namespace.fault_points
        are_active = bool(points.connection_faults or points.latency_seconds)
        if are_active and self._faulty is None:
            self._faulty = FaultyConnection(self)
            points.wrapped.add(self)
        if self._faulty is not None:
            self._faulty.apply(points.connection_faults)
            if not are_active and self._faulty.unwrap():
                self._faulty = None
                points.wrapped.discard(self)

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
        self.output.transport.close()
        self._deadline = self._loop.call_later(self._limits.close_seconds, self.output.transport.abort)

    def _release(self, *, peacefully: bool) -> None:
        """Release what is held in the namespace: waiters, credit and sessions. Locks of messages outlive it."""
        if self._released:
            return
        self._released = True
        self._deadline.cancel()
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self.namespace.on_outage.discard(self._on_outage)
        self.namespace.on_refusing.pop(self.close_forbidden_links, None)
        self.namespace.fault_points.connections.discard(self)
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
