"""The tokens, or the key, and the transactions that a client has made known on one connection.

A session whose control link was attached before any link to an entity is a transaction group, as with the service: the
first entity of its links is the one by way of which its other links send. Paths are in lower case.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sbpair.emulator.access_tokens import AccessRight, Grant, covers, expired_token, scope_of
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.transaction import Transaction
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    EntityFull,
    NotAllowed,
    TransactionUnknown,
    Unauthorized,
)

if TYPE_CHECKING:
    from sbpair.amqp.link import LinkSession
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity

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
        self._grants[""] = Grant(name, rule.rights, "")
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
    """The transactions of one connection, and its transaction groups: each a session, with its first entity."""

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
