"""The rule operations of `<subscription>/$management`, one function each: (target, arguments) -> Reply.

A rule arrives as a map of maps and is returned as described lists. The descriptors' codes are the service's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sbpair.amqp.types import Described, Int, Map, Timestamp, ULong, Value
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.rules import from_amqp
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.amqp.request_links import Reply, text_at
from sbpair.emulator.service_errors import ArgumentInvalid, NotAllowed

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import AddressTarget

RULE: Final = ULong(0x137_0000_0004)
EMPTY_ACTION: Final = ULong(0x137_0000_0005)
SQL_ACTION: Final = ULong(0x137_0000_0006)
# One digit shorter than those above: so it is on the wire.
SQL_FILTER: Final = ULong(0x13_7000_0006)
TRUE_FILTER: Final = ULong(0x13_7000_0007)
FALSE_FILTER: Final = ULong(0x13_7000_0008)
CORRELATION_FILTER: Final = ULong(0x13_7000_0009)
COMPATIBILITY_LEVEL: Final = Int(20)


def add_rule(target: AddressTarget, arguments: Map) -> Reply:
    name, description = text_at(arguments, "rule-name"), arguments.get("rule-description")
    if not name or not isinstance(description, Map):
        raise ArgumentInvalid("A rule to add comes with its 'rule-name' and a map 'rule-description'.")
    _subscription(target).add_rule(rules.SubscriptionRule(name, _read_filter(description), _read_action(description)))
    return Reply()


def remove_rule(target: AddressTarget, arguments: Map) -> Reply:
    _subscription(target).remove_rule(text_at(arguments, "rule-name") or "")
    return Reply()


def enumerate_rules(target: AddressTarget, arguments: Map) -> Reply:
    skip, top = _count(arguments, "skip"), _count(arguments, "top")
    page = _subscription(target).rules[skip : skip + top]
    if not page:
        return Reply(204, "NoContent")
    return Reply(body=Map([("rules", [Map([("rule-description", write_rule(rule))]) for rule in page])]))


def _subscription(target: AddressTarget) -> SubscriptionEntity:
    if not isinstance(target.entity, SubscriptionEntity) or target.is_dead_letters:
        raise NotAllowed("Only a subscription has rules.")
    return target.entity


def _count(arguments: Map, name: str) -> int:
    value = arguments.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ArgumentInvalid(f"The request lacks its '{name}', a whole number from 0.")
    return int(value)


# Reading


def _read_filter(description: Map) -> rules.Filter:
    sql, correlation = description.get("sql-filter"), description.get("correlation-filter")
    if isinstance(sql, Map):
        return rules.SqlRuleFilter(text_at(sql, "expression") or "", _named(sql.get("parameters")))
    if isinstance(correlation, Map):
        texts = {field: text_at(correlation, field.replace("_", "-")) for field in rules.CORRELATION_FIELDS}
        return rules.CorrelationRuleFilter(**texts, properties=_named(correlation.get("properties")))
    if "false-filter" in description:
        return rules.FalseRuleFilter()
    if "true-filter" in description or not any(str(key).endswith("-filter") for key in description):
        return rules.TrueRuleFilter()
    raise ArgumentInvalid("The filter of a rule is one of sql-filter, correlation-filter, true-filter, false-filter.")


def _read_action(description: Map) -> rules.SqlAction | None:
    action = description.get("sql-rule-action")
    if not isinstance(action, Map) or action.get("expression") is None:
        return None
    return rules.SqlAction(text_at(action, "expression") or "", _named(action.get("parameters")))


def _named(properties: Value) -> rules.NamedValues:
    if properties is None:
        return ()
    if not isinstance(properties, Map):
        raise ArgumentInvalid("The properties of a filter are a map.")
    return tuple((str(name), from_amqp(value)) for name, value in properties.pairs)


# Writing


def write_rule(rule: rules.SubscriptionRule) -> Described:
    return Described(
        RULE, [_write_filter(rule.filter), _write_action(rule.action), rule.name, Timestamp(rule.created_at_ms)]
    )


def _write_filter(rule_filter: rules.Filter) -> Described:
    if isinstance(rule_filter, rules.SqlRuleFilter):
        return Described(SQL_FILTER, [rule_filter.expression, COMPATIBILITY_LEVEL])
    if isinstance(rule_filter, rules.CorrelationRuleFilter):
        texts = [getattr(rule_filter, field) for field in rules.CORRELATION_FIELDS]
        return Described(
            CORRELATION_FILTER, [*texts, Map((name, typed.original) for name, typed in rule_filter.properties)]
        )
    return Described(TRUE_FILTER if isinstance(rule_filter, rules.TrueRuleFilter) else FALSE_FILTER, [])


def _write_action(action: rules.SqlAction | None) -> Described:
    if action is None:
        return Described(EMPTY_ACTION, [])
    return Described(SQL_ACTION, [action.expression, COMPATIBILITY_LEVEL])
