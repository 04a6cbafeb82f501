"""A namespace: its entities by path, its keys, and whether it is up.

Paths are compared in lower case. Frontends find entities, check tokens and learn of outages here; it knows no protocol.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from sbpair.amqp_server.refusals import ArgumentInvalid, EntityFull
from sbpair.amqp_server.shared_access import (
    AuthorizationRule,
    Grant,
    is_within,
    parse_token,
    path_of,
    scope_of,
    verify_token,
)
from sbpair.emulator.bearer_tokens import bearer_in
from sbpair.emulator.clock import CallSoon, Clock, Runtime, Timers, token_ms
from sbpair.emulator.entities.description import (
    STANDARD,
    D,
    EmulatedTier,
    QueueDescription,
    TopicDescription,
    check_path,
    default_of,
)
from sbpair.emulator.entities.queue import EntitySpace, QueueEntity, entity_not_found, found
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.relay.hybrid_connection import HybridConnections
from sbpair.emulator.service_errors import EntityExists, unwritable

DEAD_LETTER_SEGMENT: Final = "$deadletterqueue"
TRANSFER_SEGMENT: Final = "$transfer"
MANAGEMENT_SEGMENT: Final = "$management"
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,48}[A-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class AddressTarget:
    """The meaning of an address: an entity, one of its sub-queues, and whether it is the management node."""

    entity: QueueEntity
    messages: SubQueue
    management: bool = False

    @property
    def is_dead_letters(self) -> bool:
        return self.messages is not self.entity.messages

    def check_receive(self) -> None:
        """Raise EntityDisabled, or NotAllowed, if nothing can be received from here."""
        self.entity.check_receive()
        if not self.is_dead_letters:
            self.entity.check_not_forwarding("receiver")

    def check_browse(self) -> None:
        """Raise NotAllowed if the messages here cannot be peeked, nor messages be scheduled."""
        if not self.is_dead_letters:
            self.entity.check_not_forwarding("browser")


class Namespace(EntitySpace):
    """The entities of one namespace.

    `call_soon` is the loop's, if there is one. `store_changes` is called before anything is acknowledged; it returns
    False if that cannot be stored, and must not be acknowledged.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        timers: Timers | None = None,
        *,
        call_soon: CallSoon = lambda callback: callback(),
        tier: EmulatedTier = STANDARD,
        partitions: int = 1,
    ) -> None:
        super().__init__(name, Runtime(clock, timers, call_soon))
        self.tier = tier
        self.partitions = partitions
        self.messaging_units = partitions
        self.store_changes: Callable[[], bool] = lambda: True
        self.resource: dict[str, Any] = {}  # members that Resource Manager was given; not stored
        self.created_at_ms = clock.now_ms()
        self._outages = 0
        self.hybrid_connections = HybridConnections(self)

    @property
    def connection_string(self) -> str:
        return self.connection_string_at(self.authority)

    def connection_string_at(self, authority: str) -> str:
        """Return the connection string for a host and port."""
        rule = self.keys[0]
        return (
            f"Endpoint=sb://{authority};SharedAccessKeyName={rule.key_name};"
            f"SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true"
        )

    # Entities

    def create_queue(self, path: str, description: QueueDescription | None = None) -> QueueEntity:
        """Create a queue. Raises ArgumentInvalid (the path), EntityExists, EntityFull (too many entities)."""
        path = self._new_path(path)
        description = self._for_namespace(description or self._default(QueueDescription()))
        queue = self.entities[path.lower()] = QueueEntity(self, path, description)
        self.observer.created(queue)
        return queue

    def create_topic(self, path: str, description: TopicDescription | None = None) -> TopicEntity:
        """Create a topic. Raises the errors of `create_queue`: queues and topics share one set of names."""
        path = self._new_path(path)
        if not self.tier.has_all_features:
            raise ArgumentInvalid(
                f"Cannot operate on type Topic because the namespace '{self.name}' is using '{self.tier.name}' tier."
            )
        description = self._for_namespace(description or self._default(TopicDescription()))
        topic = self.entities[path.lower()] = TopicEntity(self, path, description)
        self.observer.created(topic)
        return topic

    def _new_path(self, path: str) -> str:
        path = path.strip("/")
        check_path(path)
        if self.is_taken(path):
            raise EntityExists(f"The specified messaging entity '{path}' already exists.")
        # A Premium namespace has this limit for each messaging unit.
        limit = self.tier.entities * self.partitions
        if len(self.entities) >= limit:
            raise EntityFull(f"Namespace '{self.name}' already has {limit} entities.")
        return path

    def _for_namespace(self, description: D) -> D:
        """Return the description with the namespace's partitions. Raises an error where it does not fit."""
        description = replace(description, partitions=self.partitions)
        if description.partition_count > 1:
            self.fault_points.check_partitions()
        if not description.enable_partitioning:
            if self.partitions > 1:
                # The service's own words.
                raise ArgumentInvalid(
                    "Non-partitioned entities are not allowed in partitioned namespace. "
                    "The property EnablePartitioning must be set to true."
                )
            return description
        limit = self.tier.partitioned_entities
        if not limit and self.partitions == 1:
            raise ArgumentInvalid(
                f"EnablePartitioning is not supported in the {self.tier.name} tier: the namespace is partitioned "
                f"as a whole there, and '{self.name}' is not partitioned."
            )
        if limit and sum(each.partitions is not None for each in self.entities.values()) >= limit:
            raise EntityFull(f"Namespace '{self.name}' already has {limit} partitioned entities.")
        return description

    def _default(self, description: D) -> D:
        return replace(default_of(description, self.tier), enable_partitioning=self.partitions > 1)

    def find_queue(self, path: str) -> QueueEntity | None:
        entity = self._find(path)
        return None if isinstance(entity, TopicEntity) else entity

    def find_topic(self, path: str) -> TopicEntity | None:
        entity = self._find(path)
        return entity if isinstance(entity, TopicEntity) else None

    def _find(self, path: str) -> QueueEntity | None:
        return self.entities.get(path.strip("/").lower())

    def is_taken(self, path: str) -> bool:
        return super().is_taken(path) or self.hybrid_connections.find(path) is not None

    def queue(self, path: str) -> QueueEntity:
        """Return the queue of this path. Raises EntityNotFound."""
        return found(self.find_queue(path), self.endpoint, path)

    def topic(self, path: str) -> TopicEntity:
        """Return the topic of this path. Raises EntityNotFound."""
        return found(self.find_topic(path), self.endpoint, path)

    def entity(self, path: str) -> QueueEntity:
        """Return the queue, topic or subscription of this path. Raises EntityNotFound."""
        return found(self.find(path), self.endpoint, path)

    def queues(self) -> list[QueueEntity]:
        """Return all queues, in order of their paths."""
        return [each for _, each in sorted(self.entities.items()) if not isinstance(each, TopicEntity)]

    def topics(self) -> list[TopicEntity]:
        """Return all topics, in order of their paths."""
        return [each for _, each in sorted(self.entities.items()) if isinstance(each, TopicEntity)]

    def all_entities(self) -> list[QueueEntity]:
        """Return all queues, then all topics, then their subscriptions."""
        topics = self.topics()
        return [*self.queues(), *topics, *(each for topic in topics for each in topic.subscriptions)]

    def delete_queue(self, path: str) -> None:
        self.queue(path).delete()

    def delete_topic(self, path: str) -> None:
        """Delete a topic and its subscriptions."""
        self.topic(path).delete()

    def resolve(self, address: str, endpoint: str = "") -> AddressTarget:
        """Return the target of an address, bare or as `amqps://host:port/…`. Raises EntityNotFound.

        The error names it at `endpoint`, by default the namespace's own.

        It accepts `queue`, `queue/$deadletterqueue`, `queue/$transfer/$deadletterqueue`, each with `/$management`, and
        the same for `topic/subscriptions/name`. Of these, a topic has no dead letters but those of transfers.
        """
        path = scope_of(address)
        path, management = _without(path, MANAGEMENT_SEGMENT)
        path, dead = _without(path, DEAD_LETTER_SEGMENT)
        path, transfer = _without(path, TRANSFER_SEGMENT) if dead else (path, False)
        entity = self.find(path)
        if entity is None or (dead and not transfer and isinstance(entity, TopicEntity)):
            raise entity_not_found(endpoint or self.endpoint, path_of(address))
        if transfer:
            return AddressTarget(entity, entity.transfer_dead_letters, management)
        return AddressTarget(entity, entity.dead_letters if dead else entity.messages, management)

    # Access

    def authenticate(self, token: str, address: str) -> Grant:
        """Return the grant of a `SharedAccessSignature …` or a bearer token for `address`. Raises Unauthenticated."""
        now_ms, bearer = token_ms(self.clock), bearer_in(token)
        self.fault_points.check_access(by_key=bearer is None)
        if bearer is not None:
            grant = self.bearers.grant(bearer, now_ms)
        else:
            parsed = parse_token(token)
            grant = verify_token(parsed, self._signers(parsed.scope, scope_of(address)), scope_of(address), now_ms)
        self.fault_points.check_token(now_ms)
        return grant

    def _signers(self, scope: str, path: str) -> Iterator[tuple[str, AuthorizationRule]]:
        """Yield the rules, with their owners, that can sign a token of this scope for `path`."""
        for rule in self.keys:
            yield "", rule
        owner = self.owner_of(path)
        if owner and is_within(scope, owner):
            for rule in self.entities[owner].description.authorization_rules:
                yield owner, rule

    def owner_of(self, path: str) -> str:
        """Return the path of the queue or topic that `path` belongs to, "" for none. Its rules sign for this path.

        Both are in lower case. `a/b` does not belong to `a`, whether there is such an entity or not.
        """
        owner = path
        while owner and owner not in self.entities:
            owner = owner.rpartition("/")[0]
        return owner if owner and is_within(path, owner) else ""

    def check_stored(self) -> None:
        """Raise ServerBusy if what was done cannot be stored, where it is stored before it is acknowledged."""
        if not self.store_changes():
            raise unwritable()

    # Outages

    def resume(self) -> None:
        """Wake receivers, and forward the messages that waited: something that was down is up again."""
        for entity in self.all_entities():
            entity.resume()

    @property
    def is_down(self) -> bool:
        return self._outages > 0

    def take_down(self) -> None:
        """Begin an outage. Several may overlap: the namespace is up again when all of them have ended."""
        self._outages += 1
        if self._outages == 1:
            for callback in list(self.on_outage):
                callback()

    def bring_up(self) -> None:
        if not self._outages:
            raise ValueError(f"namespace '{self.name}' is not down")
        self._outages -= 1


def is_namespace_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _without(path: str, part: str) -> tuple[str, bool]:
    """Return the path without `part` as its last segment, and whether it was there."""
    head, _, last = path.rpartition("/")
    return (head, True) if last == part else (path, False)
