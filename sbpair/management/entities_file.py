"""An application's entities as a person writes them: a TOML file, with line and column for all that is wrong in it.

Pure: text in, entities out. Every fault of a document is found; the first is told, and how many more there are.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, NamedTuple, TypeVar

from sbpair.errors import UsageError
from sbpair.management.entity_limits import complaints
from sbpair.management.entity_plan import Key, key, ordered
from sbpair.management.toml_positions import Path, TextPosition, positions
from sbpair.model.connection_string import looks_like_connection_string
from sbpair.model.durations import iso_duration, ticks
from sbpair.model.entities import (
    DURATIONS,
    NAMES,
    AnyEntity,
    CorrelationFilter,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)

SECTIONS = ("queues", "topics")
Kind = TypeVar("Kind", Queue, Topic, Subscription, Rule)

_RULE_KEYS = ("sql", "correlation", "action")
_CORRELATED = tuple(each.name for each in fields(CorrelationFilter))
_PLACE = re.compile(r" \(at line (\d+), column (\d+)\)$")
_KINDS = {str: "text in quotes", int: "a whole number", bool: "true or false", dict: "a table"}


@dataclass(frozen=True, slots=True)
class EntitiesDocument:
    """The entities of an application, and where each of their properties was written, if anywhere."""

    entities: tuple[AnyEntity, ...] = ()
    source: str = ""
    places: Mapping[tuple[Key, str], TextPosition] = field(default_factory=dict)

    def where(self, entity: Described, name: str = "") -> str:
        """`entities.toml:3:1: `, to begin a message with; empty for what was not read from a file."""
        place = self.places.get((key(entity), name)) or self.places.get((key(entity), ""))
        return f"{self.source}:{place.line}:{place.column}: " if place else ""


NO_ENTITIES = EntitiesDocument()


def parse_entities(text: str, source: str) -> EntitiesDocument:
    """The entities that a TOML document describes. Raises UsageError, which begins with `source`, line and column."""
    if looks_like_connection_string(text):
        raise UsageError(
            f"{source} holds a connection string, which is a secret", hint="take it out: entities need no keys"
        )
    try:
        document = tomllib.loads(text)
        reader = _EntitiesReader(positions(text))
        layout = EntitiesDocument(tuple(reader.document(document)), source, reader.places)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(error, source) from None
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply", hint="entities need few levels") from None
    # What the service would refuse may only follow from what could not be read.
    if faults := reader.faults or list(_refused(layout)):
        raise _told(faults, source)
    try:
        ordered(layout.entities)
    except UsageError as error:
        raise UsageError(f"{source}: {error.message}", hint=error.hint) from None
    return layout


class FileFault(NamedTuple):
    place: TextPosition
    text: str
    hint: str


class _EntitiesReader:
    """Goes through the tables; what is wrong is noted, and left out."""

    def __init__(self, where: Mapping[Path, TextPosition]) -> None:
        self._where = where
        self._inside: dict[Path, dict[str, TextPosition]] = {}
        for path, place in where.items():
            self._inside.setdefault(path[:-1], {})[str(path[-1])] = place
        self.faults: list[FileFault] = []
        self.places: dict[tuple[Key, str], TextPosition] = {}

    def document(self, document: dict[str, Any]) -> Iterator[AnyEntity]:
        known = self._known((), document, SECTIONS, "the file")
        for path, name, table in self._tables(("queues",), known):
            yield self._noted(Queue(name, **self._properties(path, table, Queue)), path)
        for path, name, table in self._tables(("topics",), known):
            topic = Topic(name, **self._properties(path, table, Topic, "subscriptions"))
            yield self._noted(topic, path)
            yield from self._subscriptions(path, name, table)

    def _subscriptions(self, above: Path, topic: str, table: dict[str, Any]) -> Iterator[AnyEntity]:
        for path, name, inner in self._tables((*above, "subscriptions"), table):
            properties = self._properties(path, inner, Subscription, "rules")
            yield self._noted(Subscription(topic, name, **properties), path)
            for place, rule, described in self._tables((*path, "rules"), inner):
                yield self._rule(place, Rule(topic, name, rule), described)

    def _rule(self, path: Path, rule: Rule, table: dict[str, Any]) -> Rule:
        given = self._known(path, table, _RULE_KEYS, "a rule")
        if "sql" in given and "correlation" in given:
            self._fault((*path, "correlation"), "a rule has sql or correlation, not both", "keep one of them")
        wanted: SqlFilter | CorrelationFilter = rule.filter
        if "sql" in given:
            wanted = SqlFilter(self._typed((*path, "sql"), given["sql"], str) or "")
        elif "correlation" in given:
            wanted = self._correlation((*path, "correlation"), given["correlation"])
        action = self._typed((*path, "action"), given["action"], str) if "action" in given else ""
        made = Rule(rule.topic, rule.subscription, rule.name, wanted, action or "")
        self._noted(made, path)
        for written in ("sql", "correlation"):
            if written in given:
                self.places[key(made), "filter"] = self._where[*path, written]
        return made

    def _correlation(self, path: Path, value: object) -> CorrelationFilter:
        table = self._typed(path, value, dict) or {}
        known = self._known(path, table, _CORRELATED, "a correlation filter")
        texts = {
            name: self._typed((*path, name), each, str) or "" for name, each in known.items() if name != "properties"
        }
        inner = (*path, "properties")
        given = self._typed(inner, known.get("properties", {}), dict) or {}
        pairs = {name: self._typed((*inner, name), each, str) or "" for name, each in given.items()}
        return CorrelationFilter(**texts, properties=tuple(sorted(pairs.items())))

    def _tables(self, above: Path, table: Mapping[str, Any]) -> Iterator[tuple[Path, str, dict[str, Any]]]:
        """The tables below one that is a collection of them, each with its path and its name."""
        name = above[-1]
        assert isinstance(name, str)  # noqa: S101  # for the type checker: collections have names
        inner = self._typed(above, table.get(name, {}), dict) or {}
        for entity, each in inner.items():
            found = self._typed((*above, entity), each, dict)
            if found is not None:
                yield (*above, entity), entity, found

    def _properties(self, path: Path, table: dict[str, Any], kind: type[AnyEntity], *below: str) -> dict[str, Any]:
        defaults = {each.name: each.default for each in fields(kind) if each.name not in NAMES}
        known = self._known(path, table, (*defaults, *below), f"a {kind.kind}")
        found: dict[str, Any] = {}
        for name in known.keys() & defaults.keys():
            default = defaults[name]
            wanted = int if default is None or default is MISSING else type(default)
            value = self._typed((*path, name), known[name], wanted)
            if value is not None:
                found[name] = self._duration((*path, name), value) if name in DURATIONS else value
        return {name: value for name, value in found.items() if value is not None}

    def _duration(self, path: Path, value: str) -> str | None:
        try:
            return iso_duration(ticks(value))
        except UsageError as error:
            self._fault(path, f"{path[-1]}: {error.message}", error.hint)
            return None

    def _known(self, path: Path, table: dict[str, Any], names: Iterable[str], of: str) -> dict[str, Any]:
        names = list(names)
        for unknown in [name for name in table if name not in names]:
            near = difflib.get_close_matches(unknown, names, 1)
            hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(names)}"
            self._fault((*path, unknown), f"unknown key {unknown!r} of {of}", hint)
        return {name: value for name, value in table.items() if name in names}

    def _typed(self, path: Path, value: Any, wanted: type) -> Any:
        """`value`, or None where it is of another type than `wanted`."""
        if type(value) is wanted:
            return value
        self._fault(path, f"{path[-1]} must be {_KINDS[wanted]}", f"correct {path[-1]} in that place")
        return None

    def _noted(self, entity: Kind, path: Path) -> Kind:
        """Keep where `entity` was written."""
        found = key(entity)
        if (found, "") in self.places:
            text = f"{entity.kind} {entity.path} has a name that is taken further up in the file"
            hint = "the service compares names without regard to case, and a queue's with a topic's"
            self._fault(path, text, hint)
        self.places[found, ""] = self._where[path]
        self.places |= {(found, name): place for name, place in self._inside.get(path, {}).items()}
        return entity

    def _fault(self, path: Path, text: str, hint: str) -> None:
        self.faults.append(FileFault(self._where[path], text, hint))


def _refused(layout: EntitiesDocument) -> Iterator[FileFault]:
    """What the service would refuse of what was read."""
    for entity in layout.entities:
        for each in complaints(entity):
            place = layout.places.get((key(entity), each.name)) or layout.places[key(entity), ""]
            yield FileFault(place, each.told, each.hint)


def _told(faults: list[FileFault], source: str) -> UsageError:
    first = min(faults, key=lambda each: each.place)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return UsageError(f"{source}:{first.place.line}:{first.place.column}: {first.text}{more}", hint=first.hint)


def _malformed(error: tomllib.TOMLDecodeError, source: str) -> UsageError:
    text = str(error)
    place = _PLACE.search(text)
    where = f"{source}:{place[1]}:{place[2]}" if place else source
    return UsageError(f"{where}: not TOML: {_PLACE.sub('', text)}", hint="see https://toml.io for its few rules")
