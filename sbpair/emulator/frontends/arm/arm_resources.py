"""The collections of resources that Resource Manager knows below a namespace, each with the same few operations.

They ask the namespace and its entities, and know no HTTP. `put` makes a resource, or changes the one that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sbpair.emulator.entities import description as queues
from sbpair.emulator.entities import topic_description as topics
from sbpair.emulator.entities.queue import QueueEntity
from sbpair.emulator.entities.rules.rule import SubscriptionRule
from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity
from sbpair.emulator.frontends.arm.arm_documents import (
    FORWARDS,
    OF_QUEUES,
    OF_SUBSCRIPTIONS,
    OF_TOPICS,
    read_values,
    show_reported,
    show_values,
)
from sbpair.emulator.frontends.arm.arm_request import PROVIDER, Json, name_of, path_of
from sbpair.emulator.frontends.arm.arm_rules import read_rule, show_rule
from sbpair.emulator.frontends.atom.atom_request import forward_address
from sbpair.emulator.service_errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.description import Settable
    from sbpair.emulator.entities.namespace import Namespace

T = TypeVar("T")
Q = TypeVar("Q", bound=QueueEntity)
OF_JMS: Final = frozenset({"isClientAffine", "clientAffineProperties"})


class Resources(Generic[T]):
    """One collection. `kind` is the type of its resources, below that of the provider."""

    kind: str

    def all(self) -> Sequence[T]:
        raise NotImplementedError

    def find(self, name: str) -> T | None:
        raise NotImplementedError

    def put(self, name: str, properties: Json) -> T:
        raise NotImplementedError

    def remove(self, item: T) -> None:
        raise NotImplementedError

    def name(self, item: T) -> str:
        raise NotImplementedError

    def properties(self, item: T) -> Json:
        raise NotImplementedError

    def shown(self, within: str, item: T) -> Json:
        """A resource as it is given back; `within` is the id of the collection."""
        name = self.name(item)
        return {
            "id": f"{within}/{name}",
            "name": name,
            "type": f"{PROVIDER}/namespaces/{self.kind}",
            "properties": self.properties(item),
        }


class Entities(Resources[Q]):
    """Those that have a description: `settable` is what a client sets of it."""

    settable: Settable

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def put(self, name: str, properties: Json) -> Q:
        existing = self.find(name)
        values = _addressed(read_values(properties, self.settable), self.namespace)
        wanted = self.described(values, existing.description if existing else None)
        if existing is None:
            return self.create(name, wanted)
        existing.check_all_partitions()
        existing.update(wanted)
        return existing

    def described(self, values: dict[str, str], before: Any) -> Any:
        """The description that is asked for, of one that there was."""
        raise NotImplementedError

    def create(self, name: str, description: Any) -> Q:
        raise NotImplementedError

    def remove(self, item: Q) -> None:
        self.namespace.delete(item)

    def name(self, item: Q) -> str:
        return name_of(item.path)

    def properties(self, item: Q) -> Json:
        item.check_all_partitions()
        return {**show_values(item, self.settable), **show_reported(item), **self.figures(item)}

    def figures(self, item: Q) -> Json:
        """What only the service sets, of this kind."""
        raise NotImplementedError


class Queues(Entities[QueueEntity]):
    kind = "queues"
    settable = OF_QUEUES

    def all(self) -> Sequence[QueueEntity]:
        return self.namespace.queues()

    def find(self, name: str) -> QueueEntity | None:
        return self.namespace.find_queue(path_of(name))

    def described(self, values: dict[str, str], before: queues.QueueDescription | None) -> queues.QueueDescription:
        return queues.from_elements(values, _rules_of(before), before, self.namespace.tier)

    def create(self, name: str, description: queues.QueueDescription) -> QueueEntity:
        return self.namespace.create_queue(path_of(name), description)

    def figures(self, item: QueueEntity) -> Json:
        return {"messageCount": item.counts().total, "sizeInBytes": item.size_bytes}


class Topics(Entities[TopicEntity]):
    kind = "topics"
    settable = OF_TOPICS

    def all(self) -> Sequence[TopicEntity]:
        return self.namespace.topics()

    def find(self, name: str) -> TopicEntity | None:
        return self.namespace.find_topic(path_of(name))

    def described(self, values: dict[str, str], before: topics.TopicDescription | None) -> topics.TopicDescription:
        default, rules = topics.TopicDescription(), _rules_of(before)
        return topics.from_elements(topics.TOPIC, default, values, before, rules, self.namespace.tier)

    def create(self, name: str, description: topics.TopicDescription) -> TopicEntity:
        return self.namespace.create_topic(path_of(name), description)

    def figures(self, item: TopicEntity) -> Json:
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
            raise ArgumentInvalid("Client affine subscriptions are of JMS, which this emulator does not speak.")
        return super().put(name, {key: properties[key] for key in properties.keys() - OF_JMS})

    def described(
        self, values: dict[str, str], before: topics.SubscriptionDescription | None
    ) -> topics.SubscriptionDescription:
        default = topics.SubscriptionDescription()
        return topics.from_elements(topics.SUBSCRIPTION, default, values, before, tier=self.namespace.tier)

    def create(self, name: str, description: topics.SubscriptionDescription) -> SubscriptionEntity:
        return self._topic.create_subscription(name, description)

    def name(self, item: SubscriptionEntity) -> str:
        return item.name

    def figures(self, item: SubscriptionEntity) -> Json:
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
        rule = read_rule(name, properties)
        exists = self.find(name) is not None
        return self._subscription.change_rule(rule) if exists else self._subscription.add_rule(rule)

    def remove(self, item: SubscriptionRule) -> None:
        self._subscription.remove_rule(item.name)

    def name(self, item: SubscriptionRule) -> str:
        return item.name

    def properties(self, item: SubscriptionRule) -> Json:
        return show_rule(item)


def _rules_of(before: queues.QueueDescription | None) -> tuple[AuthorizationRule, ...]:
    """They are resources of their own, and stay as they are."""
    return before.authorization_rules if before else ()


def _addressed(values: dict[str, str], namespace: Namespace) -> dict[str, str]:
    """Forwards as the entities keep them: whole addresses."""
    addresses = {name: forward_address(values[name], namespace.authority) for name in FORWARDS if values.get(name)}
    return {**values, **addresses}
