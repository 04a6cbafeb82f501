"""Making partitioned queues and topics, and listing entities with their partitions. What is there is never changed.

All that can be known before anything is made is told before anything is made, in whichever namespace.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

from sbpair import tiers
from sbpair.bus.attempts import attempt
from sbpair.errors import EntityMissing, SbpairError, ServiceRefused
from sbpair.report import Item, Outcome, Report, exit_code
from sbpair.topology.partitioned import Divided, check_room, check_same, fitted, not_partitioned, possible

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from sbpair.bus.control import PartitionControl
    from sbpair.entity import Queue
    from sbpair.model import ControlEvent, Endpoint
    from sbpair.tiers import Tier

    Sleep = Callable[[float], Awaitable[object]]
    OnEvent = Callable[[ControlEvent], object]

MEGABYTE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Placed:
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
    def full(self) -> float | None:
        """How much of its effective size is taken: from 0 to 1."""
        return None if self.size_bytes is None else self.size_bytes / (self.effective_max_size_mb * MEGABYTE_BYTES)


PlacedItem = Item[Placed]
PlacedReport = Report[Placed]


async def create(
    endpoints: Sequence[Endpoint],
    entity: Divided,
    *,
    dry_run: bool = False,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> PlacedReport:
    """Make `entity` in each of the namespaces, or with `dry_run` say where that would be done.

    `entity` is made by `sbpair.topology.partitioned`. Raises what the service would refuse, before anything is made
    anywhere. What fails later, in one of several, is an Item of the report; it is raised where it failed in all.
    """
    async with _open(endpoints, on_event, sleep) as places:
        found = {place: await place.look(entity) for place in places}
        if dry_run:
            return Report(tuple(found.values()))
        return await _in_each(places, lambda place: place.make(entity, found[place]), lambda place: found[place])


async def listing(
    endpoints: Sequence[Endpoint],
    *,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> PlacedReport:
    """Every queue and topic of the namespaces, partitioned or not, each namespace's by name.

    A namespace of several that cannot be read is a failed Item of its name; it is raised where none can be.
    """
    async with _open(endpoints, on_event, sleep) as places:
        return await _in_each(places, lambda place: place.everything(), lambda place: Item(place.name, Outcome.FAILED))


def exit_code_of(report: PlacedReport) -> int:
    """3 where one namespace of several failed."""
    return exit_code(report, ())


class _Place:
    """One namespace: what is in it, and what can be made in it."""

    def __init__(self, control: PartitionControl, name: str, on_event: OnEvent, sleep: Sleep) -> None:
        self.name = name
        self._control = control
        self._known: tuple[Tier, int | None] | None = None
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)

    async def look(self, entity: Divided) -> PlacedItem:
        """What making it would come to. Raises where the service would refuse it."""
        tier, units = await self._capacity()
        entity = fitted(entity, tier, self.name)
        # A single messaging unit says it all: nothing else needs to be read.
        possible(tier, (), units, self.name)
        if (existing := await self._existing(entity)) is not None:
            return await self._compared(entity, existing)
        others = await self._entities(tier)
        check_room(entity, others, tier, self.name)
        return await self._item(entity, Outcome.WOULD_CREATE, possible(tier, others, units, self.name))

    async def make(self, entity: Divided, found: PlacedItem) -> list[PlacedItem]:
        """Make what was not found. Somebody else may have been faster."""
        if found.outcome is Outcome.EXISTING:
            return [found]
        tier, _units = await self._capacity()
        entity = fitted(entity, tier, self.name)
        if await self._create(entity, tier):
            return [await self._item(entity, Outcome.CREATED)]
        return [await self._compared(entity, await self._read(entity))]

    async def everything(self) -> list[PlacedItem]:
        """Every entity with what it holds."""
        tier, _units = await self._capacity()
        entities = await self._entities(tier)
        held = await self._held(tier)
        ordered = sorted(entities, key=lambda each: each.path.lower())
        return [await self._item(each, Outcome.OK, size_bytes=held.get(each.path)) for each in ordered]

    async def _compared(self, entity: Divided, existing: Divided) -> PlacedItem:
        tier, _units = await self._capacity()
        if tier.whole_namespace and not existing.enable_partitioning:
            raise not_partitioned(self.name)
        check_same(entity, existing, self.name)
        return await self._item(existing, Outcome.EXISTING)

    async def _create(self, entity: Divided, tier: Tier) -> bool:
        try:
            return await self._attempt(f"create {entity.path}", lambda: self._control.create(entity))
        except ServiceRefused as error:
            # Only the attempt tells that a Premium namespace of several messaging units is in one piece.
            if tier.whole_namespace and "partition" in error.message.lower():
                raise not_partitioned(self.name) from error
            raise

    async def _existing(self, entity: Divided) -> Divided | None:
        try:
            return await self._read(entity)
        except EntityMissing:
            return None

    async def _read(self, entity: Divided) -> Divided:
        # Either kind is read as what it is; a union of the two is no kind.
        like = cast("Queue", entity)
        return await self._attempt(f"read {entity.path}", lambda: self._control.read(like))

    async def _capacity(self) -> tuple[Tier, int | None]:
        if self._known is None:
            told = await self._attempt("read the namespace's tier", self._control.capacity)
            self._known = tiers.named(told.tier), told.units
        return self._known

    async def _entities(self, tier: Tier) -> list[Divided]:
        queues = await self._attempt("list the queues", self._control.queues)
        topics = await self._attempt("list the topics", self._control.topics) if tier.has_everything else []
        return [*queues, *topics]

    async def _held(self, tier: Tier) -> dict[str, int]:
        held = await self._attempt("read the sizes of the queues", self._control.queue_bytes)
        if tier.has_everything:
            held = held | await self._attempt("read the sizes of the topics", self._control.topic_bytes)
        return held

    async def _item(
        self,
        entity: Divided,
        outcome: Outcome,
        partitions: tuple[int, ...] = (),
        size_bytes: int | None = None,
    ) -> PlacedItem:
        tier, units = await self._capacity()
        chosen, partitioned = entity.max_size_in_megabytes, entity.enable_partitioning
        effective = tiers.effective_megabytes(tier, chosen, partitioned=partitioned)
        partitions = partitions or tiers.partitions_possible(tier, partitioned=partitioned, units=units)
        placed = Placed(self.name, tier.name, entity.kind, partitions, chosen, effective, size_bytes)
        return Item(entity.path, outcome, detail=placed)


@asynccontextmanager
async def _open(endpoints: Sequence[Endpoint], on_event: OnEvent, sleep: Sleep) -> AsyncIterator[list[_Place]]:
    # The SDK takes half a second to load, and a bad name should not wait for it.
    from sbpair.bus.partitions import open_partitions

    async with AsyncExitStack() as stack:
        controls = [await stack.enter_async_context(open_partitions(each)) for each in endpoints]
        yield [_Place(each, at.name, on_event, sleep) for each, at in zip(controls, endpoints, strict=True)]


async def _in_each(
    places: Sequence[_Place],
    action: Callable[[_Place], Awaitable[list[PlacedItem]]],
    failing: Callable[[_Place], PlacedItem],
) -> PlacedReport:
    """What `action` answers, one place after the other; `failing` is the item of a place where it fails."""
    items: list[PlacedItem] = []
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
