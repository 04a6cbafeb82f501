"""Making partitioned queues and topics, and listing entities with their partitions. What is there is never changed.

All that can be known before anything is made is told before anything is made, in whichever namespace.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from sbpair.azure.control_plane import open_namespace
from sbpair.azure.retry import attempt
from sbpair.errors import EntityMissing, SbpairError, ServiceRefused
from sbpair.management.partitioned import QueueOrTopic, check_room, check_same, fitted, not_partitioned, possible
from sbpair.model import tiers
from sbpair.model.report import Outcome, Report, ReportItem

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.model.entities import Queue
    from sbpair.model.pair import Endpoint, ResourceGroup
    from sbpair.model.queues import ControlEvent
    from sbpair.model.tiers import Capacity

    Sleep = Callable[[float], Awaitable[object]]
    OnEvent = Callable[[ControlEvent], object]

MEGABYTE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PartitionedEntityState:
    """An entity in one namespace. `partitions` has more than one number where the service does not tell which it is.

    Sizes are megabytes, but for `size_bytes`: what the entity holds, and None where nobody said.
    """

    namespace: str
    tier: str
    kind: str
    partitions: tuple[int, ...]
    max_size_mb: int
    effective_max_size_mb: int
    size_bytes: int | None = None

    @property
    def fill_ratio(self) -> float | None:
        """How much of its effective size is taken: from 0 to 1."""
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
    """Make `entity` in each of the namespaces, or with `dry_run` say where that would be done.

    `entity` is made by `sbpair.management.partitioned`. With a `group`, Resource Manager is asked instead of the
    namespaces, which it says the partitions of. Raises what the service would refuse, before anything is made
    anywhere. What fails later, in one of several, is an Item of the report; it is raised where it failed in all.
    """
    async with _open(endpoints, group, on_event, sleep) as places:
        found = {place: await place.look(entity) for place in places}
        if dry_run:
            return Report(tuple(found.values()))
        return await _in_each(places, lambda place: place.make(entity, found[place]), lambda place: found[place])


async def list_partitions(
    endpoints: Sequence[Endpoint],
    *,
    group: ResourceGroup | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> PartitionReport:
    """Every queue and topic of the namespaces, partitioned or not, each namespace's by name.

    A namespace of several that cannot be read is a failed Item of its name; it is raised where none can be.
    """
    async with _open(endpoints, group, on_event, sleep) as places:
        return await _in_each(
            places, lambda place: place.everything(), lambda place: ReportItem(place.name, Outcome.FAILED)
        )


def partition_exit_code(report: PartitionReport) -> int:
    """3 where one namespace of several failed."""
    return report.exit_code_for()


class _Place:
    """One namespace: what is in it, and what can be made in it."""

    def __init__(self, control: NamespaceControl, name: str, on_event: OnEvent, sleep: Sleep) -> None:
        self.name = name
        self._control = control
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)

    async def look(self, entity: QueueOrTopic) -> PartitionItem:
        """What making it would come to. Raises where the service would refuse it."""
        here = await self._capacity()
        entity = fitted(entity, here.tier, self.name)
        # The namespace alone may say it: then nothing else needs to be read.
        possible(here, (), self.name)
        if (existing := await self._existing(entity)) is not None:
            return _compared(entity, existing, here, self.name)
        others = await self._entities(here)
        check_room(entity, others, here.tier, self.name)
        return _item(entity, Outcome.WOULD_CREATE, here, self.name, partitions=possible(here, others, self.name))

    async def make(self, entity: QueueOrTopic, found: PartitionItem) -> list[PartitionItem]:
        """Make what was not found. Somebody else may have been faster."""
        if found.outcome is Outcome.EXISTING:
            return [found]
        here = await self._capacity()
        entity = fitted(entity, here.tier, self.name)
        if await self._create(entity, here):
            return [_item(entity, Outcome.CREATED, here, self.name)]
        return [_compared(entity, await self._read(entity), here, self.name)]

    async def everything(self) -> list[PartitionItem]:
        """Every entity with what it holds."""
        here = await self._capacity()
        entities = sorted(await self._entities(here), key=lambda each: each.path.lower())
        held = await self._held(here)
        return [_item(each, Outcome.OK, here, self.name, size_bytes=held.get(each.path)) for each in entities]

    async def _create(self, entity: QueueOrTopic, here: Capacity) -> bool:
        try:
            return await self._attempt(f"create {entity.path}", lambda: self._control.create(entity))
        except ServiceRefused as error:
            # Sometimes only the attempt tells that a Premium namespace is in one piece.
            if here.tier.whole_namespace and "partition" in error.message.lower():
                raise not_partitioned(self.name) from error
            raise

    async def _existing(self, entity: QueueOrTopic) -> QueueOrTopic | None:
        try:
            return await self._read(entity)
        except EntityMissing:
            return None

    async def _read(self, entity: QueueOrTopic) -> QueueOrTopic:
        # Either kind is read as what it is; a union of the two is no kind.
        like = cast("Queue", entity)
        return await self._attempt(f"read {entity.path}", lambda: self._control.read(like))

    async def _capacity(self) -> Capacity:
        return await self._attempt("read the namespace's tier", self._control.capacity)

    async def _entities(self, here: Capacity) -> list[QueueOrTopic]:
        queues = await self._attempt("list the queues", self._control.queues)
        topics = await self._attempt("list the topics", self._control.topics) if here.tier.has_everything else []
        return [*queues, *topics]

    async def _held(self, here: Capacity) -> dict[str, int]:
        held = await self._attempt("read the sizes of the queues", self._control.queue_bytes)
        if here.tier.has_everything:
            held = held | await self._attempt("read the sizes of the topics", self._control.topic_bytes)
        return held


def _compared(entity: QueueOrTopic, existing: QueueOrTopic, here: Capacity, namespace: str) -> PartitionItem:
    if here.tier.whole_namespace and not existing.enable_partitioning:
        raise not_partitioned(namespace)
    check_same(entity, existing, namespace)
    return _item(existing, Outcome.EXISTING, here, namespace)


def _item(
    entity: QueueOrTopic,
    outcome: Outcome,
    here: Capacity,
    namespace: str,
    *,
    partitions: tuple[int, ...] = (),
    size_bytes: int | None = None,
) -> PartitionItem:
    chosen, partitioned = entity.max_size_in_megabytes, entity.enable_partitioning
    effective = tiers.effective_megabytes(here.tier, chosen, partitioned=partitioned)
    partitions = partitions or tiers.partitions_possible(here, partitioned=partitioned)
    placed = PartitionedEntityState(namespace, here.tier.name, entity.kind, partitions, chosen, effective, size_bytes)
    return ReportItem(entity.path, outcome, detail=placed)


@asynccontextmanager
async def _open(
    endpoints: Sequence[Endpoint], group: ResourceGroup | None, on_event: OnEvent, sleep: Sleep
) -> AsyncIterator[list[_Place]]:
    async with AsyncExitStack() as stack:
        controls = [await stack.enter_async_context(open_namespace(each, group)) for each in endpoints]
        yield [_Place(each, at.name, on_event, sleep) for each, at in zip(controls, endpoints, strict=True)]


async def _in_each(
    places: Sequence[_Place],
    action: Callable[[_Place], Awaitable[list[PartitionItem]]],
    failing: Callable[[_Place], PartitionItem],
) -> PartitionReport:
    """What `action` answers, one place after the other; `failing` is the item of a place where it fails."""
    items: list[PartitionItem] = []
    errors: list[SbpairError] = []
    for place in places:
        try:
            items += await action(place)
        except SbpairError as error:
            errors.append(error)
            item = replace(failing(place), outcome=Outcome.FAILED, reason=error.message, exit_code=error.exit_code)
            items.append(item)
    if len(errors) == len(places):
        raise errors[0]
    return Report(tuple(items))
