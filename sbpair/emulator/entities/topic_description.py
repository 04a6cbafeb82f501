"""The descriptions of topics and subscriptions: properties, defaults, elements in the service's order.

Both extend the description of a queue, since all three share one engine.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from sbpair.emulator.entities.description import QueueDescription
from sbpair.emulator.entities.description_schema import SETTABLE, DescriptionSchema
from sbpair.emulator.service_errors import ArgumentInvalid

MAX_SUBSCRIPTION_NAME: Final = 50
_SUBSCRIPTION_NAME = re.compile(r"[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class TopicDescription(QueueDescription):
    """The description of a topic. The fields of a queue that concern receiving have no meaning here."""

    filtering_messages_before_publishing: bool = False
    support_ordering: bool = True
    enable_subscription_partitioning: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(QueueDescription):
    """The description of a subscription. Size and duplicate detection have no meaning here: they are the topic's."""

    dead_lettering_on_filter_evaluation_exceptions: bool = True


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
    # The official SDKs write these in different places.
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


def check_subscription_name(name: str) -> None:
    """Raise ArgumentInvalid for an invalid subscription name."""
    if not 0 < len(name) <= MAX_SUBSCRIPTION_NAME:
        raise ArgumentInvalid(
            f"The name of a subscription has 1 to {MAX_SUBSCRIPTION_NAME} characters, not {len(name)}."
        )
    if _SUBSCRIPTION_NAME.fullmatch(name) is None:
        raise ArgumentInvalid(
            f"'{name}' contains characters that are not allowed in the name of a subscription: "
            "use letters, digits, '.', '-' and '_'."
        )
