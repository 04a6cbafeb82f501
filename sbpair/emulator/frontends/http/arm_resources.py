"""The collections of resources below a namespace, with the same operations each. Independent of HTTP.

Entities have names in camel case, and numbers and booleans typed. Unknown names and wrong types are errors. In names of
queues, topics and hybrid connections, and only there, `~` stands for `/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from sbpair.emulator.access_tokens import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import check_authorization_rules
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.http.management_parts import (
    FORWARDS,
    HYBRID_CONNECTION,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    DescriptionSchema,
    EntityCollection,
    ManagedEntity,
    Settable,
    format_value,
    hybrid_connections_of,
    new_key,
    queues_of,
    read_rights,
    reported,
    subscriptions_of,
    topics_of,
)
from sbpair.emulator.service_errors import ArgumentInvalid
from sbpair.rules import filters
from sbpair.rules.values import read_typed

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

Json = dict[str, Any]
T = TypeVar("T")

PROVIDER: Final = "Microsoft.ServiceBus"
RELAY_PROVIDER: Final = "Microsoft.Relay"
OF_JMS: Final = frozenset({"isClientAffine", "clientAffineProperties"})
_NOT_OF_ARM: Final = ("FilteringMessagesBeforePublishing", "EnableSubscriptionPartitioning")
_SETTABLE: Final[dict[str, Settable]] = {
    "queues": QUEUE.settable,
    "topics": {name: kind for name, kind in TOPIC.settable.items() if name not in _NOT_OF_ARM},
    "topics/subscriptions": {
        **SUBSCRIPTION.settable,
        "DuplicateDetectionHistoryTimeWindow": QUEUE.settable["DuplicateDetectionHistoryTimeWindow"],
    },
    "HybridConnections": HYBRID_CONNECTION.settable,
}
REPORTED: Final = frozenset({
    "accessedAt", "countDetails", "createdAt", "listenerCount", "messageCount", "sizeInBytes", "subscriptionCount",
    "updatedAt",
})  # fmt: skip
"""Properties that only the service sets; ignored in requests."""

_TYPE_NAMES: Final = {dict: "a JSON object", str: "a string", bool: "true or false", int: "a whole number"}


class ArmError(ArgumentInvalid):
    """An error of Resource Manager itself, not of Service Bus."""

    sub_code = 0

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.status = status


def not_found(provider: str = PROVIDER) -> ArmError:
    return ArmError("InvalidResourceType", f"The resource type could not be found in '{provider}'.", 404)


def existing(found: T | None, name: str) -> T:
    if found is None:
        text = f"The messaging entity '{name[:300]}' could not be found."
        raise ArmError("MessagingGatewayNotFoundStatusCode", text, 404)
    return found


def read_members(given: Json, known: Mapping[str, type], ignored: Collection[str] = ()) -> Json:
    """Return the members that are not null. Raises ArmError for an unknown name or a wrong type."""
    members = {name: value for name, value in given.items() if name not in ignored and value is not None}
    for name, value in members.items():
        if name not in known:
            raise ArmError("InvalidRequestContent", f"Could not find member '{name[:100]}' on the object.")
        if known[name] is not object and type(value) is not known[name]:
            text = f"The value of '{name[:100]}' is not {_TYPE_NAMES[known[name]]}."
            raise ArmError("InvalidRequestContent", text)
    return members


def _camel(name: str) -> str:
    return name[0].lower() + name[1:]


def collection_at(provider: str, namespace: Namespace, parts: tuple[str, ...]) -> Resources:
    """Return the collection that a path below a namespace ends in. Raises ArmError if there is none."""
    match (provider, *parts):
        case (_, "authorizationrules"):
            return Keys(namespace, provider)
        case ("Microsoft.Relay", "hybridconnections"):
            return Entities("HybridConnections", hybrid_connections_of(namespace), RELAY_PROVIDER)
        case ("Microsoft.ServiceBus", "queues"):
            return Entities("queues", queues_of(namespace))
        case ("Microsoft.ServiceBus", "topics"):
            return Entities("topics", topics_of(namespace))
        case (_, "queues" | "topics" | "hybridconnections" as kind, name, "authorizationrules"):
            owners: Any = collection_at(provider, namespace, (kind,))
            return Keys(namespace, provider, owners.kind, existing(owners.find(name), name))
        case ("Microsoft.ServiceBus", "topics", name, "subscriptions"):
            topic = existing(namespace.find_topic(name.replace("~", "/")), name)
            return Entities("topics/subscriptions", subscriptions_of(namespace, topic))
        case ("Microsoft.ServiceBus", "topics", _, "subscriptions", name, "rules"):
            subscription: Any = collection_at(provider, namespace, parts[:3]).find(name)
            return Rules(existing(subscription, name))
    raise not_found(provider)


class Entities:
    """A collection of entities. `kind` is the type of its resources, below that of the provider."""

    def __init__(self, kind: str, collection: EntityCollection, provider: str = PROVIDER) -> None:
        self.kind = kind
        self.provider = provider
        self._collection = collection

    def all(self) -> Sequence[ManagedEntity]:
        return self._collection.all()

    def find(self, name: str) -> ManagedEntity | None:
        return self._collection.find(self._path(name))

    def put(self, name: str, properties: Json) -> ManagedEntity:
        """Create a resource, or change the existing one."""
        found = self.find(name)
        if self._collection.schema is SUBSCRIPTION:
            if properties.get("isClientAffine"):
                raise ArgumentInvalid("Client affine subscriptions need JMS, which this emulator does not support.")
            properties = {key: value for key, value in properties.items() if key not in OF_JMS}
        # A description keeps the authorization rules: they are resources of their own.
        keys = found.description.authorization_rules if found else ()
        return self._collection.put(self._path(name), self._read(properties), found, keys)

    def _read(self, properties: Json) -> dict[str, str]:
        """Return the given elements as text, the form that descriptions are made from."""
        settable = _SETTABLE[self.kind]
        names = {_camel(name): name for name in settable}
        types = {camel: {"bool": bool, "int": int}.get(settable[name][1], str) for camel, name in names.items()}
        values = read_members(properties, types, REPORTED)
        return {
            names[name]: str(value).lower() if type(value) is bool else str(value) for name, value in values.items()
        }

    def remove(self, item: Any) -> None:
        item.delete()

    def to_json(self, item: Any) -> tuple[str, Json]:
        """Return the resource's name and properties."""
        item.check_all_partitions()
        name = item.name if isinstance(item, SubscriptionEntity) else item.path.replace("/", "~")
        return name, {**_settable_json(item, _SETTABLE[self.kind]), **_reported_json(item, self._collection.schema)}

    def _path(self, name: str) -> str:
        return name if self._collection.schema is SUBSCRIPTION else name.replace("~", "/")


def _settable_json(entity: ManagedEntity, settable: Settable) -> Json:
    """Return the settable properties, without those not set."""
    shown: Json = {}
    for name, (_, kind) in settable.items():
        text = format_value(entity.description, name, settable)
        if text is None:
            continue
        if name in FORWARDS:
            text = text.partition("://")[2].partition("/")[2]
        shown[_camel(name)] = text == "true" if kind == "bool" else int(text) if kind == "int" else text
    return shown


def _reported_json(entity: ManagedEntity, schema: DescriptionSchema) -> Json:
    """Return the properties that only the service sets."""
    values = {name: value for name, value in reported(entity).items() if name in schema.elements}
    if "CountDetails" in values:
        values["CountDetails"] = {_camel(name): count for name, count in values["CountDetails"].items()}
    affine = {"isClientAffine": False} if schema is SUBSCRIPTION else {}
    return {**{_camel(name): value for name, value in values.items()}, **affine}


class Keys:
    """The authorization rules of a namespace, or of `owner`, a resource of the type `kind`."""

    def __init__(
        self,
        namespace: Namespace,
        provider: str,
        kind: str = "",
        owner: ManagedEntity | None = None,
    ) -> None:
        self.provider = provider
        self.kind = f"{kind}{'/' if kind else ''}AuthorizationRules"
        self._namespace = namespace
        self._owner = owner

    def all(self) -> Sequence[AuthorizationRule]:
        return self._namespace.keys if self._owner is None else self._owner.description.authorization_rules

    def find(self, name: str) -> AuthorizationRule | None:
        return next((rule for rule in self.all() if rule.key_name.lower() == name.lower()), None)

    def put(self, name: str, properties: Json) -> AuthorizationRule:
        before, names = self.find(name), properties.get("rights")
        if not isinstance(names, list) or not all(isinstance(right, str) for right in names):
            raise ArmError("InvalidRequestContent", "The rights are not a list of Manage, Send and Listen.")
        rule = before or AuthorizationRule(name, new_key(), new_key())
        return self._store(replace(rule, rights=read_rights(names)))

    def remove(self, item: Any) -> None:
        if self._owner is None and item == self._namespace.keys[0]:
            raise ArgumentInvalid(f"The authorization rule '{item.key_name}' cannot be deleted.")
        self._set(tuple(rule for rule in self.all() if rule is not item))

    def to_json(self, item: Any) -> tuple[str, Json]:
        return item.key_name, {"rights": [right.value for right in AccessRight if right in item.rights]}

    def regenerate(self, item: AuthorizationRule, body: Json) -> AuthorizationRule:
        kind, key = body.get("keyType"), body.get("key") or new_key()
        if kind not in ("PrimaryKey", "SecondaryKey") or not isinstance(key, str):
            raise ArmError("InvalidRequestContent", "The keyType is neither PrimaryKey nor SecondaryKey.")
        return self._store(replace(item, primary_key=key) if kind == "PrimaryKey" else replace(item, secondary_key=key))

    def keys_json(self, item: AuthorizationRule) -> Json:
        address = f"Endpoint={self._namespace.endpoint}/;SharedAccessKeyName={item.key_name};SharedAccessKey="
        within = f";EntityPath={self._owner.path}" if self._owner is not None else ""
        return {
            "primaryConnectionString": f"{address}{item.primary_key}{within}",
            "secondaryConnectionString": f"{address}{item.secondary_key}{within}",
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
        owner: Any = self._owner
        if owner is None:
            self._namespace.keys = keys
        else:
            owner.update(replace(owner.description, authorization_rules=keys))


# Rules

_SQL: Final = {"sqlExpression": str, "compatibilityLevel": object, "requiresPreprocessing": object}
_RULE: Final = {"action": dict, "filterType": str, "sqlFilter": dict, "correlationFilter": dict}
_CORRELATION: Final = {field: _camel(name) for field, name in filters.CORRELATION_FIELDS.items()}


class Rules:
    """The rules of a subscription. Resource Manager has SQL and correlation filters only."""

    provider, kind = PROVIDER, "topics/subscriptions/rules"

    def __init__(self, subscription: SubscriptionEntity) -> None:
        self._subscription = subscription

    def all(self) -> Sequence[rules.SubscriptionRule]:
        return self._subscription.rules

    def find(self, name: str) -> rules.SubscriptionRule | None:
        return self._subscription.find_rule(name)

    def put(self, name: str, properties: Json) -> rules.SubscriptionRule:
        given = read_members(properties, _RULE)
        action = read_members(given.get("action", {}), _SQL).get("sqlExpression")
        rule = rules.SubscriptionRule(name, _read_filter(given), rules.SqlAction(action) if action else None)
        exists = self.find(name) is not None
        return self._subscription.change_rule(rule) if exists else self._subscription.add_rule(rule)

    def remove(self, item: Any) -> None:
        self._subscription.remove_rule(item.name)

    def to_json(self, item: Any) -> tuple[str, Json]:
        properties: Json = {"action": {} if item.action is None else _sql(item.action.expression)}
        if not isinstance(item.filter, filters.CorrelationRuleFilter):
            return item.name, {**properties, "filterType": "SqlFilter", "sqlFilter": _sql(item.filter.expression)}
        texts = {name: getattr(item.filter, field) for field, name in _CORRELATION.items()}
        correlation: Json = {name: text for name, text in texts.items() if text is not None}
        correlation["properties"] = {name: typed.text for name, typed in item.filter.properties}
        return item.name, {**properties, "filterType": "CorrelationFilter", "correlationFilter": correlation}


Resources: TypeAlias = Entities | Keys | Rules


def _read_filter(given: Json) -> filters.Filter:
    kind = given.get("filterType", "CorrelationFilter" if given.get("correlationFilter") else "SqlFilter")
    if kind == "SqlFilter":
        return filters.SqlRuleFilter(read_members(given.get("sqlFilter", {}), _SQL).get("sqlExpression") or "1=1")
    if kind != "CorrelationFilter":
        raise ArmError("InvalidRequestContent", "The filterType is neither SqlFilter nor CorrelationFilter.")
    known = {**dict.fromkeys(_CORRELATION.values(), str), "properties": dict}
    described = read_members(given.get("correlationFilter", {}), known)
    named = described.get("properties", {})
    texts = read_members(named, dict.fromkeys(named, str))
    properties = tuple((name, read_typed("string", texts.get(name, ""))) for name in named)
    fields = {field: described.get(name) for field, name in _CORRELATION.items()}
    return filters.CorrelationRuleFilter(**fields, properties=properties)


def _sql(expression: str) -> Json:
    return {"sqlExpression": expression, "compatibilityLevel": 20}
