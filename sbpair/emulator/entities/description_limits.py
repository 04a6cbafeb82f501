"""The service's limits on descriptions, authorization rules and paths. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities.description import INT32_MAX
from sbpair.emulator.entities.namespace_tiers import STANDARD, EmulatedTier
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.emulator.timespan import TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_SECOND

if TYPE_CHECKING:
    from sbpair.emulator.entities.description import QueueDescription

STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_MAX_PATH: Final = 260
_MAX_RULES: Final = 12


def validate(description: QueueDescription, tier: EmulatedTier = STANDARD) -> None:
    """Raise ArgumentInvalid, with the property's name, for a value outside the limits of the tier."""
    d = description
    week = 7 * TICKS_PER_DAY
    window = d.duplicate_detection_history_time_window
    _require(0 < d.lock_duration <= 5 * TICKS_PER_MINUTE, "LockDuration", "more than zero and at most 5 minutes")
    *sizes, largest = tier.sizes_in_megabytes
    allowed = f"{', '.join(map(str, sizes))} or {largest}"
    _require(d.max_size_in_megabytes in tier.sizes_in_megabytes, "MaxSizeInMegabytes", allowed)
    _require(d.default_message_time_to_live >= TICKS_PER_SECOND, "DefaultMessageTimeToLive", "at least 1 second")
    _require(
        20 * TICKS_PER_SECOND <= window <= week, "DuplicateDetectionHistoryTimeWindow", "from 20 seconds to 7 days"
    )
    _require(1 <= d.max_delivery_count <= INT32_MAX, "MaxDeliveryCount", f"from 1 to {INT32_MAX}")
    _require(d.status in STATUSES, "Status", "one of " + ", ".join(STATUSES))
    _require(len(d.user_metadata or "") <= 1024, "UserMetadata", "at most 1024 characters")
    _require(d.auto_delete_on_idle >= 5 * TICKS_PER_MINUTE, "AutoDeleteOnIdle", "at least 5 minutes")
    low, high = tier.default_message_kilobytes, tier.max_message_kilobytes
    allowed = f"{low if low == high else f'from {low} to {high}'} in a {tier.name} namespace"
    _require(low <= d.max_message_size_in_kilobytes <= high, "MaxMessageSizeInKilobytes", allowed)
    _validate_tier(d, tier)
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
    if _PATH.fullmatch(path) is None:
        raise ArgumentInvalid(
            f"'{path}' contains characters that are not allowed in an entity path: "
            "use letters, digits, '.', '-', '_', and '/' between segments."
        )
