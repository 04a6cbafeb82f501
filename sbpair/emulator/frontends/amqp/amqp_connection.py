"""One client's AMQP connection, between its socket and a namespace, with the tokens and transactions it has made known.

Invariant: a misbehaving peer harms its own connection only. Everything read at once is answered in one write. While
the peer does not read, nothing is taken from a queue for it, and in the end nothing is read from it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
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
from sbpair.emulator.access_tokens import AccessRight, Grant, covers, expired_token, is_within, scope_of
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.transaction import Transaction
from sbpair.emulator.frontends.amqp import management_operations
from sbpair.emulator.frontends.amqp.connection_faults import ConnectionFaults
from sbpair.emulator.frontends.amqp.link_endpoints import (
    CBS_NODE,
    AmqpRequest,
    ConnectionOutput,
    CoordinatorLink,
    LinkEndpoint,
    Reply,
    address_of,
    amqp_error,
    open_to_cbs,
    open_to_node,
    text_at,
)
from sbpair.emulator.frontends.amqp.message_links import (
    IncomingLink,
    OutgoingLink,
    WaitingSessionLink,
    open_to_messages,
)
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    EntityFull,
    EntityNotFound,
    LinkIdle,
    LinkStolen,
    NotAllowed,
    ServiceError,
    ServiceUnavailable,
    TransactionUnknown,
    Unauthorized,
)

if TYPE_CHECKING:
    from sbpair.amqp.link import LinkSession
    from sbpair.amqp.performatives import Open
    from sbpair.emulator.clock import Deadline
    from sbpair.emulator.entities.namespace import AddressTarget, Namespace
    from sbpair.emulator.entities.queue import QueueEntity

logger = logging.getLogger(__name__)

MAX_READ: Final = 131_072
"""Bytes of one read. asyncio's default is twice that, too much for a core's cache."""

OPEN_SECONDS: Final = 30.0
CLOSE_SECONDS: Final = 5.0
"""Time for the peer to read the last output."""

LINK_IDLE_MS: Final = 600_000
MAX_LINKS: Final = 1_000
_ANY: Final = (AccessRight.SEND, AccessRight.LISTEN, AccessRight.MANAGE)
MAX_TRANSACTIONS: Final = 1_000
"""Transactions that a connection may have declared and not discharged."""


class Claims:
    """The grants of one connection. `on_expired` is called when one of them has expired.

    `endpoint` is the namespace as the client addresses it: errors name entities there.
    """

    def __init__(self, namespace: Namespace, on_expired: Callable[[], None]) -> None:
        self.endpoint = namespace.endpoint
        self._namespace = namespace
        self._on_expired = on_expired
        self._expiry = namespace.deadline(NEVER, self._expire)
        self._grants: dict[str, Grant] = {}

    def check_key(self, name: str, key: str) -> bool:
        """Accept SASL PLAIN: a key name of the namespace and its key, which do not expire."""
        rule = next((rule for rule in self._namespace.keys if rule.key_name == name), None)
        if rule is None or key not in (rule.primary_key, rule.secondary_key):
            return False
        self._grants[""] = Grant(rule.rights, "")
        return True

    def put(self, name: str | None, token: object) -> None:
        """Add the grant of a token for the resource `name`. Raises ArgumentInvalid, Unauthenticated, EntityNotFound."""
        if name is None or not isinstance(token, str):
            raise ArgumentInvalid("A token is put with the 'name' of its resource, and its text as the body's value.")
        path = scope_of(name)
        # By its value, not the declared type: the SDK for Python declares every token "jwt".
        grant = self._namespace.authenticate(token, path)
        if path:
            self._namespace.resolve(name, self.endpoint)
        self._grants[path] = grant
        self._await_expiry()

    def require(self, rights: tuple[AccessRight, ...], path: str) -> None:
        """Raise Unauthenticated or Unauthorized unless one of `rights` is granted on `path`."""
        now = self._namespace.clock.now_ms()
        covering = [grant for granted, grant in self._grants.items() if covers(granted, path)]
        expired = [grant for grant in covering if now >= grant.expires_at_ms]
        if any(not grant.rights.isdisjoint(rights) for grant in covering if grant not in expired):
            return
        if expired:
            raise expired_token(expired[-1].expires_at_ms)
        raise Unauthorized(
            f"Unauthorized access. '{rights[0]}' claim(s) are required to perform this operation. "
            f"Resource: '{self.endpoint}/{path}'."
        )

    def _await_expiry(self) -> None:
        self._expiry.wait_until(min((grant.expires_at_ms for grant in self._grants.values()), default=NEVER))

    def _expire(self) -> None:
        now_ms = self._namespace.clock.now_ms()
        self._on_expired()
        self._grants = {path: grant for path, grant in self._grants.items() if grant.expires_at_ms > now_ms}
        self._await_expiry()

    def clear(self) -> None:
        self._grants.clear()
        self._expiry.cancel()


def new_id() -> bytes:
    """Return an id that can be read, since clients show ids; the standard allows 32 bytes."""
    return secrets.token_hex(16).encode()


class Transactions:
    """The transactions of one connection, and its transaction groups: each a session, with its first entity.

    A session whose control link was attached before any link to an entity is such a group, as with the service: the
    first entity of its links is the one by way of which its other links send. Paths are in lower case.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._open: dict[bytes, Transaction] = {}
        self.groups: dict[LinkSession, QueueEntity | None] = {}

    def via(self, session: LinkSession, entity: QueueEntity) -> QueueEntity:
        """Return the entity by way of which a session sends to this one: the first entity of its group, or itself."""
        if session not in self.groups:
            return entity
        via = self.groups[session] = self.groups[session] or entity.top_level
        return via

    def check_receive(self, session: LinkSession, entity: QueueEntity) -> None:
        """Raise NotAllowed if another entity came first: messages of no other one can be settled here."""
        if self.groups.get(session) not in (None, entity.top_level):
            raise NotAllowed("Local transactions cannot span multiple top-level entities such as queue or topic.")

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


class AmqpConnection(asyncio.Protocol):
    """One client's connection to `namespace`. `peer` is the client's `open`."""

    output: ConnectionOutput
    peer: Open
    _connection: Connection

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.claims = Claims(namespace, self.close_forbidden_links)
        self.transactions = Transactions(namespace)
        self._to_flush: dict[LinkEndpoint, None] = {}
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
        self._deadline = self._loop.call_later(OPEN_SECONDS, self._on_open_timeout)
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

    def _on_open_timeout(self) -> None:
        logger.info("A client did not open its connection within %g seconds.", OPEN_SECONDS)
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

    # For its links

    @property
    def links(self) -> list[Link]:
        return [link for session in self._connection.sessions for link in session.links]

    def flush_endpoints(self) -> None:
        """Do now what waits for the end of a read, so that it comes before a transaction's end."""
        endpoints = list(self._to_flush)
        self._to_flush.clear()
        for endpoint in endpoints:
            endpoint.flush()

    def watch_idle(self, link: Link) -> Deadline:
        """Detach a link ten minutes after its last use; credit alone does not count as use."""
        return self.namespace.deadline(LINK_IDLE_MS, partial(self._on_idle, link))

    def _on_idle(self, link: Link) -> None:
        role = "Publisher" if link.IS_RECEIVER else "Consumer"
        text = f"The link '{link.name}' is force detached. Code: {role.lower()}. "
        self.close_link(link, LinkIdle(f"{text}Details: AmqpMessage{role}.IdleTimerExpired: Idle timeout: 00:10:00."))

    def close_link(self, link: Link, error: ServiceError) -> None:
        link.close(amqp_error(error))
        self.release_link(link, peacefully=False)
        self.output.flush_soon()

    def release_link(self, link: Link, *, peacefully: bool) -> None:
        endpoint, link.context = link.context, None
        if endpoint is not None:
            self.output.forget(endpoint)
            endpoint.ended_peacefully = peacefully
            endpoint.on_detached()

    def end_session(self, session: LinkSession, *, peacefully: bool) -> None:
        for link in session.links:
            self.release_link(link, peacefully=peacefully)
        self.transactions.groups.pop(session, None)

    def close_forbidden_links(self, gone: ServiceError | None = None) -> None:
        """Close the links that could no longer be opened. `gone`: why an entity was deleted or disabled."""
        for link in self.entity_links():
            endpoint = link.context
            if endpoint is None:
                continue
            try:
                self.claims.require(endpoint.rights, endpoint.path)
                if gone is not None:
                    self.namespace.resolve(endpoint.path, self.claims.endpoint)
                    endpoint.check_open()
            except EntityNotFound as error:
                self.close_link(link, gone or error)
            except ServiceError as error:
                self.close_link(link, error)
        self.output.flush_soon()

    def entity_links(self, entity: str = "") -> list[Link]:
        """Return the open links to an entity; "" for all but those to `$cbs` and coordinators."""
        opened = [link for link in self.links if link.context is not None and link.context.path]
        return [link for link in opened if is_within(link.context.path, entity)]

    def pull(self, session: LinkSession) -> None:
        for link in session.links:
            if not link.IS_RECEIVER and link.context is not None:
                link.context.pull()

    # For faults

    @property
    def unread(self) -> bytes:
        return self._connection.unread

    def has_link_to(self, entity: str) -> bool:
        return not entity or bool(self.entity_links(entity))

    def take_down(self, entity: str, error: ServiceError) -> None:
        """Fail the transactions that have used an entity, and close the links to it."""
        self.transactions.doom(entity, error.message)
        self.detach(entity, error)

    def detach(self, entity: str, error: ServiceError) -> None:
        for link in self.entity_links(entity):
            self.close_link(link, error)

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
            output.faults = ConnectionFaults(self)
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
        self._deadline.cancel()
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
