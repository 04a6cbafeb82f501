"""Entities as azure-servicebus' administration client says them, there and back.

Pure conversions. What is the service's default is not said, but for what ALWAYS_SAID names.
"""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    RuleProperties,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

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
from sbpair.model.queues import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from azure.servicebus.management import QueueProperties, SubscriptionProperties, TopicProperties

Value = str | int | bool

# What the creation of a queue always says, default or not: the original's clients said it, and a default may change.
ALWAYS_SAID = (
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
_CORRELATED = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")


def description(entity: QueueSpec | Topic | Subscription) -> dict[str, Value]:
    """The keyword arguments of a creation: what is always said, and whatever else is not the service's default."""
    said = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in NAMES}
    defaults = {each.name: each.default for each in fields(entity)}
    always = ALWAYS_SAID if isinstance(entity, QueueSpec) else ()
    return {name: value for name, value in said.items() if name in always or value != defaults[name]}


def queue_of(properties: QueueProperties) -> Queue:
    """A queue as the SDK gives it. What the service left out is its default."""
    return Queue(properties.name, **said(properties, Queue))


def topic_of(properties: TopicProperties) -> Topic:
    return Topic(properties.name, **said(properties, Topic))


def subscription_of(topic: str, properties: SubscriptionProperties) -> Subscription:
    return Subscription(topic, properties.name, **said(properties, Subscription))


def rule_of(topic: str, subscription: str, properties: RuleProperties) -> Rule:
    action = properties.action.sql_expression if isinstance(properties.action, SqlRuleAction) else ""
    return Rule(topic, subscription, properties.name, _filter_of(properties.filter), action or "")


def said(properties: object, kind: type[QueueSpec | Topic | Subscription]) -> dict[str, Any]:
    """The fields of `kind` that the service gave, as they are written there."""
    read = {each.name: getattr(properties, each.name) for each in fields(kind) if each.name not in NAMES}
    return {name: _written(name, value) for name, value in read.items() if value is not None}


def sdk_filter(wanted: SqlFilter | CorrelationFilter) -> SqlRuleFilter | CorrelationRuleFilter:
    if isinstance(wanted, CorrelationFilter):
        given = {name: getattr(wanted, name) or None for name in _CORRELATED}
        return CorrelationRuleFilter(**given, properties=dict(wanted.properties))
    if wanted.expression == EVERY_MESSAGE:
        return TrueRuleFilter()
    return FalseRuleFilter() if wanted.expression == NO_MESSAGE else SqlRuleFilter(wanted.expression)


def sdk_action(expression: str) -> SqlRuleAction | None:
    return SqlRuleAction(expression) if expression else None


class Answered(Exception):
    """The service has made what it was asked for. Raised in the middle of the SDK, and no further than `atom`."""


def unread(*_answer: object) -> None:
    """Raise Answered: reading the description of what was made costs the SDK as much as making it, and nobody looks."""
    raise Answered


def _filter_of(given: object) -> SqlFilter | CorrelationFilter:
    if isinstance(given, CorrelationRuleFilter):
        texts = {name: getattr(given, name) or "" for name in _CORRELATED}
        pairs: Iterable[tuple[object, object]] = (given.properties or {}).items()
        return CorrelationFilter(**texts, properties=tuple(sorted((str(key), str(value)) for key, value in pairs)))
    return SqlFilter(given.sql_expression or "") if isinstance(given, SqlRuleFilter) else SqlFilter("")


def _written(name: str, value: object) -> Value:
    if isinstance(value, timedelta):
        return iso_duration(value // _MICROSECOND * _TICKS_A_MICROSECOND)
    if isinstance(value, (bool, int)):
        return value
    text = str(getattr(value, "value", value))
    return urlsplit(text).path.lstrip("/") if name in _FORWARDS and "://" in text else text
