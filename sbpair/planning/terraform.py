"""Entities as Terraform, by the provider azapi: azurerm lacks some of their properties. Pure.

The layout is that of `terraform fmt`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sbpair.backlog import TRANSFER_SEGMENT
from sbpair.errors import UsageError
from sbpair.model.entities import DEFAULT_RULE
from sbpair.planning.entity_code import NAMESPACES, TYPES, CodeResource, DefaultRule, NamespaceCode, is_plain_key

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_PROVIDER = """
terraform {
  required_version = ">= 1.3"
  required_providers {
    azapi = {
      source  = "Azure/azapi"
      version = "~> 2.0"
    }
  }
}
"""
_GROUP_ABOUT = "Id of the namespace's resource group, as in /subscriptions/ID/resourceGroups/NAME"
_PARENT = "local.namespace_id"


def terraform(code: NamespaceCode) -> str:
    """Return the file. Raises UsageError for a text that Terraform would change."""
    return "\n".join(_lines(code)) + "\n"


def _lines(code: NamespaceCode) -> Iterator[str]:
    yield from (f"# {line}" for line in code.heading)
    yield "# Import existing entities before the first apply, which fails for them."
    yield _PROVIDER.rstrip("\n")
    yield from _variable("resource_group_id", "string", None, _GROUP_ABOUT)
    yield from _variable("namespace_name", "string", string(code.namespace), "Name of the namespace")
    if code.backlog_queues:
        about = "Name of the primary namespace, which is part of each backlog queue's name"
        yield from _variable("primary_name", "string", string(code.primary), about)
        about = "Number of backlog queues: every client of the pair uses the same"
        yield from _variable("backlog_queues", "number", str(code.backlog_queues), about)
    path = f"${{var.resource_group_id}}/providers/{NAMESPACES}/${{var.namespace_name}}"
    yield from ("", "locals {", f'  namespace_id = "{path}"', "}")
    if code.backlog_queues:
        name = f'"${{var.primary_name}}~{TRANSFER_SEGMENT}~${{count.index}}"'
        yield from ("", 'resource "azapi_resource" "backlog" {', "  count     = var.backlog_queues")
        yield from _body(TYPES["queue"], _PARENT, name, code.backlog_properties, ())
        yield from (*_kept(code.backlog_properties), "}")
    for each in code.resources:
        yield from _resource(each)
    for rule in code.default_rules:
        yield from _default_rule(rule)


def _variable(name: str, type_: str, default: str | None, about: str) -> Iterator[str]:
    yield from ("", f'variable "{name}" {{', f"  description = {string(about)}", f"  type        = {type_}")
    if default is not None:
        yield f"  default     = {default}"
    yield "}"


def _resource(each: CodeResource) -> Iterator[str]:
    parent = f"azapi_resource.{each.parent}.id" if each.parent else _PARENT
    yield from ("", f'resource "azapi_resource" "{each.symbol}" {{')
    yield from _body(each.type, parent, string(each.name), each.properties, each.needs)
    if each.entity.kind != "rule":
        yield from _kept(each.properties)
    yield "}"


def _default_rule(rule: DefaultRule) -> Iterator[str]:
    id_ = f'"${{azapi_resource.{rule.subscription.symbol}.id}}/rules/{DEFAULT_RULE}"'
    yield ""
    yield "# The service gives a new subscription a rule that accepts every message: deleted once all others exist."
    yield f'resource "azapi_resource_action" "{rule.symbol}" {{'
    yield f"  type             = {string(TYPES['rule'])}"
    yield from (f"  resource_id      = {id_}", '  method           = "DELETE"', "  ignore_not_found = true")
    yield from (*_depends(rule.rules), "}")


def _body(type_: str, parent: str, name: str, properties: Any, needs: Sequence[str]) -> Iterator[str]:
    yield from (f"  type      = {string(type_)}", f"  parent_id = {parent}", f"  name      = {name}")
    yield f"  body = {_value({'properties': properties}, '  ')}"
    yield from _depends(needs)


def _depends(needs: Sequence[str]) -> Iterator[str]:
    if needs:
        yield from ("  depends_on = [", *(f"    azapi_resource.{each}," for each in needs), "  ]")


def _kept(properties: Any) -> Iterator[str]:
    """Yield the block that keeps Terraform from deleting messages. Standard returns the size of all partitions."""
    yield from ("  lifecycle {", "    prevent_destroy = true")
    if properties.get("enablePartitioning"):
        yield "    ignore_changes  = [body.properties.maxSizeInMegabytes]"
    yield "  }"


def _value(value: Any, indent: str) -> str:
    if isinstance(value, dict):
        inner = "".join(f"{line}\n" for line in _attributes(value, indent + "  "))
        return f"{{\n{inner}{indent}}}" if inner else "{}"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else string(value)


def _attributes(values: dict[str, Any], indent: str) -> Iterator[str]:
    """Yield attributes whose equal signs are aligned, in groups that an attribute of several lines ends."""
    group: list[tuple[str, str]] = []
    for name, each in values.items():
        key, value = _key(name), _value(each, indent)
        if "\n" in value:
            yield from _aligned(group, indent)
            group = []
            yield f"{indent}{key} = {value}"
        else:
            group.append((key, value))
    yield from _aligned(group, indent)


def _aligned(group: Sequence[tuple[str, str]], indent: str) -> Iterator[str]:
    width = max((len(key) for key, _ in group), default=0)
    yield from (f"{indent}{key:{width}} = {value}" for key, value in group)


def _key(name: str) -> str:
    return name if is_plain_key(name) else string(name)


def string(text: str) -> str:
    """Return a text as a literal on one line. What cannot be seen is escaped.

    Raises UsageError for text that is not in Unicode's form NFC, into which Terraform would convert it.
    """
    if unicodedata.normalize("NFC", text) != text:
        raise UsageError(
            f"Terraform would change the characters of {text[:40]!r}: it composes accents (Unicode NFC)",
            hint="write the text in NFC, or write Bicep",
        )
    return f'"{"".join(_escaped(text))}"'


def _escaped(text: str) -> Iterable[str]:
    for at, character in enumerate(text):
        if character in _ESCAPES:
            yield _ESCAPES[character]
        elif (character in "$%" and text[at + 1 : at + 2] == "{") or not character.isprintable():
            # An escaped `$` begins no template, whatever precedes it; `$${` would depend on that.
            yield f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
        else:
            yield character
