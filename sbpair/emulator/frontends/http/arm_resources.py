"""A namespace as a resource, and the collections of resources below it, with the same operations each.

Independent of HTTP.

Entities have names in camel case, and numbers and booleans typed. Unknown names and wrong types are errors. In names of
queues, topics and hybrid connections, and only there, `~` stands for `/`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from sbpair.amqp_server.refusals import ArgumentInvalid
from sbpair.amqp_server.shared_access import AccessRight, AuthorizationRule
from sbpair.emulator.entities import rules
from sbpair.emulator.entities.description import (
    ADDRESS,
    SUBSCRIPTION,
    DescriptionSchema,
    camel,
    check_authorization_rules,
    text_of,
)
from sbpair.emulator.entities.topic import SubscriptionEntity
from sbpair.emulator.frontends.http.management_parts import (
    EntityCollection,
    ManagedEntity,
    hybrid_connections_of,
    new_key,
    queues_of,
    read_rights,
    reported,
    subscriptions_of,
    topics_of,
)
from sbpair.rules import filters
from sbpair.rules.values import read_typed
from sbpair.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.entities.namespace import Namespace

Json = dict[str, Any]
T = TypeVar("T")

PROVIDER: Final = "Microsoft.ServiceBus"
RELAY_PROVIDER: Final = "Microsoft.Relay"
OF_JMS: Final = frozenset({"isClientAffine", "clientAffineProperties"})
REPORTED: Final = frozenset({
    "accessedAt", "countDetails", "createdAt", "listenerCount", "messageCount", "sizeInBytes", "subscriptionCount",
    "updatedAt",
})  # fmt: skip
"""Properties that only the service sets; ignored in requests."""

_TYPE_NAMES: Final = {
    dict: "a JSON object", list: "a list", str: "a string", bool: "true or false", int: "a whole number",
}  # fmt: skip


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


LOCATION: Final = "This machine"
_NAMESPACE: Final = {"location": str, "tags": dict, "sku": dict, "properties": dict}
_SKU: Final = {"name": str, "tier": str, "capacity": int}
_DEFAULTS: Final = {
    "disableLocalAuth": False,
    "zoneRedundant": False,
    "publicNetworkAccess": "Enabled",
    "minimumTlsVersion": "1.2",
}
_PROPERTIES: Final = {
    **{name: type(value) for name, value in _DEFAULTS.items()},
    "premiumMessagingPartitions": int,
    "geoDataReplication": dict,
    "privateEndpointConnections": list,
}
_ONLY_REPORTED: Final = ("createdAt", "metricId", "provisioningState", "serviceBusEndpoint", "status", "updatedAt")


class PlacedNamespace:
    """A namespace as a resource. It is in every subscription and resource group, until a PUT gives it a `place`.

    Members that requests set are kept until the emulator stops, and have no effect on the namespace.
    """

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        self.place: tuple[str, str] = namespace.resource.get("place", ("", ""))

    def is_in(self, subscription: str, group: str | None) -> bool:
        """Return whether it is in a subscription and, if given, a resource group."""
        wanted = (subscription.lower(), (group or self.place[1]).lower())
        return not any(self.place) or (self.place[0].lower(), self.place[1].lower()) == wanted

    def apply(self, given: Json) -> None:
        """Set the given members. Raises ArmError, and sets nothing then."""
        members, kept = read_members(given, _NAMESPACE, ("id", "identity", "name", "type")), self.namespace.resource
        properties = read_members(members.get("properties", {}), _PROPERTIES, _ONLY_REPORTED)
        sku, own = read_members(members.get("sku", {}), _SKU), self.namespace.tier.name
        if {sku.get("name", own), sku.get("tier", own)} != {own}:
            raise ArmError("BadRequest", f"The tier of an emulator's namespace cannot be changed: it is {own}.")
        both = {"sku": kept.get("sku", {}) | sku, "properties": kept.get("properties", {}) | properties}
        kept |= members | both

    def to_json(self, provider: str) -> Json:
        """Return the members that do not depend on a request."""
        namespace, kept, created = self.namespace, self.namespace.resource, instant(self.namespace.created_at_ms)
        sku: Json = {"name": "Standard", "tier": "Standard"}
        properties: Json = {"provisioningState": "Succeeded", "status": "Active", "createdAt": created}
        properties |= {"updatedAt": created, "serviceBusEndpoint": f"https://{namespace.authority}/"}
        if provider == PROVIDER:
            partitions = 0 if namespace.tier.partitions == (1,) else namespace.partitions
            sku = {"name": namespace.tier.name, "tier": namespace.tier.name}
            sku |= ({"capacity": partitions} if partitions else {}) | kept.get("sku", {})
            properties |= {"premiumMessagingPartitions": partitions, **_DEFAULTS, **kept.get("properties", {})}
        placed = {"location": kept.get("location", LOCATION), "tags": kept.get("tags", {})}
        return {"sku": sku, **placed, "properties": properties}


def collection_at(provider: str, namespace: Namespace, parts: tuple[str, ...]) -> Resources:
    """Return the collection that a path below a namespace ends in. Raises ArmError if there is none."""
    match (provider, *parts):
        case (_, "authorizationrules"):
            return Keys(namespace, provider)
        case ("Microsoft.Relay", "hybridconnections"):
            return Entities("HybridConnections", hybrid_connections_of(namespace), RELAY_PROVIDER)
        case ("Microsoft.ServiceBus", name) if name in DOCUMENTS:
            return Documents(namespace, *DOCUMENTS[name])
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
        known = self._collection.schema.in_arm
        values = read_members(properties, {name: each.form.json for name, each in known.items()}, REPORTED)
        return {known[name].name: text_of(value) for name, value in values.items()}

    def remove(self, item: Any) -> None:
        item.delete()

    def to_json(self, item: Any) -> tuple[str, Json]:
        """Return the resource's name and properties."""
        name = item.name if isinstance(item, SubscriptionEntity) else item.path.replace("/", "~")
        return name, {**_settable_json(item, self._collection.schema), **_reported_json(item, self._collection.schema)}

    def _path(self, name: str) -> str:
        return name if self._collection.schema is SUBSCRIPTION else name.replace("~", "/")


def _settable_json(entity: ManagedEntity, schema: DescriptionSchema) -> Json:
    """Return the settable properties, without those not set."""
    shown: Json = {}
    for name, each in schema.in_arm.items():
        value = each.value(entity.description)
        if each.form is ADDRESS and value is not None:
            value = value.partition("://")[2].partition("/")[2]
        if value is not None:
            shown[name] = value if type(value) is each.form.json else each.form.write(value)
    return shown


def _reported_json(entity: ManagedEntity, schema: DescriptionSchema) -> Json:
    """Return the properties that only the service sets."""
    values = {name: value for name, value in reported(entity).items() if name in schema.elements}
    if "CountDetails" in values:
        values["CountDetails"] = {camel(name): count for name, count in values["CountDetails"].items()}
    affine = {"isClientAffine": False} if schema is SUBSCRIPTION else {}
    return {**{camel(name): value for name, value in values.items()}, **affine}


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
_CORRELATION: Final = {field: camel(name) for field, name in filters.CORRELATION_FIELDS.items()}


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


_NETWORK_RULES: Final = {
    "defaultAction": str,
    "publicNetworkAccess": str,
    "trustedServiceAccessEnabled": bool,
    "virtualNetworkRules": list,
    "ipRules": list,
}
_DONE: Final = {"provisioningState": "Succeeded"}
_ENDPOINT: Final = {"privateEndpoint": dict, "privateLinkServiceConnectionState": dict, "provisioningState": str}
_LINK: Final = {
    "groupId": "namespace",
    "requiredMembers": ["namespace"],
    "requiredZoneNames": ["privatelink.servicebus.windows.net"],
}
DOCUMENTS: Final[dict[str, tuple[str, Mapping[str, type], Json, str]]] = {
    name.lower(): (name, known, reported, only)
    for name, known, reported, only in (
        ("disasterRecoveryConfigs", {"partnerNamespace": str, "alternateName": str}, {**_DONE, "role": "Primary"}, ""),
        ("migrationConfigurations", {"targetNamespace": str, "postMigrationName": str}, _DONE, ""),
        ("networkRuleSets", _NETWORK_RULES, {"publicNetworkAccess": "Enabled", "defaultAction": "Allow"}, "default"),
        ("privateEndpointConnections", _ENDPOINT, {}, ""),
        ("privateLinkResources", {}, _LINK, "namespace"),
    )
}
"""Documents of a namespace by their type in lower case: the type, the members to set, others, and the only name."""


class Documents:
    """Resources that are kept as they were put, and have no effect, such as aliases of Geo-Disaster Recovery."""

    provider = PROVIDER

    def __init__(
        self, namespace: Namespace, kind: str, known: Mapping[str, type], reported: Json, only: str = ""
    ) -> None:
        self.kind, self._known, self._reported, self._only = kind, known, reported, only
        self._kept: dict[str, Json] = namespace.resource.setdefault(kind, {only: {}} if only else {})

    def all(self) -> Sequence[str]:
        return list(self._kept)

    def find(self, name: str) -> str | None:
        return next((each for each in self._kept if each.lower() == name.lower()), None)

    def put(self, name: str, properties: Json) -> str:
        name = self.find(name) or existing(None if self._only else name, name)
        self._kept[name] = read_members(properties, self._known)
        return name

    def remove(self, item: Any) -> None:
        del self._kept[item]

    def to_json(self, item: Any) -> tuple[str, Json]:
        return item, {**self._reported, **self._kept[item]}


Resources: TypeAlias = Entities | Keys | Rules | Documents


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
