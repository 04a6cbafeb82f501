"""Creation of partitioned queues and topics, and a list of entities with their partitions.

Existing entities are never changed. Every check is made before anything is created in any namespace.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

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
from sbpair.model.tiers import Capacity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.management.calls import OnEvent, Sleep
    from sbpair.model.pair import Endpoint, ResourceGroup

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
        others = await self._entities()
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
        entities = sorted(await self._entities(), key=lambda each: each.path.lower())
        sizes = await self._attempt("read the sizes of the queues", self._control.queue_bytes)
        if self._here.tier.has_everything:
            sizes = sizes | await self._attempt("read the sizes of the topics", self._control.topic_bytes)
        return [self._item(each, Outcome.OK, size_bytes=sizes.get(each.path)) for each in entities]

    async def _compared(self, entity: QueueOrTopic) -> PartitionItem:
        """Compare the existing entity. Raises EntityMissing without one, ServiceRefused where it differs."""
        existing = await self._attempt(f"read {entity.path}", lambda: self._control.read(entity))
        if self._here.tier.whole_namespace and not existing.enable_partitioning:
            raise not_partitioned(self.name)
        check_same(entity, existing, self.name)
        return self._item(existing, Outcome.EXISTING)

    async def _read_capacity(self) -> None:
        self._here = await self._attempt("read the namespace's tier", self._control.capacity)

    async def _entities(self) -> list[QueueOrTopic]:
        queues = await self._attempt("list the queues", self._control.queues)
        topics = await self._attempt("list the topics", self._control.topics) if self._here.tier.has_everything else []
        return [*queues, *topics]

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
