"""Rules as Resource Manager's JSON. It has SQL and correlation filters only; `1=1` matches every message."""

from __future__ import annotations

from typing import Final

from sbpair.emulator.entities.rules.rule import (
    CORRELATION_FIELDS,
    CorrelationRuleFilter,
    Filter,
    SqlAction,
    SqlRuleFilter,
    SubscriptionRule,
)
from sbpair.emulator.entities.rules.typed import read_typed
from sbpair.emulator.frontends.arm.arm_request import ArmError, Json, object_in

_LEVEL: Final = 20
_ARM_NAMES: Final = {
    name: "".join(part.title() if number else part for number, part in enumerate(name.split("_")))
    for name in CORRELATION_FIELDS
}
_OF_SQL: Final = ("sqlExpression", "compatibilityLevel", "requiresPreprocessing")


def rule_from_json(name: str, properties: Json) -> SubscriptionRule:
    """Return the rule with these properties. Raises ArmError and ArgumentInvalid."""
    _check_names(properties, ("action", "filterType", "sqlFilter", "correlationFilter"))
    action = _object(properties, "action", _OF_SQL)
    expression = _string(action, "sqlExpression")
    return SubscriptionRule(name, _read_filter(properties), SqlAction(expression) if expression else None)


def _read_filter(properties: Json) -> Filter:
    kind = properties.get("filterType", "CorrelationFilter" if properties.get("correlationFilter") else "SqlFilter")
    if kind == "CorrelationFilter":
        return _read_correlation(_object(properties, "correlationFilter", (*_ARM_NAMES.values(), "properties")))
    if kind != "SqlFilter":
        raise ArmError("InvalidRequestContent", "The filterType is neither SqlFilter nor CorrelationFilter.")
    return SqlRuleFilter(_string(_object(properties, "sqlFilter", _OF_SQL), "sqlExpression") or "1=1")


def _read_correlation(described: Json) -> CorrelationRuleFilter:
    given = _object(described, "properties")
    named = tuple((name, read_typed("string", _string(given, name) or "")) for name in given)
    texts = {field: _string(described, name) for field, name in _ARM_NAMES.items()}
    return CorrelationRuleFilter(**texts, properties=named)


def rule_to_json(rule: SubscriptionRule) -> Json:
    document: Json = {"action": {} if rule.action is None else _sql(rule.action.expression)}
    if isinstance(rule.filter, CorrelationRuleFilter):
        texts = {name: getattr(rule.filter, field) for field, name in _ARM_NAMES.items()}
        properties = {name: typed.text for name, typed in rule.filter.properties}
        document["filterType"] = "CorrelationFilter"
        document["correlationFilter"] = {
            **{name: text for name, text in texts.items() if text is not None},
            "properties": properties,
        }
    else:
        document["filterType"] = "SqlFilter"
        document["sqlFilter"] = _sql(rule.filter.expression)
    return document


def _sql(expression: str) -> Json:
    return {"sqlExpression": expression, "compatibilityLevel": _LEVEL}


def _object(within: Json, name: str, known: tuple[str, ...] | None = None) -> Json:
    found = object_in(within, name)
    if known is not None:
        _check_names(found, known)
    return found


def _string(within: Json, name: str) -> str | None:
    found = within.get(name)
    if found is not None and not isinstance(found, str):
        raise ArmError("InvalidRequestContent", f"The value of '{name[:100]}' is not a string.")
    return found


def _check_names(given: Json, known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ArmError("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
