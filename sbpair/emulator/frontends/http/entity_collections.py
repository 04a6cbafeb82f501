"""The collections of entities that management requests create and change: queues, topics, subscriptions of a topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.emulator.entities.description import QueueDescription, SubscriptionDescription, TopicDescription
from sbpair.emulator.entities.description_schema import QUEUE, SUBSCRIPTION, TOPIC, DescriptionSchema, from_elements
from sbpair.emulator.frontends.http.request_parts import FORWARDS
from sbpair.emulator.timespan import instant

if TYPE_CHECKING:
    from sbpair.emulator.access.sas import AuthorizationRule
    from sbpair.emulator.entities.namespace import Namespace
    from sbpair.emulator.entities.queue import QueueEntity
    from sbpair.emulator.entities.topic import TopicEntity


@dataclass(frozen=True, slots=True)
class EntityCollection:
    """The queues or topics of a namespace, or the subscriptions of a topic.

    `find` returns None for a missing entity, `get` raises EntityNotFound.
    """

    namespace: Namespace
    schema: DescriptionSchema
    default: QueueDescription
    all: Callable[[], Sequence[QueueEntity]]
    find: Callable[[str], QueueEntity | None]
    get: Callable[[str], QueueEntity]
    create: Callable[..., QueueEntity]

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


def queues_of(space: Namespace) -> EntityCollection:
    methods = (space.queues, space.find_queue, space.queue, space.create_queue)
    return EntityCollection(space, QUEUE, QueueDescription(), *methods)


def topics_of(space: Namespace) -> EntityCollection:
    methods = (space.topics, space.find_topic, space.topic, space.create_topic)
    return EntityCollection(space, TOPIC, TopicDescription(), *methods)


def subscriptions_of(space: Namespace, topic: TopicEntity) -> EntityCollection:
    methods = (lambda: topic.subscriptions, topic.find_subscription, topic.subscription, topic.create_subscription)
    return EntityCollection(space, SUBSCRIPTION, SubscriptionDescription(), *methods)


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
