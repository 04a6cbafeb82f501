"""Descriptions of entities: properties with their defaults, the values derived from them, and their limits. Pure.

The limits are the service's own, by tier. A Premium namespace has one messaging unit for each of its partitions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from sbpair.emulator.access_tokens import AccessRight, AuthorizationRule
from sbpair.emulator.clock import NEVER
from sbpair.emulator.service_errors import MANAGEMENT_HELP, ArgumentInvalid
from sbpair.timespan import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_MS, TICKS_PER_SECOND

MEGABYTE: Final = 1024 * 1024
PARTITIONS: Final = 16
INT32_MAX: Final = 0x7FFF_FFFF

Duration = int
"""A field in ticks, which requests write as text such as PT1M."""


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The properties that a client can set, with the defaults of a Standard namespace."""

    lock_duration: Duration = TICKS_PER_MINUTE
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: Duration = MAX_TICKS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: Duration = 10 * TICKS_PER_MINUTE
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = "Active"
    forward_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle: Duration = MAX_TICKS
    enable_partitioning: bool = False
    forward_dead_lettered_messages_to: str | None = None
    enable_express: bool = False
    max_message_size_in_kilobytes: int = 256
    partitions: int = 1
    """The partitions of the namespace: no client sets it, and sizes are not multiplied by it."""

    @property
    def lock_ms(self) -> int:
        return max(1, self.lock_duration // TICKS_PER_MS)

    @property
    def ttl_ms(self) -> int:
        """The time to live; NEVER for TimeSpan.MaxValue."""
        ticks = self.default_message_time_to_live
        return NEVER if ticks == MAX_TICKS else ticks // TICKS_PER_MS

    @property
    def partition_count(self) -> int:
        return PARTITIONS if self._has_own_partitions else self.partitions

    @property
    def _has_own_partitions(self) -> bool:
        return self.enable_partitioning and self.partitions == 1

    @property
    def auto_delete_on_idle_ms(self) -> int:
        return NEVER if self.auto_delete_on_idle == MAX_TICKS else self.auto_delete_on_idle // TICKS_PER_MS

    @property
    def duplicate_detection_window_ms(self) -> int:
        return self.duplicate_detection_history_time_window // TICKS_PER_MS

    @property
    def total_size_in_megabytes(self) -> int:
        """The size that the service reports: each of a partitioned entity's 16 partitions has the requested size."""
        return self.max_size_in_megabytes * (PARTITIONS if self._has_own_partitions else 1)


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


@dataclass(frozen=True, slots=True)
class EmulatedTier:
    """Limits of one tier. `partitions` are the counts that a namespace can have. `partitioned_entities` have 16."""

    name: str
    sizes_in_megabytes: tuple[int, ...]
    default_message_kilobytes: int
    max_message_kilobytes: int
    entities: int
    partitioned_entities: int
    partitions: tuple[int, ...]
    has_all_features: bool = True
    max_ttl: int = MAX_TICKS


_GIGABYTES: Final = (1024, 2048, 3072, 4096, 5120)
_MORE_GIGABYTES: Final = (10_240, 20_480, 40_960, 81_920)

BASIC: Final = EmulatedTier("Basic", _GIGABYTES, 256, 256, 10_000, 100, (1,), False, 14 * TICKS_PER_DAY)
STANDARD: Final = EmulatedTier("Standard", _GIGABYTES, 256, 256, 10_000, 100, (1,))
PREMIUM: Final = EmulatedTier("Premium", _GIGABYTES + _MORE_GIGABYTES, 1024, 102_400, 1_000, 0, (1, 2, 4))

TIERS: Final = {tier.name.lower(): tier for tier in (BASIC, STANDARD, PREMIUM)}


D = TypeVar("D", bound=QueueDescription)


def default_of(description: D, tier: EmulatedTier) -> D:
    """Return `description` with the defaults of a tier."""
    return replace(
        description,
        default_message_time_to_live=tier.max_ttl,
        max_message_size_in_kilobytes=tier.default_message_kilobytes,
    )


# Limits

STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_MAX_PATH: Final = 260
_MAX_RULES: Final = 12
_SUBSCRIPTION_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_MAX_SUBSCRIPTION_NAME: Final = 50


def validate(description: QueueDescription, tier: EmulatedTier = STANDARD, namespace: str = "") -> None:
    """Raise ArgumentInvalid, with the property's name, for a value outside the limits of the tier."""
    d = description
    week = 7 * TICKS_PER_DAY
    window = d.duplicate_detection_history_time_window
    _require(0 < d.lock_duration <= 5 * TICKS_PER_MINUTE, "LockDuration", "more than zero and at most 5 minutes")
    if d.max_size_in_megabytes not in tier.sizes_in_megabytes:
        raise ArgumentInvalid(
            f"The specified value {d.max_size_in_megabytes} is invalid. The property MaxSizeInMegabytes, must be one "
            f"of the following values: {';'.join(map(str, tier.sizes_in_megabytes))}. {MANAGEMENT_HELP}"
        )
    _require(d.default_message_time_to_live >= TICKS_PER_SECOND, "DefaultMessageTimeToLive", "at least 1 second")
    _require(
        20 * TICKS_PER_SECOND <= window <= week, "DuplicateDetectionHistoryTimeWindow", "from 20 seconds to 7 days"
    )
    _require(1 <= d.max_delivery_count <= INT32_MAX, "MaxDeliveryCount", f"from 1 to {INT32_MAX}")
    _require(d.status in STATUSES, "Status", "one of " + ", ".join(STATUSES))
    _require(len(d.user_metadata or "") <= 1024, "UserMetadata", "at most 1024 characters")
    _require(d.auto_delete_on_idle >= 5 * TICKS_PER_MINUTE, "AutoDeleteOnIdle", "at least 5 minutes")
    low, high = tier.default_message_kilobytes, tier.max_message_kilobytes
    if low == high != d.max_message_size_in_kilobytes:
        raise ArgumentInvalid(f"Bad Request. {MANAGEMENT_HELP}")
    if not low <= d.max_message_size_in_kilobytes <= high:
        raise ArgumentInvalid(
            f"The property value for 'MaxMessageSizeInKilobytes' must be between {low} and {high} when the namespace "
            f"'{namespace}' is using '{tier.name}' tier."
        )
    _validate_tier(d, tier)
    if isinstance(d, SubscriptionDescription):
        _require(not (d.requires_session and d.forward_to), "ForwardTo", "empty where sessions are required")
    check_authorization_rules(d.authorization_rules)


def _validate_tier(d: QueueDescription, tier: EmulatedTier) -> None:
    _require(d.default_message_time_to_live <= tier.max_ttl, "DefaultMessageTimeToLive", "at most 14 days")
    if tier.has_all_features:
        return
    standard_only = {
        "RequiresSession": d.requires_session,
        "RequiresDuplicateDetection": d.requires_duplicate_detection,
        "ForwardTo": d.forward_to,
        "ForwardDeadLetteredMessagesTo": d.forward_dead_lettered_messages_to,
    }
    for name, value in standard_only.items():
        if value:
            raise ArgumentInvalid(f"The property {name} is not supported in the {tier.name} tier.")


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    names = {rule.key_name for rule in rules}
    _require(len(rules) <= _MAX_RULES, "AuthorizationRules", f"at most {_MAX_RULES} rules")
    _require(len(names) == len(rules), "AuthorizationRules", "rules with different key names")
    for rule in rules:
        _require(0 < len(rule.key_name) <= 256, "KeyName", "1 to 256 characters")
        _require(bool(rule.primary_key and rule.secondary_key), "PrimaryKey", "not empty")
        complete = AccessRight.MANAGE not in rule.rights or len(rule.rights) == len(AccessRight)
        _require(bool(rule.rights) and complete, "Rights", "one or more of Manage, Send and Listen, all with Manage")


def _require(holds: bool, name: str, allowed: str) -> None:
    if not holds:
        raise ArgumentInvalid(f"The value of {name} is not allowed: it must be {allowed}.")


def check_path(path: str) -> None:
    """Raise ArgumentInvalid for an invalid entity path."""
    if len(path) > _MAX_PATH:
        raise ArgumentInvalid(f"The entity path is {len(path)} characters long, the maximum is {_MAX_PATH}.")
    _check_form(_PATH, path)


def check_subscription_name(name: str) -> None:
    """Raise ArgumentInvalid for an invalid subscription name."""
    if not 0 < len(name) <= _MAX_SUBSCRIPTION_NAME:
        raise ArgumentInvalid(
            f"The name of a subscription has 1 to {_MAX_SUBSCRIPTION_NAME} characters, not {len(name)}."
        )
    _check_form(_SUBSCRIPTION_NAME, name)


def _check_form(form: re.Pattern[str], name: str) -> None:
    if form.fullmatch(name) is None:
        raise ArgumentInvalid(
            f"'{name}' contains character(s) that is not allowed by Service Bus. Entity segments can contain only "
            f"letters, numbers, periods (.), hyphens (-), and underscores (_). {MANAGEMENT_HELP}"
        )
