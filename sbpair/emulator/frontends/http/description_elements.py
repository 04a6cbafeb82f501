"""The elements of descriptions in requests and answers: their order, which of them a client sets, and their values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal

from sbpair.emulator.access_tokens import AuthorizationRule
from sbpair.emulator.entities.description import (
    STANDARD,
    D,
    EmulatedTier,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
    default_of,
    validate,
)
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.timespan import parse as parse_timespan
from sbpair.timespan import show as show_timespan

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


SETTABLE: Final = _settable(QueueDescription, ELEMENTS)
"""AuthorizationRules is settable too, in a form of its own."""

QUEUE: Final = DescriptionSchema(
    "Queue", ELEMENTS, SETTABLE, UNORDERED, ("RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning")
)
TOPIC: Final = DescriptionSchema(
    "Topic",
    _TOPIC_ELEMENTS,
    _settable(TopicDescription, tuple(name for name in _TOPIC_ELEMENTS if name != "ForwardTo")),
    frozenset({"ForwardTo", "UserMetadata", "SqlFilterCount", "CorrelationFilterCount"}),
    ("RequiresDuplicateDetection", "EnablePartitioning"),
)
SUBSCRIPTION: Final = DescriptionSchema(
    "Subscription",
    _SUBSCRIPTION_ELEMENTS,
    _settable(SubscriptionDescription, _SUBSCRIPTION_ELEMENTS),
    UNORDERED | {"DefaultRuleDescription", "AutoDeleteOnIdle", "EntityAvailabilityStatus"},
    ("RequiresSession",),
)
_RELAY_ELEMENTS: Final = ("CreatedAt", "UpdatedAt", "RequiresClientAuthorization", "UserMetadata", "ListenerCount")
HYBRID_CONNECTION: Final = DescriptionSchema(
    "HybridConnection", _RELAY_ELEMENTS, _settable(HybridConnectionDescription, _RELAY_ELEMENTS), frozenset(), ()
)


def read_values(schema: DescriptionSchema, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the given values by the field of the description. Raises ArgumentInvalid."""
    settable = schema.settable
    return {field: read_value(name, values[name], settable) for name, (field, _) in settable.items() if name in values}


def from_elements(
    schema: DescriptionSchema,
    default: D,
    values: Mapping[str, str],
    existing: D | None,
    rules: tuple[AuthorizationRule, ...] = (),
    tier: EmulatedTier = STANDARD,
    namespace: str = "",
) -> D:
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
    description = replace(default_of(default, tier), authorization_rules=rules, **given)
    validate(description, tier, namespace)
    return description


def read_value(name: str, text: str, settable: Settable = SETTABLE) -> int | bool | str | None:
    kind = settable[name][1]
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


def format_value(description: object, name: str, settable: Settable = SETTABLE) -> str | None:
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
