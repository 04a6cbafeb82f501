"""Hybrid connections: the relay's entities, found by the longest prefix of a path, and the choice of a listener.

Invariant: nothing here knows HTTP or WebSockets.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.amqp_server.refusals import ArgumentInvalid, Unauthenticated, Unauthorized
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule, Grant, parse_token, verify_token
from sbpair.emulator.bearer_tokens import bearer_in
from sbpair.emulator.clock import token_ms
from sbpair.emulator.entities.description import (
    FLAG,
    TEXT,
    DescriptionSchema,
    check_authorization_rules,
    check_path,
    row,
)
from sbpair.emulator.relay.relay_messages import RelayRefused, endpoint_not_found, no_listeners
from sbpair.emulator.service_errors import EntityExists

if TYPE_CHECKING:
    from sbpair.emulator.entities.queue import EntitySpace

AUDIENCES: Final = ("https://relay.azure.net",)
MAX_LISTENERS: Final = 25
MAX_METADATA: Final = 1024


class ConnectedListener(Protocol):
    """A listener that is connected to an entity. `listener_id` is the GUID that it chose, or one of the emulator's."""

    listener_id: str

    def close(self, code: int, reason: str) -> None: ...
    def expire_token(self) -> None: ...
    def abort(self) -> None: ...


class WaitingSender(Protocol):
    """A request or a WebSocket of a sender that a listener can meet."""

    def break_off(self) -> None:
        """End the sender's connection without an answer."""


@dataclass(frozen=True, slots=True)
class HybridConnectionDescription:
    """The properties of a hybrid connection that can be set, and its authorization rules."""

    requires_client_authorization: bool = row(FLAG, True)
    user_metadata: str | None = row(TEXT, None)
    authorization_rules: tuple[AuthorizationRule, ...] = ()

    def check(self) -> None:
        """Raise ArgumentInvalid for a value that the service refuses."""
        if len(self.user_metadata or "") > MAX_METADATA:
            raise ArgumentInvalid(f"The value of UserMetadata is not allowed: at most {MAX_METADATA} characters.")
        check_authorization_rules(self.authorization_rules)


HYBRID_CONNECTION: Final = DescriptionSchema(
    "HybridConnection",
    HybridConnectionDescription(),
    "CreatedAt UpdatedAt RequiresClientAuthorization UserMetadata ListenerCount",
)


class HybridConnection:
    """One entity and its connected listeners."""

    def __init__(self, namespace: EntitySpace, home: dict[str, HybridConnection], path: str) -> None:
        self.path = path
        self.description = HybridConnectionDescription()
        self.created_at_ms = self.updated_at_ms = namespace.clock.now_ms()
        self.listeners: list[ConnectedListener] = []
        self._namespace = namespace
        self._home = home

    @property
    def key(self) -> str:
        return self.path.lower()

    def check_room(self) -> None:
        """Raise RelayRefused if no more listener can connect."""
        if len(self.listeners) >= MAX_LISTENERS:
            raise RelayRefused(403, "QuotaExceeded", f"The endpoint already has {MAX_LISTENERS} listeners.")

    def update(self, description: HybridConnectionDescription) -> None:
        """Replace the description. Raises ArgumentInvalid."""
        description.check()
        if self.description.requires_client_authorization != description.requires_client_authorization:
            raise ArgumentInvalid("The property RequiresClientAuthorization of an existing endpoint cannot be changed.")
        self.description = description
        self.updated_at_ms = self._namespace.clock.now_ms()
        self._namespace.observer.namespace_changed()

    def delete(self) -> None:
        """Delete the entity and close the control channels of its listeners."""
        del self._home[self.key]
        for listener in list(self.listeners):
            listener.close(1001, "The endpoint was deleted.")
        self._namespace.observer.namespace_changed()

    is_limited = False

    def check_all_partitions(self) -> None:
        """Do nothing: an endpoint has no partitions."""


class HybridConnections:
    """The hybrid connections of a namespace, and the senders that wait for a listener, by id.

    `chance` chooses among listeners, and tests may set one with a seed.
    """

    def __init__(self, namespace: EntitySpace) -> None:
        self._namespace = namespace
        self._by_key: dict[str, HybridConnection] = {}
        self.chance = random.Random()  # noqa: S311  # balance, not secrecy
        self.waiting: dict[str, WaitingSender] = {}
        namespace.on_outage.add(self.break_off)

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def all(self) -> list[HybridConnection]:
        """Return all hybrid connections, in order of their paths."""
        return [each for _, each in sorted(self._by_key.items())]

    def break_off(self) -> None:
        """End the connections of all senders that wait."""
        for each in list(self.waiting.values()):
            each.break_off()

    def find(self, path: str) -> HybridConnection | None:
        return self._by_key.get(path.strip("/").lower())

    def find_within(self, path: str) -> HybridConnection | None:
        """Return the entity with the longest path that `path` is, or is below."""
        key = path.strip("/").lower()
        while key and key not in self._by_key:
            key = key.rpartition("/")[0]
        return self._by_key.get(key)

    def create(self, path: str, description: HybridConnectionDescription | None = None) -> HybridConnection:
        """Create an entity. Raises ArgumentInvalid for its path or description, EntityExists for a name in use."""
        path, description = path.strip("/"), description or HybridConnectionDescription()
        check_path(path)
        description.check()
        if self.find(path) is not None or self._namespace.is_taken(path):
            raise EntityExists(f"The specified messaging entity '{path}' already exists.")
        created = self._by_key[path.lower()] = HybridConnection(self._namespace, self._by_key, path)
        created.description = description
        self._namespace.observer.namespace_changed()
        return created

    def choose(
        self, entity: HybridConnection, allowed: str | None = None, disallowed: str | None = None
    ) -> ConnectedListener:
        """Choose a listener at random, among those of the ids in `allowed`, or not in `disallowed`.

        Raises RelayRefused if there is none.
        """
        if not entity.listeners:
            raise no_listeners()
        wanted, unwanted = _ids(allowed), _ids(disallowed) or ()
        fitting = [
            each
            for each in entity.listeners
            if (wanted is None or each.listener_id.lower() in wanted) and each.listener_id.lower() not in unwanted
        ]
        if not fitting:
            raise endpoint_not_found(
                "None of the connected listeners meet the AllowedListeners/DisallowedListeners criteria."
            )
        return self.chance.choice(fitting)

    def authorize(self, token: str | None, right: AccessRight, path: str, entity: HybridConnection) -> Grant:
        """Return the grant of a token that has `right` on `path`, the entity's or below. Raises RelayRefused."""
        if not token:
            text = "MissingToken: The relay security token is missing."
            raise RelayRefused(401, "TokenMissingOrInvalid", text)
        now_ms = token_ms(self._namespace.clock)
        # Not `scope_of`: a path below an entity can hold what looks like a URL.
        path = path.strip("/").lower()
        try:
            self._namespace.fault_points.check_access(by_key=bearer_in(token) is None)
            grant = self._grant(token, path, entity, now_ms)
            grant.require(right, path, now_ms)
            self._namespace.fault_points.check_token(now_ms)
        except Unauthorized as error:
            # A token that is valid, but not for this path or action.
            raise RelayRefused(403, "Forbidden", error.message) from error
        except Unauthenticated as error:
            # The text is the reason phrase, too.
            raise RelayRefused(401, "TokenMissingOrInvalid", error.message.partition("\n")[0]) from error
        return grant

    def _grant(self, token: str, path: str, entity: HybridConnection, now_ms: int) -> Grant:
        bearer = bearer_in(token)
        if bearer is not None:
            return self._namespace.bearers.grant(bearer, now_ms, AUDIENCES)
        parsed = parse_token(token)
        # The keys of an entity sign for it and what is below, not for the namespace.
        is_within = f"{parsed.scope}/".startswith(f"{entity.key}/")
        own: Sequence[AuthorizationRule] = entity.description.authorization_rules if is_within else ()
        return verify_token(parsed, [("", rule) for rule in (*self._namespace.keys, *own)], path, now_ms)


def _ids(text: str | None) -> frozenset[str] | None:
    """Return the listener ids of a header, in lower case."""
    return None if text is None else frozenset(each.strip().lower() for each in text.split(",") if each.strip())
