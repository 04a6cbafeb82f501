"""A connection as its links use it, and what all links have: output, tokens, transactions, the end of a link.

Output beyond OUTPUT_HIGH stops deliveries. Output beyond MAX_OUTPUT stops reading from the peer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from sbpair.amqp.connection import Connection
from sbpair.amqp.link import Delivery, Link, Sent
from sbpair.amqp.performatives import Error
from sbpair.amqp.types import Map
from sbpair.emulator.access_tokens import AccessRight, Grant, covers, expired_token, is_within, scope_of
from sbpair.emulator.clock import NEVER, token_ms
from sbpair.emulator.entities.transaction import Transaction
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    EntityFull,
    EntityNotFound,
    LinkIdle,
    NotAllowed,
    ServiceError,
    TransactionUnknown,
    Unauthorized,
)
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.link import LinkSession
    from sbpair.amqp.performatives import Open
    from sbpair.emulator.clock import Deadline
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.frontends.amqp.connection_faults import ConnectionFaults

LINK_IDLE_MS: Final = 600_000
MAX_TRANSACTIONS: Final = 1_000
"""Transactions that a connection may have declared and not discharged."""

OUTPUT_HIGH: Final = 262_144
MAX_OUTPUT: Final = 4_194_304
CREDIT: Final = 1_000
"""Messages that a client may send before it needs new credit, which it gets at half of this."""


class Claims:
    """The grants of one connection. `on_lost` is called when rights are gone: a token expired or was replaced.

    `endpoint` is the namespace as the client addresses it: errors name entities there.
    """

    def __init__(self, namespace: Namespace, on_lost: Callable[[], None]) -> None:
        self.endpoint = namespace.endpoint
        self._namespace = namespace
        self._on_lost = on_lost
        self._expiry = namespace.deadline(NEVER, self._expire)
        self._grants: dict[str, Grant] = {}

    def check_key(self, name: str, key: str) -> bool:
        """Accept SASL PLAIN: a key name of the namespace and its key, which do not expire."""
        rule = next((rule for rule in self._namespace.keys if rule.key_name == name), None)
        if rule is None or not rule.has_key(key):
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
        before, self._grants[path] = self._grants.get(path, grant), grant
        self._await_expiry()
        if not (before.rights <= grant.rights and grant.owner in ("", before.owner)):
            self._on_lost()

    def check_access(self) -> None:
        """Raise AccessRefused for a client that may not open links: of keys, the one of SASL PLAIN never expires."""
        by_key = any(grant.expires_at_ms == NEVER for grant in self._grants.values())
        self._namespace.fault_points.check_access(by_key=by_key)

    def require(self, rights: tuple[AccessRight, ...], path: str) -> None:
        """Raise Unauthenticated or Unauthorized unless one of `rights` is granted on `path`."""
        now = token_ms(self._namespace.clock)
        owners = ("", self._namespace.owner_of(path))
        covering = [grant for name, grant in self._grants.items() if covers(name, path) and grant.owner in owners]
        expired = [grant for grant in covering if now >= grant.expires_at_ms]
        if any(not grant.rights.isdisjoint(rights) for grant in covering if grant not in expired):
            return
        if expired:
            raise expired_token(expired[-1].expires_at_ms)
        raise Unauthorized(
            f"Unauthorized access. '{rights[0]}' claim(s) are required to perform this operation. "
            f"Resource: '{self.endpoint}/{path}'."
        )

    def expire_tokens(self) -> None:
        """Expire every token now. A key with which the client signed in is not one."""
        now_ms = token_ms(self._namespace.clock)
        for path, grant in self._grants.items():
            if now_ms < grant.expires_at_ms != NEVER:
                self._grants[path] = replace(grant, expires_at_ms=now_ms)
        self._expire()

    def _await_expiry(self) -> None:
        first_ms = min((grant.expires_at_ms for grant in self._grants.values()), default=NEVER)
        self._expiry.wait_until(first_ms + self._namespace.clock.advanced_ms)

    def _expire(self) -> None:
        # Too early, and nothing has expired, if the clock was advanced meanwhile.
        now_ms = token_ms(self._namespace.clock)
        self._on_lost()
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


class LinkEndpoint:
    """The `context` of a link. It stays open while any of `rights` is granted on `path`, "" for no entity."""

    ended_peacefully = False
    """Whether the peer ended the link without an error; set before `on_detached`."""

    def __init__(self, owner: LinkOwner, link: Any, path: str, rights: tuple[AccessRight, ...]) -> None:
        self.path = path
        self.rights = rights
        self._owner = owner
        self._link = link
        self._output = owner.output
        self._fault_points = owner.namespace.fault_points

    def check_rights(self) -> None:
        """Raise Unauthenticated or Unauthorized if the client may not use the link any more."""
        self._owner.claims.require(self.rights, self.path)

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


class ConnectionOutput:
    """The writer of one connection. `blocked`: the peer does not read. `faults` are there while some act on it.

    `store_changes` is called before each write. It returns False if what the output acknowledges cannot be stored: then
    the connection breaks, and nothing is written.
    """

    def __init__(self, connection: Connection, transport: asyncio.Transport, store_changes: Callable[[], bool]) -> None:
        self.blocked = False
        self.transport = transport
        self.faults: ConnectionFaults | None = None
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
        self.send(out)
        if self.blocked and self.transport.get_write_buffer_size() > MAX_OUTPUT:
            self.transport.pause_reading()

    def send(self, piece: bytes | None) -> None:
        """Write a piece of output, or close for None."""
        if self.faults is not None:
            self.faults.send(piece)
        elif piece is None:
            self.transport.close()
        else:
            self.transport.write(piece)

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


class LinkOwner:
    """A client's connection to `namespace`, as its links use it. `peer` is the client's `open`."""

    output: ConnectionOutput
    peer: Open
    _connection: Connection

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.claims = Claims(namespace, self.close_forbidden_links)
        self.transactions = Transactions(namespace)
        self._to_flush: dict[LinkEndpoint, None] = {}

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
                endpoint.check_rights()
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
