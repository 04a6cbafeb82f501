"""The collections of resources below a namespace, with the same operations each. Independent of HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.description_schema import QUEUE, SUBSCRIPTION, TOPIC, from_elements
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.rules.rule import SubscriptionRule
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.frontends.arm.arm_documents import (
    OF_QUEUES,
    OF_SUBSCRIPTIONS,
    OF_TOPICS,
    read_values,
    reported_json,
    values_json,
)
from sbpair.emulator.frontends.arm.arm_request import PROVIDER, Json, path_of, resource_name
from sbpair.emulator.frontends.arm.arm_rules import rule_from_json, rule_to_json
from sbpair.emulator.frontends.http.request_parts import with_addresses
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.description_schema import Settable
    from sbpair.emulator.entities.namespace import Namespace

T = TypeVar("T")
Q = TypeVar("Q", bound=QueueEntity)
OF_JMS: Final = frozenset({"isClientAffine", "clientAffineProperties"})


class Resources(Generic[T]):
    """A collection. `kind` is the type of its resources, below that of the provider."""

    kind: str

    def all(self) -> Sequence[T]:
        raise NotImplementedError

    def find(self, name: str) -> T | None:
        raise NotImplementedError

    def put(self, name: str, properties: Json) -> T:
        """Create a resource, or change the existing one."""
        raise NotImplementedError

    def remove(self, item: T) -> None:
        raise NotImplementedError

    def name(self, item: T) -> str:
        raise NotImplementedError

    def properties(self, item: T) -> Json:
        raise NotImplementedError

    def to_json(self, within: str, item: T) -> Json:
        """Return the resource's document; `within` is the id of the collection."""
        name = self.name(item)
        return {
            "id": f"{within}/{name}",
            "name": name,
            "type": f"{PROVIDER}/namespaces/{self.kind}",
            "properties": self.properties(item),
        }


class Entities(Resources[Q]):
    """A collection of entities. `settable`: the elements of their descriptions that a client sets."""

    settable: Settable

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def put(self, name: str, properties: Json) -> Q:
        existing = self.find(name)
        values = with_addresses(read_values(properties, self.settable), self.namespace.authority)
        wanted = self.description(values, existing.description if existing else None)
        if existing is None:
            return self.create(name, wanted)
        existing.check_all_partitions()
        existing.update(wanted)
        return existing

    def description(self, values: dict[str, str], before: Any) -> Any:
        """Return the requested description, given the existing one."""
        raise NotImplementedError

    def create(self, name: str, description: Any) -> Q:
        raise NotImplementedError

    def remove(self, item: Q) -> None:
        self.namespace.delete(item)

    def name(self, item: Q) -> str:
        return resource_name(item.path)

    def properties(self, item: Q) -> Json:
        item.check_all_partitions()
        return {**values_json(item, self.settable), **reported_json(item), **self.counts(item)}

    def counts(self, item: Q) -> Json:
        """Return the properties of this kind that only the service sets."""
        raise NotImplementedError


class Queues(Entities[QueueEntity]):
    kind = "queues"
    settable = OF_QUEUES

    def all(self) -> Sequence[QueueEntity]:
        return self.namespace.queues()

    def find(self, name: str) -> QueueEntity | None:
        return self.namespace.find_queue(path_of(name))

    def description(self, values: dict[str, str], before: QueueDescription | None) -> QueueDescription:
        return from_elements(QUEUE, QueueDescription(), values, before, _rules_of(before), self.namespace.tier)

    def create(self, name: str, description: QueueDescription) -> QueueEntity:
        return self.namespace.create_queue(path_of(name), description)

    def counts(self, item: QueueEntity) -> Json:
        return {"messageCount": item.counts().total, "sizeInBytes": item.size_bytes}


class Topics(Entities[TopicEntity]):
    kind = "topics"
    settable = OF_TOPICS

    def all(self) -> Sequence[TopicEntity]:
        return self.namespace.topics()

    def find(self, name: str) -> TopicEntity | None:
        return self.namespace.find_topic(path_of(name))

    def description(self, values: dict[str, str], before: TopicDescription | None) -> TopicDescription:
        default, rules = TopicDescription(), _rules_of(before)
        return from_elements(TOPIC, default, values, before, rules, self.namespace.tier)

    def create(self, name: str, description: TopicDescription) -> TopicEntity:
        return self.namespace.create_topic(path_of(name), description)

    def counts(self, item: TopicEntity) -> Json:
        return {"subscriptionCount": len(item.subscriptions), "sizeInBytes": item.size_bytes}


class Subscriptions(Entities[SubscriptionEntity]):
    kind = "topics/subscriptions"
    settable = OF_SUBSCRIPTIONS

    def __init__(self, namespace: Namespace, topic: TopicEntity) -> None:
        super().__init__(namespace)
        self._topic = topic

    def all(self) -> Sequence[SubscriptionEntity]:
        return self._topic.subscriptions

    def find(self, name: str) -> SubscriptionEntity | None:
        return self._topic.find_subscription(name)

    def put(self, name: str, properties: Json) -> SubscriptionEntity:
        if properties.get("isClientAffine"):
            raise ArgumentInvalid("Client affine subscriptions need JMS, which this emulator does not support.")
        return super().put(name, {key: properties[key] for key in properties.keys() - OF_JMS})

    def description(self, values: dict[str, str], before: SubscriptionDescription | None) -> SubscriptionDescription:
        default = SubscriptionDescription()
        return from_elements(SUBSCRIPTION, default, values, before, tier=self.namespace.tier)

    def create(self, name: str, description: SubscriptionDescription) -> SubscriptionEntity:
        return self._topic.create_subscription(name, description)

    def name(self, item: SubscriptionEntity) -> str:
        return item.name

    def counts(self, item: SubscriptionEntity) -> Json:
        return {"messageCount": item.counts().total, "isClientAffine": False}


class Rules(Resources[SubscriptionRule]):
    kind = "topics/subscriptions/rules"

    def __init__(self, subscription: SubscriptionEntity) -> None:
        self._subscription = subscription

    def all(self) -> Sequence[SubscriptionRule]:
        return self._subscription.rules

    def find(self, name: str) -> SubscriptionRule | None:
        return self._subscription.find_rule(name)

    def put(self, name: str, properties: Json) -> SubscriptionRule:
        rule = rule_from_json(name, properties)
        exists = self.find(name) is not None
        return self._subscription.change_rule(rule) if exists else self._subscription.add_rule(rule)

    def remove(self, item: SubscriptionRule) -> None:
        self._subscription.remove_rule(item.name)

    def name(self, item: SubscriptionRule) -> str:
        return item.name

    def properties(self, item: SubscriptionRule) -> Json:
        return rule_to_json(item)


def _rules_of(before: QueueDescription | None) -> tuple[AuthorizationRule, ...]:
    """Return the authorization rules, which a description keeps: they are resources of their own."""
    return before.authorization_rules if before else ()
