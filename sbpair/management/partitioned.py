"""Partitioned queues and topics: their descriptions, and checks for each request that the service would refuse.

Pure. Every check raises; it is given the entities read from a namespace before any is created.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from sbpair.backlog import check_path, primary_of
from sbpair.errors import NameInvalid, ServiceRefused, UsageError
from sbpair.management import entity_limits
from sbpair.management.comparison import compare, describe_differences
from sbpair.model import tiers
from sbpair.model.durations import TICKS_PER_SECOND, ticks
from sbpair.model.entities import Queue, Topic
from sbpair.model.tiers import MEGABYTES, Capacity, Tier

if TYPE_CHECKING:
    from collections.abc import Collection

    from sbpair.model.queues import Difference

QueueOrTopic = Queue | Topic
SomeQueueOrTopic = TypeVar("SomeQueueOrTopic", bound=Queue | Topic)

# Fields that a request sets. An existing entity that differs in one of them is refused.
REQUESTED = frozenset(
    {
        "enable_partitioning",
        "max_size_in_megabytes",
        "requires_session",
        "requires_duplicate_detection",
        "duplicate_detection_history_time_window",
        "forward_to",
    }
)
FIXED_AT_CREATION = frozenset({"EnablePartitioning", "RequiresSession", "RequiresDuplicateDetection"})
SHORTEN = "choose a shorter name"


def partitioned_queue(
    path: str, size_gb: int, *, sessions: bool = False, duplicates: str | None = None, forward_to: str = ""
) -> Queue:
    """Describe a partitioned queue. `duplicates` is the detection window, as `10m`. Raises UsageError, NameInvalid."""
    if sessions and forward_to:
        raise UsageError(
            "a queue that requires sessions cannot forward its messages", hint="omit --sessions or --forward-to"
        )
    if forward_to:
        check_path(forward_to, shorten=SHORTEN)
    if forward_to and forward_to.lower() == path.lower():
        raise UsageError(f"{path} cannot forward to itself", hint="name another queue, or a topic")
    plain = Queue(path, requires_session=sessions, forward_to=forward_to)
    return _partitioned(plain, size_gb, duplicates)


def partitioned_topic(path: str, size_gb: int, *, duplicates: str | None = None) -> Topic:
    """Describe a partitioned topic, likewise."""
    return _partitioned(Topic(path), size_gb, duplicates)


def adapt_to_tier(entity: SomeQueueOrTopic, tier: Tier, namespace: str) -> SomeQueueOrTopic:
    """Return `entity` with the tier's defaults. Raises UsageError for a feature that the tier lacks."""
    tiers.check_size(entity.max_size_in_megabytes // MEGABYTES, (tier,), f" in {namespace}, of the tier {tier.name},")
    entity = entity_limits.fit_to_tier(entity, tier)
    if not tier.has_everything:
        for violation in entity_limits.tier_violations(entity, tier):
            raise UsageError(f"{namespace}: {violation.message}", hint="Standard and Premium have it")
    return entity


def check_same(entity: QueueOrTopic, existing: QueueOrTopic, namespace: str) -> None:
    """Raise ServiceRefused where the existing entity differs from the requested one."""
    if found := compare(entity, existing, only=REQUESTED).differences:
        raise ServiceRefused(
            f"{existing.path} is in {namespace} already, and is left as it is: {describe_differences(found)}",
            condition="40000",
            hint=_advice(existing, found),
        )


def check_room(entity: QueueOrTopic, others: Collection[QueueOrTopic], tier: Tier, namespace: str) -> None:
    """Raise UsageError or ServiceRefused where the namespace's other entities rule `entity` out."""
    if isinstance(entity, Queue) and entity.forward_to.lower() not in {"", *(each.path.lower() for each in others)}:
        raise UsageError(
            f"{entity.path} cannot forward to {entity.forward_to}: {namespace} has no queue or topic of that name",
            hint="create it first",
        )
    check_number(1, others, tier, namespace)


def check_number(more: int, others: Collection[QueueOrTopic], tier: Tier, namespace: str) -> None:
    """Raise ServiceRefused where `more` partitioned entities would exceed the tier's limit."""
    limit, present = tier.max_partitioned, sum(each.enable_partitioning for each in others)
    if limit is not None and present + more > limit:
        raise ServiceRefused(
            f"a {tier.name} namespace may have {limit} partitioned entities, and {namespace} has {present}: no room for"
            f" {more} more",
            condition="40300",
            hint="delete partitioned entities that are not used: sbpair partition list shows them",
        )


def possible_partitions(here: Capacity, others: Collection[QueueOrTopic], namespace: str) -> tuple[int, ...]:
    """Return the partition counts that a new entity may have. Raises ServiceRefused where it cannot be partitioned."""
    # In Premium, partitioning is a namespace property, inferred from existing entities.
    partitioned = all(each.enable_partitioning for each in others) if others else None
    found = tiers.partitions_possible(here, partitioned=partitioned if here.tier.whole_namespace else True)
    if found == (1,):
        raise not_partitioned(namespace)
    return found


def not_partitioned(namespace: str) -> ServiceRefused:
    """Return the error for a Premium namespace without partitions."""
    return ServiceRefused(
        f"{namespace} is a Premium namespace that is not partitioned, and so is nothing in it",
        condition="40000",
        hint="its partitions are chosen when the namespace is created: create one with 2 or 4; without them, too,"
        " an entity has up to 80 GB",
    )


def _partitioned(entity: SomeQueueOrTopic, size_gb: int, duplicates: str | None) -> SomeQueueOrTopic:
    check_path(entity.path, shorten=SHORTEN)
    if primary_of(entity.path):
        raise NameInvalid(f"{entity.path} is the name of a backlog queue", hint="sbpair provision creates those")
    tiers.check_size(size_gb)
    made = replace(entity, enable_partitioning=True, max_size_in_megabytes=size_gb * MEGABYTES)
    if duplicates is None:
        return made
    return replace(made, requires_duplicate_detection=True, duplicate_detection_history_time_window=_window(duplicates))


def _window(text: str) -> str:
    """Return the window as ISO 8601."""
    minimum, limit, allowed = entity_limits.DURATION_LIMITS["duplicate_detection_history_time_window"]
    seconds, rest = divmod(ticks(text), TICKS_PER_SECOND)
    if rest or seconds < minimum or (limit is not None and seconds > limit):
        raise UsageError(
            f"duplicates cannot be detected for {text}", hint=f"choose whole seconds, {allowed}: 10m is usual"
        )
    return f"PT{seconds}S"


def _advice(existing: QueueOrTopic, found: tuple[Difference, ...]) -> str:
    if not FIXED_AT_CREATION & {each.property for each in found}:
        return (
            "sbpair partition never changes an existing entity: request these values, or change it where it is managed"
        )
    rest = (
        f"let {existing.path} forward to it until it is empty, then move its senders and receivers"
        if isinstance(existing, Queue) and not existing.requires_session
        else f"move the senders to it, and delete {existing.path} once its receivers have emptied it"
    )
    return f"this can only be chosen at creation: create a new {existing.kind} under another name, {rest}"
