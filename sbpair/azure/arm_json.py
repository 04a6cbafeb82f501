"""Conversion between entities and Azure Resource Manager's JSON. Pure.

`/` in a queue's or topic's name is `~` in a resource's. Values are read from the JSON, never from the client's
attributes: those round durations to the precision of a timedelta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Final, TypeVar, cast

from sbpair.azure.atom_decode import state_of
from sbpair.model import tiers
from sbpair.model.entities import (
    CORRELATION_KEYS,
    NAMES,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
    with_defaults,
)
from sbpair.model.queues import QueueSpec, QueueState

Json = Mapping[str, Any]
Named = TypeVar("Named", bound=Described)
Sized = TypeVar("Sized", bound=Queue | Topic)

# Premium refuses these on an entity; false is the service's own default.
SENT_IF_TRUE: Final = frozenset({"enable_partitioning", "enable_express"})


def name_of(path: str) -> str:
    return path.replace("/", "~")


def path_of(name: str) -> str:
    return name.replace("~", "/")


def camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)


# Writing


def body_of(entity: Described) -> dict[str, Any]:
    """Return the whole description, defaults included: an omitted property of an existing entity would be reset."""
    return {"properties": _rule(entity) if isinstance(entity, Rule) else _described(entity)}


def _described(entity: QueueSpec | Topic | Subscription) -> dict[str, Any]:
    values = {each.name: getattr(entity, each.name) for each in fields(entity) if each.name not in NAMES}
    return {
        camel(name): value
        for name, value in values.items()
        if value not in (None, "") and (value or name not in SENT_IF_TRUE)
    }


def _rule(rule: Rule) -> dict[str, Any]:
    action: dict[str, Any] = {"action": {"sqlExpression": rule.action} if rule.action else {}}
    if isinstance(rule.filter, SqlFilter):
        return {**action, "filterType": "SqlFilter", "sqlFilter": {"sqlExpression": rule.filter.expression}}
    system = {camel(name): value for name in CORRELATION_KEYS if (value := getattr(rule.filter, name))}
    correlation = {**system, "properties": dict(rule.filter.properties)}
    return {**action, "filterType": "CorrelationFilter", "correlationFilter": correlation}


# Reading


def read(named: Named, properties: Json) -> Named:
    """Return `named` with the properties that the service reports. An omitted one has its default."""
    if isinstance(named, Rule):
        return cast("Named", _read_rule(named, properties))
    values = {each.name: properties.get(camel(each.name)) for each in fields(named) if each.name not in NAMES}
    return replace(with_defaults(named), **{name: value for name, value in values.items() if value is not None})


def with_chosen_size(entity: Sized, tier: tiers.Tier) -> Sized:
    """Divide the size of a partitioned entity; only the tier shows whether it was multiplied."""
    size = tiers.chosen_megabytes(tier, entity.max_size_in_megabytes, partitioned=entity.enable_partitioning)
    return replace(entity, max_size_in_megabytes=size)


def _read_rule(named: Rule, properties: Json) -> Rule:
    action = (properties.get("action") or {}).get("sqlExpression") or ""
    if properties.get("filterType") != "CorrelationFilter":
        sql = (properties.get("sqlFilter") or {}).get("sqlExpression")
        return replace(named, filter=SqlFilter(sql) if sql else SqlFilter(), action=action)
    correlation = properties.get("correlationFilter") or {}
    texts = {name: correlation.get(camel(name)) or "" for name in CORRELATION_KEYS}
    own = tuple(sorted((correlation.get("properties") or {}).items()))
    return replace(named, filter=CorrelationFilter(**texts, properties=own), action=action)


def arm_state(path: str, properties: Json, *, counted: bool = False) -> QueueState:
    """Convert a queue, with the size that the service reports, and with its counts if `counted`."""
    reported = {**properties, **(properties.get("countDetails") or {})}
    # Atom has the same names, with a capital letter.
    found = {name[:1].upper() + name[1:]: value for name, value in reported.items() if value is not None}
    return state_of(read(QueueSpec(path), properties), found, counted=counted)
