"""One of the two namespaces of a run: what is wanted there, what is there, and the making of what is missing.

Reads all it needs before anything is made. What could not be made is an Item of the report, never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sbpair import backlog
from sbpair.errors import (
    AccessError,
    EntityMissing,
    NameTaken,
    SbpairError,
    ServiceRefused,
    Throttled,
    Unavailable,
    UsageError,
)
from sbpair.management import backlog_plan, entity_plan, partitioned
from sbpair.management.calls import Calls, NotTried, first_error, together
from sbpair.management.entity_limits import chosen, complaints_of_tier, fitted
from sbpair.management.entity_plan import Key, key
from sbpair.model import tiers
from sbpair.model.entities import DEFAULT_RULE, AnyEntity, Described, Queue, Rule, Subscription, Topic
from sbpair.model.queues import Difference, Drift, QueueSpec, Unchanged
from sbpair.model.report import Outcome, ReportItem

if TYPE_CHECKING:
    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.management.entities_file import EntitiesDocument
    from sbpair.model.queues import QueueState

DOUBT = "no answer came before the run was broken off: it may be there"


@dataclass(frozen=True, slots=True)
class EntityFinding:
    """What a report says of one entity, beside its name. `index` is a backlog queue's, and None for all others."""

    namespace: str
    kind: str
    index: int | None = None
    differences: tuple[Difference, ...] = ()
    partitioned: bool = False


EntityItem = ReportItem[EntityFinding]


@dataclass(slots=True)
class ProvisionSide:
    """`backlog` are the backlog queues that this namespace should have, and `primary` whose they are."""

    namespace: str
    control: NamespaceControl
    calls: Calls
    layout: EntitiesDocument
    primary: str = ""
    backlog: Sequence[QueueSpec] = ()
    plan: entity_plan.EntityPlan = field(default_factory=entity_plan.EntityPlan)
    items: list[EntityItem] = field(default_factory=list)
    taken: Collection[Key] = ()
    tier: tiers.Tier = tiers.STANDARD
    listed: int = 0
    _made: dict[Key, asyncio.Future[Outcome]] = field(default_factory=dict)
    _doubtful: set[Key] = field(default_factory=set)

    # Reading

    async def look(self) -> None:
        """Make the plan, and an Item of all that is there. Raises what stops everything, before anything is made."""
        with first_error():
            async with asyncio.TaskGroup() as group:
                listed, asked = group.create_task(self._list()), group.create_task(self._tier())
        self.tier = asked.result()
        there = (
            backlog_plan.diff(self.backlog, listed.result(), self.tier) if self.backlog else backlog_plan.BacklogPlan()
        )
        wanted = [fitted(entity, self.tier) for entity in self.layout.entities]
        self._check_tier([*wanted, *self.backlog[:1]], self.tier)
        actual, taken = await self._read(wanted)
        found = entity_plan.plan(wanted, actual, await self._rules(wanted, actual), taken)
        await self._check_targets(wanted)
        await self._check_partitions(found.creates)
        self.items += [self._item(each, Outcome.FAILED, *taken[key(each)]) for each in wanted if key(each) in taken]
        self.taken = taken.keys()
        self.items += [self._compared(each.entity, each.differences) for each in found.there]
        self.items += [*map(self._of_backlog, there.matches), *map(self._of_backlog, there.drifted)]
        self.plan = entity_plan.EntityPlan((*found.creates, *(each.spec for each in there.creates)), (), found.drops)

    async def _list(self) -> list[QueueState]:
        if not self.backlog:
            return []
        there = await self.calls.read("list the queues", lambda: self.control.list_under(backlog.prefix(self.primary)))
        self.listed = len(there)
        return there

    async def _tier(self) -> tiers.Tier:
        tier = tiers.named(await self.calls.read("read the namespace's tier", self.control.tier))
        self.calls.counted = tier is not tiers.PREMIUM
        return tier

    def _check_tier(self, wanted: Sequence[Described], tier: tiers.Tier) -> None:
        for entity in wanted:
            for each in complaints_of_tier(entity, tier):
                raise UsageError(
                    f"{self.layout.where(entity, each.name)}{each.told} ({self.namespace})",
                    hint="the service would refuse it: nothing was created",
                )

    async def _check_partitions(self, creates: Iterable[Described]) -> None:
        """Refuse partitions that the namespace has no room for, or as a whole has not, as far as that is known."""
        more = [each for each in creates if getattr(each, "enable_partitioning", False)]
        if not more:
            return
        here = await self.calls.read("read the namespace's tier", self.control.capacity)
        there: list[Queue | Topic] = [*await self.calls.read("list the queues", self.control.queues)]
        if self.tier.has_everything:
            there += await self.calls.read("list the topics", self.control.topics)
        try:
            partitioned.possible(here, there, self.namespace)
            partitioned.check_number(len(more), there, self.tier, self.namespace)
        except ServiceRefused as error:
            where = self.layout.where(more[0], "enable_partitioning")
            raise UsageError(f"{where}{error.message}", hint=error.hint) from error

    async def _read(self, wanted: Sequence[Described]) -> tuple[dict[Key, Described], dict[Key, tuple[str, int]]]:
        """What is there of what is wanted; and what has the name of something else, with why that is so."""
        actual: dict[Key, Described] = {}
        taken: dict[Key, tuple[str, int]] = {}

        async def look(entity: Queue | Topic | Subscription) -> None:
            try:
                actual[key(entity)] = await self.calls.read(f"read {entity.path}", lambda: self._ask(entity))
            except EntityMissing:
                return
            except NameTaken as error:
                taken[key(entity)] = f"{error.message}: {error.hint}", error.exit_code

        await together(look(each) for each in wanted if isinstance(each, (Queue, Topic)))
        subscriptions = [each for each in wanted if isinstance(each, Subscription)]
        await together(look(each) for each in subscriptions if entity_plan.path_key(each.topic) in actual)
        return actual, taken

    async def _ask(self, entity: AnyEntity) -> AnyEntity:
        # An arm for each kind, since what is read is of the kind that was asked for.
        match entity:
            case Queue():
                return chosen(await self.control.read(entity), entity, self.tier)
            case Topic():
                return chosen(await self.control.read(entity), entity, self.tier)
            case Subscription():
                return await self.control.read(entity)
            case Rule():
                return await self.control.read(entity)

    async def _rules(self, wanted: Sequence[Described], actual: dict[Key, Described]) -> Mapping[Key, Sequence[Rule]]:
        """The rules of each subscription that is there and that rules are wanted of; they are `actual` from now on."""
        found: dict[Key, list[Rule]] = {}

        async def look(subscription: Key, of: Rule) -> None:
            found[subscription] = await self.calls.read(
                f"list the rules of {of.topic}/{of.subscription}",
                lambda: self.control.rules(of.topic, of.subscription),
            )

        each_of = {key(Subscription(each.topic, each.subscription)): each for each in wanted if isinstance(each, Rule)}
        await together(look(subscription, of) for subscription, of in each_of.items() if subscription in actual)
        actual |= {key(rule): rule for rules in found.values() for rule in rules}
        return found

    async def _check_targets(self, wanted: Sequence[Described]) -> None:
        async def look(target: str) -> None:
            try:
                await self.calls.read(f"read {target}", lambda: self.control.read(Queue(target)))
            except NameTaken:
                return
            except EntityMissing as error:
                raise self._no_target(wanted, target) from error

        await together(look(target) for target in entity_plan.outside(wanted).values())

    def _no_target(self, wanted: Iterable[Described], target: str) -> UsageError:
        entity, name = next(
            (each, name) for each in wanted for name in entity_plan.FORWARDS if getattr(each, name, "") == target
        )
        return UsageError(
            f"{self.layout.where(entity, name)}{entity.kind} {entity.path} forwards to {target}, which {self.namespace}"
            " does not have",
            hint="describe it too, or create it first",
        )

    # Making

    def would_create(self) -> list[EntityItem]:
        return [self._item(each, Outcome.WOULD_CREATE) for each in self.plan.creates]

    def not_tried(self) -> list[EntityItem]:
        """An Item of all that is wanted, for a run that was broken off before it knew what is there."""
        wanted: list[Described] = [*self.layout.entities, *self.backlog]
        return [self._item(each, Outcome.NOT_TRIED, "the run was broken off before it came to this") for each in wanted]

    def sorted_items(self) -> list[EntityItem]:
        """In the order of the file, and backlog queues by index after that."""
        places = {each.path.lower(): place for place, each in enumerate(self.layout.entities)}

        def place(item: EntityItem) -> tuple[int, int]:
            index = item.detail.index if item.detail else None
            return (places.get(item.name.lower(), len(places)), -1) if index is None else (len(places) + 1, index)

        return sorted(self.items, key=place)

    def tasks(self) -> list[Coroutine[Any, Any, EntityItem | None]]:
        """Everything that is to be made, each of which waits for what it needs."""
        loop = asyncio.get_running_loop()
        self._made = {each: loop.create_future() for each in (*map(key, self.plan.creates), *self.taken)}
        for each in self.taken:
            self._made[each].set_result(Outcome.FAILED)
        return [*(self._make(each) for each in self.plan.creates), *(self._drop(each) for each in self.plan.drops)]

    async def _make(self, entity: Described) -> EntityItem:
        item = await self._made_item(entity)
        self._made[key(entity)].set_result(item.outcome)
        return item

    async def _made_item(self, entity: Described) -> EntityItem:
        for need in entity_plan.needs(entity):
            if need in self._made and await self._made[need] in (Outcome.FAILED, Outcome.NOT_TRIED):
                return self._item(entity, Outcome.NOT_TRIED, f"it needs {need[1]}, which could not be created")
        return await self._tried(entity, f"create {entity.path}", lambda: self._create_or_compare(entity))

    async def _drop(self, rule: Rule) -> EntityItem | None:
        """Take the service's own rule from a subscription that this run has made, once all others are there."""
        subscription = key(Subscription(rule.topic, rule.subscription))
        if await self._made[subscription] is not Outcome.CREATED:
            return None
        others = [
            each for each in self.plan.creates if isinstance(each, Rule) and subscription in entity_plan.needs(each)
        ]
        if any([await self._made[key(each)] in (Outcome.FAILED, Outcome.NOT_TRIED) for each in others]):
            reason = f"{DEFAULT_RULE}, which takes every message, stays until all other rules are there: remove it then"
            return self._item(rule, Outcome.NOT_TRIED, reason)
        item = await self._tried(rule, f"delete {rule.path}", lambda: self._removed(rule))
        return None if item.outcome is Outcome.OK else item

    async def _tried(self, entity: Described, what: str, action: Callable[[], Awaitable[EntityItem]]) -> EntityItem:
        try:
            return await self.calls.make(what, action)
        except NotTried as error:
            return self._item(entity, Outcome.NOT_TRIED, str(error))
        except TimeoutError:
            return self._item(entity, Outcome.FAILED, DOUBT, 6)
        except AccessError as error:
            self.calls.halt.refused(error)
            return self._item(entity, Outcome.FAILED, f"{error.message}: {error.hint}", error.exit_code)
        except SbpairError as error:
            return self._item(entity, Outcome.FAILED, error.message, error.exit_code)

    async def _removed(self, rule: Rule) -> EntityItem:
        await self.control.delete_rule(rule)
        return self._item(rule, Outcome.OK)

    async def _create_or_compare(self, entity: Described) -> EntityItem:
        try:
            if await self.control.create(entity):
                return self._item(entity, Outcome.CREATED)
            found = await self._read_again(entity)
        except Unavailable as error:
            if not isinstance(error, Throttled):
                self._doubtful.add(key(entity))
            raise
        except (EntityMissing, NameTaken) as error:
            reason = f"{entity.path} is taken, and not by a {entity.kind}: rename or delete what has its name"
            return self._item(entity, Outcome.FAILED, reason, error.exit_code)
        if found.outcome is Outcome.EXISTING and key(entity) in self._doubtful:
            return self._item(entity, Outcome.CREATED, "at the first attempt, which had no answer")
        return found

    async def _read_again(self, entity: Described) -> EntityItem:
        if isinstance(entity, AnyEntity):
            return self._compared(entity, entity_plan.differences(entity, await self._ask(entity)))
        state, index = await self.control.get(entity.path), self._index(entity) or 0
        differences = backlog_plan.compare(entity, state, self.tier)
        return self._of_backlog(Drift(state, index, differences) if differences else Unchanged(state, index))

    # Items

    def _compared(self, entity: Described, differences: tuple[Difference, ...]) -> EntityItem:
        if differences:
            return self._item(entity, Outcome.DRIFTED, backlog_plan.told(differences), differences=differences)
        return self._item(entity, Outcome.EXISTING)

    def _of_backlog(self, change: Unchanged | Drift) -> EntityItem:
        differences = change.differences if isinstance(change, Drift) else ()
        return ReportItem(
            change.path,
            Outcome.DRIFTED if differences else Outcome.EXISTING,
            backlog_plan.told(differences),
            EntityFinding(self.namespace, "queue", change.index, differences, change.state.partitioned),
        )

    def _item(
        self,
        entity: Described,
        outcome: Outcome,
        reason: str = "",
        code: int = 0,
        *,
        differences: tuple[Difference, ...] = (),
    ) -> EntityItem:
        divided = bool(getattr(entity, "enable_partitioning", False))
        detail = EntityFinding(self.namespace, entity.kind, self._index(entity), differences, divided)
        return ReportItem(entity.path, outcome, reason, detail, code)

    def _index(self, entity: Described) -> int | None:
        return backlog.index_of(self.primary, entity.path) if type(entity) is QueueSpec else None
