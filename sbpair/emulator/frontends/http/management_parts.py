"""Parts that Atom and Resource Manager share: decoding of requests, and collections of entities.

A slow or large body fails its own request only.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from sbpair.amqp_server.refusals import ArgumentInvalid, ServiceError
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule, path_of
from sbpair.emulator.entities.description import (
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    DescriptionSchema,
    EmulatedTier,
    default_of,
    pascal,
    validate,
)
from sbpair.emulator.entities.queue import QueueEntity, entity_not_found
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.relay.hybrid_connection import HYBRID_CONNECTION, HybridConnection
from sbpair.emulator.service_errors import EntityNotFound, ForwardTargetMissing
from sbpair.timespan import instant

if TYPE_CHECKING:
    from aiohttp import web

    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.rules import SubscriptionRule

ManagedEntity: TypeAlias = QueueEntity | HybridConnection
MAX_PAGE: Final = 100
MAX_BODY_BYTES: Final = 64 * 1024


def split_target(request: web.BaseRequest) -> tuple[str, str]:
    """Return the request's path, unquoted, and its query. Two slashes at the start do not begin a host name."""
    path, _, query = request.raw_path.partition("?")
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


async def read_body(request: web.BaseRequest) -> bytes:
    """Return the whole body. Raises ArgumentInvalid, at once if the declared length is too large."""
    too_large = ArgumentInvalid(f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async for part in request.content.iter_any():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise too_large
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


# Collections of entities


@dataclass(frozen=True, slots=True)
class EntityCollection:
    """The queues, topics or hybrid connections of a namespace, or the subscriptions of a topic."""

    namespace: Namespace
    schema: DescriptionSchema
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
        authority: str = "",
        *first_rule: SubscriptionRule,
    ) -> ManagedEntity:
        """Create an entity, or update the existing one. Raises OperationTimedOut if a partition of it is down."""
        before = existing.description if existing else None
        wanted = self.describe(values, before, rules, authority)
        self._check_forwards(wanted, before)
        if existing is None:
            return self.create(name, wanted, *first_rule)
        existing.check_all_partitions()
        existing.update(wanted)
        return existing

    def describe(
        self,
        values: Mapping[str, str],
        before: Any = None,
        rules: tuple[AuthorizationRule, ...] = (),
        authority: str = "",
        tier: EmulatedTier | None = None,
    ) -> Any:
        """Return the requested description, in place of the one `before`. Omitted properties are the default.

        Targets of forwarding become whole addresses: those without a host are in `authority`, or the namespace. The
        limits are those of `tier`, or the namespace. Raises ArgumentInvalid for a value that is malformed, outside
        them, or may not change.
        """
        schema, space = self.schema, self.namespace
        given, tier = schema.read(values), tier or space.tier
        if schema is HYBRID_CONNECTION:
            return replace(before or schema.default, authorization_rules=rules, **{"user_metadata": None, **given})
        for each in schema.forwards:
            if given.get(each.field):
                given[each.field] = _whole_address(given[each.field].strip(), authority or space.authority)
        if before is not None:
            given["partitions"] = before.partitions
            if given.get("max_size_in_megabytes") == before.total_size_in_megabytes:
                # Clients send back what they have read: the size of all partitions.
                given["max_size_in_megabytes"] = before.max_size_in_megabytes
            schema.keep_fixed(given, before)
        wanted = replace(default_of(schema.default, tier), authorization_rules=rules, **given)
        validate(wanted, tier, space.name)
        return wanted

    def _check_forwards(self, wanted: object, before: object) -> None:
        """Raise ForwardTargetMissing for a new target of forwarding that does not exist."""
        for each in self.schema.forwards:
            target = each.value(wanted)
            if not target or (before and target == each.value(before)):
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
    return EntityCollection(space, QUEUE, space.queues, space.find_queue, space.create_queue)


def topics_of(space: Namespace) -> EntityCollection:
    return EntityCollection(space, TOPIC, space.topics, space.find_topic, space.create_topic)


def subscriptions_of(space: Namespace, topic: TopicEntity) -> EntityCollection:
    methods = (lambda: topic.subscriptions, topic.find_subscription, topic.create_subscription)
    return EntityCollection(space, SUBSCRIPTION, *methods)


def hybrid_connections_of(space: Namespace) -> EntityCollection:
    home = space.hybrid_connections
    return EntityCollection(space, HYBRID_CONNECTION, home.all, home.find, home.create)


def reported(entity: ManagedEntity) -> dict[str, Any]:
    """Return the values that only the service sets, by element. Each kind of description has some of them."""
    times = {"CreatedAt": instant(entity.created_at_ms), "UpdatedAt": instant(entity.updated_at_ms)}
    if isinstance(entity, HybridConnection):
        return {**times, "ListenerCount": len(entity.listeners)}
    counts = entity.counts()
    values: dict[str, Any] = {
        **times,
        "AccessedAt": instant(entity.accessed_at_ms),
        "CountDetails": {f"{pascal(name)}MessageCount": number for name, number in asdict(counts).items()},
        "MessageCount": counts.total,
        "SizeInBytes": entity.size_bytes,
    }
    if isinstance(entity, TopicEntity):
        values["SubscriptionCount"] = len(entity.subscriptions)
    return values
