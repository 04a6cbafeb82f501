"""Entities as Bicep and as Terraform: templates, and the literals of their values. Pure.

Terraform uses the provider azapi, since azurerm lacks some properties; the layout is that of `terraform fmt`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from sbpair.errors import UsageError
from sbpair.planning.entity_code import API_VERSION, NamespaceCode
from sbpair.template import filled

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
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int) else text(value)


def _aligned(items: list[tuple[str, str]]) -> Iterator[str]:
    """Yield attributes whose equal signs are aligned, in groups that an attribute of several lines ends."""
    for _, group in groupby(items, lambda item: "\n" in item[1]):
        found = list(group)
        width = max(len(key) for key, _ in found)
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
