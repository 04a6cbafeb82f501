"""The service's limits on entities, checked before a request is made.

Pure. `violations` checks the limits of every namespace, `tier_violations` those of one tier; both yield every fault.
The figures are the service's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from sbpair import backlog
from sbpair.errors import NameInvalid, UsageError
from sbpair.model import tiers
from sbpair.model.entities import (
    DEFAULT_RULE,
    EVERY_MESSAGE,
    AnyEntity,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.queues import QueueSpec
from sbpair.model.tiers import PREMIUM, TIERS, Tier
from sbpair.timespan import TICKS_PER_SECOND, TIMESPAN_MAX, ticks

MINUTE, DAY = 60, 86_400
NAME_LIMIT = 50
EXPRESSION_LIMIT = 1024
METADATA_LIMIT = 1024
MAX_DELIVERIES = 2**31 - 1
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
STANDARD_KILOBYTES, PREMIUM_KILOBYTES = 256, (1024, 102_400)
BASIC_TIME_TO_LIVE = "P14D"

DURATION_LIMITS: dict[str, tuple[float, float | None, str]] = {
    "lock_duration": (0.000_000_1, 5 * MINUTE, "more than nothing and at most 5 minutes"),
    "default_message_time_to_live": (1, None, "at least 1 second"),
    "auto_delete_on_idle": (5 * MINUTE, None, "at least 5 minutes"),
    "duplicate_detection_history_time_window": (20, 7 * DAY, "from 20 seconds to 7 days"),
}
"""The minimum and maximum in seconds (None for no limit), and both in words."""

_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_NOT_IN_BASIC = ("requires_session", "requires_duplicate_detection", "forward_to", "forward_dead_lettered_messages_to")

Fitted = TypeVar("Fitted", bound=AnyEntity)


@dataclass(frozen=True, slots=True)
class LimitViolation:
    """A property that the service would refuse. `name` is its field, empty for the entity as a whole."""

    entity: Described
    name: str
    text: str
    hint: ClassVar[str] = "correct it: the service would refuse the entity"

    @property
    def message(self) -> str:
        of = f"{self.name} of " if self.name else ""
        return f"{of}{self.entity.kind} {self.entity.path}: {self.text}"


def violations(entity: Described) -> Iterator[LimitViolation]:
    """Yield each fault that every namespace would refuse."""
    for check in (_of_name, _of_durations, _of_values, _of_forwards, _of_rule):
        for name, text in check(entity):
            yield LimitViolation(entity, name, text)


def tier_violations(entity: Described, tier: Tier) -> Iterator[LimitViolation]:
    """Yield each fault that a namespace of that tier would refuse. Call `fit_to_tier` on the entity first."""
    for name, text in _of_tier(entity, tier):
        yield LimitViolation(entity, name, f"{text} in a {tier.name} namespace")


def fit_to_tier(entity: Fitted, tier: Tier) -> Fitted:
    """Apply the tier's own default time to live: Basic keeps no message longer than 14 days."""
    if tier.has_everything or isinstance(entity, Rule) or entity.default_message_time_to_live != TIMESPAN_MAX:
        return entity
    return replace(entity, default_message_time_to_live=BASIC_TIME_TO_LIVE)


def without_namespace_partitions(entity: AnyEntity, desired: AnyEntity, tier: Tier) -> AnyEntity:
    """Clear the partitioning of an entity as read, where its Premium namespace imposed it and `desired` has none."""
    imposed = tier.whole_namespace and not getattr(desired, "enable_partitioning", False)
    return replace(entity, enable_partitioning=False) if imposed and isinstance(entity, (Queue, Topic)) else entity


def duration_seconds(duration: str) -> float:
    return ticks(duration) / TICKS_PER_SECOND


_Found = Iterator[tuple[str, str]]


def _of_name(entity: Described) -> _Found:
    if isinstance(entity, (QueueSpec, Topic)):
        yield from _of_path("", entity.path)
        return
    if len(entity.name) > NAME_LIMIT:
        yield "", f"the name has {len(entity.name)} characters, at most {NAME_LIMIT} are allowed"
    elif not _NAME.fullmatch(entity.name) and not (isinstance(entity, Rule) and entity.name == DEFAULT_RULE):
        yield "", "the name may have letters, digits, '.', '-' and '_'"


def _of_path(name: str, path: str) -> _Found:
    try:
        backlog.check_path(path)
    except NameInvalid as error:
        yield name, f"{error.message}: {error.hint}"


def _of_durations(entity: Described) -> _Found:
    for name, (minimum, limit, allowed) in DURATION_LIMITS.items():
        if (given := getattr(entity, name, None)) is None:
            continue
        try:
            length = duration_seconds(given)
        except UsageError as error:
            yield name, f"{error.message}: {error.hint}"
            continue
        if length < minimum or (limit is not None and length > limit):
            yield name, f"expected {allowed}, got {given}"


def _of_values(entity: Described) -> _Found:
    deliveries = getattr(entity, "max_delivery_count", 1)
    if not 1 <= deliveries <= MAX_DELIVERIES:
        yield "max_delivery_count", f"expected 1 to {MAX_DELIVERIES}, got {deliveries}"
    size = getattr(entity, "max_size_in_megabytes", 1024)
    if size not in _sizes(*TIERS):
        yield "max_size_in_megabytes", f"expected {tiers.listed(_sizes(*TIERS))}, got {size}"
    status = getattr(entity, "status", STATUSES[0])
    if status not in STATUSES:
        yield "status", f"expected {tiers.listed(STATUSES)}, got {status!r}"
    metadata = getattr(entity, "user_metadata", "")
    if len(metadata) > METADATA_LIMIT:
        yield "user_metadata", f"it has {len(metadata)} characters, at most {METADATA_LIMIT} are allowed"


def _of_forwards(entity: Described) -> _Found:
    if not isinstance(entity, (QueueSpec, Subscription)):
        return
    own = entity.topic if isinstance(entity, Subscription) else entity.path
    for name in ("forward_to", "forward_dead_lettered_messages_to"):
        target = getattr(entity, name)
        if target:
            yield from _of_path(name, target)
        if target.lower() == own.lower():
            yield name, "it forwards to itself"
    if isinstance(entity, Subscription) and entity.requires_session and entity.forward_to:
        yield "forward_to", "a subscription that requires sessions cannot forward"


def _of_rule(rule: Described) -> _Found:
    if not isinstance(rule, Rule):
        return
    if rule.name == DEFAULT_RULE and (rule.filter != SqlFilter(EVERY_MESSAGE) or rule.action):
        yield "filter", f"{DEFAULT_RULE} is the service's own rule, which accepts every message: choose another name"
    if isinstance(rule.filter, SqlFilter) and not 0 < len(rule.filter.expression) <= EXPRESSION_LIMIT:
        yield "filter", f"a SQL filter has 1 to {EXPRESSION_LIMIT} characters, got {len(rule.filter.expression)}"
    if rule.filter == CorrelationFilter():
        yield "filter", "a correlation filter compares at least one property"
    if len(rule.action) > EXPRESSION_LIMIT:
        yield "action", f"a SQL action has at most {EXPRESSION_LIMIT} characters, got {len(rule.action)}"


def _of_tier(entity: Described, tier: Tier) -> _Found:
    if not tier.has_everything:
        yield from _of_basic(entity)
    size = getattr(entity, "max_size_in_megabytes", 1024)
    if size not in _sizes(tier):
        yield "max_size_in_megabytes", f"expected {tiers.listed(_sizes(tier))}, got {size}"
    kilobytes = getattr(entity, "max_message_size_in_kilobytes", None)
    minimum, limit = PREMIUM_KILOBYTES if tier is PREMIUM else (STANDARD_KILOBYTES, STANDARD_KILOBYTES)
    if kilobytes is not None and not minimum <= kilobytes <= limit:
        allowed = f"{minimum}" if minimum == limit else f"from {minimum} to {limit}"
        yield "max_message_size_in_kilobytes", f"expected {allowed}, got {kilobytes}"


def _of_basic(entity: Described) -> _Found:
    if not isinstance(entity, QueueSpec):
        yield "", f"{entity.kind}s do not exist"
        return
    for name in _NOT_IN_BASIC:
        if getattr(entity, name):
            yield name, "it is not available"
    if duration_seconds(entity.default_message_time_to_live) > 14 * DAY:
        yield "default_message_time_to_live", "it must be at most 14 days"


def _sizes(*of: Tier) -> list[int]:
    return sorted({gigabytes * tiers.MEGABYTES for tier in of for gigabytes in tier.sizes_gb})
