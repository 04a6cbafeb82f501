"""Entities of one namespace as resources of Azure Resource Manager, for infrastructure code.

Pure. The properties are those that provisioning through Resource Manager sends; the languages only write them down.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sbpair import backlog
from sbpair.azure.descriptions import body_of, name_of
from sbpair.errors import UsageError
from sbpair.management.comparison import entity_key, external_targets, needs, parent_key, plan_entities
from sbpair.management.entities_file import NO_ENTITIES, EntitiesDocument
from sbpair.management.provisioning import check_document
from sbpair.model.entities import (
    DEFAULT_RULE,
    NO_MESSAGE,
    AnyEntity,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Topic,
    with_partitions,
)
from sbpair.model.entity_properties import names_of
from sbpair.model.pair import Pair, Side
from sbpair.template import filled

API_VERSION = "2026-01-01"
NAMESPACES = "Microsoft.ServiceBus/namespaces"
TYPES = {
    "queue": f"{NAMESPACES}/queues@{API_VERSION}",
    "topic": f"{NAMESPACES}/topics@{API_VERSION}",
    "subscription": f"{NAMESPACES}/topics/subscriptions@{API_VERSION}",
    "rule": f"{NAMESPACES}/topics/subscriptions/rules@{API_VERSION}",
}
"""Resource types by kind of entity, of the API version that provisioning uses."""

SYMBOL_LIMIT = 100

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CodeResource:
    """One entity. `symbol` names it in the code, `parent` is its parent's symbol, empty for the namespace's.

    `name` is the resource's, in which `~` stands for `/`. `needs` are symbols of what must exist before it.
    """

    symbol: str
    entity: Described
    name: str
    parent: str
    properties: Json
    needs: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The type of the resource in Resource Manager."""
        return TYPES[self.entity.kind]


@dataclass(frozen=True, slots=True)
class NamespaceCode:
    """The content of one file: the backlog queues of `primary`, if any, and an application's entities.

    `backlog` stands for each of the queues. `default_rules` are the service's own rules of new subscriptions, to end
    once the others exist. `external` are forwarding targets that the file does not describe. `origin` is the command
    that wrote the file.
    """

    namespace: str
    primary: str
    backlog_queues: int
    backlog: CodeResource
    resources: tuple[CodeResource, ...]
    default_rules: tuple[CodeResource, ...]
    external: tuple[str, ...]
    origin: str

    @property
    def content(self) -> str:
        """The content of the file, in words."""
        content = [f"the backlog queues of {self.primary}"] if self.backlog_queues else []
        if number := len(self.resources):
            content.append("one other entity" if number == 1 else f"{number} other entities")
        return " and ".join(content) or "nothing"


def namespace_code(
    pair: Pair,
    side: Side,
    entities: EntitiesDocument = NO_ENTITIES,
    *,
    partitioned: bool = False,
    origin: str = "sbpair export",
) -> NamespaceCode:
    """Return one namespace of a pair: `entities`, and in the secondary the backlog queues.

    With `partitioned`, every queue and topic is: a partitioned Premium namespace requires it. Raises UsageError for
    entities that the service would refuse.
    """
    check_document(pair, entities, in_arm=True)
    resources = _resources(entities.entities, partitioned=partitioned)
    spec = backlog.queue_spec(pair.primary.name, pair.backlog_queues - 1)
    properties = body_of(with_partitions(spec) if partitioned else spec)["properties"]
    return NamespaceCode(
        namespace=(pair.secondary if side == "secondary" else pair.primary).name,
        primary=pair.primary.name,
        backlog_queues=pair.backlog_queues if side == "secondary" else 0,
        backlog=CodeResource("backlog", spec, "", "", properties),
        resources=resources,
        default_rules=tuple(_default_rules(entities.entities, resources)),
        external=tuple(sorted(external_targets(entities.entities).values())),
        origin=origin,
    )


def _resources(entities: Iterable[AnyEntity], *, partitioned: bool) -> tuple[CodeResource, ...]:
    # The service itself creates the default rule: a file can describe it only as it is.
    entities = [entity for entity in entities if not (isinstance(entity, Rule) and entity.name == DEFAULT_RULE)]
    taken: set[str] = set()
    labels = {entity_key(entity): f"{entity.kind}_{' '.join(names_of(entity))}" for entity in entities}
    symbols = {key: unused_symbol(label, taken) for key, label in labels.items()}
    found = []
    for entity in entities:
        wanted = with_partitions(entity) if partitioned and isinstance(entity, (Queue, Topic)) else entity
        parent = symbols.get(parent_key(entity), "")
        others = {symbols[key] for key in needs(entity) & symbols.keys()} - {parent}
        name = name_of(entity.path) if isinstance(entity, (Queue, Topic)) else entity.name
        symbol = symbols[entity_key(entity)]
        found.append(CodeResource(symbol, entity, name, parent, body_of(wanted)["properties"], tuple(sorted(others))))
    return tuple(found)


def _default_rules(entities: Sequence[AnyEntity], resources: Sequence[CodeResource]) -> list[CodeResource]:
    """Return the service's own rules that provisioning would delete. They accept no message."""
    deleted = {parent_key(rule): rule for rule in plan_entities(entities, {}).default_rules}
    taken = {each.symbol.lower() for each in resources}
    found = []
    for each in resources:
        if rule := deleted.get(entity_key(each.entity)):
            inert = replace(rule, filter=SqlFilter(NO_MESSAGE))
            symbol = unused_symbol(f"default_rule_{rule.topic} {rule.subscription}", taken)
            rules = tuple(other.symbol for other in resources if other.parent == each.symbol)
            found.append(CodeResource(symbol, inert, rule.name, each.symbol, body_of(inert)["properties"], rules))
    return found


def unused_symbol(label: str, taken: set[str]) -> str:
    """Return an identifier of both languages that no other one equals regardless of case, and add it to `taken`."""
    plain = re.sub(r"[^A-Za-z0-9]+", "_", label)[:SYMBOL_LIMIT].strip("_")
    found, number = plain, 1
    while found.lower() in taken:
        number += 1
        found = f"{plain}_{number}"
    taken.add(found.lower())
    return found


MAX_RESOURCES = 800
"""The limit of a template of Bicep, and of a loop in it."""

KEYWORDS = frozenset({"true", "false", "null", "for", "if", "in"})


def bicep(code: NamespaceCode) -> str:
    """Return the file. Raises UsageError if it would have more resources than a template can."""
    total = code.backlog_queues + len(code.resources) + len(code.default_rules)
    if total > MAX_RESOURCES:
        raise UsageError(
            f"{total} resources: a Bicep file deploys at most {MAX_RESOURCES}",
            hint="describe fewer entities or queues, or write Terraform",
        )
    return filled("sbpair.planning", "namespace.bicep", code=code, api_version=API_VERSION, literal=bicep_literal)


def terraform(code: NamespaceCode) -> str:
    """Return the file. Raises UsageError for a text that Terraform would change."""
    return filled("sbpair.planning", "namespace.tf", code=code, literal=terraform_literal)


class Expression(str):
    """An expression of the language itself, which a literal has as it is."""

    __slots__ = ()


def bicep_literal(value: Any) -> str:
    """Return a value as an expression. A text is on one line, and what cannot be seen is escaped."""
    return _literal(value, _bicep_text, lambda items: (f"{key}: {each}" for key, each in items))


def terraform_literal(value: Any) -> str:
    """Return a value as an expression, texts as in Bicep.

    Raises UsageError for text that is not in Unicode's form NFC, into which Terraform would convert it.
    """
    return _literal(value, _terraform_text, _aligned)


def _literal(
    value: Any, text: Callable[[str], str], layout: Callable[[list[tuple[str, str]]], Iterable[str]], indent: str = "  "
) -> str:
    if isinstance(value, dict):
        names = [name if name.isascii() and name.isalpha() and name not in KEYWORDS else text(name) for name in value]
        each = [_literal(inner, text, layout, f"{indent}  ") for inner in value.values()]
        lines = "".join(f"{indent}  {line}\n" for line in layout(list(zip(names, each, strict=True))))
        return f"{{\n{lines}{indent}}}" if lines else "{}"
    if isinstance(value, list):
        return f"[{', '.join(_literal(each, text, layout, indent) for each in value)}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, Expression)) else text(value)


def _aligned(items: list[tuple[str, str]]) -> Iterator[str]:
    """Yield attributes whose equal signs are aligned, in groups that an attribute of several lines ends."""
    for is_long, group in groupby(items, lambda item: "\n" in item[1]):
        found = list(group)
        width = 0 if is_long else max(len(key) for key, _ in found)
        yield from (f"{key:<{width}} = {value}" for key, value in found)


def _bicep_text(text: str) -> str:
    return _quoted(text, "'", {"$": "\\$"}, lambda code: f"\\u{{{code:x}}}")


def _terraform_text(text: str) -> str:
    if unicodedata.normalize("NFC", text) != text:
        raise UsageError(
            f"Terraform would change the characters of {text[:40]!r}: it composes accents (Unicode NFC)",
            hint="write the text in NFC, or write Bicep",
        )
    # An escaped `$` begins no template, whatever precedes it; `$${` would depend on that.
    signs = {"$": "\\u0024", "%": "\\u0025"}
    return _quoted(text, '"', signs, lambda code: f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _quoted(text: str, quote: str, signs: dict[str, str], unseen: Callable[[int], str]) -> str:
    """Return a literal. `signs` are escapes of what begins an expression in it, before a brace."""
    escapes = {"\\": "\\\\", quote: f"\\{quote}", "\n": "\\n", "\r": "\\r", "\t": "\\t", **signs}
    text = re.sub(rf"[\\{quote}\n\r\t]|[{''.join(signs)}](?={{)", lambda found: escapes[found[0]], text)
    return f"{quote}{''.join(each if each.isprintable() else unseen(ord(each)) for each in text)}{quote}"
