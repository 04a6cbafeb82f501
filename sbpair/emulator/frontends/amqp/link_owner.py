"""A connection to a namespace as its links use it: claims, transactions and their control links, idle links.

Control links: AMQP 1.0, part 4.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
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
from sbpair.amqp_server.claims import Claims
from sbpair.amqp_server.refusals import EntityFull, NotAllowed, ServiceError, amqp_error
from sbpair.amqp_server.server_connection import LinkEndpoint, ServerConnection
from sbpair.amqp_server.shared_access import NO_EXPIRY, AccessRight, AuthorizationRule, Grant, is_within, scope_of
from sbpair.emulator.clock import NEVER, token_ms
from sbpair.emulator.entities.transaction import Transaction
from sbpair.emulator.service_errors import ConnectionIdle, EntityNotFound, LinkIdle, TransactionUnknown
from sbpair.errors import ProtocolError

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery, Link, LinkSession, ReceivingLink
    from sbpair.emulator.clock import Deadline
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity

LINK_IDLE_MS: Final = 600_000
UNUSED_MS: Final = 60_000
UNLINKED_MS: Final = 300_000
"""How long a connection may have no links, except to `$cbs`: until its first, and after its last."""

MAX_TRANSACTIONS: Final = 1_000
"""Transactions that a connection may have declared and not discharged."""

CAPABILITIES: Final = ("amqp:local-transactions", "amqp:multi-txns-per-ssn", "amqp:multi-ssns-per-txn")
CONTROL_BYTES: Final = 65_536


class NamespaceClaims(Claims):
    """The grants of one connection to a namespace, by its keys, its tokens and its clock."""

    def __init__(self, namespace: Namespace, on_lost: Callable[[], None]) -> None:
        super().__init__(namespace.endpoint, on_lost)
        self._namespace = namespace
        self._expiry = namespace.deadline(NEVER, self.expire)
        self._entity_key = ("", "")

    def check_key(self, name: str, key: str) -> bool:
        """Accept any key, as the service does: with one that is none of an entity either, each link is refused."""
        if not super().check_key(name, key):
            self._entity_key = name, key
        return True

    def require(self, rights: tuple[AccessRight, ...], path: str) -> None:
        owner, (name, key) = self.owner_of(path), self._entity_key
        if name and owner and owner not in self._grants:
            for rule in self._namespace.entities[owner].description.authorization_rules:
                if rule.key_name == name and rule.has_key(key):
                    self._grants[owner] = Grant(rule.rights, owner, owner=owner)
        super().require(rights, path)

    def keys(self) -> Iterable[AuthorizationRule]:
        return self._namespace.keys

    def authenticate(self, token: str, name: str) -> Grant:
        """Return the rights of a token for a resource that is there. Raises Unauthenticated, EntityNotFound."""
        # By its value, not the declared type: the SDK for Python declares every token "jwt".
        path = scope_of(name)
        grant = self._namespace.authenticate(token, path)
        if path:
            self._namespace.resolve(name, self.endpoint)
        return grant

    def now_ms(self) -> int:
        return token_ms(self._namespace.clock)

    def expire_at(self, at_ms: int) -> None:
        # Too early, and nothing has expired, if the clock is advanced meanwhile.
        self._expiry.wait_until(at_ms + self._namespace.clock.advanced_ms)

    def owner_of(self, path: str) -> str:
        return self._namespace.owner_of(path)

    def check_access(self) -> None:
        """Raise AccessRefused for a client that may not open links: of keys, the one of SASL PLAIN never expires."""
        by_key = bool(self._entity_key[0]) or any(each.expires_at_ms == NO_EXPIRY for each in self._grants.values())
        self._namespace.fault_points.check_access(by_key=by_key)

    def expire_tokens(self) -> None:
        """Expire every token now. A key with which the client signed in is not one."""
        now_ms = self.now_ms()
        for path, grant in self._grants.items():
            if now_ms < grant.expires_at_ms != NO_EXPIRY:
                self._grants[path] = replace(grant, expires_at_ms=now_ms)
        self.expire()

    def clear(self) -> None:
        super().clear()
        self._entity_key = ("", "")
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
        via = self.groups[session] = self.groups[session] or entity
        return via

    def check_receive(self, session: LinkSession, entity: QueueEntity) -> None:
        """Raise NotAllowed if another entity came first: messages of no other one can be settled here."""
        first = self.groups.get(session)
        if first is not None and first.top_level is not entity.top_level:
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


class LinkOwner(ServerConnection):
    """A client's connection to `namespace`, as its links use it."""

    claims: NamespaceClaims

    def __init__(self, namespace: Namespace, on_opened: Callable[[], None]) -> None:
        claims = NamespaceClaims(namespace, self.close_forbidden_links)
        super().__init__(namespace.name, claims, on_opened, namespace.store_changes)
        self.namespace = namespace
        self.transactions = Transactions(namespace)
        self._unlinked_ms = UNUSED_MS
        self._unlinked = namespace.deadline(UNUSED_MS, self._on_unlinked)

    def release_link(self, link: Link, *, peacefully: bool) -> None:
        if link.context is not None and link.context.is_work:
            self._unlinked_ms = UNLINKED_MS
            self._unlinked.wait_until(self.namespace.clock.now_ms() + UNLINKED_MS)
        super().release_link(link, peacefully=peacefully)

    def _on_unlinked(self) -> None:
        if not any(link.context is not None and link.context.is_work for link in self.links):
            text = f"The connection was closed by container '{self.namespace.name}_G0' because it did not have any "
            self.fail(ConnectionIdle(f"{text}active links in the past {self._unlinked_ms} milliseconds."))

    def release(self, *, peacefully: bool) -> None:
        super().release(peacefully=peacefully)
        self._unlinked.cancel()

    def watch_idle(self, link: Link) -> Deadline:
        """Detach a link ten minutes after its last use; credit alone does not count as use."""
        return self.namespace.deadline(LINK_IDLE_MS, partial(self._on_idle, link))

    def _on_idle(self, link: Link) -> None:
        role = "Publisher" if link.IS_RECEIVER else "Consumer"
        text = f"The link '{link.name}' is force detached. Code: {role.lower()}. "
        self.close_link(link, LinkIdle(f"{text}Details: AmqpMessage{role}.IdleTimerExpired: Idle timeout: 00:10:00."))

    def end_session(self, session: LinkSession, *, peacefully: bool) -> None:
        super().end_session(session, peacefully=peacefully)
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


class CoordinatorLink(LinkEndpoint):
    """A control link: a client declares and discharges transactions on it. Those left are rolled back with it."""

    _link: ReceivingLink
    is_work = True

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
