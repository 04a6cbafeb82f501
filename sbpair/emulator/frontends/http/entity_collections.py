"""The collections of entities that management requests create and change: queues, topics, subscriptions of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.description_schema import QUEUE, SUBSCRIPTION, TOPIC, DescriptionSchema, from_elements
from sbpair.emulator.frontends.http.request_parts import FORWARDS
from sbpair.emulator.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.rules.rule import SubscriptionRule
    from sbpair.emulator.entities.topic import SubscriptionEntity, TopicEntity


class Queues:
    """The queues of a namespace, and the base of the other collections."""

    schema: DescriptionSchema = QUEUE
    default: QueueDescription = QueueDescription()

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace

    def all(self) -> Sequence[QueueEntity]:
        return self.namespace.queues()

    def find(self, name: str) -> QueueEntity | None:
        return self.namespace.find_queue(name)

    def get(self, name: str) -> QueueEntity:
        """Return the entity of this name. Raises EntityNotFound."""
        return self.namespace.queue(name)

    def create(self, name: str, description: Any) -> QueueEntity:
        return self.namespace.create_queue(name, description)

    def describe(
        self,
        values: Mapping[str, str],
        existing: QueueEntity | None,
        rules: tuple[AuthorizationRule, ...],
        authority: str,
    ) -> QueueDescription:
        """Return the requested description. Targets of forwarding become whole addresses within `authority`."""
        targets = {name: values[name].strip() for name in FORWARDS if values.get(name)}
        whole = {
            name: target if "://" in target else f"sb://{authority}/{target.strip('/')}"
            for name, target in targets.items()
        }
        before = existing.description if existing else None
        return from_elements(self.schema, self.default, {**values, **whole}, before, rules, self.namespace.tier)


class Topics(Queues):
    schema = TOPIC
    default = TopicDescription()

    def all(self) -> Sequence[TopicEntity]:
        return self.namespace.topics()

    def find(self, name: str) -> TopicEntity | None:
        return self.namespace.find_topic(name)

    def get(self, name: str) -> TopicEntity:
        return self.namespace.topic(name)

    def create(self, name: str, description: Any) -> TopicEntity:
        return self.namespace.create_topic(name, description)


class Subscriptions(Queues):
    schema = SUBSCRIPTION
    default = SubscriptionDescription()

    def __init__(self, namespace: Namespace, topic: TopicEntity) -> None:
        super().__init__(namespace)
        self.topic = topic

    def all(self) -> Sequence[SubscriptionEntity]:
        return self.topic.subscriptions

    def find(self, name: str) -> SubscriptionEntity | None:
        return self.topic.find_subscription(name)

    def get(self, name: str) -> SubscriptionEntity:
        return self.topic.subscription(name)

    def create(self, name: str, description: Any, first_rule: SubscriptionRule | None = None) -> SubscriptionEntity:
        return self.topic.create_subscription(name, description, first_rule)


def reported_times(entity: QueueEntity) -> dict[str, str]:
    times = {"CreatedAt": entity.created_at_ms, "UpdatedAt": entity.updated_at_ms, "AccessedAt": entity.accessed_at_ms}
    return {name: instant(ms) for name, ms in times.items()}


def reported_counts(entity: QueueEntity) -> dict[str, int]:
    """Return the numbers of CountDetails."""
    counts = entity.counts()
    return {
        "ActiveMessageCount": counts.active,
        "DeadLetterMessageCount": counts.dead_letter,
        "ScheduledMessageCount": counts.scheduled,
        "TransferMessageCount": counts.transfer,
        "TransferDeadLetterMessageCount": counts.transfer_dead_letter,
    }


def update(entity: QueueEntity, description: QueueDescription) -> None:
    """Update an entity. Raises OperationTimedOut if one of its partitions is down."""
    entity.check_all_partitions()
    entity.update(description)
