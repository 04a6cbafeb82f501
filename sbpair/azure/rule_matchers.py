"""Conversion of a rule's Atom XML into a filter that can be evaluated. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.azure.atom_decode import TYPE, texts
from sbpair.model.entities import CORRELATION_KEYS, pascal
from sbpair.rules.filters import (
    CorrelationMatcher,
    FalseRuleFilter,
    RuleInvalid,
    SqlMatcher,
    TrueRuleFilter,
)
from sbpair.rules.typed import read_typed

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from sbpair.rules.filters import Filter, NamedValues


def matcher_of(description: Element) -> Filter | None:
    """Return the filter of a rule; None for one that this version cannot evaluate."""
    selected = description.find("{*}Filter")
    kind = "" if selected is None else selected.get(TYPE, "")
    if selected is None or kind.endswith("TrueFilter"):
        return TrueRuleFilter()
    if kind.endswith("FalseFilter"):
        return FalseRuleFilter()
    found = texts(selected)
    try:
        if not kind.endswith("CorrelationFilter"):
            return SqlMatcher(found.get("SqlExpression", ""), _typed(selected, "Parameters"))
        system = {name: found.get(pascal(name)) or None for name in CORRELATION_KEYS}
        return CorrelationMatcher(**system, properties=_typed(selected, "Properties"))
    except (RuleInvalid, ValueError):
        return None


def _typed(selected: Element, name: str) -> NamedValues:
    found = []
    for pair in selected.iterfind(f"{{*}}{name}/*"):
        value = pair.find("{*}Value")
        kind = "" if value is None else value.get(TYPE, "").rpartition(":")[2]
        text = "" if value is None else value.text or ""
        found.append((pair.findtext("{*}Key") or "", read_typed(kind or "string", text)))
    return tuple(found)
