"""Entities as Azure Resource Manager's JSON, and back. Pure.

`/` in a queue's or a topic's name is `~` in a resource's. Read are plain values, never the client's attributes: those
round durations to what a timedelta holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from sbpair.model.entities import CorrelationFilter, Queue, Rule, SqlFilter, Subscription, Topic
from sbpair.model.queues import Counts, QueueSpec, QueueState, Usage

Json = Mapping[str, Any]
Described = TypeVar("Described", QueueSpec, Queue, Topic, Subscription)

# Premium refuses them on an entity; no is the service's own default.
SAID_IF_TRUE: Final = frozenset({"enable_partitioning", "enable_express"})
NAMES: Final = frozenset({"path", "topic", "name"})
CORRELATED: Final = tuple(each.name for each in fields(CorrelationFilter) if each.name != "properties")


def name_of(path: str) -> str:
    return path.replace("/", "~")


def path_of(name: str) -> str:
    return name.replace("~", "/")


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)


# Writing


def body_of(entity: QueueSpec | Topic | Subscription | Rule) -> dict[str, Any]:
    """The whole description, defaults too: what is left out would be reset where an entity is there already."""
    return {"properties": _rule(entity) if isinstance(entity, Rule) else _described(entity)}


def _described(entity: QueueSpec | Topic | Subscription) -> dict[str, Any]:
    values = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in NAMES}
    return {
        camel(name): value
        for name, value in values.items()
        if value not in (None, "") and (value or name not in SAID_IF_TRUE)
    }


def _rule(rule: Rule) -> dict[str, Any]:
    said: dict[str, Any] = {"action": {"sqlExpression": rule.action} if rule.action else {}}
    if isinstance(rule.filter, SqlFilter):
        return {**said, "filterType": "SqlFilter", "sqlFilter": {"sqlExpression": rule.filter.expression}}
    compared = {camel(name): value for name in CORRELATED if (value := getattr(rule.filter, name))}
    correlation = {**compared, "properties": dict(rule.filter.properties)}
    return {**said, "filterType": "CorrelationFilter", "correlationFilter": correlation}


# Reading


def read(named: Described, properties: Json) -> Described:
    """`named` with all that the service says of it, as it says it. What it leaves out is its default."""
    values = {each.name: properties.get(camel(each.name)) for each in fields(named) if each.name not in NAMES}
    return replace(named, **{name: value for name, value in values.items() if value is not None})


def read_rule(named: Rule, properties: Json) -> Rule:
    action = (properties.get("action") or {}).get("sqlExpression") or ""
    if properties.get("filterType") != "CorrelationFilter":
        sql = (properties.get("sqlFilter") or {}).get("sqlExpression")
        return replace(named, filter=SqlFilter(sql) if sql else SqlFilter(), action=action)
    correlation = properties.get("correlationFilter") or {}
    texts = {name: correlation.get(camel(name)) or "" for name in CORRELATED}
    named_too = tuple(sorted((correlation.get("properties") or {}).items()))
    return replace(named, filter=CorrelationFilter(**texts, properties=named_too), action=action)


def state_of(path: str, properties: Json, *, counted: bool = False) -> QueueState:
    """A queue with its size as the service gives it, and its messages counted, or not."""
    partitioned = bool(properties.get("enablePartitioning"))
    known = (counts_of(properties), usage_of(properties)) if counted else ()
    return QueueState(read(QueueSpec(path), properties), partitioned, *known)


def counts_of(properties: Json) -> Counts:
    details = properties.get("countDetails") or {}
    return Counts(
        active=details.get("activeMessageCount") or 0,
        dead_letter=details.get("deadLetterMessageCount") or 0,
        scheduled=details.get("scheduledMessageCount") or 0,
        total=properties.get("messageCount") or 0,
        transfer=details.get("transferMessageCount") or 0,
        transfer_dead_letter=details.get("transferDeadLetterMessageCount") or 0,
    )


def usage_of(properties: Json) -> Usage:
    times = (properties.get(name) for name in ("createdAt", "updatedAt", "accessedAt"))
    return Usage(properties.get("sizeInBytes"), *(_seconds(each) for each in times))


def _seconds(at: str | None) -> float | None:
    """Since 1970; the service's year 1 is a time that never was."""
    if not at or at.startswith("0001-"):
        return None
    when = datetime.fromisoformat(at)
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
