"""Conversion between entities and azure-servicebus' administration client. Pure.

A property with the service's default is not sent, except those of ALWAYS_SENT.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.servicebus import management as sdk

from sbpair.azure.arm_json import epoch_seconds
from sbpair.model.durations import iso_duration
from sbpair.model.entities import (
    EVERY_MESSAGE,
    NAMES,
    NO_MESSAGE,
    CorrelationFilter,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.queues import Counts, QueueSpec, QueueState, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable

Value = str | int | bool

# Sent with each creation of a queue, default or not: the original client sent them, and a default may change.
ALWAYS_SENT = (
    "lock_duration",
    "max_size_in_megabytes",
    "max_delivery_count",
    "default_message_time_to_live",
    "auto_delete_on_idle",
    "dead_lettering_on_message_expiration",
    "enable_batched_operations",
)
_TICKS_A_MICROSECOND = 10
_MICROSECOND = timedelta(microseconds=1)
_FORWARDS = frozenset({"forward_to", "forward_dead_lettered_messages_to"})
_CORRELATION_KEYS = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")


def description(entity: QueueSpec | Topic | Subscription) -> dict[str, Value]:
    """Return the keyword arguments of a creation: ALWAYS_SENT, and properties that differ from the default."""
    values = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in NAMES}
    defaults = {each.name: each.default for each in fields(entity)}
    always = ALWAYS_SENT if isinstance(entity, QueueSpec) else ()
    return {name: value for name, value in values.items() if name in always or value != defaults[name]}


def queue_of(properties: sdk.QueueProperties) -> Queue:
    """Convert a queue of the SDK. An omitted property has its default."""
    return Queue(properties.name, **_given(properties, Queue))


def topic_of(properties: sdk.TopicProperties) -> Topic:
    return Topic(properties.name, **_given(properties, Topic))


def subscription_of(topic: str, properties: sdk.SubscriptionProperties) -> Subscription:
    return Subscription(topic, properties.name, **_given(properties, Subscription))


def rule_of(topic: str, subscription: str, properties: sdk.RuleProperties) -> Rule:
    action = properties.action.sql_expression if isinstance(properties.action, sdk.SqlRuleAction) else ""
    return Rule(topic, subscription, properties.name, _filter_of(properties.filter), action or "")


def _given(properties: object, kind: type[QueueSpec | Topic | Subscription]) -> dict[str, Any]:
    """Return the fields of `kind` that the service sent, durations as ISO 8601 text."""
    read = {each.name: getattr(properties, each.name) for each in fields(kind) if each.name not in NAMES}
    return {name: _written(name, value) for name, value in read.items() if value is not None}


def atom_state(
    path: str, properties: sdk.QueueProperties, counts: Counts | None = None, usage: Usage | None = None
) -> QueueState:
    """Convert a queue of the SDK, with the size that the service reports. An omitted property has its default."""
    return QueueState(
        QueueSpec(path, **_given(properties, QueueSpec)), bool(properties.enable_partitioning), counts, usage
    )


def atom_counts(runtime: sdk.QueueRuntimeProperties) -> Counts:
    return Counts(*(count or 0 for count in count_figures(runtime)))


def count_figures(runtime: sdk.QueueRuntimeProperties) -> tuple[int | None, ...]:
    """Return the figures of `Counts` in its order, None for one that the service omitted."""
    return (
        runtime.active_message_count,
        runtime.dead_letter_message_count,
        runtime.scheduled_message_count,
        runtime.total_message_count,
        runtime.transfer_message_count,
        runtime.transfer_dead_letter_message_count,
    )


def atom_usage(runtime: sdk.QueueRuntimeProperties) -> Usage:
    times = (runtime.created_at_utc, runtime.updated_at_utc, runtime.accessed_at_utc)
    return Usage(runtime.size_in_bytes, *(epoch_seconds(each) for each in times))


def sdk_filter(selected: SqlFilter | CorrelationFilter) -> sdk.SqlRuleFilter | sdk.CorrelationRuleFilter:
    if isinstance(selected, CorrelationFilter):
        given = {name: getattr(selected, name) or None for name in _CORRELATION_KEYS}
        return sdk.CorrelationRuleFilter(**given, properties=dict(selected.properties))
    if selected.expression == EVERY_MESSAGE:
        return sdk.TrueRuleFilter()
    return sdk.FalseRuleFilter() if selected.expression == NO_MESSAGE else sdk.SqlRuleFilter(selected.expression)


def sdk_action(expression: str) -> sdk.SqlRuleAction | None:
    return sdk.SqlRuleAction(expression) if expression else None


class Created(Exception):
    """The service has created the entity. Raised inside the SDK, and caught in `atom`."""


def skip_answer(*_answer: object) -> None:
    """Raise Created: decoding the unused answer costs the SDK as much as the request."""
    raise Created


def _filter_of(given: object) -> SqlFilter | CorrelationFilter:
    if isinstance(given, sdk.CorrelationRuleFilter):
        texts = {name: getattr(given, name) or "" for name in _CORRELATION_KEYS}
        pairs: Iterable[tuple[object, object]] = (given.properties or {}).items()
        return CorrelationFilter(**texts, properties=tuple(sorted((str(key), str(value)) for key, value in pairs)))
    return SqlFilter(given.sql_expression or "") if isinstance(given, sdk.SqlRuleFilter) else SqlFilter("")


def _written(name: str, value: object) -> Value:
    if isinstance(value, timedelta):
        return iso_duration(value // _MICROSECOND * _TICKS_A_MICROSECOND)
    if isinstance(value, (bool, int)):
        return value
    text = str(getattr(value, "value", value))
    return urlsplit(text).path.lstrip("/") if name in _FORWARDS and "://" in text else text
