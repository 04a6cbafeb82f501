"""An application's entities in a TOML file, with line and column for each fault.

Pure: text in, entities out. Every fault of a document is found; the error of the first has the others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import isfinite
from typing import Any, NamedTuple, TypeVar

from sbpair.errors import UsageError, nearest_hint, raise_all
from sbpair.management.comparison import Key, dependency_order, entity_key
from sbpair.management.entity_limits import violations
from sbpair.model.connection_string import looks_like_connection_string
from sbpair.model.entities import (
    CORRELATION_KEYS,
    AnyEntity,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    RuleValue,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.entity_properties import INT_MIN, LONG_MAX, PROPERTIES_OF
from sbpair.model.toml_text import Path, TextPosition, parse_toml
from sbpair.timespan import iso_duration, ticks

SECTIONS = ("queues", "topics")
Kind = TypeVar("Kind", Queue, Topic, Subscription, Rule)

_RULE_KEYS = ("sql", "correlation", "action")
_TYPE_NAMES = {str: "text in quotes", int: "a whole number", bool: "true or false", dict: "a table"}


@dataclass(frozen=True, slots=True)
class EntitiesDocument:
    """The entities of an application, and the position of each property in the file, if they come from one."""

    entities: tuple[AnyEntity, ...] = ()
    source: str = ""
    positions: Mapping[tuple[Key, str], TextPosition] = field(default_factory=dict)

    def where(self, entity: Described, name: str = "") -> str:
        """Return the prefix of a message, as `entities.toml:3:1: `; empty for an entity that no file describes."""
        key = entity_key(entity)
        found = self.positions.get((key, name)) or self.positions.get((key, ""))
        return f"{self.source}:{found.line}:{found.column}: " if found else ""


NO_ENTITIES = EntitiesDocument()


def parse_entities(text: str, source: str) -> EntitiesDocument:
    """Parse a TOML document. Raises UsageError, whose message begins with `source`, line and column."""
    if looks_like_connection_string(text):
        raise UsageError(
            f"{source} holds a connection string, which is a secret", hint="remove it: entities need no keys"
        )
    tables, positions = parse_toml(text, source)
    reader = _EntitiesReader(positions)
    document = EntitiesDocument(tuple(reader.read(tables)), source, reader.positions)
    # A fault in reading an entity may be the only reason for a violated limit of it.
    if faults := [*reader.faults, *_limit_faults(document, filter(reader.is_sound, document.entities))]:
        raise_all(
            UsageError(f"{source}:{line}:{column}: {text}", hint=hint)
            for (line, column), text, hint in sorted(faults, key=lambda each: each.position)
        )
    try:
        dependency_order(document.entities)
    except UsageError as error:
        raise UsageError(f"{source}: {error.message}", hint=error.hint) from None
    return document


def with_properties(named: AnyEntity, table: dict[str, Any]) -> AnyEntity:
    """Return an entity with the properties of a table as in a file. Raises UsageError for the first fault."""
    reader = _EntitiesReader(defaultdict(lambda: TextPosition(1, 1)))
    entity = replace(named, **reader.properties((), table, type(named)))
    for fault in reader.faults:
        raise UsageError(fault.text, hint=fault.hint)
    for violation in violations(entity):
        raise UsageError(violation.message, hint=violation.hint)
    return entity


class FileFault(NamedTuple):
    position: TextPosition
    text: str
    hint: str


class _EntitiesReader:
    """Reads the tables; each fault is recorded and its value skipped."""

    def __init__(self, where: Mapping[Path, TextPosition]) -> None:
        self._where = where
        self._inside: dict[Path, dict[str, TextPosition]] = {}
        for path, position in where.items():
            self._inside.setdefault(path[:-1], {})[str(path[-1])] = position
        self.faults: list[FileFault] = []
        self._fault_paths: list[Path] = []
        self._paths: dict[Key, Path] = {}
        self.positions: dict[tuple[Key, str], TextPosition] = {}

    def read(self, tables: dict[str, Any]) -> Iterator[AnyEntity]:
        known = self._known((), tables, SECTIONS, "the file")
        for path, name, table in self._tables(("queues",), known):
            yield self._placed(Queue(name, **self.properties(path, table, Queue)), path)
        for path, name, table in self._tables(("topics",), known):
            topic = Topic(name, **self.properties(path, table, Topic, "subscriptions"))
            yield self._placed(topic, path)
            yield from self._subscriptions(path, name, table)

    def _subscriptions(self, above: Path, topic: str, table: dict[str, Any]) -> Iterator[AnyEntity]:
        for path, name, inner in self._tables((*above, "subscriptions"), table):
            properties = self.properties(path, inner, Subscription, "rules")
            yield self._placed(Subscription(topic, name, **properties), path)
            for rule_path, rule, described in self._tables((*path, "rules"), inner):
                yield self._rule(rule_path, Rule(topic, name, rule), described)

    def _rule(self, path: Path, rule: Rule, table: dict[str, Any]) -> Rule:
        given = self._known(path, table, _RULE_KEYS, "a rule")
        if "sql" in given and "correlation" in given:
            self._fault((*path, "correlation"), "a rule has sql or correlation, not both", "remove one of them")
        selected: SqlFilter | CorrelationFilter = rule.filter
        if "sql" in given:
            selected = SqlFilter(self._typed((*path, "sql"), given["sql"], str) or "")
        elif "correlation" in given:
            selected = self._correlation((*path, "correlation"), given["correlation"])
        action = self._typed((*path, "action"), given["action"], str) if "action" in given else ""
        rule = replace(rule, filter=selected, action=action or "")
        self._placed(rule, path)
        for written in ("sql", "correlation"):
            if written in given:
                self.positions[entity_key(rule), "filter"] = self._where[*path, written]
        return rule

    def _correlation(self, path: Path, value: object) -> CorrelationFilter:
        table = self._typed(path, value, dict) or {}
        known = self._known(path, table, (*CORRELATION_KEYS, "properties"), "a correlation filter")
        texts = {
            name: self._typed((*path, name), each, str) or "" for name, each in known.items() if name != "properties"
        }
        inner = (*path, "properties")
        given = self._typed(inner, known.get("properties", {}), dict) or {}
        pairs = sorted((name, each) for name, each in given.items() if isinstance(each, str))
        others = (self._value((*inner, name), each) for name, each in given.items() if not isinstance(each, str))
        return CorrelationFilter(**texts, properties=tuple(pairs), typed=tuple(sorted(filter(None, others))))

    def _value(self, path: Path, value: Any) -> RuleValue | None:
        """Return a value to compare with, other than text, or None for one that a filter cannot have."""
        if isinstance(value, bool) or (isinstance(value, int) and INT_MIN <= value <= LONG_MAX):
            return RuleValue.of(str(path[-1]), value)
        is_time = isinstance(value, datetime) and value.tzinfo is not None and not value.microsecond
        if is_time or (isinstance(value, float) and isfinite(value)):
            return RuleValue.of(str(path[-1]), value)
        example = "2026-01-01T12:00:00Z"
        text = f"{path[-1]} must be text in quotes, a number, true or false, or a time with its zone, such as {example}"
        self._fault(path, text, f"correct {path[-1]}: whole numbers from {INT_MIN} to {LONG_MAX}, and whole seconds")
        return None

    def _tables(self, above: Path, table: Mapping[str, Any]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
        """Yield the tables of a collection, each with its path and name."""
        inner = self._typed(above, table.get(above[-1], {}), dict) or {}
        for entity, each in inner.items():
            found = self._typed((*above, entity), each, dict)
            if found is not None:
                yield (*above, entity), entity, found

    def properties(self, path: Path, table: dict[str, Any], kind: type[AnyEntity], *below: str) -> dict[str, Any]:
        rows = PROPERTIES_OF[kind]
        known = self._known(path, table, (*(row.name for row in rows), *below), f"a {kind.kind}")
        found: dict[str, Any] = {}
        for row in rows:
            if row.name in known:
                value = self._typed((*path, row.name), known[row.name], row.type)
                if row.is_duration and value is not None:
                    value = self._duration((*path, row.name), value)
                if value is not None:
                    found[row.name] = value
        return found

    def _duration(self, path: Path, value: str) -> str | None:
        try:
            return iso_duration(ticks(value))
        except UsageError as error:
            self._fault(path, f"{path[-1]}: {error.message}", error.hint)
            return None

    def _known(self, path: Path, table: dict[str, Any], names: Iterable[str], of: str) -> dict[str, Any]:
        names = list(names)
        for unknown in [name for name in table if name not in names]:
            hint = nearest_hint(unknown, names, f"expected one of {', '.join(names)}")
            self._fault((*path, unknown), f"unknown key {unknown!r} of {of}", hint)
        return {name: value for name, value in table.items() if name in names}

    def _typed(self, path: Path, value: Any, expected: type) -> Any:
        """Return `value`, or None where it is of another type than `expected`."""
        if type(value) is expected:
            return value
        self._fault(path, f"{path[-1]} must be {_TYPE_NAMES[expected]}", f"correct {path[-1]}")
        return None

    def _placed(self, entity: Kind, path: Path) -> Kind:
        key = entity_key(entity)
        if (key, "") in self.positions:
            text = f"{entity.kind} {entity.path} uses a name that the file defines above"
            hint = "the service compares names without regard to case, and a queue's with a topic's"
            self._fault(path, text, hint)
        self.positions[key, ""] = self._where[path]
        self._paths[key] = path
        self.positions |= {(key, name): each for name, each in self._inside.get(path, {}).items()}
        return entity

    def _fault(self, path: Path, text: str, hint: str) -> None:
        self.faults.append(FileFault(self._where[path], text, hint))
        self._fault_paths.append(path)

    def is_sound(self, entity: AnyEntity) -> bool:
        """Return whether all properties of an entity were read: others may violate a limit because of one."""
        path = self._paths[entity_key(entity)]
        inside = [each[len(path) :] for each in self._fault_paths if each[: len(path)] == path]
        return all(each[:1] in (("subscriptions",), ("rules",)) for each in inside)


def _limit_faults(document: EntitiesDocument, entities: Iterable[AnyEntity]) -> Iterator[FileFault]:
    for entity in entities:
        key = entity_key(entity)
        for each in violations(entity):
            position = document.positions.get((key, each.name)) or document.positions[key, ""]
            yield FileFault(position, each.message, each.hint)
