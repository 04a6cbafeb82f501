"""Entities as Python data: the arguments of the mark `service_bus`, in the form of `declared_entities`.

`queues` and `topics` are names, or mappings: of queues to properties, of topics to subscriptions. The subscriptions are
names, or a mapping to properties or an SQL filter. `config` names a Config.json instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sbpair.emulator.config_file import VENDOR_DEFAULTS, load_config
from sbpair.emulator.declared_entities import Defaults, Members, declare
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace


class Declaration(NamedTuple):
    """Entities to create: a document with Queues and Topics, and what `declare` takes besides."""

    path: str
    document: Mapping[str, Any]
    defaults: Defaults

    def create_in(self, namespace: Namespace) -> None:
        """Create the entities that the namespace lacks. Raises UsageError with every fault."""
        _refuse(declare(namespace, *self))

    def parts(self) -> Iterator[tuple[str, object]]:
        """Yield each entity's kind and name, in lower case, with its definition."""
        for queue in self.document.get("Queues", ()):
            yield f"queue '{queue['Name'].lower()}'", queue
        for topic in self.document.get("Topics", ()):
            name = topic["Name"].lower()
            yield f"topic '{name}'", topic.get("Properties", {})
            for each in topic.get("Subscriptions", ()):
                yield f"subscription '{name}/{each['Name'].lower()}'", each


def read_declaration(arguments: Mapping[str, object], folder: Path = Path()) -> Declaration:
    """Return the declaration of a mark's arguments; `config` is relative to `folder`. Raises UsageError."""
    members = Members()
    known = members.object("", arguments, ("queues", "topics", "config"))
    queues = [_entity(name, properties) for name, properties in _named(members, "queues", known.get("queues"))]
    topics = [
        {"Name": name, "Subscriptions": [_subscription(*each) for each in _named(members, f"topics.{name}", inner)]}
        for name, inner in _named(members, "topics", known.get("topics"))
    ]
    config = known.get("config")
    if config is not None and (queues or topics):
        members.fault("config", "does not go with queues and topics")
    if config is not None and not isinstance(config, str | Path):
        members.fault("config", "expected the path of a file")
    _refuse(members.faults)
    if config is None:
        return Declaration("", {"Queues": queues, "Topics": topics}, {})
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


def _entity(name: object, properties: object) -> dict[str, Any]:
    if isinstance(properties, Mapping):
        properties = {_property_name(str(key)): _plain(value) for key, value in properties.items()}
    return {"Name": name, "Properties": {} if properties is None else properties}


def _subscription(name: object, given: object) -> dict[str, Any]:
    if not isinstance(given, str):
        return _entity(name, given)
    selected = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": given}}
    return {"Name": name, "Rules": [{"Name": "$Default", "Properties": selected}]}


def _property_name(name: str) -> str:
    """Return the name that Config.json has for a property: LockDuration for `lock_duration`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _plain(value: object) -> object:
    return f"PT{value.total_seconds():f}S" if isinstance(value, timedelta) else value


def _refuse(faults: Iterable[object]) -> None:
    if lines := [str(fault) for fault in faults]:
        raise UsageError("; ".join(lines), hint="see sbpair help emulator")
