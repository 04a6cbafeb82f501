"""The properties of entities in one table. Pure.

A row has all that is known of a property, for every kind of entity; a class has those of its fields, which determine
type and default. A row's name is that of azure-servicebus and of files, and the service's names derive from it. The
limits are the service's own, by tier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import MISSING, fields
from typing import Any, Final, NamedTuple

from sbpair.errors import UsageError
from sbpair.model.entities import CorrelationFilter, Described, Queue, Rule, SqlFilter, Subscription, Topic, pascal
from sbpair.model.queues import QueueSpec
from sbpair.model.tiers import MEGABYTES, Tier, listed
from sbpair.timespan import TICKS_PER_SECOND, ticks

MINUTE = 60 * TICKS_PER_SECOND
INT_MIN, INT_MAX, LONG_MAX = -(2**31), 2**31 - 1, 2**63 - 1
MAX_TEXT = 1024
STATUSES = ("Active", "Disabled", "SendDisabled", "ReceiveDisabled")
IDENTIFYING = frozenset({"path", "topic", "subscription", "name"})
"""The fields that identify an entity; all others are its properties."""


def names_of(entity: Described) -> tuple[str, ...]:
    """Return the names that identify an entity: those of the entities above it, and its own."""
    return tuple(getattr(entity, each.name) for each in fields(entity) if each.name in IDENTIFYING)


class EntityProperty(NamedTuple):
    """A row. `limit` returns why none of some tiers takes a value, "" if one does.

    `is_fixed`: chosen at creation. `is_sent`: in each creation of a backlog queue, even by default; the original client
    sent it, and a default may change. `only_if_true`: Premium refuses it on an entity. `matters`: has an effect there.
    `alters`: whether an actual value refuses, loses or changes messages that the expected one takes.
    """

    name: str
    limit: Callable[[Any, Collection[Tier]], str] = lambda _value, _tiers: ""
    is_duration: bool = False
    is_target: bool = False
    is_fixed: bool = False
    is_sent: bool = False
    only_if_true: bool = False
    in_basic: bool = True
    matters: Callable[[Any], bool] = lambda _entity: True
    alters: Callable[[Any, Any], bool] = lambda _expected, _actual: False
    default: Any = None

    @property
    def element(self) -> str:
        """The name in Atom, such as LockDuration."""
        return pascal(self.name)

    @property
    def title(self) -> str:
        """The name in the portal and in older clients."""
        return pascal(f"enable_{self.name}" if self.name.startswith("dead_lettering_") else self.name)

    @property
    def type(self) -> type:
        return int if self.default is None else type(self.default)

    def refusal(self, value: Any, tiers: Collection[Tier]) -> str:
        """Return why none of these tiers takes a value; an empty text if one does."""
        if value and value != self.default and not self.in_basic and not any(tier.has_everything for tier in tiers):
            return "it is not available"
        try:
            return self.limit(value, tiers)
        except UsageError as error:
            return f"{error.message}: {error.hint}"


def _expect(allowed: str, holds: bool, value: object) -> str:
    return "" if holds else f"expected {allowed}, got {value!r}"


def _time_to_live(text: str, tiers: Collection[Tier]) -> str:
    days, given = max(tier.max_days for tier in tiers), ticks(text)
    too_long = _expect(f"at most {days:.0f} days", given <= days * 1440 * MINUTE, text)
    return _expect("at least 1 second", given >= TICKS_PER_SECOND, text) or too_long


def _size(megabytes: int, tiers: Collection[Tier]) -> str:
    allowed = sorted({gigabytes * MEGABYTES for tier in tiers for gigabytes in tier.sizes_gb})
    return _expect(listed(allowed), megabytes in allowed, megabytes)


def _message_size(kilobytes: int | None, tiers: Collection[Tier]) -> str:
    ranges = sorted({tier.message_kilobytes for tier in tiers})
    words = [f"{low}" if low == high else f"from {low} to {high}" for low, high in ranges]
    fits = kilobytes is None or any(low <= kilobytes <= high for low, high in ranges)
    return _expect(" or ".join(words), fits, kilobytes)


def _text(text: str, _tiers: Collection[Tier]) -> str:
    return _expect(f"at most {MAX_TEXT} characters", len(text) <= MAX_TEXT, len(text))


def _filter(selected: SqlFilter | CorrelationFilter, tiers: Collection[Tier]) -> str:
    if isinstance(selected, CorrelationFilter):
        return "" if selected != CorrelationFilter() else "a correlation filter compares at least one property"
    return _text(selected.expression, tiers) if selected.expression else "a SQL filter has at least one character"


def _duration(name: str, allowed: str, holds: Callable[[int], bool], **more: Any) -> EntityProperty:
    return EntityProperty(name, lambda it, _: _expect(allowed, holds(ticks(it)), it), is_duration=True, **more)


def _always(_expected: object, _actual: object) -> bool:
    return True


def _shorter(expected: str, actual: str) -> bool:
    return ticks(actual) < ticks(expected)


_ROWS = (
    _duration(
        "lock_duration", "more than nothing and at most 5 minutes", lambda it: 0 < it <= 5 * MINUTE, is_sent=True
    ),
    EntityProperty("max_size_in_megabytes", _size, is_sent=True),
    EntityProperty(
        "max_delivery_count", lambda it, _: _expect(f"1 to {INT_MAX}", 1 <= it <= INT_MAX, it), is_sent=True
    ),
    EntityProperty("default_message_time_to_live", _time_to_live, is_duration=True, is_sent=True, alters=_shorter),
    _duration(
        "auto_delete_on_idle",
        "at least 5 minutes",
        lambda it: it >= 5 * MINUTE,
        is_sent=True,
        in_basic=False,
        alters=_shorter,
    ),
    EntityProperty("dead_lettering_on_message_expiration", is_sent=True, alters=lambda expected, _: expected),
    EntityProperty("dead_lettering_on_filter_evaluation_exceptions", alters=lambda expected, _: expected),
    EntityProperty("enable_batched_operations", is_sent=True),
    EntityProperty("requires_session", is_fixed=True, in_basic=False, alters=_always),
    EntityProperty("requires_duplicate_detection", is_fixed=True, in_basic=False, alters=_always),
    _duration(
        "duplicate_detection_history_time_window",
        "from 20 seconds to 7 days",
        lambda it: MINUTE / 3 <= it <= 7 * 1440 * MINUTE,
        matters=lambda entity: entity.requires_duplicate_detection,
    ),
    EntityProperty("forward_to", is_target=True, in_basic=False, alters=_always),
    EntityProperty("forward_dead_lettered_messages_to", is_target=True, in_basic=False),
    EntityProperty("support_ordering", matters=lambda entity: not entity.enable_partitioning),
    EntityProperty(
        "status",
        lambda it, _: _expect(listed(STATUSES), it in STATUSES, it),
        alters=lambda _, actual: actual != STATUSES[0],
    ),
    EntityProperty("enable_partitioning", is_fixed=True, only_if_true=True, alters=_always),
    EntityProperty("enable_express", only_if_true=True),
    EntityProperty("user_metadata", _text),
    EntityProperty("max_message_size_in_kilobytes", _message_size, alters=lambda it, actual: not actual or actual < it),
    EntityProperty("filter", _filter, alters=_always),
    EntityProperty("action", _text, alters=_always),
)
PROPERTIES: Final = {row.name: row for row in _ROWS}
TARGETS: Final = tuple(row.name for row in _ROWS if row.is_target)
"""The properties that name the target of forwarding."""

PROPERTIES_OF: Final[dict[type, tuple[EntityProperty, ...]]] = {
    kind: tuple(
        PROPERTIES[each.name]._replace(default=None if each.default is MISSING else each.default)
        for each in fields(kind)
        if each.name not in IDENTIFYING
    )
    for kind in (QueueSpec, Queue, Topic, Subscription, Rule)
}
"""The rows of each class in the order of its fields, with the defaults there."""
