"""Rules as Atom XML. `i:type` distinguishes filters and actions; values keep their type and text."""

from __future__ import annotations

from html import escape
from typing import Final
from xml.etree.ElementTree import Element

from sbpair.emulator.entities import rules
from sbpair.emulator.entities.rules import TypedValue, read_typed
from sbpair.emulator.frontends.atom.atom_xml import INSTANCE, SERVICE_BUS, element, kind_of, local_name
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.timespan import instant

RULE: Final = "RuleDescription"
COMPATIBILITY_LEVEL: Final = "20"
_FILTER_TYPES: Final[dict[type[rules.Filter], str]] = {
    rules.TrueRuleFilter: "TrueFilter",
    rules.FalseRuleFilter: "FalseFilter",
    rules.SqlRuleFilter: "SqlFilter",
    rules.CorrelationRuleFilter: "CorrelationFilter",
}
_SCHEMA: Final = "http://www.w3.org/2001/XMLSchema"
_SERIALIZATION: Final = "http://schemas.microsoft.com/2003/10/Serialization/"
_SERIALIZED: Final = frozenset({"char", "guid", "duration"})
"""Types in the namespace of .NET's serializer. It reads `duration` from either namespace."""


# Reading


def read_rule(description: Element, name: str | None = None) -> rules.SubscriptionRule:
    """Return the rule of a RuleDescription, with `name` if given. Raises ArgumentInvalid and SqlInvalid."""
    if kind_of(description) != RULE and local_name(description) != "DefaultRuleDescription":
        raise ArgumentInvalid(f"'{kind_of(description)}' is not a rule.")
    parts = {local_name(child): child for child in description}
    named = (parts["Name"].text or "").strip() if "Name" in parts else ""
    rule_filter = read_filter(parts["Filter"]) if "Filter" in parts else rules.TrueRuleFilter()
    action = read_action(parts["Action"]) if "Action" in parts else None
    return rules.SubscriptionRule(name or named or rules.DEFAULT_RULE, rule_filter, action)


def read_filter(described: Element) -> rules.Filter:
    parts = {local_name(child): child for child in described}
    kind = type_of(described)
    if kind == _FILTER_TYPES[rules.TrueRuleFilter]:
        return rules.TrueRuleFilter()
    if kind == _FILTER_TYPES[rules.FalseRuleFilter]:
        return rules.FalseRuleFilter()
    if kind == _FILTER_TYPES[rules.SqlRuleFilter]:
        return rules.SqlRuleFilter(_text(parts, "SqlExpression"), _named(parts.get("Parameters")))
    if kind == _FILTER_TYPES[rules.CorrelationRuleFilter]:
        texts = {field: _text(parts, name) or None for field, name in rules.CORRELATION_FIELDS.items()}
        return rules.CorrelationRuleFilter(**texts, properties=_named(parts.get("Properties")))
    raise ArgumentInvalid(f"'{kind[:100]}' is not a type of filter.")


def read_action(described: Element) -> rules.SqlAction | None:
    kind = type_of(described)
    if kind in ("", "EmptyRuleAction"):
        return None
    if kind != "SqlRuleAction":
        raise ArgumentInvalid(f"'{kind[:100]}' is not a type of action.")
    parts = {local_name(child): child for child in described}
    return rules.SqlAction(_text(parts, "SqlExpression"), _named(parts.get("Parameters")))


def type_of(described: Element) -> str:
    return described.get(f"{{{INSTANCE}}}type", "").rpartition(":")[2]


def _text(parts: dict[str, Element], name: str) -> str:
    return (parts[name].text or "") if name in parts else ""


def _named(described: Element | None) -> rules.NamedValues:
    return () if described is None else tuple(_read_pair(pair) for pair in described)


def _read_pair(pair: Element) -> tuple[str, TypedValue]:
    parts = {local_name(child): child for child in pair}
    key = _text(parts, "Key")
    if not key or "Value" not in parts:
        raise ArgumentInvalid("A parameter, or a property, of a filter has a Key and a Value.")
    return key, read_typed(type_of(parts["Value"]) or "string", _text(parts, "Value"))


# Writing


def rule_xml(rule: rules.SubscriptionRule) -> str:
    return (
        f'<{RULE} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">'
        + filter_xml(rule.filter)
        + action_xml(rule.action)
        + element("CreatedAt", instant(rule.created_at_ms))
        + element("Name", rule.name)
        + f"</{RULE}>"
    )


def filter_xml(rule_filter: rules.Filter) -> str:
    if isinstance(rule_filter, rules.CorrelationRuleFilter):
        texts = "".join(element(name, getattr(rule_filter, field)) for field, name in rules.CORRELATION_FIELDS.items())
        content = texts + _pairs("Properties", rule_filter.properties)
    else:
        parameters = rule_filter.parameters if isinstance(rule_filter, rules.SqlRuleFilter) else ()
        content = _sql(rule_filter.expression, parameters)
    return f'<Filter i:type="{_FILTER_TYPES[type(rule_filter)]}">{content}</Filter>'


def action_xml(action: rules.SqlAction | None) -> str:
    if action is None:
        return '<Action i:type="EmptyRuleAction"/>'
    return f'<Action i:type="SqlRuleAction">{_sql(action.expression, action.parameters)}</Action>'


def _sql(expression: str, parameters: rules.NamedValues) -> str:
    return (
        element("SqlExpression", expression)
        + element("CompatibilityLevel", COMPATIBILITY_LEVEL)
        + _pairs("Parameters", parameters)
    )


def _pairs(name: str, named: rules.NamedValues) -> str:
    pairs = [
        f"<KeyValueOfstringanyType>{element('Key', key)}{_value(typed)}</KeyValueOfstringanyType>"
        for key, typed in named
    ]
    return f"<{name}>{''.join(pairs)}</{name}>" if pairs else f"<{name}/>"


def _value(typed: TypedValue) -> str:
    namespace = _SERIALIZATION if typed.kind in _SERIALIZED else _SCHEMA
    return f'<Value i:type="d6p1:{typed.kind}" xmlns:d6p1="{namespace}">{escape(typed.text, quote=False)}</Value>'
