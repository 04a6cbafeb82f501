"""Entities declared as data, in the form of the vendor emulator's Config.json: {"Queues": […], "Topics": […]}.

Beside those, HybridConnections are an extension of this emulator.

Each fault has its path in the data. Invariant: nothing is left out silently. An unknown name, a wrong type and a value
that the service refuses are faults.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from sbpair.emulator.access.sas import scope_of
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description_schema import SUBSCRIPTION
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.rules import TypedValue, read_typed
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.http.management_parts import (
    FORWARDS,
    EntityCollection,
    queues_of,
    subscriptions_of,
    topics_of,
)
from sbpair.emulator.relay.hybrid_connection import HybridConnectionDescription
from sbpair.emulator.service_errors import ServiceError
from sbpair.timespan import TICKS_PER_SECOND
from sbpair.timespan import parse as parse_timespan

if TYPE_CHECKING:
    from sbpair.emulator.entities.description import QueueDescription
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import TopicEntity

Defaults = Mapping[str, Mapping[str, str]]
"""The text of properties that are left out, by the kind of entity: Queue, Topic or Subscription."""

T = TypeVar("T")

WINDOW: Final = "DuplicateDetectionHistoryTimeWindow"
MIN_WINDOW: Final = 5 * TICKS_PER_SECOND
"""The vendor's emulator accepts shorter windows than the service, whose minimum is 20 seconds."""

_FILTERS: Final = {"Correlation": "CorrelationFilter", "Sql": "SqlFilter"}
_PROPERTY_TYPES: Final[dict[type, str]] = {str: "string", int: "long", float: "double", bool: "boolean"}
_TYPE_NAMES: Final[dict[type, str]] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    type(None): "null",
}


class DeclarationFault(NamedTuple):
    """One fault of declared entities, and its path, as `Queues[0].Properties.LockDuration`."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}" if self.path else self.text


class RepeatedNames(dict[str, Any]):
    """An object of a document in which `repeated` occur more than once."""

    repeated: tuple[str, ...] = ()


class Members:
    """Reader of data of unknown form. Each fault is recorded, and its value skipped."""

    def __init__(self) -> None:
        self.faults: list[DeclarationFault] = []

    def fault(self, path: str, text: str) -> None:
        self.faults.append(DeclarationFault(path, text))

    def read(self, path: str, value: object, *kinds: type[T]) -> T | None:
        """Return `value`, or None with a fault where it is of another type."""
        for kind in kinds:
            if type(value) is kind or (kind is dict and isinstance(value, dict)):
                return value  # type: ignore[return-value]  # it is of this type
        given = _TYPE_NAMES.get(dict if isinstance(value, dict) else type(value), type(value).__name__)
        expected = " or ".join(_TYPE_NAMES[kind] for kind in kinds)
        self.fault(path, f"expected {expected}, got {str(value).lower() if isinstance(value, bool) else given}")
        return None

    def object(self, path: str, value: object, known: Iterable[str], *required: str) -> dict[str, Any]:
        """Return the known members of an object. A missing one of `required` is a fault."""
        members, known = self.read(path, value, dict), list(known)
        if members is None:
            return {}
        for name in getattr(members, "repeated", ()):
            self.fault(inner(path, name), "given more than once")
        for name in members:
            if name not in known:
                near = difflib.get_close_matches(str(name).lower(), [each.lower() for each in known], 1)
                found = [each for each in known if near and each.lower() == near[0]] or ["one of " + ", ".join(known)]
                self.fault(inner(path, name), f"unknown property; expected {found[0]}")
        for name in required:
            if name not in members:
                self.fault(path, f"{name} is missing")
        return {name: value for name, value in members.items() if name in known}

    def items(self, path: str, members: Mapping[str, Any], name: str) -> Iterator[tuple[str, Any]]:
        """Yield path and value of each item of the list `name`, if there is one."""
        for index, item in enumerate(self.read(inner(path, name), members.get(name, []), list) or ()):
            yield f"{inner(path, name)}[{index}]", item

    def text(self, path: str, members: Mapping[str, Any], name: str) -> str | None:
        return self.read(inner(path, name), members[name], str) if name in members else None

    def attempt(self, path: str, action: Callable[[], T]) -> T | None:
        """Return the result of an action, or None with a fault where the service refuses it."""
        try:
            return action()
        except ServiceError as error:
            self.fault(path, error.message)
            return None


def inner(path: str, name: object) -> str:
    return f"{path}.{str(name)[:100]}".removeprefix(".")


def declare(
    namespace: Namespace, path: str, declared: Mapping[str, Any], defaults: Defaults | None = None
) -> list[DeclarationFault]:
    """Create the entities of `declared`: lists Queues, Topics and HybridConnections. Return the faults.

    Nothing is created where a fault is found. Entities that exist already stay unchanged; one of another kind with the
    name is a fault.
    """
    rehearsed = Namespace(namespace.name, ManualClock(), tier=namespace.tier, partitions=namespace.partitions)
    rehearsal = _Declaration(rehearsed, path, declared, defaults or {})
    rehearsal.check_forwarding(namespace)
    return rehearsal.faults or _Declaration(namespace, path, declared, defaults or {}).faults


class _Declaration(Members):
    """The entities of a declaration, created one by one."""

    def __init__(self, namespace: Namespace, path: str, declared: Mapping[str, Any], defaults: Defaults) -> None:
        super().__init__()
        self._namespace = namespace
        self._defaults = defaults
        self._names: set[tuple[str, str]] = set()
        self._forwards: list[tuple[str, str]] = []
        for each, item in self.items(path, declared, "Queues"):
            self._create(each, item, queues_of(namespace))
        for each, item in self.items(path, declared, "Topics"):
            self._topic(each, item)
        for each, item in self.items(path, declared, "HybridConnections"):
            self._hybrid_connection(each, item)

    def check_forwarding(self, existing: Namespace) -> None:
        """Record a fault for each target of forwarding that is neither declared nor there already."""
        for path, target in self._forwards:
            name = scope_of(target)
            if ("", name) not in self._names and not existing.find_queue(name) and not existing.find_topic(name):
                self.fault(path, f"there is no queue or topic '{name[:100]}'")

    def _topic(self, path: str, item: object) -> None:
        members, _ = self._create(path, item, topics_of(self._namespace), "Subscriptions")
        # Where the topic cannot be created, its subscriptions are read all the same.
        topic = self._namespace.find_topic(str(members.get("Name")))
        topic = topic or Namespace("unused", ManualClock()).create_topic("unused")
        for each, subscription in self.items(path, members, "Subscriptions"):
            self._subscription(each, subscription, topic)

    def _hybrid_connection(self, path: str, item: object) -> None:
        members = self.object(path, item, ("Name", "Properties"), "Name")
        above, kinds = f"{path}.Properties", {"RequiresClientAuthorization": bool, "UserMetadata": str}
        given = self.object(above, members.get("Properties", {}), kinds)
        read = {name: self.read(inner(above, name), value, kinds[name]) for name, value in given.items()}
        name, relay = self.text(path, members, "Name"), self._namespace.hybrid_connections
        if name is None or None in read.values():
            return
        key = ("", scope_of(name))
        if key in self._names:
            self.fault(f"{path}.Name", f"the name '{name[:100]}' is used twice")
        elif relay.find(name) is None:
            is_required, metadata = read.get("RequiresClientAuthorization", True), read.get("UserMetadata")
            description = HybridConnectionDescription(
                bool(is_required), metadata if metadata is None else str(metadata)
            )
            self.attempt(f"{path}.Name", partial(relay.create, name, description))
        self._names.add(key)

    def _subscription(self, path: str, item: object, topic: TopicEntity) -> None:
        listed = self.items(path, item if isinstance(item, dict) else {}, "Rules")
        read = {each: self._rule(each, rule) for each, rule in listed}
        found = {each: rule for each, rule in read.items() if rule} or {"": rules.SubscriptionRule()}
        [(_, first), *more] = found.items()
        _, created = self._create(path, item, subscriptions_of(self._namespace, topic), "Rules", rule=first)
        for each, rule in more:
            if isinstance(created, SubscriptionEntity):
                self.attempt(f"{each}.Name", partial(created.add_rule, rule))

    def _create(
        self, path: str, item: object, of: EntityCollection, *below: str, rule: rules.SubscriptionRule | None = None
    ) -> tuple[dict[str, Any], QueueEntity | None]:
        """Create one entity. Return its members, and the entity if it is new."""
        members = self.object(path, item, ("Name", "Properties", *below), "Name")
        description = self._description(f"{path}.Properties", members.get("Properties", {}), of)
        name = self.text(path, members, "Name")
        if name is None:
            return members, None
        key = (path.rpartition(".")[0] if of.schema is SUBSCRIPTION else "", scope_of(name))
        if key in self._names:
            self.fault(f"{path}.Name", f"the name '{name[:100]}' is used twice")
            return members, None
        self._names.add(key)
        if of.find(name) is not None:
            return members, None
        # Faulty properties are replaced by the default ones, to find the faults of the name and of what is below.
        more = () if rule is None else (rule,)
        return members, self.attempt(f"{path}.Name", partial(of.create, name, description, *more))

    def _description(self, path: str, given: object, of: EntityCollection) -> QueueDescription | None:
        values, window, before = self._default_values(of), None, len(self.faults)
        for name, value in self.object(path, given, of.schema.settable).items():
            text = self._value(inner(path, name), value, of.schema.settable[name][1])
            if text is None:
                continue
            if name == WINDOW and (window := _short_window(text)):
                continue
            # One by one, so that each fault is found and has its path.
            if self.attempt(inner(path, name), partial(self._describe, of, {name: text})):
                values[name] = text
                if name in FORWARDS and text:
                    self._forwards.append((inner(path, name), text))
        if len(self.faults) > before:
            return None
        found = self.attempt(path, partial(self._describe, of, values))
        return replace(found, duplicate_detection_history_time_window=window) if found and window else found

    def _default_values(self, of: EntityCollection) -> dict[str, str]:
        """Return the values of properties that are left out. A partitioned namespace has only such entities."""
        values = dict(self._defaults.get(of.schema.entity, {}))
        if self._namespace.partitions > 1 and "EnablePartitioning" in of.schema.settable:
            values["EnablePartitioning"] = "true"
        return values

    def _describe(self, of: EntityCollection, values: Mapping[str, str]) -> QueueDescription:
        return of.describe(values, None, (), self._namespace.authority)

    def _value(self, path: str, value: object, kind: str) -> str | None:
        read = self.read(path, value, {"bool": bool, "int": int}.get(kind, str))
        return None if read is None else str(read).lower() if kind == "bool" else str(read)

    def _rule(self, path: str, item: object) -> rules.SubscriptionRule | None:
        """Return a rule; None with at least one fault where it cannot be read."""
        before, members = len(self.faults), self.object(path, item, ("Name", "Properties"), "Name", "Properties")
        name, where, path = self.text(path, members, "Name"), f"{path}.Name", f"{path}.Properties"
        known = ("FilterType", *_FILTERS.values(), "Action")
        properties = self.object(path, members["Properties"], known, "FilterType") if "Properties" in members else {}
        kind = self.text(path, properties, "FilterType")
        if kind is not None and kind not in _FILTERS:
            self.fault(inner(path, "FilterType"), f"unknown filter type '{kind[:100]}'; expected Correlation or Sql")
        for other, part in _FILTERS.items():
            if part in properties and kind in _FILTERS and kind != other:
                self.fault(inner(path, part), f"does not go with the FilterType {kind}")
        if kind in _FILTERS and _FILTERS[kind] not in properties:
            self.fault(path, f"{_FILTERS[kind]} is missing")
        action = None
        if "Action" in properties:
            action = self._sql(inner(path, "Action"), properties["Action"], rules.SqlAction)
        selected: rules.Filter | None = None
        if "SqlFilter" in properties:
            selected = self._sql(inner(path, "SqlFilter"), properties["SqlFilter"], rules.SqlRuleFilter)
        elif "CorrelationFilter" in properties:
            selected = self._correlation(inner(path, "CorrelationFilter"), properties["CorrelationFilter"])
        if len(self.faults) > before or selected is None or name is None:
            return None
        return self.attempt(where, partial(rules.SubscriptionRule, name, selected, action))

    def _sql(self, path: str, item: object, make: Callable[[str], T]) -> T | None:
        members = self.object(path, item, ("SqlExpression",), "SqlExpression")
        text = self.text(path, members, "SqlExpression")
        return None if text is None else self.attempt(inner(path, "SqlExpression"), partial(make, text))

    def _correlation(self, path: str, item: object) -> rules.CorrelationRuleFilter | None:
        names = {name: field for field, name in rules.CORRELATION_FIELDS.items()}
        members = self.object(path, item, (*names, "Properties"))
        texts = {field: self.text(path, members, name) for name, field in names.items()}
        above = inner(path, "Properties")
        named = self.object(above, members.get("Properties", {}), members.get("Properties", {}))
        typed = {name: self._typed(inner(above, name), value) for name, value in named.items()}
        properties = tuple((name, value) for name, value in typed.items() if value)
        if len(properties) < len(named):
            return None
        return self.attempt(path, lambda: rules.CorrelationRuleFilter(**texts, properties=properties))

    def _typed(self, path: str, value: object) -> TypedValue | None:
        read = self.read(path, value, *_PROPERTY_TYPES)
        return None if read is None else self.attempt(path, lambda: read_typed(_PROPERTY_TYPES[type(read)], str(read)))


def _short_window(text: str) -> int | None:
    """Return the ticks of a window that only the vendor's emulator accepts."""
    with suppress(ValueError):
        ticks = parse_timespan(text)
        if MIN_WINDOW <= ticks < 4 * MIN_WINDOW:
            return ticks
    return None
