"""The properties of queues, topics and subscriptions in one table, with the values derived from them. Pure.

A row is a field of a description: its default and, by `row`, its form, limits and use. Its name gives all others: for
`lock_duration`, LockDuration in Atom and Config.json, and lockDuration in Resource Manager. A data file has the fields'
own names. The limits are the service's, by tier. A Premium namespace has one messaging unit for each of its partitions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, NamedTuple, TypeVar

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.clock import NEVER
from sbpair.emulator.service_errors import MANAGEMENT_HELP
from sbpair.timespan import MAX_TICKS, TICKS_PER_MS, parse, show
from sbpair.timespan import TICKS_PER_DAY as DAY
from sbpair.timespan import TICKS_PER_MINUTE as MINUTE
from sbpair.timespan import TICKS_PER_SECOND as SECOND

MEGABYTE: Final = 1024 * 1024
PARTITIONS: Final = 16
INT32_MAX: Final = 0x7FFF_FFFF
STATUSES: Final = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")

T = TypeVar("T")


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
    deleted_at_once: int = 500
    min_window: int = 20 * SECOND


_GIGABYTES: Final = (1024, 2048, 3072, 4096, 5120)
_MORE_GIGABYTES: Final = (10_240, 20_480, 40_960, 81_920)

BASIC: Final = EmulatedTier("Basic", _GIGABYTES, 256, 256, 10_000, 100, (1,), False, 14 * DAY)
STANDARD: Final = EmulatedTier("Standard", _GIGABYTES, 256, 256, 10_000, 100, (1,))
PREMIUM: Final = EmulatedTier(
    "Premium", _GIGABYTES + _MORE_GIGABYTES, 1024, 102_400, 1_000, 0, (1, 2, 4), deleted_at_once=4_000
)

TIERS: Final = {tier.name.lower(): tier for tier in (BASIC, STANDARD, PREMIUM)}

# Rows


def text_of(value: object) -> str:
    """Return the text of a value in JSON."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Form(NamedTuple):
    """A form of values: its words in errors, its type in JSON, and how its text is read and written."""

    words: str
    json: type
    read: Callable[[str], Any]
    write: Callable[[Any], str] = text_of


_FLAGS: Final = {"true": True, "1": True, "false": False, "0": False}

DURATION: Final = Form("a duration such as PT1M", str, parse, show)
"""In ticks."""
NUMBER: Final = Form("a whole number", int, int)
FLAG: Final = Form("true or false", bool, lambda text: _FLAGS[text.strip().lower()])
WORD: Final = Form("text", str, str)
TEXT: Final = Form("text", str, lambda text: text or None)
ADDRESS: Final = Form("a target of forwarding", str, lambda text: text or None)

Check = Callable[[str, Any, EmulatedTier, str], None]
"""Raises ArgumentInvalid for a property of this name and value, in a namespace of this tier and name."""


class Property(NamedTuple):
    """A row. A fixed one keeps the value that the entity was created with, and a request for another is refused.

    `in_arm`: whether Resource Manager has it; None where it has that property if Atom does. `shown` is the attribute
    that answers show, if it is not the field.
    """

    field: str
    form: Form
    check: Check | None = None
    is_fixed: bool = False
    in_basic: bool = True
    in_arm: bool | None = None
    shown: str = ""

    @property
    def name(self) -> str:
        return pascal(self.field)

    def read(self, text: str) -> Any:
        """Return the value of a text. Raises ArgumentInvalid."""
        try:
            return self.form.read(text)
        except (ValueError, KeyError) as error:
            given = f"The value '{text.strip()[:100]}' of {self.name}"
            raise ArgumentInvalid(f"{given} cannot be read as {self.form.words}.") from error

    def value(self, description: object) -> Any:
        return getattr(description, self.shown or self.field)

    def text(self, description: object) -> str | None:
        """Return the value as the service writes it; None if it is not set."""
        value = self.value(description)
        return None if value is None else self.form.write(value)


def row(form: Form, default: T, check: Check | None = None, **more: Any) -> T:
    """Return a field of a description; `more` are other members of `Property`."""
    return field(default=default, metadata={"form": form, "check": check, **more})


def _require(holds: bool, name: str, allowed: str) -> None:
    if not holds:
        raise ArgumentInvalid(f"The value of {name} is not allowed: it must be {allowed}.")


def _limit(allowed: str, holds: Callable[[Any], bool]) -> Check:
    return lambda name, value, *_: _require(holds(value), name, allowed)


def _check_window(name: str, value: int, tier: EmulatedTier, _: str) -> None:
    _require(tier.min_window <= value <= 7 * DAY, name, "from 20 seconds to 7 days")


def _check_size(name: str, value: int, tier: EmulatedTier, _: str) -> None:
    if value not in tier.sizes_in_megabytes:
        raise ArgumentInvalid(
            f"The specified value {value} is invalid. The property {name}, must be one "
            f"of the following values: {';'.join(map(str, tier.sizes_in_megabytes))}. {MANAGEMENT_HELP}"
        )


def _check_message_size(name: str, value: int, tier: EmulatedTier, namespace: str) -> None:
    low, high = tier.default_message_kilobytes, tier.max_message_kilobytes
    if low == high != value:
        raise ArgumentInvalid(f"Bad Request. {MANAGEMENT_HELP}")
    if not low <= value <= high:
        raise ArgumentInvalid(
            f"The property value for '{name}' must be between {low} and {high} when the namespace "
            f"'{namespace}' is using '{tier.name}' tier."
        )


# Descriptions


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """The properties that a client can set, with the defaults of a Standard namespace."""

    lock_duration: int = row(
        DURATION, MINUTE, _limit("more than zero and at most 5 minutes", lambda it: 0 < it <= 5 * MINUTE)
    )
    max_size_in_megabytes: int = row(NUMBER, 1024, _check_size, shown="total_size_in_megabytes")
    requires_duplicate_detection: bool = row(FLAG, False, is_fixed=True, in_basic=False)
    requires_session: bool = row(FLAG, False, is_fixed=True, in_basic=False)
    default_message_time_to_live: int = row(
        DURATION, MAX_TICKS, _limit("at least 1 second", lambda it: it >= SECOND), in_basic=False
    )
    dead_lettering_on_message_expiration: bool = row(FLAG, False)
    duplicate_detection_history_time_window: int = row(
        DURATION, 10 * MINUTE, _check_window, in_arm=True, in_basic=False
    )
    max_delivery_count: int = row(NUMBER, 10, _limit(f"from 1 to {INT32_MAX}", lambda it: 1 <= it <= INT32_MAX))
    enable_batched_operations: bool = row(FLAG, True)
    authorization_rules: tuple[AuthorizationRule, ...] = ()
    status: str = row(WORD, "Active", _limit("one of " + ", ".join(STATUSES), lambda it: it in STATUSES))
    forward_to: str | None = row(ADDRESS, None, in_basic=False)
    user_metadata: str | None = row(TEXT, None, _limit("at most 1024 characters", lambda it: len(it or "") <= 1024))
    auto_delete_on_idle: int = row(
        DURATION, MAX_TICKS, _limit("at least 5 minutes", lambda it: it >= 5 * MINUTE), in_basic=False
    )
    enable_partitioning: bool = row(FLAG, False, is_fixed=True)
    forward_dead_lettered_messages_to: str | None = row(ADDRESS, None, in_basic=False)
    enable_express: bool = row(FLAG, False, in_basic=False)
    max_message_size_in_kilobytes: int = row(NUMBER, 256, _check_message_size)
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

    forward_to: str | None = None
    """No row: a request may have the element, which is ignored."""
    filtering_messages_before_publishing: bool = row(FLAG, False, in_arm=False)
    support_ordering: bool = row(FLAG, True)
    enable_subscription_partitioning: bool = row(FLAG, False, in_arm=False)


@dataclass(frozen=True, slots=True)
class SubscriptionDescription(QueueDescription):
    """The description of a subscription. Size and duplicate detection have no meaning here: they are the topic's."""

    dead_lettering_on_filter_evaluation_exceptions: bool = row(FLAG, True)


D = TypeVar("D", bound=QueueDescription)


def default_of(description: D, tier: EmulatedTier) -> D:
    """Return `description` with the defaults of a tier."""
    return replace(
        description,
        default_message_time_to_live=tier.max_ttl,
        max_message_size_in_kilobytes=tier.default_message_kilobytes,
    )


class DescriptionSchema:
    """The elements of an entity's description in the service's order, and its properties by their names.

    `unordered` are accepted in any place: the SDKs of Python, JavaScript and .NET write them in different ones.
    """

    def __init__(self, entity: str, default: Any, elements: str, unordered: str = "") -> None:
        self.entity, self.element = entity, f"{entity}Description"
        self.default = default
        self.elements = elements.split()
        self._unordered = unordered.split()
        rows = [Property(each.name, **each.metadata) for each in fields(default) if each.metadata]
        self.properties = {each.name: each for each in rows if each.name in self.elements}
        also = [each for each in rows if each.in_arm]
        of_arm = [each for each in (*self.properties.values(), *also) if each.in_arm is not False]
        self.in_arm = {camel(each.name): each for each in of_arm}
        self.forwards = [each for each in self.properties.values() if each.form is ADDRESS]

    def check_order(self, names: list[str]) -> None:
        """Raise ArgumentInvalid if an element is unknown, repeated or out of order."""
        last = -1
        for name in names:
            if name not in self.elements:
                raise ArgumentInvalid(f"The element '{name}' is not one of {self.element}.")
            if names.count(name) > 1:
                raise ArgumentInvalid(f"The element '{name}' is given more than once.")
            if name in self._unordered:
                continue
            if self.elements.index(name) < last:
                raise ArgumentInvalid(f"The element '{name}' of {self.element} is not in its place in the order.")
            last = self.elements.index(name)

    def read(self, values: Mapping[str, str]) -> dict[str, Any]:
        """Return the given values by the field of the description. Raises ArgumentInvalid."""
        return {each.field: each.read(values[name]) for name, each in self.properties.items() if name in values}

    def keep_fixed(self, given: dict[str, Any], before: object) -> None:
        """Add the values of fixed properties, by field. Raises ArgumentInvalid where others are given."""
        for each in self.properties.values():
            value = getattr(before, each.field)
            if each.is_fixed and given.setdefault(each.field, value) != value:
                text = f"The value for the {each.name} property of an existing {self.entity} cannot be changed."
                of_topic = "Partitioning cannot be changed for Topic. "
                raise ArgumentInvalid(of_topic if (self.entity, each.name) == ("Topic", "EnablePartitioning") else text)


def pascal(name: str) -> str:
    """Return a name in the form of Atom."""
    return name.title().replace("_", "")


def camel(name: str) -> str:
    """Return a name in Resource Manager's form."""
    return name[0].lower() + name[1:]


QUEUE: Final = DescriptionSchema(
    "Queue",
    QueueDescription(),
    """LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive
    DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations
    SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo CreatedAt UpdatedAt AccessedAt
    UserMetadata SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus
    ForwardDeadLetteredMessagesTo EnableExpress MaxMessageSizeInKilobytes""",
    "ForwardTo UserMetadata ForwardDeadLetteredMessagesTo",
)
TOPIC: Final = DescriptionSchema(
    "Topic",
    TopicDescription(),
    """DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow
    EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible AuthorizationRules
    Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata SupportOrdering CountDetails SubscriptionCount
    AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress
    MaxMessageSizeInKilobytes SqlFilterCount CorrelationFilterCount""",
    "ForwardTo UserMetadata SqlFilterCount CorrelationFilterCount",
)
SUBSCRIPTION: Final = DescriptionSchema(
    "Subscription",
    SubscriptionDescription(),
    """LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
    DeadLetteringOnFilterEvaluationExceptions DefaultRuleDescription MessageCount MaxDeliveryCount
    EnableBatchedOperations Status ForwardTo CreatedAt UpdatedAt AccessedAt UserMetadata CountDetails
    ForwardDeadLetteredMessagesTo AutoDeleteOnIdle EntityAvailabilityStatus""",
    """ForwardTo UserMetadata ForwardDeadLetteredMessagesTo DefaultRuleDescription AutoDeleteOnIdle
    EntityAvailabilityStatus""",
)


# Limits

_PATH: Final = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_MAX_PATH: Final = 260
_MAX_RULES: Final = 12
_SUBSCRIPTION_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_MAX_SUBSCRIPTION_NAME: Final = 50


def validate(description: QueueDescription, tier: EmulatedTier, namespace: str = "") -> None:
    """Raise ArgumentInvalid, with the property's name, for a value outside the limits of the tier."""
    values = [(each, getattr(description, each.field)) for each in QUEUE.properties.values()]
    for each, value in values:
        if each.check is not None:
            each.check(each.name, value, tier, namespace)
    usual = default_of(QUEUE.default, tier)
    for each, value in values:
        if not (each.in_basic or tier.has_all_features or value == getattr(usual, each.field)):
            raise ArgumentInvalid(
                f"The property '{each.name}' cannot be set when creating a Queue because the namespace '{namespace}' "
                f"is using the '{tier.name}' Tier. This operation is only supported in 'Standard' or 'Premium' tier."
            )
    if isinstance(description, SubscriptionDescription):
        forwards = description.requires_session and description.forward_to
        _require(not forwards, "ForwardTo", "empty where sessions are required")
    check_authorization_rules(description.authorization_rules)


def check_authorization_rules(rules: tuple[AuthorizationRule, ...]) -> None:
    names = {rule.key_name for rule in rules}
    _require(len(rules) <= _MAX_RULES, "AuthorizationRules", f"at most {_MAX_RULES} rules")
    _require(len(names) == len(rules), "AuthorizationRules", "rules with different key names")
    for rule in rules:
        _require(0 < len(rule.key_name) <= 256, "KeyName", "1 to 256 characters")
        _require(bool(rule.primary_key and rule.secondary_key), "PrimaryKey", "not empty")
        complete = AccessRight.MANAGE not in rule.rights or len(rule.rights) == len(AccessRight)
        _require(bool(rule.rights) and complete, "Rights", "one or more of Manage, Send and Listen, all with Manage")


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
