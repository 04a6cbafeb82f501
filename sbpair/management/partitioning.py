"""Partitioned queues and topics: their descriptions and checks, their creation, and a list of entities with partitions.

Existing entities are never changed. Every check raises, before anything is created in any namespace.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, TypeVar

from sbpair.azure import NamespaceControl, open_namespace
from sbpair.backlog import check_path, primary_of
from sbpair.errors import EntityMissing, NameInvalid, SbpairError, ServiceRefused, UsageError
from sbpair.management import entity_limits
from sbpair.management.calls import OnEvent, Sleep
from sbpair.management.comparison import describe_differences, differences
from sbpair.model import tiers
from sbpair.model.document import OMITTED
from sbpair.model.entities import Queue, Topic
from sbpair.model.entity_properties import PROPERTIES
from sbpair.model.pair import Endpoint, ResourceGroup
from sbpair.model.queues import Difference
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import attempt
from sbpair.model.tiers import MEGABYTE_BYTES, MEGABYTES, Capacity, Tier
from sbpair.timespan import TICKS_PER_SECOND, ticks

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
SHORTEN = "choose a shorter name"


def partitioned_queue(
    path: str, size_gb: int = 1, *, sessions: bool = False, duplicates: str | None = None, forward_to: str = ""
) -> Queue:
    """Describe a partitioned queue. `duplicates` is the detection window, as `10m`. Raises UsageError, NameInvalid."""
    if forward_to:
        check_path(forward_to, shorten=SHORTEN)
    if forward_to and forward_to.lower() == path.lower():
        raise UsageError(f"{path} cannot forward to itself", hint="name another queue, or a topic")
    plain = Queue(path, requires_session=sessions, forward_to=forward_to)
    return _partitioned(plain, size_gb, duplicates)


def partitioned_topic(path: str, size_gb: int = 1, *, duplicates: str | None = None) -> Topic:
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
    if found := differences(entity, existing, REQUESTED):
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
            hint="delete partitioned entities that are not used: list them with sbpair partition list",
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


async def list_entities(control: NamespaceControl, tier: Tier) -> list[tuple[QueueOrTopic, int]]:
    """List the queues and topics of a namespace of that tier, each with the bytes that it holds."""
    kinds: tuple[type[QueueOrTopic], ...] = (Queue, Topic) if tier.has_everything else (Queue,)
    return [found for kind in kinds for found in await control.list_all(kind)]


def _partitioned(entity: SomeQueueOrTopic, size_gb: int, duplicates: str | None) -> SomeQueueOrTopic:
    check_path(entity.path, shorten=SHORTEN)
    if primary_of(entity.path):
        raise NameInvalid(f"{entity.path} is the name of a backlog queue", hint="create those with sbpair provision")
    tiers.check_size(size_gb)
    made = replace(entity, enable_partitioning=True, max_size_in_megabytes=size_gb * MEGABYTES)
    if duplicates is None:
        return made
    return replace(made, requires_duplicate_detection=True, duplicate_detection_history_time_window=_window(duplicates))


def _window(text: str) -> str:
    seconds, rest = divmod(ticks(text), TICKS_PER_SECOND)
    if rest or PROPERTIES["duplicate_detection_history_time_window"].refusal(f"PT{seconds}S", ()):
        raise UsageError(
            f"duplicates cannot be detected for {text}",
            hint="choose whole seconds, from 20 seconds to 7 days: 10m is usual",
        )
    return f"PT{seconds}S"


def _advice(existing: QueueOrTopic, found: tuple[Difference, ...]) -> str:
    if not {row.title for row in PROPERTIES.values() if row.is_fixed} & {each.property for each in found}:
        return "an existing entity is never changed: request these values, or change it where it is managed"
    rest = (
        f"let {existing.path} forward to it until it is empty, then move its senders and receivers"
        if isinstance(existing, Queue) and not existing.requires_session
        else f"move the senders to it, and delete {existing.path} once its receivers have emptied it"
    )
    return f"this can only be chosen at creation: create a new {existing.kind} under another name, {rest}"


@dataclass(frozen=True, slots=True)
class PartitionedEntityState:
    """An entity in one namespace. `partitions` has several numbers where the service does not report which it is.

    Sizes are megabytes, except `size_bytes`: the size of its messages, None where unknown.
    """

    namespace: Annotated[str, "Name of the namespace"]
    tier: Annotated[str, "Tier of the namespace", {"examples": ["Standard"]}]
    kind: Annotated[str, "Kind of entity", {"enum": ["queue", "topic"]}]
    partitions: tuple[int, ...]
    max_size_mb: Annotated[int, "Chosen size, in MB"]
    effective_max_size_mb: Annotated[int, "Size of all partitions, in MB"]
    size_bytes: int | None = None

    @property
    def known_partitions(
        self,
    ) -> Annotated[int | None, "Number of partitions; null if not known", {"name": "partitions"}]:
        return self.partitions[0] if len(self.partitions) == 1 else None

    @property
    def partitions_possible(self) -> Annotated[tuple[int, ...], "Possible numbers of partitions", OMITTED]:
        return self.partitions if len(self.partitions) > 1 else ()

    @property
    def fill_ratio(self) -> float | None:
        return None if self.size_bytes is None else self.size_bytes / (self.effective_max_size_mb * MEGABYTE_BYTES)


PartitionItem = ReportItem[PartitionedEntityState]
PartitionReport = Report[PartitionedEntityState]


async def create_partitioned(
    endpoints: Sequence[Endpoint],
    entity: QueueOrTopic,
    *,
    group: ResourceGroup | None = None,
    dry_run: bool = False,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> PartitionReport:
    """Create `entity` in each of the namespaces, or with `dry_run` report where it would be created.

    `entity` comes from `partitioned_queue` or `partitioned_topic`. With a `group`, the calls go to Resource Manager,
    which also reports a Premium namespace's partitions. Raises errors that can be known before the first creation.
    A later failure in one of several namespaces is an item of the report; a failure in all is raised.
    """
    async with _open(endpoints, group, on_event, sleep) as namespaces:
        found = {each: await each.check(entity) for each in namespaces}
        if dry_run:
            return Report(tuple(found.values()))
        return await _in_each(namespaces, lambda each: each.create(entity, found[each]), lambda each: found[each])


async def list_partitions(
    endpoints: Sequence[Endpoint],
    *,
    group: ResourceGroup | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> PartitionReport:
    """List every queue and topic of the namespaces, partitioned or not, each namespace's by name.

    A namespace that cannot be read is a failed item of its name; an error of all namespaces is raised.
    """
    async with _open(endpoints, group, on_event, sleep) as namespaces:
        return await _in_each(namespaces, _Namespace.list_all, lambda each: ReportItem(each.name, Outcome.FAILED))


def partition_exit_code(report: PartitionReport) -> int:
    """Return 3 where one namespace of several failed, else 0."""
    return report.exit_code_for()


class _Namespace:
    """One namespace, with retried calls, and its capacity once that was read."""

    def __init__(self, control: NamespaceControl, name: str, on_event: OnEvent, sleep: Sleep) -> None:
        self.name = name
        self._control = control
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)
        self._here = Capacity(tiers.STANDARD)

    async def check(self, entity: QueueOrTopic) -> PartitionItem:
        """Return the item of a dry run. Raises errors that the service would return."""
        await self._read_capacity()
        entity = adapt_to_tier(entity, self._here.tier, self.name)
        # The namespace alone may rule it out: then nothing else needs to be read.
        possible_partitions(self._here, (), self.name)
        with suppress(EntityMissing):
            return await self._compared(entity)
        others = [each for each, _ in await self._entities()]
        check_room(entity, others, self._here.tier, self.name)
        partitions = possible_partitions(self._here, others, self.name)
        return self._item(entity, Outcome.WOULD_CREATE, partitions=partitions)

    async def create(self, entity: QueueOrTopic, found: PartitionItem) -> list[PartitionItem]:
        """Create the entity unless `check` found it. Another client may have created it since."""
        if found.outcome is Outcome.EXISTING:
            return [found]
        entity = adapt_to_tier(entity, self._here.tier, self.name)
        try:
            created = await self._attempt(f"create {entity.path}", lambda: self._control.create(entity))
        except ServiceRefused as error:
            # Sometimes only the attempt shows that a Premium namespace is not partitioned.
            if self._here.tier.whole_namespace and "partition" in error.message.lower():
                raise not_partitioned(self.name) from error
            raise
        return [self._item(entity, Outcome.CREATED) if created else await self._compared(entity)]

    async def list_all(self) -> list[PartitionItem]:
        await self._read_capacity()
        found = sorted(await self._entities(), key=lambda each: each[0].path.lower())
        return [self._item(entity, Outcome.OK, size_bytes=size) for entity, size in found]

    async def _compared(self, entity: QueueOrTopic) -> PartitionItem:
        """Compare the existing entity. Raises EntityMissing without one, ServiceRefused where it differs."""
        existing = await self._attempt(f"read {entity.path}", lambda: self._control.read(entity))
        if self._here.tier.whole_namespace and not existing.enable_partitioning:
            raise not_partitioned(self.name)
        check_same(entity, existing, self.name)
        return self._item(existing, Outcome.EXISTING)

    async def _read_capacity(self) -> None:
        self._here = await self._attempt("read the namespace's tier", self._control.capacity)

    async def _entities(self) -> list[tuple[QueueOrTopic, int]]:
        return await self._attempt("list the entities", lambda: list_entities(self._control, self._here.tier))

    def _item(
        self,
        entity: QueueOrTopic,
        outcome: Outcome,
        partitions: tuple[int, ...] = (),
        size_bytes: int | None = None,
    ) -> PartitionItem:
        tier, chosen, partitioned = self._here.tier, entity.max_size_in_megabytes, entity.enable_partitioning
        effective = tiers.effective_megabytes(tier, chosen, partitioned=partitioned)
        partitions = partitions or tiers.partitions_possible(self._here, partitioned=partitioned)
        state = PartitionedEntityState(self.name, tier.name, entity.kind, partitions, chosen, effective, size_bytes)
        return ReportItem(entity.path, outcome, detail=state)


@asynccontextmanager
async def _open(
    endpoints: Sequence[Endpoint], group: ResourceGroup | None, on_event: OnEvent, sleep: Sleep
) -> AsyncIterator[list[_Namespace]]:
    async with AsyncExitStack() as stack:
        yield [
            _Namespace(await stack.enter_async_context(open_namespace(each, group)), each.name, on_event, sleep)
            for each in endpoints
        ]


async def _in_each(
    namespaces: Sequence[_Namespace],
    action: Callable[[_Namespace], Awaitable[list[PartitionItem]]],
    failed: Callable[[_Namespace], PartitionItem],
) -> PartitionReport:
    """Run `action` for one namespace after the other; `failed` returns the item of a failure."""
    items: list[PartitionItem] = []
    errors: list[SbpairError] = []
    for namespace in namespaces:
        try:
            items += await action(namespace)
        except SbpairError as error:
            errors.append(error)
            item = replace(failed(namespace), outcome=Outcome.FAILED, reason=error.message, exit_code=error.exit_code)
            items.append(item)
    if len(errors) == len(namespaces):
        raise errors[0]
    return Report(tuple(items))


MAX_CHARACTERS = 128
"""Limit of a session id, a partition key and a message id, in UTF-16 units as in .NET."""


class DecidingProperty(StrEnum):
    """The properties that can decide, by the names of the fields of MessageKeys."""

    SESSION_ID = "session_id"
    PARTITION_KEY = "partition_key"
    MESSAGE_ID = "message_id"


class KeyProblem(StrEnum):
    """The reasons for which the service refuses a message because of its keys."""

    DIFFERENT_KEYS = "different_keys"
    SESSION_MISSING = "session_missing"
    TOO_LONG = "too_long"
    NOT_TEXT = "not_text"


class KeyConflict(UsageError):
    """A message that the service refuses because of its keys."""

    def __init__(self, problem: KeyProblem, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.problem = problem


@dataclass(frozen=True, slots=True)
class MessageKeys:
    """The properties of a message that can be its key. None is not set; an empty text is a text.

    Only an empty session id beside a partition key counts as not set.
    """

    session_id: str | None = None
    partition_key: str | None = None
    message_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionedEntity:
    """The settings of a partitioned queue or topic that its keys depend on."""

    requires_sessions: bool = False
    detects_duplicates: bool = False


def deciding_property(keys: MessageKeys, entity: PartitionedEntity) -> DecidingProperty | None:
    """Return the property that decides the partition; None if the service chooses in turn. Raises KeyConflict.

    If MESSAGE_ID decides and `keys` has none, the sender's client assigns one.
    """
    _check(keys, entity)
    if keys.session_id is not None and (keys.session_id or keys.partition_key is None):
        return DecidingProperty.SESSION_ID
    if keys.partition_key is not None:
        return DecidingProperty.PARTITION_KEY
    return DecidingProperty.MESSAGE_ID if entity.detects_duplicates else None


def _check(keys: MessageKeys, entity: PartitionedEntity) -> None:
    for name in DecidingProperty:
        value = getattr(keys, name)
        if value is not None:
            _check_text(name, value)
    if entity.requires_sessions and keys.session_id is None:
        raise KeyConflict(
            KeyProblem.SESSION_MISSING, "session_id is missing and the entity requires sessions", hint="set session_id"
        )
    if keys.session_id and keys.partition_key not in (None, keys.session_id):
        raise KeyConflict(
            KeyProblem.DIFFERENT_KEYS, "partition_key differs from session_id", hint="set only one of them"
        )


def _check_text(name: str, value: str) -> None:
    try:
        length = len(value.encode("utf-16-le")) // 2
    except UnicodeEncodeError:
        raise KeyConflict(
            KeyProblem.NOT_TEXT, f"{name} has half of a surrogate pair", hint="send whole characters"
        ) from None
    if length > MAX_CHARACTERS:
        raise KeyConflict(
            KeyProblem.TOO_LONG,
            f"{name} has {length} characters; at most {MAX_CHARACTERS} are allowed",
            hint="shorten it; a character outside of the basic plane counts twice",
        )
