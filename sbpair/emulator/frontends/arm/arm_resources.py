"""The collections of resources below a namespace, with the same operations each. Independent of HTTP.

Entities have names in camel case, and numbers and booleans typed. Unknown names and wrong types are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from sbpair.emulator.access.sas import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import check_authorization_rules
from sbpair.emulator.entities.description_schema import SETTABLE, SUBSCRIPTION, TOPIC, Settable, format_value
from sbpair.emulator.entities.rules import read_typed
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.frontends.arm.arm_request import PROVIDER, ArmError, Json, object_in
from sbpair.emulator.frontends.http.management_parts import (
    FORWARDS,
    EntityCollection,
    new_key,
    read_rights,
    reported_counts,
    reported_times,
    update,
)
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity

T = TypeVar("T")
OF_JMS: Final = frozenset({"isClientAffine", "clientAffineProperties"})
_NOT_OF_ARM: Final = ("FilteringMessagesBeforePublishing", "EnableSubscriptionPartitioning")
_SETTABLE: Final[dict[str, Settable]] = {
    "queues": SETTABLE,
    "topics": {name: kind for name, kind in TOPIC.settable.items() if name not in _NOT_OF_ARM},
    "topics/subscriptions": {
        **SUBSCRIPTION.settable,
        "DuplicateDetectionHistoryTimeWindow": SETTABLE["DuplicateDetectionHistoryTimeWindow"],
    },
}
REPORTED: Final = frozenset(
    {"accessedAt", "countDetails", "createdAt", "messageCount", "sizeInBytes", "subscriptionCount", "updatedAt"}
)
"""Properties that only the service sets; ignored in requests."""

_OF_SQL: Final = ("sqlExpression", "compatibilityLevel", "requiresPreprocessing")


class Resources(Protocol[T]):
    """A collection. `kind` is the type of its resources, below that of the provider."""

    kind: str

    def all(self) -> Sequence[T]: ...
    def find(self, name: str) -> T | None: ...
    def put(self, name: str, properties: Json) -> T:
        """Create a resource, or change the existing one."""

    def remove(self, item: T) -> None: ...
    def to_json(self, within: str, item: T) -> Json:
        """Return the resource's document; `within` is the id of the collection."""


def resource_json(kind: str, within: str, name: str, properties: Json, provider: str = PROVIDER) -> Json:
    return {"id": f"{within}/{name}", "name": name, "type": f"{provider}/namespaces/{kind}", "properties": properties}


class Entities:
    """A collection of entities. In names of queues and topics, `~` stands for `/`."""

    def __init__(self, kind: str, collection: EntityCollection) -> None:
        self.kind = kind
        self._collection = collection

    def all(self) -> Sequence[QueueEntity]:
        return self._collection.all()

    def find(self, name: str) -> QueueEntity | None:
        return self._collection.find(self._path(name))

    def put(self, name: str, properties: Json) -> QueueEntity:
        existing, authority = self.find(name), self._collection.namespace.authority
        if self._collection.schema is SUBSCRIPTION:
            if properties.get("isClientAffine"):
                raise ArgumentInvalid("Client affine subscriptions need JMS, which this emulator does not support.")
            properties = {key: value for key, value in properties.items() if key not in OF_JMS}
        values = read_values(properties, _SETTABLE[self.kind])
        # A description keeps the authorization rules: they are resources of their own.
        keys = existing.description.authorization_rules if existing else ()
        wanted = self._collection.describe(values, existing, keys, authority)
        self._collection.check_forwards(wanted, existing)
        if existing is None:
            return self._collection.create(self._path(name), wanted)
        update(existing, wanted)
        return existing

    def remove(self, item: QueueEntity) -> None:
        self._collection.namespace.delete(item)

    def to_json(self, within: str, item: QueueEntity) -> Json:
        item.check_all_partitions()
        name = item.name if isinstance(item, SubscriptionEntity) else item.path.replace("/", "~")
        return resource_json(
            self.kind, within, name, {**values_json(item, _SETTABLE[self.kind]), **reported_json(item)}
        )

    def _path(self, name: str) -> str:
        return name if self._collection.schema is SUBSCRIPTION else name.replace("~", "/")


class Rules:
    kind = "topics/subscriptions/rules"

    def __init__(self, subscription: SubscriptionEntity) -> None:
        self._subscription = subscription

    def all(self) -> Sequence[rules.SubscriptionRule]:
        return self._subscription.rules

    def find(self, name: str) -> rules.SubscriptionRule | None:
        return self._subscription.find_rule(name)

    def put(self, name: str, properties: Json) -> rules.SubscriptionRule:
        rule = rule_from_json(name, properties)
        exists = self.find(name) is not None
        return self._subscription.change_rule(rule) if exists else self._subscription.add_rule(rule)

    def remove(self, item: rules.SubscriptionRule) -> None:
        self._subscription.remove_rule(item.name)

    def to_json(self, within: str, item: rules.SubscriptionRule) -> Json:
        return resource_json(self.kind, within, item.name, rule_to_json(item))


class Keys:
    """The authorization rules of a namespace, or of `entity`."""

    provider = PROVIDER

    def __init__(self, namespace: Namespace, entity: QueueEntity | None = None, kind: str = "") -> None:
        self.kind = f"{kind}{'/' if kind else ''}AuthorizationRules"
        self._namespace = namespace
        self._entity = entity

    @property
    def entity_path(self) -> str:
        return "" if self._entity is None else self._entity.path

    def all(self) -> Sequence[AuthorizationRule]:
        return self._namespace.keys if self._entity is None else self._entity.description.authorization_rules

    def find(self, name: str) -> AuthorizationRule | None:
        return next((rule for rule in self.all() if rule.key_name.lower() == name.lower()), None)

    def put(self, name: str, properties: Json) -> AuthorizationRule:
        now, before, names = self._namespace.clock.now_ms(), self.find(name), properties.get("rights")
        if not isinstance(names, list) or not all(isinstance(right, str) for right in names):
            raise ArmError("InvalidRequestContent", "The rights are not a list of Manage, Send and Listen.")
        rule = before or AuthorizationRule(name, new_key(), new_key(), created_at_ms=now)
        return self._store(replace(rule, rights=read_rights(names), modified_at_ms=now))

    def remove(self, item: AuthorizationRule) -> None:
        if not self.entity_path and item == self._namespace.keys[0]:
            raise ArgumentInvalid(f"The authorization rule '{item.key_name}' cannot be deleted.")
        self._set(tuple(rule for rule in self.all() if rule is not item))

    def to_json(self, within: str, item: AuthorizationRule) -> Json:
        rights = [right.value for right in AccessRight if right in item.rights]
        return resource_json(self.kind, within, item.key_name, {"rights": rights}, self.provider)

    def regenerate(self, item: AuthorizationRule, body: Json) -> AuthorizationRule:
        kind, key = body.get("keyType"), body.get("key") or new_key()
        if kind not in ("PrimaryKey", "SecondaryKey") or not isinstance(key, str):
            raise ArmError("InvalidRequestContent", "The keyType is neither PrimaryKey nor SecondaryKey.")
        return self._store(replace(item, primary_key=key) if kind == "PrimaryKey" else replace(item, secondary_key=key))

    def keys_json(self, item: AuthorizationRule) -> Json:
        def connection(key: str) -> str:
            return f"Endpoint={self._namespace.endpoint}/;SharedAccessKeyName={item.key_name};SharedAccessKey={key}" + (
                f";EntityPath={self.entity_path}" if self.entity_path else ""
            )

        return {
            "primaryConnectionString": connection(item.primary_key),
            "secondaryConnectionString": connection(item.secondary_key),
            "primaryKey": item.primary_key,
            "secondaryKey": item.secondary_key,
            "keyName": item.key_name,
        }

    def _store(self, rule: AuthorizationRule) -> AuthorizationRule:
        """Replace the rule of this name, or append it."""
        others = self.all()
        replaced = tuple(rule if each.key_name == rule.key_name else each for each in others)
        self._set(replaced if rule in replaced else (*others, rule))
        return rule

    def _set(self, keys: tuple[AuthorizationRule, ...]) -> None:
        check_authorization_rules(keys)
        if self._entity is None:
            self._namespace.keys = keys
        else:
            self._entity.update(replace(self._entity.description, authorization_rules=keys))


def camel(name: str) -> str:
    return name[0].lower() + name[1:]


def read_values(properties: Json, settable: Settable) -> dict[str, str]:
    """Return the given elements as text, the form that descriptions are made from. Raises ArmError."""
    known = {camel(name): name for name in settable}
    values = {}
    for name, value in properties.items():
        if name in REPORTED or value is None:
            continue
        if name not in known:
            raise ArmError("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
        values[known[name]] = _text(name, value, settable[known[name]][1])
    return values


def _text(name: str, value: object, kind: str) -> str:
    wanted = {"bool": bool, "int": int}.get(kind, str)
    if type(value) is not wanted:
        raise ArmError("InvalidRequestContent", f"The value of '{name}' is not of the type {wanted.__name__}.")
    return str(value).lower() if wanted is bool else str(value)


def values_json(queue: QueueEntity, settable: Settable) -> Json:
    """Return the settable properties, without those not set."""
    shown: Json = {}
    for name, (_, kind) in settable.items():
        text = format_value(queue.description, name, settable)
        if text is None:
            continue
        if name in FORWARDS:
            text = text.partition("://")[2].partition("/")[2]
        shown[camel(name)] = text == "true" if kind == "bool" else int(text) if kind == "int" else text
    return shown


def reported_json(entity: QueueEntity) -> Json:
    """Return the properties that only the service sets."""
    counts = {camel(name): count for name, count in reported_counts(entity).items()}
    times = {camel(name): time for name, time in reported_times(entity).items()}
    reported: Json = {**times, "countDetails": counts}
    if isinstance(entity, TopicEntity):
        return {**reported, "subscriptionCount": len(entity.subscriptions), "sizeInBytes": entity.size_bytes}
    if isinstance(entity, SubscriptionEntity):
        return {**reported, "messageCount": entity.counts().total, "isClientAffine": False}
    return {**reported, "messageCount": entity.counts().total, "sizeInBytes": entity.size_bytes}


# Rules

_ARM_NAMES: Final = {field: camel(name) for field, name in rules.CORRELATION_FIELDS.items()}


def rule_from_json(name: str, properties: Json) -> rules.SubscriptionRule:
    """Return the rule with these properties. Resource Manager has SQL and correlation filters only."""
    _check_names(properties, ("action", "filterType", "sqlFilter", "correlationFilter"))
    action = _object(properties, "action", _OF_SQL)
    expression = _string(action, "sqlExpression")
    return rules.SubscriptionRule(name, _read_filter(properties), rules.SqlAction(expression) if expression else None)


def _read_filter(properties: Json) -> rules.Filter:
    kind = properties.get("filterType", "CorrelationFilter" if properties.get("correlationFilter") else "SqlFilter")
    if kind == "CorrelationFilter":
        return _read_correlation(_object(properties, "correlationFilter", (*_ARM_NAMES.values(), "properties")))
    if kind != "SqlFilter":
        raise ArmError("InvalidRequestContent", "The filterType is neither SqlFilter nor CorrelationFilter.")
    return rules.SqlRuleFilter(_string(_object(properties, "sqlFilter", _OF_SQL), "sqlExpression") or "1=1")


def _read_correlation(described: Json) -> rules.CorrelationRuleFilter:
    given = _object(described, "properties")
    named = tuple((name, read_typed("string", _string(given, name) or "")) for name in given)
    texts = {field: _string(described, name) for field, name in _ARM_NAMES.items()}
    return rules.CorrelationRuleFilter(**texts, properties=named)


def rule_to_json(rule: rules.SubscriptionRule) -> Json:
    action = {} if rule.action is None else _sql(rule.action.expression)
    if not isinstance(rule.filter, rules.CorrelationRuleFilter):
        return {"action": action, "filterType": "SqlFilter", "sqlFilter": _sql(rule.filter.expression)}
    texts = {name: getattr(rule.filter, field) for field, name in _ARM_NAMES.items()}
    correlation: Json = {name: text for name, text in texts.items() if text is not None}
    correlation["properties"] = {name: typed.text for name, typed in rule.filter.properties}
    return {"action": action, "filterType": "CorrelationFilter", "correlationFilter": correlation}


def _sql(expression: str) -> Json:
    return {"sqlExpression": expression, "compatibilityLevel": 20}


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
