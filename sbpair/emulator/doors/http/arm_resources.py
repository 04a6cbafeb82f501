"""The collections of resources that Resource Manager knows below a namespace, each with the same few operations.

They ask the namespace and its entities, and know no HTTP. `put` makes a resource, or changes the one that is there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, TypeVar

from sbpair.emulator.doors.http.arm_json import (
    FORWARDS,
    OF_QUEUES,
    OF_SUBSCRIPTIONS,
    OF_TOPICS,
    read_values,
    show_reported,
    show_values,
)
from sbpair.emulator.doors.http.arm_request import PROVIDER, Json, name_of, path_of
from sbpair.emulator.doors.http.arm_rules import read_rule, show_rule
from sbpair.emulator.doors.http.atom_request import forward_address
from sbpair.emulator.entities import description as queues
from sbpair.emulator.entities import topic_description as topics
from sbpair.emulator.entities.queue import Queue
from sbpair.emulator.entities.rules.rule import Rule
from sbpair.emulator.entities.topic import Subscription, Topic
from sbpair.emulator.errors import ArgumentInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.emulator.entities.namespace import Namespace

T = TypeVar("T")
_OF_SUBSCRIPTIONS_TOO: Final = frozenset({"isClientAffine", "clientAffineProperties"})


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


class Queues(Resources[Queue]):
    kind = "queues"

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def all(self) -> Sequence[Queue]:
        return self._namespace.queues()

    def find(self, name: str) -> Queue | None:
        return self._namespace.find_queue(path_of(name))

    def put(self, name: str, properties: Json) -> Queue:
        path, existing = path_of(name), self.find(name)
        queues.check_path(path)
        values = _addressed(read_values(properties, OF_QUEUES), self._namespace)
        before = existing.description if existing else None
        rules = before.authorization_rules if before else ()
        wanted = queues.from_elements(values, rules, before, self._namespace.tier)
        if existing is None:
            return self._namespace.create_queue(path, wanted)
        existing.check_whole()
        existing.update(wanted)
        return existing

    def remove(self, item: Queue) -> None:
        self._namespace.delete_queue(item.path)

    def name(self, item: Queue) -> str:
        return name_of(item.path)

    def properties(self, item: Queue) -> Json:
        item.check_whole()
        counts = {"messageCount": item.counts().total, "sizeInBytes": item.size_bytes}
        return {**show_values(item, OF_QUEUES), **show_reported(item), **counts}


class Topics(Resources[Topic]):
    kind = "topics"

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace

    def all(self) -> Sequence[Topic]:
        return self._namespace.topics()

    def find(self, name: str) -> Topic | None:
        return self._namespace.find_topic(path_of(name))

    def put(self, name: str, properties: Json) -> Topic:
        path, existing = path_of(name), self.find(name)
        queues.check_path(path)
        values, before = read_values(properties, OF_TOPICS), existing.description if existing else None
        rules = before.authorization_rules if before else ()
        wanted = topics.from_elements(
            topics.TOPIC, topics.TopicDescription(), values, before, rules, self._namespace.tier
        )
        if existing is None:
            return self._namespace.create_topic(path, wanted)
        existing.check_whole()
        existing.update(wanted)
        return existing

    def remove(self, item: Topic) -> None:
        self._namespace.delete_topic(item.path)

    def name(self, item: Topic) -> str:
        return name_of(item.path)

    def properties(self, item: Topic) -> Json:
        item.check_whole()
        counts = {"subscriptionCount": len(item.subscriptions), "sizeInBytes": item.size_bytes}
        return {**show_values(item, OF_TOPICS), **show_reported(item), **counts}


class Subscriptions(Resources[Subscription]):
    kind = "topics/subscriptions"

    def __init__(self, namespace: Namespace, topic: Topic) -> None:
        self._namespace = namespace
        self._topic = topic

    def all(self) -> Sequence[Subscription]:
        return self._topic.subscriptions

    def find(self, name: str) -> Subscription | None:
        return self._topic.find_subscription(name)

    def put(self, name: str, properties: Json) -> Subscription:
        existing = self.find(name)
        if properties.get("isClientAffine"):
            raise ArgumentInvalid("Client affine subscriptions are of JMS, which this emulator does not speak.")
        values = _addressed(read_values(properties, OF_SUBSCRIPTIONS, _OF_SUBSCRIPTIONS_TOO), self._namespace)
        before = existing.description if existing else None
        default = topics.SubscriptionDescription()
        wanted = topics.from_elements(topics.SUBSCRIPTION, default, values, before, tier=self._namespace.tier)
        if existing is None:
            return self._topic.create_subscription(name, wanted)
        existing.check_whole()
        existing.update(wanted)
        return existing

    def remove(self, item: Subscription) -> None:
        self._topic.delete_subscription(item.name)

    def name(self, item: Subscription) -> str:
        return item.name

    def properties(self, item: Subscription) -> Json:
        item.check_whole()
        counts = {"messageCount": item.counts().total, "isClientAffine": False}
        return {**show_values(item, OF_SUBSCRIPTIONS), **show_reported(item), **counts}


class Rules(Resources[Rule]):
    kind = "topics/subscriptions/rules"

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def all(self) -> Sequence[Rule]:
        return self._subscription.rules

    def find(self, name: str) -> Rule | None:
        return self._subscription.find_rule(name)

    def put(self, name: str, properties: Json) -> Rule:
        rule = read_rule(name, properties)
        exists = self.find(name) is not None
        return self._subscription.change_rule(rule) if exists else self._subscription.add_rule(rule)

    def remove(self, item: Rule) -> None:
        self._subscription.remove_rule(item.name)

    def name(self, item: Rule) -> str:
        return item.name

    def properties(self, item: Rule) -> Json:
        return show_rule(item)


def _addressed(values: dict[str, str], namespace: Namespace) -> dict[str, str]:
    """Forwards as the entities keep them: whole addresses."""
    addresses = {name: forward_address(values[name], namespace.authority) for name in FORWARDS if values.get(name)}
    return {**values, **addresses}
