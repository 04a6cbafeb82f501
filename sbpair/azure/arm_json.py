"""Conversion between entities and Azure Resource Manager's JSON. Pure.

`/` in a queue's or topic's name is `~` in a resource's. Values are read from the JSON, never from the client's
attributes: those round durations to the precision of a timedelta. Every function that reads raises ValueError,
LookupError, TypeError or AttributeError for JSON that is not the service's.
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
    values: dict[str, Any] = {}
    for each in fields(named):
        value = properties.get(camel(each.name)) if each.name not in NAMES else None
        if value is not None:
            values[each.name] = _typed(value, int if each.default is None else type(each.default))
    return replace(with_defaults(named), **values)


def capacity_of(sku: Json, properties: Json) -> tiers.Capacity:
    """Convert the tier and the properties of a namespace."""
    units, partitions = sku.get("capacity"), properties.get("premiumMessagingPartitions")
    return tiers.Capacity(
        tiers.tier_named(_typed(sku["name"], str)),
        None if units is None else _typed(units, int),
        _typed(partitions, int) if partitions else None,
    )


def bytes_of(properties: Json) -> int:
    return int(_typed(properties.get("sizeInBytes") or 0, int))


def _typed(value: Any, expected: type) -> Any:
    if type(value) is not expected:
        raise ValueError(f"expected {expected.__name__}, got {type(value).__name__}")
    return value


def with_chosen_size(entity: Sized, tier: tiers.Tier) -> Sized:
    """Divide the size of a partitioned entity; only the tier shows whether it was multiplied."""
    size = tiers.chosen_megabytes(tier, entity.max_size_in_megabytes, partitioned=entity.enable_partitioning)
    return replace(entity, max_size_in_megabytes=size)


def _read_rule(named: Rule, properties: Json) -> Rule:
    action = _typed((properties.get("action") or {}).get("sqlExpression") or "", str)
    if properties.get("filterType") != "CorrelationFilter":
        sql = (properties.get("sqlFilter") or {}).get("sqlExpression")
        return replace(named, filter=SqlFilter(_typed(sql, str)) if sql else SqlFilter(), action=action)
    correlation = properties.get("correlationFilter") or {}
    texts = {name: _typed(correlation.get(camel(name)) or "", str) for name in CORRELATION_KEYS}
    pairs = (correlation.get("properties") or {}).items()
    own = tuple(sorted((name, _typed(value, str)) for name, value in pairs))
    return replace(named, filter=CorrelationFilter(**texts, properties=own), action=action)


def arm_state(path: str, properties: Json, *, counted: bool = False) -> QueueState:
    """Convert a queue, with the size that the service reports, and with its counts if `counted`."""
    reported = {**properties, **(properties.get("countDetails") or {})}
    # Atom has the same names, with a capital letter.
    found = {name[:1].upper() + name[1:]: value for name, value in reported.items() if value is not None}
    return state_of(read(QueueSpec(path), properties), found, counted=counted)
