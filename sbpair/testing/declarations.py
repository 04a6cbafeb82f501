"""Entities as Python data: the arguments of the mark `service_bus`, in the form of `declared_entities`.

`queues` are names, or a mapping to properties. `topics` is a mapping to subscriptions, which are names, or a mapping to
properties or an SQL filter. `hybrid_connections` are names, or a mapping to properties. `config` names a Config.json
instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sbpair import timespan
from sbpair.emulator.config_file import VENDOR_DEFAULTS, load_config
from sbpair.emulator.declared_entities import Defaults, Members, declare, inner
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace


_RELAY: Final = "hybrid_connections"


class Declaration(NamedTuple):
    """Entities to create: a document of Queues, Topics and HybridConnections, and the other arguments of `declare`."""

    path: str
    document: Mapping[str, Any]
    defaults: Defaults

    def create_in(self, namespace: Namespace) -> None:
        """Create the entities that the namespace lacks. Raises UsageError with every fault."""
        _refuse(declare(namespace, *self))

    def parts(self) -> Iterator[tuple[str, object]]:
        """Yield each entity's kind and name, in lower case, with its definition."""
        for queue in self.document.get("Queues", ()):
            name = queue["Name"].lower()
            yield f"queue '{name}'", {**queue, "Name": name}
        for entity in self.document.get("HybridConnections", ()):
            name = entity["Name"].lower()
            yield f"hybrid connection '{name}'", {**entity, "Name": name}
        for topic in self.document.get("Topics", ()):
            name = topic["Name"].lower()
            yield f"topic '{name}'", topic.get("Properties", {})
            for each in topic.get("Subscriptions", ()):
                below = each["Name"].lower()
                yield f"subscription '{name}/{below}'", {**each, "Name": below}


def read_declaration(arguments: Mapping[str, object], folder: Path = Path()) -> Declaration:
    """Return the declaration of a mark's arguments; `config` is relative to `folder`. Raises UsageError."""
    members = Members()
    known = members.object("", arguments, ("queues", "topics", "hybrid_connections", "config"))
    queues = [_entity(members, "queues", *each) for each in _named(members, "queues", known.get("queues"))]
    relay = [_entity(members, _RELAY, *each) for each in _named(members, _RELAY, known.get(_RELAY))]
    topics = [_topic(members, *each) for each in _topics(members, known.get("topics"))]
    config = known.get("config")
    if config is not None and (queues or topics or relay):
        members.fault("config", "does not go with queues and topics")
    if config is not None and not isinstance(config, str | Path):
        members.fault("config", "expected the path of a file")
    _refuse(members.faults)
    if config is None:
        listed = {"HybridConnections": relay} if relay else {}
        return Declaration("", {"Queues": queues, "Topics": topics, **listed}, {})
    file = load_config(folder / str(config))
    [(path, entities), *more] = file.namespaces.values() or [("", {})]
    if more:
        raise UsageError(f"config: {file.source} has several namespaces", hint="name a file with one namespace")
    file.requested([], 0)
    return Declaration(path, entities, VENDOR_DEFAULTS)


def _named(members: Members, path: str, value: object) -> list[tuple[Any, object]]:
    """Return names with their values: those of a mapping, or None for each of other names."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [(each, None) for each in value]
    if value is not None:
        members.fault(path, "expected names, or a mapping of names")
    return []


def _topics(members: Members, value: object) -> list[tuple[Any, object]]:
    if value is None or isinstance(value, Mapping):
        return _named(members, "topics", value)
    members.fault("topics", 'expected a mapping of topics to subscriptions, such as {"news": ["audit"]}')
    return []


def _topic(members: Members, name: object, subscriptions: object) -> dict[str, Any]:
    path = f"topics.{name}"
    below = [_subscription(members, path, *each) for each in _named(members, path, subscriptions)]
    return {"Name": name, "Subscriptions": below}


def _entity(members: Members, path: str, name: object, properties: object) -> dict[str, Any]:
    if isinstance(properties, Mapping):
        properties = _properties(members, inner(path, name), properties)
    return {"Name": name, "Properties": {} if properties is None else properties}


def _properties(members: Members, path: str, given: Mapping[object, object]) -> dict[str, object]:
    """Return properties with the names of Config.json. One that is given in both forms is a fault."""
    spelled: dict[str, object] = {}
    properties: dict[str, object] = {}
    for key, value in given.items():
        name = _property_name(str(key))
        if name in spelled:
            members.fault(inner(path, key), f"the same property as {spelled[name]}; give one of them")
        spelled[name] = key
        properties[name] = _plain(value)
    return properties


def _subscription(members: Members, path: str, name: object, given: object) -> dict[str, Any]:
    if not isinstance(given, str):
        return _entity(members, path, name, given)
    selected = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": given}}
    return {"Name": name, "Rules": [{"Name": "$Default", "Properties": selected}]}


def _property_name(name: str) -> str:
    """Return the name that Config.json has for a property: LockDuration for `lock_duration`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _plain(value: object) -> object:
    if isinstance(value, timedelta):
        return timespan.show(value // timedelta(microseconds=1) * 10)
    return value


def _refuse(faults: Iterable[object]) -> None:
    if lines := [str(fault) for fault in faults]:
        raise UsageError("; ".join(lines), hint="see sbpair help emulator")
