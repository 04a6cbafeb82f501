"""Partitioned queues and topics: what can be asked for, and what the service would refuse of it.

Pure. Every check raises; what it takes is what was read of a namespace before anything is made in it.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, TypeVar

from sbpair.backlog import check_path, primary_of
from sbpair.errors import NameInvalid, ServiceRefused, UsageError
from sbpair.management import entity_limits
from sbpair.management.backlog_plan import same_duration, told
from sbpair.model import tiers
from sbpair.model.durations import TICKS_PER_SECOND, ticks
from sbpair.model.entities import DURATIONS, PROPERTY_NAMES, Queue, Topic
from sbpair.model.queues import Difference
from sbpair.model.tiers import MEGABYTES, Capacity, Tier

if TYPE_CHECKING:
    from collections.abc import Collection

QueueOrTopic = Queue | Topic
SomeQueueOrTopic = TypeVar("SomeQueueOrTopic", bound=Queue | Topic)

# What can be asked for here. An entity that differs in one of these is another one than was asked for.
ASKED = frozenset(
    {
        "enable_partitioning",
        "max_size_in_megabytes",
        "requires_session",
        "requires_duplicate_detection",
        "duplicate_detection_history_time_window",
        "forward_to",
    }
)
CHOSEN_FOR_GOOD = frozenset({"EnablePartitioning", "RequiresSession", "RequiresDuplicateDetection"})
SHORTEN = "choose a shorter name"


def partitioned_queue(
    path: str, size_gb: int, *, sessions: bool = False, duplicates: str | None = None, forward_to: str = ""
) -> Queue:
    """A partitioned queue. `duplicates` is the window of their detection, as `10m`. Raises UsageError, NameInvalid."""
    if sessions and forward_to:
        raise UsageError(
            "a queue that requires sessions cannot forward its messages", hint="leave --sessions or --forward-to out"
        )
    if forward_to:
        check_path(forward_to, shorten=SHORTEN)
    if forward_to and forward_to.lower() == path.lower():
        raise UsageError(f"{path} cannot forward to itself", hint="name another queue, or a topic")
    plain = Queue(path, requires_session=sessions, forward_to=forward_to)
    return _partitioned(plain, size_gb, duplicates)


def partitioned_topic(path: str, size_gb: int, *, duplicates: str | None = None) -> Topic:
    """A partitioned topic, likewise."""
    return _partitioned(Topic(path), size_gb, duplicates)


def fitted(entity: SomeQueueOrTopic, tier: Tier, namespace: str) -> SomeQueueOrTopic:
    """`entity` as it is to be made in a namespace of that tier. Raises UsageError for what the tier has not."""
    tiers.check_size(entity.max_size_in_megabytes // MEGABYTES, (tier,), f" in {namespace}, of the tier {tier.name},")
    entity = entity_limits.fitted(entity, tier)
    if not tier.has_everything:
        for complaint in entity_limits.complaints_of_tier(entity, tier):
            raise UsageError(f"{namespace}: {complaint.told}", hint="Standard and Premium have it")
    return entity


def check_same(entity: QueueOrTopic, existing: QueueOrTopic, namespace: str) -> None:
    """Raise ServiceRefused where what has the name already is another entity than was asked for."""
    differences = tuple(
        Difference(PROPERTY_NAMES[name], getattr(entity, name), getattr(existing, name))
        for name in (each.name for each in fields(entity) if each.name in ASKED)
        if not _same(entity, name, getattr(entity, name), getattr(existing, name))
    )
    if differences:
        raise ServiceRefused(
            f"{existing.path} is in {namespace} already, and is left as it is: {told(differences)}",
            condition="40000",
            hint=_way(existing, differences),
        )


def check_room(entity: QueueOrTopic, others: Collection[QueueOrTopic], tier: Tier, namespace: str) -> None:
    """Raise what the service would refuse because of the other entities of the namespace."""
    if isinstance(entity, Queue) and entity.forward_to.lower() not in {"", *(each.path.lower() for each in others)}:
        raise UsageError(
            f"{entity.path} cannot forward to {entity.forward_to}: {namespace} has no queue or topic of that name",
            hint="make that one first",
        )
    check_number(1, others, tier, namespace)


def check_number(more: int, others: Collection[QueueOrTopic], tier: Tier, namespace: str) -> None:
    """Raise ServiceRefused where a namespace may not have so many more partitioned entities."""
    limit, there = tier.max_partitioned, sum(each.enable_partitioning for each in others)
    if limit is not None and there + more > limit:
        raise ServiceRefused(
            f"a {tier.name} namespace may have {limit} partitioned entities, and {namespace} has {there}: there is no"
            f" room for {more} more",
            condition="40300",
            hint="partition those that need it, or delete some that are not used: sbpair partition list shows them",
        )


def possible(here: Capacity, others: Collection[QueueOrTopic], namespace: str) -> tuple[int, ...]:
    """How many partitions a new entity would have. Raises ServiceRefused where it could not be partitioned."""
    # What others are says what a Premium namespace is; elsewhere each entity is as it is asked for.
    partitioned = all(each.enable_partitioning for each in others) if others else None
    found = tiers.partitions_possible(here, partitioned=partitioned if here.tier.whole_namespace else True)
    if found == (1,):
        raise not_partitioned(namespace)
    return found


def not_partitioned(namespace: str) -> ServiceRefused:
    """What is said of a Premium namespace in one piece."""
    return ServiceRefused(
        f"{namespace} is a Premium namespace that is not partitioned, and so is nothing in it",
        condition="40000",
        hint="its partitions are chosen when the namespace is made: make a new one with 2 or 4; without them, too, an"
        " entity there has up to 80 GB",
    )


def _partitioned(entity: SomeQueueOrTopic, size_gb: int, duplicates: str | None) -> SomeQueueOrTopic:
    check_path(entity.path, shorten=SHORTEN)
    if primary_of(entity.path):
        raise NameInvalid(
            f"{entity.path} is the name of a backlog queue", hint="sbpair provision makes those, as they have to be"
        )
    tiers.check_size(size_gb)
    made = replace(entity, enable_partitioning=True, max_size_in_megabytes=size_gb * MEGABYTES)
    if duplicates is None:
        return made
    return replace(made, requires_duplicate_detection=True, duplicate_detection_history_time_window=_window(duplicates))


def _window(text: str) -> str:
    """The window as ISO 8601."""
    minimum, limit, allowed = entity_limits.DURATION_LIMITS["duplicate_detection_history_time_window"]
    seconds, rest = divmod(ticks(text), TICKS_PER_SECOND)
    if rest or seconds < minimum or (limit is not None and seconds > limit):
        raise UsageError(
            f"duplicates cannot be detected for {text}", hint=f"choose whole seconds, {allowed}: 10m is usual"
        )
    return f"PT{seconds}S"


def _same(entity: QueueOrTopic, name: str, asked: str | int | bool, actual: str | int | bool) -> bool:
    if name == "duplicate_detection_history_time_window" and not entity.requires_duplicate_detection:
        return True
    if name in DURATIONS:
        return same_duration(str(asked), str(actual))
    return str(asked).lower() == str(actual).lower()


def _way(existing: QueueOrTopic, differences: tuple[Difference, ...]) -> str:
    if not CHOSEN_FOR_GOOD & {each.property for each in differences}:
        return "sbpair partition changes nothing that is there: ask for what it is, or change it where it is managed"
    rest = (
        f"let {existing.path} forward to it until it is empty, then move its senders and receivers"
        if isinstance(existing, Queue) and not existing.requires_session
        else f"move the senders to it, and delete {existing.path} once its receivers have emptied it"
    )
    return f"this can only be chosen at creation: make a new {existing.kind} under another name, {rest}"
