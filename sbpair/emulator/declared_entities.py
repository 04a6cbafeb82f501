"""Entities declared as data, in the form of the vendor emulator's Config.json: {"Queues": […], "Topics": […]}.

Beside those, HybridConnections are an extension of this emulator.

Each fault has its path in the data. Invariant: nothing is left out silently. An unknown name, a wrong type and a value
that the service refuses are faults.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from sbpair.amqp_server.refusals import ServiceError
from sbpair.amqp_server.shared_access import scope_of
from sbpair.emulator.clock import ManualClock
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import ADDRESS, SUBSCRIPTION, TIERS, text_of
from sbpair.emulator.entities.namespace import Namespace
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.frontends.http.management_parts import (
    EntityCollection,
    ManagedEntity,
    hybrid_connections_of,
    queues_of,
    subscriptions_of,
    topics_of,
)
from sbpair.emulator.server import RequestedNamespace, check_requested
from sbpair.errors import SbpairError, UsageError
from sbpair.operating_system.files import read_document
from sbpair.rules import filters
from sbpair.rules.values import RuleInvalid, TypedValue, read_typed
from sbpair.timespan import TICKS_PER_SECOND

T = TypeVar("T")

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
        except (ServiceError, RuleInvalid) as error:
            self.fault(path, error.message)
            return None


def inner(path: str, name: object) -> str:
    return f"{path}.{str(name)[:100]}".removeprefix(".")


class DeclaredEntities(NamedTuple):
    """Entities as data: lists of Queues, Topics and HybridConnections, and the path of that in a larger document.

    `defaults` are the texts of properties that are left out.
    """

    path: str
    document: Mapping[str, Any]
    defaults: Mapping[str, str] = MappingProxyType({})

    def create_in(self, namespace: Namespace) -> list[DeclarationFault]:
        """Create the entities. Return the faults; nothing is created where one is found.

        Entities that exist already stay unchanged; one of another kind with the name is a fault.
        """
        rehearsed = Namespace(namespace.name, ManualClock(), tier=namespace.tier, partitions=namespace.partitions)
        rehearsal = _Declaration(rehearsed, *self)
        rehearsal.check_forwarding(namespace)
        return rehearsal.faults or _Declaration(namespace, *self).faults


class _Declaration(Members):
    """The entities of a declaration, created one by one."""

    def __init__(
        self, namespace: Namespace, path: str, declared: Mapping[str, Any], defaults: Mapping[str, str]
    ) -> None:
        super().__init__()
        self._namespace = namespace
        self._defaults = defaults
        self._tier = replace(namespace.tier, min_window=MIN_WINDOW)
        self._names: set[tuple[str, str]] = set()
        self._forwards: list[tuple[str, str]] = []
        for each, item in self.items(path, declared, "Queues"):
            self._create(each, item, queues_of(namespace))
        for each, item in self.items(path, declared, "Topics"):
            self._topic(each, item)
        for each, item in self.items(path, declared, "HybridConnections"):
            self._create(each, item, hybrid_connections_of(namespace))

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
    ) -> tuple[dict[str, Any], ManagedEntity | None]:
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

    def _description(self, path: str, given: object, of: EntityCollection) -> Any:
        known, before, describe = of.schema.properties, len(self.faults), partial(of.describe, tier=self._tier)
        has_all = self._tier.has_all_features
        values = {
            name: text for name, text in self._defaults.items() if name in known and (has_all or known[name].in_basic)
        }
        if self._namespace.partitions > 1 and "EnablePartitioning" in known:
            # A partitioned namespace has only such entities.
            values["EnablePartitioning"] = "true"
        for name, value in self.object(path, given, known).items():
            if self.read(inner(path, name), value, known[name].form.json) is None:
                continue
            text = text_of(value)
            # One by one, so that each fault is found and has its path.
            if self.attempt(inner(path, name), partial(describe, {name: text})):
                values[name] = text
                if known[name].form is ADDRESS and text:
                    self._forwards.append((inner(path, name), text))
        return None if len(self.faults) > before else self.attempt(path, partial(describe, values))

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
        selected: filters.Filter | None = None
        if "SqlFilter" in properties:
            selected = self._sql(inner(path, "SqlFilter"), properties["SqlFilter"], filters.SqlRuleFilter)
        elif "CorrelationFilter" in properties:
            selected = self._correlation(inner(path, "CorrelationFilter"), properties["CorrelationFilter"])
        if len(self.faults) > before or selected is None or name is None:
            return None
        return self.attempt(where, partial(rules.SubscriptionRule, name, selected, action))

    def _sql(self, path: str, item: object, make: Callable[[str], T]) -> T | None:
        members = self.object(path, item, ("SqlExpression",), "SqlExpression")
        text = self.text(path, members, "SqlExpression")
        return None if text is None else self.attempt(inner(path, "SqlExpression"), partial(make, text))

    def _correlation(self, path: str, item: object) -> filters.CorrelationRuleFilter | None:
        names = {name: field for field, name in filters.CORRELATION_FIELDS.items()}
        members = self.object(path, item, (*names, "Properties"))
        texts = {field: self.text(path, members, name) for name, field in names.items()}
        above = inner(path, "Properties")
        named = self.object(above, members.get("Properties", {}), members.get("Properties", {}))
        typed = {name: self._typed(inner(above, name), value) for name, value in named.items()}
        properties = tuple((name, value) for name, value in typed.items() if value)
        if len(properties) < len(named):
            return None
        return self.attempt(path, lambda: filters.CorrelationRuleFilter(**texts, properties=properties))

    def _typed(self, path: str, value: object) -> TypedValue | None:
        read = self.read(path, value, *_PROPERTY_TYPES)
        return None if read is None else self.attempt(path, lambda: read_typed(_PROPERTY_TYPES[type(read)], str(read)))


VENDOR_DEFAULTS: Final = {
    "DefaultMessageTimeToLive": "PT1H",
    "DuplicateDetectionHistoryTimeWindow": "PT20S",
    "MaxDeliveryCount": "3",
}
"""The defaults of the vendor's schema that differ from the service's."""

NO_NAMESPACE: Final = 'add a namespace to the file: {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns"}]}}'
LOGGING_TYPES: Final = ("File", "Console", "File,Console", "Console,File")

# It matches also without its end: a search at each quote would take a time that grows with their square.
_STRING: Final = r'"(?:[^"\\]|\\.)*+"?'
_COMMENT: Final = re.compile(rf"({_STRING}|/\*(?!.*?\*/).*)|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMA: Final = re.compile(rf"({_STRING}|[^\s,\[{{\"])(?:(\s*),(?=\s*[\]}}]))?", re.DOTALL)


class ConfigFileInvalid(UsageError):
    """A configuration file with faults. `faults` has them all, each on one line."""

    def __init__(
        self, source: str, faults: Sequence[DeclarationFault], hint: str = "correct the file; no namespace was started"
    ) -> None:
        self.faults = [f"{source}: {fault}" for fault in faults]
        super().__init__("\n".join(self.faults), hint=hint)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The namespaces of a file by name, each with its entities.

    `faults` are those that do not depend on a tier. `requested` reports them with the others.
    """

    source: str
    namespaces: Mapping[str, DeclaredEntities]
    faults: Sequence[DeclarationFault] = ()

    def requested(self, given: Sequence[RequestedNamespace], first_port: int) -> list[RequestedNamespace]:
        """Return the namespaces, on ports from `first_port` unless `given` names one.

        Raises UsageError if `given` is wrong, and ConfigFileInvalid with all faults of the file.
        """
        if given:
            check_requested(given)
        if not self.namespaces:
            raise ConfigFileInvalid(self.source, self.faults, NO_NAMESPACE)
        by_name, known = {each.name.lower(): each for each in given}, [name.lower() for name in self.namespaces]
        if unknown := [each.name for each in given if each.name.lower() not in known]:
            hint = f"it has {', '.join(self.namespaces)}"
            raise UsageError(f"namespace '{unknown[0]}' is not in {self.source}", hint=hint)
        found = [
            by_name.get(name.lower(), RequestedNamespace(name, first_port + index))._replace(name=name)
            for index, name in enumerate(self.namespaces)
        ]
        faults = list(self.faults)
        for each in found:
            tier = TIERS[each.tier.lower()]
            empty = Namespace(each.name, ManualClock(), tier=tier, partitions=each.partitions)
            faults += self.namespaces[each.name].create_in(empty)
        if faults:
            raise ConfigFileInvalid(self.source, faults)
        return found

    def create_entities(self, namespace: Namespace) -> None:
        """Create the entities that the namespace lacks. Raises ConfigFileInvalid if it cannot have one of them."""
        if faults := self.namespaces[namespace.name].create_in(namespace):
            raise ConfigFileInvalid(self.source, faults)


def load_config(path: Path) -> ConfigFile:
    """Read a file. Raises UsageError and MachineLacks where it cannot be read, or is not JSON."""
    return parse_config(read_document(path, hint="check the path"), path.name)


def parse_config(text: str, source: str) -> ConfigFile:
    """Parse a document. Raises UsageError if it is not JSON."""
    members = Members()
    root = members.object("", _parse_json(text, source), ("UserConfig", "$schema"), "UserConfig")
    config: dict[str, Any] = {}
    if "UserConfig" in root:
        config = members.object("UserConfig", root["UserConfig"], ("Namespaces", "Logging"), "Namespaces")
    _check_logging(members, config)
    namespaces: dict[str, DeclaredEntities] = {}
    for path, item in members.items("UserConfig", config, "Namespaces"):
        found = members.object(path, item, ("Name", "Queues", "Topics", "HybridConnections"), "Name")
        name = members.text(path, found, "Name")
        if name is None:
            continue
        if name.lower() in map(str.lower, namespaces):
            members.fault(f"{path}.Name", f"namespace '{name}' is named twice")
        _check_name(members, f"{path}.Name", name)
        namespaces[name] = DeclaredEntities(path, found, VENDOR_DEFAULTS)
    if config.get("Namespaces") == []:
        members.fault("UserConfig.Namespaces", "a namespace is missing")
    return ConfigFile(source, namespaces, members.faults)


def _check_name(members: Members, path: str, name: str) -> None:
    try:
        RequestedNamespace(name, 0).check()
    except SbpairError as error:
        members.fault(path, f"{error.message}; {error.hint}")


def _check_logging(members: Members, config: Mapping[str, Any]) -> None:
    """Record faults of Logging, which has no effect: this emulator writes to stderr."""
    path = "UserConfig.Logging"
    kind = members.text(path, members.object(path, config.get("Logging", {}), ("Type",)), "Type")
    if kind is not None and kind.replace(" ", "") not in LOGGING_TYPES:
        members.fault(f"{path}.Type", f"unknown type '{kind[:100]}'; expected one of {' '.join(LOGGING_TYPES)}")


def _parse_json(text: str, source: str) -> object:
    """Parse JSON with comments and trailing commas, as .NET's configuration does. Raises UsageError."""
    # Blanks in place of a comment keep the line and column of an error.
    plain = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    plain = _TRAILING_COMMA.sub(lambda match: match[1] if match[2] is None else f"{match[1]}{match[2]} ", plain)
    try:
        return json.loads(plain, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        where = f"{source}:{error.lineno}:{error.colno}"
        raise UsageError(f"{where}: not JSON: {error.msg}", hint="comments with // are allowed") from None
    except ValueError as error:
        raise UsageError(f"{source}: not JSON: {error}", hint="correct the file") from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint="correct the file") from None


def _object(pairs: list[tuple[str, Any]]) -> RepeatedNames:
    found, names = RepeatedNames(pairs), [name for name, _ in pairs]
    if len(found) < len(names):
        found.repeated = tuple(name for name in found if names.count(name) > 1)
    return found


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is not a number of JSON")
