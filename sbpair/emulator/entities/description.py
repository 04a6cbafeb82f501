"""What a queue is: its properties, their defaults, the service's limits on them, and what an update may change.

Pure data and decisions. Element names and their order are the service's own (DataContract order); durations are ticks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeVar

from sbpair.emulator import timespan
from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.namespace_tiers import STANDARD, EmulatedTier
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.emulator.timespan import MAX_TICKS, TICKS_PER_DAY, TICKS_PER_MINUTE, TICKS_PER_MS, TICKS_PER_SECOND

MEGABYTE: Final = 1024 * 1024
PARTITIONS: Final = 16
INT32_MAX: Final = 0x7FFF_FFFF
STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
_PATH = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_PATH_LIMIT = 260
_RULES_LIMIT = 12


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The properties that a client can set, with the defaults of a Standard namespace."""

    lock_duration: int = TICKS_PER_MINUTE
    max_size_in_megabytes: int = 1024
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live: int = MAX_TICKS
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window: int = 10 * TICKS_PER_MINUTE
    max_delivery_count: int = 10
    enable_batched_operations: bool = True
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = "Active"
    forward_to: str | None = None
    user_metadata: str | None = None
    auto_delete_on_idle: int = MAX_TICKS
    enable_partitioning: bool = False
    forward_dead_lettered_messages_to: str | None = None
    enable_express: bool = False
    max_message_size_in_kilobytes: int = 256
    partitions: int = 1
    """What the namespace divides every entity into: no client sets it, and sizes are not multiplied by it."""

    @property
    def lock_ms(self) -> int:
        return max(1, self.lock_duration // TICKS_PER_MS)

    @property
    def ttl_ms(self) -> int:
        """NEVER for TimeSpan.MaxValue, and for all that ends after the calendar does."""
        ticks = self.default_message_time_to_live
        return NEVER if ticks == MAX_TICKS else ticks // TICKS_PER_MS

    @property
    def partition_count(self) -> int:
        return PARTITIONS if self._partitioned_by_itself else self.partitions

    @property
    def _partitioned_by_itself(self) -> bool:
        return self.enable_partitioning and self.partitions == 1

    @property
    def auto_delete_on_idle_ms(self) -> int:
        return NEVER if self.auto_delete_on_idle == MAX_TICKS else self.auto_delete_on_idle // TICKS_PER_MS

    @property
    def duplicate_detection_window_ms(self) -> int:
        return self.duplicate_detection_history_time_window // TICKS_PER_MS

    @property
    def total_size_in_megabytes(self) -> int:
        """What the service reports: each of a partitioned entity's 16 partitions has the size that was asked for."""
        return self.max_size_in_megabytes * (PARTITIONS if self._partitioned_by_itself else 1)


D = TypeVar("D", bound=QueueDescription)
Kind = Literal["duration", "int", "bool", "text"]
Settable = Mapping[str, tuple[str, Kind]]

SETTABLE: Final[Settable] = {
    "LockDuration": ("lock_duration", "duration"),
    "MaxSizeInMegabytes": ("max_size_in_megabytes", "int"),
    "RequiresDuplicateDetection": ("requires_duplicate_detection", "bool"),
    "RequiresSession": ("requires_session", "bool"),
    "DefaultMessageTimeToLive": ("default_message_time_to_live", "duration"),
    "DeadLetteringOnMessageExpiration": ("dead_lettering_on_message_expiration", "bool"),
    "DuplicateDetectionHistoryTimeWindow": ("duplicate_detection_history_time_window", "duration"),
    "MaxDeliveryCount": ("max_delivery_count", "int"),
    "EnableBatchedOperations": ("enable_batched_operations", "bool"),
    "Status": ("status", "text"),
    "ForwardTo": ("forward_to", "text"),
    "UserMetadata": ("user_metadata", "text"),
    "AutoDeleteOnIdle": ("auto_delete_on_idle", "duration"),
    "EnablePartitioning": ("enable_partitioning", "bool"),
    "ForwardDeadLetteredMessagesTo": ("forward_dead_lettered_messages_to", "text"),
    "EnableExpress": ("enable_express", "bool"),
    "MaxMessageSizeInKilobytes": ("max_message_size_in_kilobytes", "int"),
}
"""Element -> (field, kind). AuthorizationRules is settable too, and has a form of its own."""

ELEMENTS: Final = (
    "LockDuration",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
    "RequiresSession",
    "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration",
    "DuplicateDetectionHistoryTimeWindow",
    "MaxDeliveryCount",
    "EnableBatchedOperations",
    "SizeInBytes",
    "MessageCount",
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
    "AutoDeleteOnIdle",
    "EnablePartitioning",
    "EntityAvailabilityStatus",
    "ForwardDeadLetteredMessagesTo",
    "EnableExpress",
    "MaxMessageSizeInKilobytes",
)

UNORDERED: Final = frozenset({"ForwardTo", "UserMetadata", "ForwardDeadLetteredMessagesTo"})
"""The official SDKs of Python, JavaScript and .NET each write these in another place; the service takes them all."""

IMMUTABLE: Final = ("RequiresDuplicateDetection", "RequiresSession", "EnablePartitioning")


def check_order(
    names: list[str],
    elements: tuple[str, ...] = ELEMENTS,
    unordered: frozenset[str] = UNORDERED,
    entity: str = "QueueDescription",
) -> None:
    """ArgumentInvalid where an element is unknown, comes twice, or not in the service's order."""
    last = -1
    for name in names:
        if name not in elements:
            raise ArgumentInvalid(f"The element '{name}' is not one of {entity}.")
        if names.count(name) > 1:
            raise ArgumentInvalid(f"The element '{name}' is given more than once.")
        if name in unordered:
            continue
        if elements.index(name) < last:
            raise ArgumentInvalid(f"The element '{name}' of {entity} is not in its place in the order.")
        last = elements.index(name)


def from_elements(
    values: Mapping[str, str],
    rules: tuple[AuthorizationRule, ...],
    existing: QueueDescription | None,
    tier: EmulatedTier = STANDARD,
) -> QueueDescription:
    """The description that a request asks for; what it leaves out is default, or as it was where it cannot change.

    Raises ArgumentInvalid for a value that cannot be read, or is outside the service's limits, or cannot change.
    """
    fields: dict[str, object] = {"authorization_rules": rules}
    for name, (field, _) in SETTABLE.items():
        if name in values:
            fields[field] = read_value(name, values[name])
        elif existing is not None and name in IMMUTABLE:
            fields[field] = getattr(existing, field)
    if existing is not None:
        fields["partitions"] = existing.partitions
    # read_value gives the field's type
    description = replace(default_of(QueueDescription(), tier), **fields)  # type: ignore[arg-type]
    validate(description, tier)
    if existing is not None:
        check_update(existing, description)
    return description


def read_value(name: str, text: str, settable: Settable = SETTABLE) -> int | bool | str | None:
    kind = settable[name][1]
    text = text.strip() if kind != "text" else text
    try:
        if kind == "duration":
            return timespan.parse(text)
        if kind == "int":
            return _integer(text)
        if kind == "bool":
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except (ValueError, KeyError) as error:
        raise ArgumentInvalid(f"The value '{text[:100]}' of {name} cannot be read as {_KINDS[kind]}.") from error
    return text or None if name != "Status" else text


_KINDS: Final[dict[Kind, str]] = {
    "duration": "a duration such as PT1M",
    "int": "a whole number",
    "bool": "true or false",
    "text": "text",
}


def _integer(text: str) -> int:
    if len(text) > 20:
        raise ValueError("too many digits")
    return int(text)


def format_value(description: QueueDescription, name: str, settable: Settable = SETTABLE) -> str | None:
    """The text of one settable element, as the service gives it back; None where it is not set."""
    field, kind = settable[name]
    value = getattr(description, field)
    if name == "MaxSizeInMegabytes":
        value = description.total_size_in_megabytes
    if value is None:
        return None
    if kind == "duration":
        return timespan.show(value)
    return str(value).lower() if kind == "bool" else str(value)


def default_of(description: D, tier: EmulatedTier) -> D:
    """What a tier has by itself where a request says nothing."""
    return replace(
        description,
        default_message_time_to_live=tier.max_ttl,
        max_message_size_in_kilobytes=tier.default_message_kilobytes,
    )


def validate(description: QueueDescription, tier: EmulatedTier = STANDARD) -> None:
    """ArgumentInvalid, naming the property, where a value is outside the limits of the namespace's tier."""
    d = description
    week = 7 * TICKS_PER_DAY
    window = d.duplicate_detection_history_time_window
    _limit(0 < d.lock_duration <= 5 * TICKS_PER_MINUTE, "LockDuration", "more than zero and at most 5 minutes")
    *sizes, largest = tier.sizes_in_megabytes
    allowed = f"{', '.join(map(str, sizes))} or {largest}"
    _limit(d.max_size_in_megabytes in tier.sizes_in_megabytes, "MaxSizeInMegabytes", allowed)
    _limit(d.default_message_time_to_live >= TICKS_PER_SECOND, "DefaultMessageTimeToLive", "at least 1 second")
    _limit(20 * TICKS_PER_SECOND <= window <= week, "DuplicateDetectionHistoryTimeWindow", "from 20 seconds to 7 days")
    _limit(1 <= d.max_delivery_count <= INT32_MAX, "MaxDeliveryCount", f"from 1 to {INT32_MAX}")
    _limit(d.status in STATUSES, "Status", "one of " + ", ".join(STATUSES))
    _limit(len(d.user_metadata or "") <= 1024, "UserMetadata", "at most 1024 characters")
    _limit(d.auto_delete_on_idle >= 5 * TICKS_PER_MINUTE, "AutoDeleteOnIdle", "at least 5 minutes")
    minimum, limit = tier.default_message_kilobytes, tier.max_message_kilobytes
    allowed = f"{minimum if minimum == limit else f'from {minimum} to {limit}'} in a {tier.name} namespace"
    _limit(minimum <= d.max_message_size_in_kilobytes <= limit, "MaxMessageSizeInKilobytes", allowed)
    _validate_tier(d, tier)
    _limit(not (d.requires_session and d.forward_to), "ForwardTo", "empty where sessions are required")
    check_authorization_rules(d.authorization_rules)


def _validate_tier(d: QueueDescription, tier: EmulatedTier) -> None:
    _limit(d.default_message_time_to_live <= tier.max_ttl, "DefaultMessageTimeToLive", "at most 14 days")
    if tier.has_all_features:
        return
    for name in ("RequiresSession", "RequiresDuplicateDetection", "ForwardTo", "ForwardDeadLetteredMessagesTo"):
        if getattr(d, SETTABLE[name][0]):
            raise ArgumentInvalid(f"The property {name} is not supported in the {tier.name} tier.")


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    names = {rule.key_name for rule in rules}
    _limit(len(rules) <= _RULES_LIMIT, "AuthorizationRules", f"at most {_RULES_LIMIT} rules")
    _limit(len(names) == len(rules), "AuthorizationRules", "rules with different key names")
    for rule in rules:
        _limit(0 < len(rule.key_name) <= 256, "KeyName", "1 to 256 characters")
        _limit(bool(rule.primary_key and rule.secondary_key), "PrimaryKey", "not empty")
        whole = AccessRight.MANAGE not in rule.rights or len(rule.rights) == len(AccessRight)
        _limit(bool(rule.rights) and whole, "Rights", "one or more of Manage, Send and Listen, all with Manage")


def _limit(holds: bool, name: str, allowed: str) -> None:
    if not holds:
        raise ArgumentInvalid(f"The value of {name} is not allowed: it must be {allowed}.")


def check_update(
    existing: QueueDescription,
    wanted: QueueDescription,
    immutable: tuple[str, ...] = IMMUTABLE,
    entity: str = "Queue",
) -> None:
    for name in immutable:
        field = SETTABLE[name][0]
        if getattr(existing, field) != getattr(wanted, field):
            raise ArgumentInvalid(f"The value for the {name} property of an existing {entity} cannot be changed.")


def check_path(path: str) -> None:
    """ArgumentInvalid where no entity can have this path."""
    if len(path) > _PATH_LIMIT:
        raise ArgumentInvalid(f"The entity path is {len(path)} characters long and may be {_PATH_LIMIT} at most.")
    if _PATH.fullmatch(path) is None:
        raise ArgumentInvalid(
            f"'{path}' contains characters that are not allowed in an entity path: "
            "use letters, digits, '.', '-', '_', and '/' between segments."
        )
