"""What a topic is, and what a subscription is: properties, defaults, limits, and what an update may change.

Pure. Both are told as what a queue is told and a little more, since the engine under all three is one. Elements stand
in the service's own order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sbpair.emulator.entities.description import (
    SETTABLE,
    QueueDescription,
    Settable,
    check_order,
    check_update,
    default_of,
    read_value,
    validate,
)
from sbpair.emulator.entities.namespace_tiers import STANDARD, EmulatedTier
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sbpair.emulator.access.sas import AuthorizationRule

MAX_SUBSCRIPTION_NAME: Final = 50
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TopicDescription(QueueDescription):
    """Of the fields of a queue, those of receiving have no meaning here."""

    filtering_messages_before_publishing: bool = False
    support_ordering: bool = True
    enable_subscription_partitioning: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(QueueDescription):
    """Of the fields of a queue, those of size and of duplicates have no meaning here: they are the topic's."""

    dead_lettering_on_filter_evaluation_exceptions: bool = True


@dataclass(frozen=True, slots=True)
class DescriptionSchema:
    """How an entity's description is written: its elements in order, and which of them a client sets."""

    entity: str
    elements: tuple[str, ...]
    settable: Settable
    unordered: frozenset[str]
    immutable: tuple[str, ...]

    @property
    def element(self) -> str:
        return f"{self.entity}Description"

    def check_order(self, names: list[str]) -> None:
        check_order(names, self.elements, self.unordered, self.element)


def _of_queue(*names: str) -> dict[str, Any]:
    return {name: SETTABLE[name] for name in names}


TOPIC: Final = DescriptionSchema(
    "Topic",
    (
        "DefaultMessageTimeToLive",
        "MaxSizeInMegabytes",
        "RequiresDuplicateDetection",
        "DuplicateDetectionHistoryTimeWindow",
        "EnableBatchedOperations",
        "SizeInBytes",
        "FilteringMessagesBeforePublishing",
        "IsAnonymousAccessible",
        "AuthorizationRules",
        "Status",
        "ForwardTo",
        "UserMetadata",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "SupportOrdering",
        "CountDetails",
        "SubscriptionCount",
        "SqlFilterCount",
        "CorrelationFilterCount",
        "AutoDeleteOnIdle",
        "EnablePartitioning",
        "EntityAvailabilityStatus",
        "EnableSubscriptionPartitioning",
        "EnableExpress",
        "MaxMessageSizeInKilobytes",
    ),
    {
        **_of_queue(
            "DefaultMessageTimeToLive",
            "MaxSizeInMegabytes",
            "RequiresDuplicateDetection",
            "DuplicateDetectionHistoryTimeWindow",
            "EnableBatchedOperations",
            "Status",
            "UserMetadata",
            "AutoDeleteOnIdle",
            "EnablePartitioning",
            "EnableExpress",
            "MaxMessageSizeInKilobytes",
        ),
        "FilteringMessagesBeforePublishing": ("filtering_messages_before_publishing", "bool"),
        "SupportOrdering": ("support_ordering", "bool"),
        "EnableSubscriptionPartitioning": ("enable_subscription_partitioning", "bool"),
    },
    frozenset({"ForwardTo", "UserMetadata"}),
    ("RequiresDuplicateDetection", "EnablePartitioning"),
)

SUBSCRIPTION: Final = DescriptionSchema(
    "Subscription",
    (
        "LockDuration",
        "RequiresSession",
        "DefaultMessageTimeToLive",
        "DeadLetteringOnMessageExpiration",
        "DeadLetteringOnFilterEvaluationExceptions",
        "DefaultRuleDescription",
        "MessageCount",
        "MaxDeliveryCount",
        "EnableBatchedOperations",
        "Status",
        "ForwardTo",
        "CreatedAt",
        "UpdatedAt",
        "AccessedAt",
        "UserMetadata",
        "CountDetails",
        "ForwardDeadLetteredMessagesTo",
        "AutoDeleteOnIdle",
        "EntityAvailabilityStatus",
    ),
    {
        **_of_queue(
            "LockDuration",
            "RequiresSession",
            "DefaultMessageTimeToLive",
            "DeadLetteringOnMessageExpiration",
            "MaxDeliveryCount",
            "EnableBatchedOperations",
            "Status",
            "ForwardTo",
            "UserMetadata",
            "ForwardDeadLetteredMessagesTo",
            "AutoDeleteOnIdle",
        ),
        "DeadLetteringOnFilterEvaluationExceptions": ("dead_lettering_on_filter_evaluation_exceptions", "bool"),
    },
    # The official SDKs write each of these in another place.
    frozenset(
        {
            "DefaultRuleDescription",
            "ForwardTo",
            "UserMetadata",
            "ForwardDeadLetteredMessagesTo",
            "AutoDeleteOnIdle",
            "EntityAvailabilityStatus",
        }
    ),
    ("RequiresSession",),
)

D = TypeVar("D", bound=QueueDescription)


def from_elements(
    shape: DescriptionSchema,
    default: D,
    values: Mapping[str, str],
    existing: D | None,
    rules: tuple[AuthorizationRule, ...] = (),
    tier: EmulatedTier = STANDARD,
) -> D:
    """The description that a request asks for; what it leaves out is default, or as it was where it cannot change.

    Raises ArgumentInvalid as for a queue.
    """
    fields: dict[str, object] = {"authorization_rules": rules}
    for name, (field, _) in shape.settable.items():
        if name in values:
            fields[field] = read_value(name, values[name], shape.settable)
        elif existing is not None and name in shape.immutable:
            fields[field] = getattr(existing, field)
    if existing is not None:
        fields["partitions"] = existing.partitions
    # read_value gives the field's type
    description = replace(default_of(default, tier), **fields)  # type: ignore[arg-type]
    validate(description, tier)
    if existing is not None:
        check_update(existing, description, shape.immutable, shape.entity)
    return description


def check_subscription_name(name: str) -> None:
    """ArgumentInvalid where no subscription can be called so."""
    if not 0 < len(name) <= MAX_SUBSCRIPTION_NAME:
        raise ArgumentInvalid(
            f"The name of a subscription has 1 to {MAX_SUBSCRIPTION_NAME} characters, and not {len(name)}."
        )
    if _SUBSCRIPTION_NAME.fullmatch(name) is None:
        raise ArgumentInvalid(
            f"'{name}' contains characters that are not allowed in the name of a subscription: "
            "use letters, digits, '.', '-' and '_'."
        )
