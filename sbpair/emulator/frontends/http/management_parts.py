"""Parts that Atom and Resource Manager share: decoding of requests, elements of descriptions, collections of entities.

The elements have an order and values, and some of them a client sets. A slow or large body fails its own request only.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote

from sbpair.emulator.access_tokens import AccessRight, AuthorizationRule, path_of
from sbpair.emulator.entities.description import (
    STANDARD,
    EmulatedTier,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    default_of,
    validate,
)
from sbpair.emulator.entities.queue import QueueEntity, entity_not_found
from sbpair.emulator.entities.topic import TopicEntity
from sbpair.emulator.relay.hybrid_connection import HybridConnection, HybridConnectionDescription
from sbpair.emulator.service_errors import ArgumentInvalid, EntityNotFound, ForwardTargetMissing, ServiceError
from sbpair.timespan import instant
from sbpair.timespan import parse as parse_timespan
from sbpair.timespan import show as show_timespan

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


async def read_body(request: web.BaseRequest) -> bytes:
    """Return the whole body. Raises ArgumentInvalid, at once if the declared length is too large."""
    too_large = ArgumentInvalid(f"The request body is larger than {MAX_BODY_BYTES} bytes.")
    if (request.content_length or 0) > MAX_BODY_BYTES:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(MAX_BODY_SECONDS):
            async for part in request.content.iter_any():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise too_large
    except TimeoutError as error:
        raise ArgumentInvalid(f"The request body did not arrive within {MAX_BODY_SECONDS:g} seconds.") from error
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


# Elements of descriptions

Kind = Literal["duration", "int", "bool", "text"]
Settable = Mapping[str, tuple[str, Kind]]

_KINDS: Final[dict[object, Kind]] = {
    "Duration": "duration",
    "int": "int",
    "bool": "bool",
    "str": "text",
    "str | None": "text",
}
"""By the type of a description's field."""

ELEMENTS: Final = (
    "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount",
    "EnableBatchedOperations", "SizeInBytes", "MessageCount", "IsAnonymousAccessible", "AuthorizationRules", "Status",
    "ForwardTo", "CreatedAt", "UpdatedAt", "AccessedAt", "UserMetadata", "SupportOrdering", "CountDetails",
    "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus", "ForwardDeadLetteredMessagesTo",
    "EnableExpress", "MaxMessageSizeInKilobytes",
)  # fmt: skip

_TOPIC_ELEMENTS: Final = (
    "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "SizeInBytes",
    "FilteringMessagesBeforePublishing", "IsAnonymousAccessible", "AuthorizationRules", "Status", "ForwardTo",
    "CreatedAt", "UpdatedAt", "AccessedAt", "UserMetadata", "SupportOrdering", "CountDetails", "SubscriptionCount",
    "AutoDeleteOnIdle", "EnablePartitioning", "EntityAvailabilityStatus", "EnableSubscriptionPartitioning",
    "EnableExpress", "MaxMessageSizeInKilobytes", "SqlFilterCount", "CorrelationFilterCount",
)  # fmt: skip

_SUBSCRIPTION_ELEMENTS: Final = (
    "LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions", "DefaultRuleDescription", "MessageCount", "MaxDeliveryCount",
    "EnableBatchedOperations", "Status", "ForwardTo", "CreatedAt", "UpdatedAt", "AccessedAt", "UserMetadata",
    "CountDetails", "ForwardDeadLetteredMessagesTo", "AutoDeleteOnIdle", "EntityAvailabilityStatus",
)  # fmt: skip

UNORDERED: Final = frozenset({"ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo"})
"""Elements that the SDKs of Python, JavaScript and .NET write in different places; the service accepts all."""


@dataclass(frozen=True, slots=True)
class DescriptionSchema:
    """The elements of an entity's description in order, and which of them a client sets or may not change."""

    entity: str
    default: Any
    elements: tuple[str, ...]
    settable: Settable
    unordered: frozenset[str]
    immutable: tuple[str, ...]

    @property
    def element(self) -> str:
        return f"{self.entity}Description"

    def check_order(self, names: list[str]) -> None:
        """Raise ArgumentInvalid if an element is unknown, repeated or out of order."""
        last = -1
        for name in names:
            if name not in self.elements:
                raise ArgumentInvalid(f"The element '{name}' is not one of {self.element}.")
            if names.count(name) > 1:
                raise ArgumentInvalid(f"The element '{name}' is given more than once.")
            if name in self.unordered:
                continue
            if self.elements.index(name) < last:
                raise ArgumentInvalid(f"The element '{name}' of {self.element} is not in its place in the order.")
            last = self.elements.index(name)


def _settable(description: type[Any], elements: tuple[str, ...]) -> Settable:
    """Return field and kind by element, of those that are fields of the description."""
    by_element = {field.name.title().replace("_", ""): field for field in fields(description)}
    return {
        name: (field.name, _KINDS[field.type])
        for name, field in by_element.items()
        if name in elements and field.type in _KINDS
    }


QUEUE: Final = DescriptionSchema(
    "Queue",
    QueueDescription(),
    ELEMENTS,
    _settable(QueueDescription, ELEMENTS),
    UNORDERED,
    ("RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning"),
)
TOPIC: Final = DescriptionSchema(
    "Topic",
    TopicDescription(),
    _TOPIC_ELEMENTS,
    _settable(TopicDescription, tuple(name for name in _TOPIC_ELEMENTS if name != "ForwardTo")),
    frozenset({"ForwardTo", "UserMetadata", "SqlFilterCount", "CorrelationFilterCount"}),
    ("RequiresDuplicateDetection", "EnablePartitioning"),
)
SUBSCRIPTION: Final = DescriptionSchema(
    "Subscription",
    SubscriptionDescription(),
    _SUBSCRIPTION_ELEMENTS,
    _settable(SubscriptionDescription, _SUBSCRIPTION_ELEMENTS),
    UNORDERED | {"DefaultRuleDescription", "AutoDeleteOnIdle", "EntityAvailabilityStatus"},
    ("RequiresSession",),
)
_RELAY_ELEMENTS: Final = ("CreatedAt", "UpdatedAt", "RequiresClientAuthorization", "UserMetadata", "ListenerCount")
HYBRID_CONNECTION: Final = DescriptionSchema(
    "HybridConnection",
    HybridConnectionDescription(),
    _RELAY_ELEMENTS,
    _settable(HybridConnectionDescription, _RELAY_ELEMENTS),
    frozenset(),
    (),
)


def read_values(schema: DescriptionSchema, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values by the field of the description. Raises ArgumentInvalid."""
    return {
        field: _read_value(name, values[name], kind)
        for name, (field, kind) in schema.settable.items()
        if name in values
    }


def from_elements(
    schema: DescriptionSchema,
    values: Mapping[str, str],
    existing: QueueDescription | None,
    rules: tuple[AuthorizationRule, ...] = (),
    tier: EmulatedTier = STANDARD,
    namespace: str = "",
) -> QueueDescription:
    """Return the requested description. Omitted elements are the default, immutable ones keep their value.

    Raises ArgumentInvalid for a value that is malformed, outside the service's limits, or may not change.
    """
    given = read_values(schema, values)
    if existing is not None:
        given["partitions"] = existing.partitions
        if given.get("max_size_in_megabytes") == existing.total_size_in_megabytes:
            # Clients send back what they have read: the size of all partitions.
            given["max_size_in_megabytes"] = existing.max_size_in_megabytes
        for name in schema.immutable:
            field, _ = schema.settable[name]
            if given.setdefault(field, getattr(existing, field)) != getattr(existing, field):
                text = f"The value for the {name} property of an existing {schema.entity} cannot be changed."
                partitioning = schema is TOPIC and name == "EnablePartitioning"
                raise ArgumentInvalid("Partitioning cannot be changed for Topic. " if partitioning else text)
    description: QueueDescription = replace(default_of(schema.default, tier), authorization_rules=rules, **given)
    validate(description, tier, namespace)
    return description


def _read_value(name: str, text: str, kind: Kind) -> int | bool | str | None:
    text = text.strip() if kind != "text" else text
    try:
        if kind == "duration":
            return parse_timespan(text)
        if kind == "int":
            return int(text)
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except (ValueError, KeyError) as error:
        raise ArgumentInvalid(f"The value '{text[:100]}' of {name} cannot be read as {_KIND_TEXTS[kind]}.") from error
    return text or None if name != "Status" else text


_KIND_TEXTS: Final[dict[Kind, str]] = {
    "duration": "a duration such as PT1M",
    "int": "a whole number",
    "bool": "true or false",
    "text": "text",
}


def format_value(description: object, name: str, settable: Settable = QUEUE.settable) -> str | None:
    """Return the text of one settable element, as the service writes it; None if it is not set."""
    field, kind = settable[name]
    value = getattr(description, field)
    if name == "MaxSizeInMegabytes" and isinstance(description, QueueDescription):
        value = description.total_size_in_megabytes
    if value is None:
        return None
    if kind == "duration":
        return show_timespan(value)
    return str(value).lower() if kind == "bool" else str(value)


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
        existing: ManagedEntity | None = None,
        rules: tuple[AuthorizationRule, ...] = (),
        authority: str = "",
    ) -> Any:
        """Return the requested description. Targets of forwarding become whole addresses.

        Those without a host are in `authority`, by default that of the namespace.
        """
        before: Any = existing.description if existing else None
        if self.schema is HYBRID_CONNECTION:
            given = {"user_metadata": None, **read_values(self.schema, values)}
            return replace(before or self.schema.default, authorization_rules=rules, **given)
        targets = {name: values[name].strip() for name in FORWARDS if values.get(name)}
        whole = {
            name: _whole_address(target, authority or self.namespace.authority) for name, target in targets.items()
        }
        space = self.namespace
        return from_elements(self.schema, {**values, **whole}, before, rules, space.tier, space.name)

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
