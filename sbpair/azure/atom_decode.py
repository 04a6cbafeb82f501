"""Conversion of Atom's XML into entities, counts and usage. Pure.

Every function raises ValueError or LookupError for XML that is not the service's.
"""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from urllib.parse import urlsplit

from sbpair.errors import UsageError
from sbpair.model.durations import iso_duration, ticks
from sbpair.model.entities import (
    CORRELATION_KEYS,
    DURATIONS,
    NAMES,
    CorrelationFilter,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
    pascal,
    with_defaults,
)
from sbpair.model.queues import Counts, QueueSpec, QueueState, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from xml.etree.ElementTree import Element

Described = TypeVar("Described", bound=QueueSpec | Topic | Subscription | Rule)

_COUNTS = (
    "ActiveMessageCount",
    "DeadLetterMessageCount",
    "ScheduledMessageCount",
    "MessageCount",
    "TransferMessageCount",
    "TransferDeadLetterMessageCount",
)
TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
_FORWARDS = frozenset({"forward_to", "forward_dead_lettered_messages_to"})
_BOOLEANS = {"true": True, "false": False}


def texts(element: Element) -> dict[str, str]:
    """Return the texts of an element's children by their names, without empty ones."""
    return {_local(each): each.text for each in element if each.text}


def description_of(entry: Element, kind: str) -> Element | None:
    """Return the description of an entity in an entry; None if there is none, or one of another kind."""
    return entry.find(f"{{*}}content/{{*}}{kind.title()}Description")


def sku_of(entry: Element) -> tuple[str, int | None] | None:
    """Return the tier's name and the messaging units of a namespace; None if the entry is not a namespace's."""
    found = {_local(each): each.text for each in entry.iterfind("{*}content/{*}NamespaceInfo/*")}
    name, units = found.get("MessagingSKU"), found.get("MessagingUnits")
    return (name, int(units) if units else None) if name else None


def read(named: Described, description: Element) -> Described:
    """Return `named` with the properties that the service reports. An omitted one has its default."""
    if isinstance(named, Rule):
        return cast("Described", _rule(named, description))
    found = texts(description)
    values: dict[str, Any] = {}
    for each in fields(named):
        text = found.get(pascal(each.name)) if each.name not in NAMES else None
        if text is not None:
            values[each.name] = _value(each.name, text, each.default)
    return cast("Described", replace(with_defaults(named), **values))


def _rule(named: Rule, description: Element) -> Rule:
    selected, action = description.find("{*}Filter"), description.find("{*}Action")
    expression = (action.findtext("{*}SqlExpression") or "") if action is not None else ""
    return replace(named, filter=SqlFilter("") if selected is None else _filter(selected), action=expression)


def queue_state(path: str, description: Element, *, counted: bool = False) -> QueueState:
    """Convert a queue, with the size that the service reports, and with its counts if `counted`."""
    return state_of(read(QueueSpec(path), description), _figures(description), counted=counted)


def state_of(spec: QueueSpec, found: Mapping[str, Any], *, counted: bool) -> QueueState:
    """Return the state of a queue from its properties by their names in Atom, as text or converted."""
    partitioned = str(found.get("EnablePartitioning")).lower() == "true"
    if not counted:
        return QueueState(spec, partitioned)
    times = (epoch_seconds(found.get(name)) for name in ("CreatedAt", "UpdatedAt", "AccessedAt"))
    usage = Usage(int(found["SizeInBytes"]) if "SizeInBytes" in found else None, *times)
    return QueueState(spec, partitioned, Counts(*(int(found.get(name, 0)) for name in _COUNTS)), usage)


def counts_of(description: Element) -> Counts | None:
    """Return the counts of a queue; None if the service omitted one."""
    found = _figures(description)
    return Counts(*(int(found[name]) for name in _COUNTS)) if found.keys() >= set(_COUNTS) else None


def _figures(description: Element) -> dict[str, str]:
    details = description.find("{*}CountDetails")
    return texts(description) | (texts(details) if details is not None else {})


def bytes_of(description: Element) -> int:
    return int(texts(description).get("SizeInBytes", 0))


def epoch_seconds(text: str | None) -> float | None:
    """Return seconds since 1970. The service writes the year 1 for a time that never was: None."""
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return None if at.year == 1 else (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _filter(selected: Element) -> SqlFilter | CorrelationFilter:
    if not selected.get(TYPE, "").endswith("CorrelationFilter"):
        return SqlFilter(selected.findtext("{*}SqlExpression") or "")
    found = texts(selected)
    system = {name: found.get(pascal(name), "") for name in CORRELATION_KEYS}
    pairs = [texts(each) for each in selected.iterfind("{*}Properties/*")]
    own = tuple(sorted((each["Key"], each.get("Value", "")) for each in pairs))
    return CorrelationFilter(**system, properties=own)


def _value(name: str, text: str, default: object) -> str | int | bool:
    if name in DURATIONS:
        return iso_duration(_ticks(text))
    if isinstance(default, bool):
        return _BOOLEANS[text.strip().lower()]
    if not isinstance(default, str):
        return int(text)
    return urlsplit(text).path.lstrip("/") if name in _FORWARDS and "://" in text else text


def _ticks(duration: str) -> int:
    try:
        return ticks(duration)
    except UsageError as error:
        raise ValueError(error.message) from error


def _local(element: Element) -> str:
    return element.tag.rpartition("}")[2]
