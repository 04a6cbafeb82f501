"""Creation of partitioned queues and topics, and a list of entities with their partitions.

Existing entities are never changed. Every check is made before anything is created in any namespace.
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
from sbpair.management.partitioned import (
    QueueOrTopic,
    adapt_to_tier,
    check_room,
    check_same,
    not_partitioned,
    possible_partitions,
)
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
    """An entity in one namespace. `partitions` has several numbers where the service does not report which it is.

    Sizes are megabytes, except `size_bytes`: the size of its messages, None where unknown.
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
        """The used part of its effective size, from 0 to 1."""
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
        return await _in_each(
            namespaces, lambda each: each.list_all(), lambda each: ReportItem(each.name, Outcome.FAILED)
        )


def partition_exit_code(report: PartitionReport) -> int:
    """Return 3 where one namespace of several failed, else 0."""
    return report.exit_code_for()


class _Namespace:
    """One namespace, with retried calls."""

    def __init__(self, control: NamespaceControl, name: str, on_event: OnEvent, sleep: Sleep) -> None:
        self.name = name
        self._control = control
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)

    async def check(self, entity: QueueOrTopic) -> PartitionItem:
        """Return the item of a dry run. Raises errors that the service would return."""
        here = await self._capacity()
        entity = adapt_to_tier(entity, here.tier, self.name)
        # The namespace alone may rule it out: then nothing else needs to be read.
        possible_partitions(here, (), self.name)
        if (existing := await self._existing(entity)) is not None:
            return _compared(entity, existing, here, self.name)
        others = await self._entities(here)
        check_room(entity, others, here.tier, self.name)
        return _item(
            entity, Outcome.WOULD_CREATE, here, self.name, partitions=possible_partitions(here, others, self.name)
        )

    async def create(self, entity: QueueOrTopic, found: PartitionItem) -> list[PartitionItem]:
        """Create the entity unless it was found. Another client may have created it since."""
        if found.outcome is Outcome.EXISTING:
            return [found]
        here = await self._capacity()
        entity = adapt_to_tier(entity, here.tier, self.name)
        if await self._create(entity, here):
            return [_item(entity, Outcome.CREATED, here, self.name)]
        return [_compared(entity, await self._read(entity), here, self.name)]

    async def list_all(self) -> list[PartitionItem]:
        here = await self._capacity()
        entities = sorted(await self._entities(here), key=lambda each: each.path.lower())
        sizes = await self._sizes(here)
        return [_item(each, Outcome.OK, here, self.name, size_bytes=sizes.get(each.path)) for each in entities]

    async def _create(self, entity: QueueOrTopic, here: Capacity) -> bool:
        try:
            return await self._attempt(f"create {entity.path}", lambda: self._control.create(entity))
        except ServiceRefused as error:
            # Sometimes only the attempt shows that a Premium namespace is not partitioned.
            if here.tier.whole_namespace and "partition" in error.message.lower():
                raise not_partitioned(self.name) from error
            raise

    async def _existing(self, entity: QueueOrTopic) -> QueueOrTopic | None:
        try:
            return await self._read(entity)
        except EntityMissing:
            return None

    async def _read(self, entity: QueueOrTopic) -> QueueOrTopic:
        # `read` is generic in the kind, and takes no union of two.
        like = cast("Queue", entity)
        return await self._attempt(f"read {entity.path}", lambda: self._control.read(like))

    async def _capacity(self) -> Capacity:
        return await self._attempt("read the namespace's tier", self._control.capacity)

    async def _entities(self, here: Capacity) -> list[QueueOrTopic]:
        queues = await self._attempt("list the queues", self._control.queues)
        topics = await self._attempt("list the topics", self._control.topics) if here.tier.has_everything else []
        return [*queues, *topics]

    async def _sizes(self, here: Capacity) -> dict[str, int]:
        sizes = await self._attempt("read the sizes of the queues", self._control.queue_bytes)
        if here.tier.has_everything:
            sizes = sizes | await self._attempt("read the sizes of the topics", self._control.topic_bytes)
        return sizes


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
    state = PartitionedEntityState(namespace, here.tier.name, entity.kind, partitions, chosen, effective, size_bytes)
    return ReportItem(entity.path, outcome, detail=state)


@asynccontextmanager
async def _open(
    endpoints: Sequence[Endpoint], group: ResourceGroup | None, on_event: OnEvent, sleep: Sleep
) -> AsyncIterator[list[_Namespace]]:
    async with AsyncExitStack() as stack:
        controls = [await stack.enter_async_context(open_namespace(each, group)) for each in endpoints]
        pairs = zip(controls, endpoints, strict=True)
        yield [_Namespace(control, endpoint.name, on_event, sleep) for control, endpoint in pairs]


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
