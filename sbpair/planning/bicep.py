"""Entities as Bicep. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sbpair.backlog import TRANSFER_SEGMENT
from sbpair.errors import UsageError
from sbpair.model.entities import DEFAULT_RULE
from sbpair.planning.entity_code import NAMESPACE_TYPE, TYPES, CodeResource, DefaultRule, NamespaceCode, is_plain_key

MAX_RESOURCES = 800
"""The limit of a template, and of a loop in it."""

_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def bicep(code: NamespaceCode) -> str:
    """Return the file. Raises UsageError if it would have more resources than a template can."""
    total = code.backlog_queues + len(code.resources) + len(code.default_rules)
    if total > MAX_RESOURCES:
        raise UsageError(
            f"{total} resources: a Bicep file deploys at most {MAX_RESOURCES}",
            hint="describe fewer entities or queues, or write Terraform",
        )
    return "\n".join(_lines(code)) + "\n"


def _lines(code: NamespaceCode) -> Iterator[str]:
    yield from (f"// {line}" for line in code.heading)
    yield "// A deployment changes existing entities to this description. sbpair provision never does."
    yield from _parameter("namespaceName", "string", string(code.namespace), "Name of the namespace")
    if code.backlog_queues:
        about = "Name of the primary namespace, which is part of each backlog queue's name"
        yield from _parameter("primaryName", "string", string(code.primary), about)
        about = "Number of backlog queues: every client of the pair uses the same"
        yield from _parameter("backlogQueues", "int", str(code.backlog_queues), about)
    yield from ("", f"resource namespace {string(NAMESPACE_TYPE)} existing = {{")
    yield from ("  name: namespaceName", "}")
    if code.backlog_queues:
        name = f"'${{primaryName}}~{TRANSFER_SEGMENT}~${{index}}'"
        yield from ("", f"resource backlog {string(TYPES['queue'])} = [for index in range(0, backlogQueues): {{")
        yield from (*_body("namespace", name, code.backlog_properties, ()), "}]")
    for each in code.resources:
        yield from _resource(each)
    for rule in code.default_rules:
        yield from _default_rule(rule)


def _parameter(name: str, type_: str, default: str, about: str) -> list[str]:
    return ["", f"@description({string(about)})", f"param {name} {type_} = {default}"]


def _resource(each: CodeResource) -> list[str]:
    body = _body(each.parent or "namespace", string(each.name), each.properties, each.needs)
    return ["", f"resource {each.symbol} {string(each.type)} = {{", *body, "}"]


def _default_rule(rule: DefaultRule) -> list[str]:
    return [
        "",
        "// The service gives a new subscription a rule that accepts every message. A template cannot delete it: this",
        "// makes it accept none. sbpair provision deletes it.",
        f"resource {rule.symbol} {string(TYPES['rule'])} = {{",
        *_body(rule.subscription.symbol, string(DEFAULT_RULE), rule.inert_properties, rule.rules),
        "}",
    ]


def _body(parent: str, name: str, properties: Any, needs: Sequence[str]) -> Iterator[str]:
    yield from (f"  parent: {parent}", f"  name: {name}", f"  properties: {_value(properties, '  ')}")
    if needs:
        yield from ("  dependsOn: [", *(f"    {each}" for each in needs), "  ]")


def _value(value: Any, indent: str) -> str:
    if isinstance(value, dict):
        inner = "".join(f"{indent}  {_key(key)}: {_value(each, indent + '  ')}\n" for key, each in value.items())
        return f"{{\n{inner}{indent}}}" if inner else "{}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else string(value)


def _key(name: str) -> str:
    return name if is_plain_key(name) else string(name)


def string(text: str) -> str:
    """Return a text as a literal on one line. What cannot be seen is escaped."""
    return f"'{''.join(_escaped(text))}'"


def _escaped(text: str) -> Iterable[str]:
    for at, character in enumerate(text):
        if character in _ESCAPES:
            yield _ESCAPES[character]
        elif character == "$" and text[at + 1 : at + 2] == "{":
            yield "\\$"
        else:
            yield character if character.isprintable() else f"\\u{{{ord(character):x}}}"
