"""Descriptions of entities in Atom's XML and in Resource Manager's JSON: both are read by one set of functions. Pure.

Either encoding becomes a mapping from the service's names, such as `LockDuration`, to texts or values; a rule's has
its filter. `/` in a queue's or topic's name is `~` in a resource's. Values are read from the JSON, never from the
client's attributes: those round durations to the precision of a timedelta.

Every function that reads raises ValueError, LookupError, TypeError or AttributeError for a description that is not the
service's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from urllib.parse import urlsplit

from sbpair.errors import UsageError
from sbpair.model import tiers
from sbpair.model.entities import (
    CORRELATION_KEYS,
    EVERY_MESSAGE,
    NO_MESSAGE,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    RuleValue,
    SqlFilter,
    Subscription,
    Topic,
    pascal,
)
from sbpair.model.entity_properties import PROPERTIES_OF, EntityProperty
from sbpair.model.queues import Counts, QueueSpec, QueueState, Usage
from sbpair.timespan import iso_duration, ticks

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

Json = Mapping[str, Any]
Found = Mapping[str, Any]
"""The properties of an entity by the service's names."""

Named = TypeVar("Named", bound=Described)
Sized = TypeVar("Sized", bound=Queue | Topic)

TYPE: Final = "{http://www.w3.org/2001/XMLSchema-instance}type"

_COUNTS = [f"{pascal(each.name).removesuffix('Total')}MessageCount" for each in fields(Counts)]
_BOOLEANS = {"true": True, "false": False}


# Either encoding


def read(named: Named, found: Found) -> Named:
    """Return `named` with the properties that the service reports. An omitted one has its default."""
    if isinstance(named, Rule):
        return cast("Named", replace(named, filter=found["Filter"], action=found["Action"]))
    reported = ((row, found.get(row.element)) for row in PROPERTIES_OF[type(named)])
    values = {row.name: row.default if value is None else _value(row, value) for row, value in reported}
    return replace(named, **values)


def queue_state(path: str, found: Found, *, counted: bool = False) -> QueueState:
    """Return a queue with the size that the service reports, and with its counts if `counted`."""
    spec, partitioned = read(QueueSpec(path), found), str(found.get("EnablePartitioning")).lower() == "true"
    availability = availability_of(found)
    if not counted:
        return QueueState(spec, partitioned, availability=availability)
    times = (epoch_seconds(found.get(name)) for name in ("CreatedAt", "UpdatedAt", "AccessedAt"))
    usage = Usage(int(found["SizeInBytes"]) if "SizeInBytes" in found else None, *times)
    return QueueState(spec, partitioned, Counts(*(int(found.get(name, 0)) for name in _COUNTS)), usage, availability)


def availability_of(found: Found) -> str | None:
    """Return the availability of an entity, such as Limited; None for Available, or if the service omitted it."""
    return None if (said := found.get("EntityAvailabilityStatus")) == "Available" else said


def counts_of(found: Found) -> Counts | None:
    """Return the counts of a queue; None if the service omitted one, or those of a part that is not available."""
    known = found.keys() >= set(_COUNTS) and availability_of(found) is None
    return Counts(*(int(found[name]) for name in _COUNTS)) if known else None


def bytes_of(found: Found) -> int:
    return int(found.get("SizeInBytes") or 0)


def with_chosen_size(entity: Sized, tier: tiers.Tier) -> Sized:
    """Divide the size of a partitioned entity; only the tier shows whether it was multiplied."""
    size = tiers.chosen_megabytes(tier, entity.max_size_in_megabytes, partitioned=entity.enable_partitioning)
    return replace(entity, max_size_in_megabytes=size)


def epoch_seconds(text: str | None) -> float | None:
    """Return seconds since 1970. The service writes the year 1 for a time that never was: None."""
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return None if at.year == 1 else (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _value(row: EntityProperty, value: Any) -> Any:
    """Convert a property: a text of Atom, or a value of JSON."""
    if row.is_duration:
        try:
            return iso_duration(ticks(value))
        except UsageError as error:
            raise ValueError(error.message) from error
    if isinstance(value, str) and row.type is not str:
        return _BOOLEANS[value.strip().lower()] if row.type is bool else int(value)
    text = _typed(value, row.type)
    return urlsplit(text).path.lstrip("/") if row.is_target and "://" in text else text


def _typed(value: Any, expected: type) -> Any:
    if type(value) is not expected:
        raise ValueError(f"expected {expected.__name__}, got {type(value).__name__}")
    return value


# Atom


def described(entry: Element, kind: str) -> Element | None:
    """Return the description of an entity in an entry; None if there is none, or one of another kind."""
    return entry.find(f"{{*}}content/{{*}}{kind.title()}Description")


def of_xml(description: Element) -> Found:
    """Return the properties in a description; of a rule, its filter and its action."""
    if description.tag.endswith("}RuleDescription"):
        selected, action = description.find("{*}Filter"), description.find("{*}Action")
        expression = (action.findtext("{*}SqlExpression") or "") if action is not None else ""
        found = SqlFilter("") if selected is None else _filter(selected)
        typed = [each for each in named_values(description, "Properties") if each.kind != "string"]
        named = named_values(description, "Parameters")  # also those of the action
        values = (*(each._replace(kind=f"parameter {each.kind}") for each in named), *map(_normal, sorted(typed)))
        return {"Filter": replace(found, typed=values), "Action": expression}
    details = description.find("{*}CountDetails")
    return texts(description) | (texts(details) if details is not None else {})


def sku_of(entry: Element) -> tuple[str, int | None] | None:
    """Return the tier's name and the messaging units of a namespace; None if the entry is not a namespace's."""
    found = {_local(each): each.text for each in entry.iterfind("{*}content/{*}NamespaceInfo/*")}
    name, units = found.get("MessagingSKU"), found.get("MessagingUnits")
    return (name, int(units) if units else None) if name else None


def _filter(selected: Element) -> SqlFilter | CorrelationFilter:
    if not selected.get(TYPE, "").endswith("CorrelationFilter"):
        return SqlFilter(selected.findtext("{*}SqlExpression") or "")
    found = texts(selected)
    system = {name: found.get(pascal(name), "") for name in CORRELATION_KEYS}
    properties = sorted((key, text) for key, kind, text in named_values(selected, "Properties") if kind == "string")
    return CorrelationFilter(**system, typed=(), properties=tuple(properties))


def _normal(value: RuleValue) -> RuleValue:
    """Return a value of a rule as `RuleValue.of` writes it, if that is possible."""
    return value if (plain := value.plain) is None else RuleValue.of(value.name, plain)


def named_values(rule: Element, name: str) -> list[RuleValue]:
    """Return each of the Parameters or Properties of a rule, or of its filter."""
    found = []
    for pair in rule.iterfind(f".//{{*}}{name}/*"):
        value = pair.find("{*}Value")
        kind, text = ("", "") if value is None else (value.get(TYPE, "").rpartition(":")[2], value.text or "")
        found.append(RuleValue(pair.findtext("{*}Key") or "", kind or "string", text))
    return found


def first_rule_xml(rule: Rule) -> bytes:
    """Return the element of a new subscription's description that has its first rule, in place of the service's own."""
    kind, selected = "CorrelationFilter", ""
    if isinstance(rule.filter, SqlFilter):
        kind = {EVERY_MESSAGE: "TrueFilter", NO_MESSAGE: "FalseFilter"}.get(rule.filter.expression, "SqlFilter")
        selected = _sql_xml(rule.filter.expression)
    else:
        system = ((pascal(name), getattr(rule.filter, name)) for name in CORRELATION_KEYS)
        selected = "".join(f"<{name}>{escape(text)}</{name}>" for name, text in system if text)
        named = (*(RuleValue(name, "string", text) for name, text in rule.filter.properties), *rule.filter.typed)
        pairs = "".join(
            f"<KeyValueOfstringanyType><Key>{escape(name)}</Key>"
            f'<Value xmlns:t="http://www.w3.org/2001/XMLSchema" i:type="t:{kind}">{escape(text)}</Value>'
            "</KeyValueOfstringanyType>"
            for name, kind, text in named
        )
        selected += f"<Properties>{pairs}</Properties>" if pairs else ""
    action = '<Action i:type="EmptyRuleAction" />'
    if rule.action:
        action = f'<Action i:type="SqlRuleAction">{_sql_xml(rule.action)}</Action>'
    return (
        '<DefaultRuleDescription xmlns:i="http://www.w3.org/2001/XMLSchema-instance">'
        f'<Filter i:type="{kind}">{selected}</Filter>'
        f"{action}<Name>{escape(rule.name)}</Name>"
        "</DefaultRuleDescription>"
    ).encode()


def _sql_xml(expression: str) -> str:
    return f"<SqlExpression>{escape(expression)}</SqlExpression><CompatibilityLevel>20</CompatibilityLevel>"


def texts(element: Element) -> dict[str, str]:
    """Return the texts of an element's children by their names, without empty ones."""
    return {_local(each): each.text for each in element if each.text}


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]


# Resource Manager


def name_of(path: str) -> str:
    return path.replace("/", "~")


def path_of(name: str) -> str:
    return name.replace("~", "/")


def body_of(entity: Described) -> dict[str, Any]:
    """Return the whole description, defaults included: an omitted property of an existing entity would be reset."""
    return {"properties": _rule_body(entity) if isinstance(entity, Rule) else _body(entity)}


def read_json(named: Named, properties: Json) -> Named:
    """Return `named` with the properties of its resource."""
    if isinstance(named, Rule):
        return read(named, {"Filter": _json_filter(properties), "Action": _sql(properties, "action")})
    return read(named, of_json(properties))


def of_json(properties: Json) -> Found:
    """Return the properties of a resource, except a rule's."""
    reported = {**properties, **(properties.get("countDetails") or {})}
    # Atom has the same names, with a capital letter.
    return {name[:1].upper() + name[1:]: value for name, value in reported.items() if value is not None}


def capacity_of(sku: Json, properties: Json) -> tiers.Capacity:
    """Convert the tier and the properties of a namespace."""
    units, partitions = sku.get("capacity"), properties.get("premiumMessagingPartitions")
    return tiers.Capacity(
        tiers.tier_named(_typed(sku["name"], str)),
        None if units is None else _typed(units, int),
        _typed(partitions, int) if partitions else None,
    )


def _body(entity: QueueSpec | Topic | Subscription) -> dict[str, Any]:
    values = ((row, getattr(entity, row.name)) for row in PROPERTIES_OF[type(entity)])
    sent = ((row, value) for row, value in values if value or not row.only_if_true)
    return {_camel(row.name): value for row, value in sent if value not in (None, "")}


def _rule_body(rule: Rule) -> dict[str, Any]:
    action: dict[str, Any] = {"action": {"sqlExpression": rule.action} if rule.action else {}}
    if isinstance(rule.filter, SqlFilter):
        return {**action, "filterType": "SqlFilter", "sqlFilter": {"sqlExpression": rule.filter.expression}}
    system = {_camel(name): value for name in CORRELATION_KEYS if (value := getattr(rule.filter, name))}
    correlation = {**system, "properties": dict(rule.filter.properties)}
    return {**action, "filterType": "CorrelationFilter", "correlationFilter": correlation}


def _json_filter(properties: Json) -> SqlFilter | CorrelationFilter:
    if properties.get("filterType") != "CorrelationFilter":
        sql = _sql(properties, "sqlFilter")
        return SqlFilter(sql) if sql else SqlFilter()
    correlation = properties.get("correlationFilter") or {}
    system = {name: _typed(correlation.get(_camel(name)) or "", str) for name in CORRELATION_KEYS}
    pairs = (correlation.get("properties") or {}).items()
    return CorrelationFilter(**system, properties=tuple(sorted((name, _typed(value, str)) for name, value in pairs)))


def _sql(properties: Json, name: str) -> str:
    return str(_typed((properties.get(name) or {}).get("sqlExpression") or "", str))


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.title() for other in others)
