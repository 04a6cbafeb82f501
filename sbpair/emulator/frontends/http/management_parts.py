"""Parts that Atom and Resource Manager share: decoding of requests, and collections of entities.

A slow or large body fails its own request only.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from sbpair.emulator.access_tokens import AccessRight, AuthorizationRule, path_of
from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.queue import QueueEntity, entity_not_found
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.frontends.http.description_elements import (
    HYBRID_CONNECTION,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    DescriptionSchema,
    format_value,
    from_elements,
    read_values,
)
from sbpair.emulator.relay.hybrid_connection import HybridConnection, HybridConnectionDescription
from sbpair.emulator.service_errors import ArgumentInvalid, EntityNotFound, ForwardTargetMissing, ServiceError
from sbpair.timespan import instant

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.rules import SubscriptionRule

ManagedEntity: TypeAlias = QueueEntity | HybridConnection
FORWARDS: Final = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
MAX_PAGE: Final = 100
MAX_BODY_BYTES: Final = 64 * 1024
MAX_BODY_SECONDS: Final = 30.0


def split_target(request: web.BaseRequest) -> tuple[str, str]:
    """Return the request's path, unquoted, and its query. Two slashes at the start do not begin a host name."""
    raw = request.raw_path
    if not raw.startswith("/"):
        raw = raw.partition("://")[2].partition("/")[2]
    path, _, query = raw.partition("?")
    return unquote(path), query


def read_query(query: str) -> dict[str, str]:
    """Return the query's parameters, names in lower case."""
    return {name.lower(): value for name, value in parse_qsl(query, keep_blank_values=True)}


def read_page(query: Mapping[str, str], invalid: Callable[[str], ServiceError]) -> tuple[int, int]:
    """Return `$skip` and `$top` of a list request. Raises `invalid(message)`."""

    def number(name: str, default: int) -> int:
        text = query.get(name, str(default))
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise invalid(f"The value '{text[:40]}' of {name} is not a whole number from 0.")
        return int(text)

    return number("$skip", 0), min(number("$top", MAX_PAGE), MAX_PAGE)


async def read_body(request: web.BaseRequest, *, seconds: float = MAX_BODY_SECONDS) -> bytes:
    """Return the whole body. Raises ArgumentInvalid, at once if the declared length is too large."""
    too_large = ArgumentInvalid(f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.content.iter_any():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError as error:
        raise ArgumentInvalid(f"The request body did not arrive within {seconds:g} seconds.") from error
    except ConnectionError as error:
        raise ArgumentInvalid("The request ended before its body did.") from error
    return bytes(body)


def read_rights(names: Iterable[str]) -> frozenset[AccessRight]:
    try:
        return frozenset(AccessRight(name) for name in names)
    except ValueError as error:
        raise ArgumentInvalid("An authorization rule's rights are Manage, Send and Listen.") from error


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


@dataclass(frozen=True, slots=True)
class EntityCollection:
    """The queues, topics or hybrid connections of a namespace, or the subscriptions of a topic."""

    namespace: Namespace
    schema: DescriptionSchema
    default: Any
    all: Callable[[], Sequence[ManagedEntity]]
    find: Callable[[str], ManagedEntity | None]
    create: Callable[..., ManagedEntity]

    def get(self, name: str) -> ManagedEntity:
        """Return the entity of this name. Raises EntityNotFound."""
        entity = self.find(name)
        if entity is None:
            raise entity_not_found(self.namespace.endpoint, name)
        return entity

    def put(
        self,
        name: str,
        values: Mapping[str, str],
        existing: ManagedEntity | None,
        rules: tuple[AuthorizationRule, ...],
        authority: str,
        *first_rule: SubscriptionRule,
    ) -> ManagedEntity:
        """Create an entity, or update the existing one. Raises OperationTimedOut if a partition of it is down."""
        wanted = self.describe(values, existing, rules, authority)
        self._check_forwards(wanted, existing)
        if existing is None:
            return self.create(name, wanted, *first_rule)
        existing.check_all_partitions()
        existing.update(wanted)
        return existing

    def describe(
        self,
        values: Mapping[str, str],
        existing: ManagedEntity | None,
        rules: tuple[AuthorizationRule, ...],
        authority: str,
    ) -> Any:
        """Return the requested description. Targets of forwarding become whole addresses within `authority`."""
        before: Any = existing.description if existing else None
        if self.schema is HYBRID_CONNECTION:
            given = {"user_metadata": None, **read_values(self.schema, values)}
            return replace(before or self.default, authorization_rules=rules, **given)
        targets = {name: values[name].strip() for name in FORWARDS if values.get(name)}
        whole = {name: _whole_address(target, authority) for name, target in targets.items()}
        space = self.namespace
        return from_elements(self.schema, self.default, {**values, **whole}, before, rules, space.tier, space.name)

    def _check_forwards(self, wanted: object, existing: ManagedEntity | None) -> None:
        """Raise ForwardTargetMissing for a new target of forwarding that does not exist."""
        for name in (name for name in FORWARDS if name in self.schema.settable):
            target = format_value(wanted, name)
            if target is None or (existing is not None and target == format_value(existing.description, name)):
                continue
            try:
                self.namespace.find_target(target)
            except EntityNotFound as error:
                path = path_of(target)[:300]
                text = f"The auto forwarding destination entity '{path}' does not exist."
                raise ForwardTargetMissing(text) from error


def _whole_address(target: str, authority: str) -> str:
    """Return an entity's address, with scheme and host in lower case and the path as it was written."""
    scheme, separator, rest = target.partition("://")
    if not separator:
        return f"sb://{authority}/{target.strip('/')}"
    host, slash, path = rest.partition("/")
    return f"{scheme.lower()}://{host.lower()}{slash}{path}"


def queues_of(space: Namespace) -> EntityCollection:
    return EntityCollection(space, QUEUE, QueueDescription(), space.queues, space.find_queue, space.create_queue)


def topics_of(space: Namespace) -> EntityCollection:
    return EntityCollection(space, TOPIC, TopicDescription(), space.topics, space.find_topic, space.create_topic)


def subscriptions_of(space: Namespace, topic: TopicEntity) -> EntityCollection:
    methods = (lambda: topic.subscriptions, topic.find_subscription, topic.create_subscription)
    return EntityCollection(space, SUBSCRIPTION, SubscriptionDescription(), *methods)


def hybrid_connections_of(space: Namespace) -> EntityCollection:
    home = space.hybrid_connections
    return EntityCollection(space, HYBRID_CONNECTION, HybridConnectionDescription(), home.all, home.find, home.create)


def reported(entity: ManagedEntity) -> dict[str, Any]:
    """Return the values that only the service sets, by element. Each kind of description has some of them."""
    times = {"CreatedAt": instant(entity.created_at_ms), "UpdatedAt": instant(entity.updated_at_ms)}
    if isinstance(entity, HybridConnection):
        return {**times, "ListenerCount": len(entity.listeners)}
    counts = entity.counts()
    values: dict[str, Any] = {
        **times,
        "AccessedAt": instant(entity.accessed_at_ms),
        "CountDetails": {
            "ActiveMessageCount": counts.active,
            "DeadLetterMessageCount": counts.dead_letter,
            "ScheduledMessageCount": counts.scheduled,
            "TransferMessageCount": counts.transfer,
            "TransferDeadLetterMessageCount": counts.transfer_dead_letter,
        },
        "MessageCount": counts.total,
        "SizeInBytes": entity.size_bytes,
    }
    if isinstance(entity, TopicEntity):
        values["SubscriptionCount"] = len(entity.subscriptions)
    return values
