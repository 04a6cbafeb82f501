"""Creation of a pair's missing backlog queues, and of an application's entities in both namespaces.

Existing entities are compared, reported and never changed. A second run changes nothing: that, and no lock, makes
concurrent runs safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

from sbpair import backlog, errors
from sbpair.azure import NamespaceControl, open_namespace
from sbpair.errors import ExitCode, NameInvalid, NameTaken, ServiceRefused, Unsafe, UsageError
from sbpair.management import partitioning
from sbpair.management.calls import (
    CALLS_A_SECOND,
    FIRST_SECOND_CALLS,
    GRACE_SECONDS,
    STOPPED,
    Calls,
    Halt,
    Listed,
    NotTried,
    OnEvent,
    QueueProvisioned,
    Sleep,
    gather_all,
)
from sbpair.management.comparison import (
    MAX_CREATES,
    Change,
    Key,
    Plan,
    compare,
    compare_backlog_queue,
    dependency_order,
    describe_differences,
    desired_queues,
    entity_key,
    external_targets,
    needs,
    parent_key,
    plan_backlog,
    plan_entities,
)
from sbpair.management.entities_file import NO_ENTITIES, EntitiesDocument
from sbpair.management.entity_limits import fit_to_tier, tier_violations, violations, without_namespace_partitions
from sbpair.model import tiers
from sbpair.model.document import OMITTED
from sbpair.model.entities import (
    DEFAULT_RULE,
    NO_MESSAGE,
    AnyEntity,
    Described,
    Queue,
    Rule,
    SqlFilter,
    Subscription,
    Topic,
)
from sbpair.model.entity_properties import TARGETS
from sbpair.model.pair import Endpoint, Pair, ResourceGroup, Side
from sbpair.model.queues import Difference, QueueSpec, QueueState
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import Retrying, attempt
from sbpair.model.tiers import Capacity
from sbpair.move.failure_latch import unless_set

IN_DOUBT = "no answer came before the run was stopped: it may exist"
_NOT_CREATED = (Outcome.FAILED, Outcome.NOT_TRIED)


@dataclass(frozen=True, slots=True)
class EntityFinding:
    """The detail of a report's item. `index` is a backlog queue's, and None for all others."""

    namespace: Annotated[str, "Name of the namespace"]
    kind: Annotated[str, "Kind of entity: queue, topic, subscription or rule"]
    index: Annotated[int | None, "Index of a backlog queue", OMITTED] = None
    partitioned: Annotated[bool, "Present if the entity is partitioned", OMITTED, {"const": True}] = False
    differences: Annotated[tuple[Difference, ...], "Properties that differ from the expected description", OMITTED] = ()

    @property
    def alters(self) -> bool:
        """Whether messages are refused, lost or changed by a difference."""
        return any(each.alters for each in self.differences)


EntityItem = ReportItem[EntityFinding]


@dataclass(eq=False)
class NamespaceProvision:
    """The provisioning of one namespace: `read` makes the plan, and `tasks` carry it out.

    `queues` are the backlog queues of `pair` that this namespace should have, `listed` the number that were read.
    `taken` are the entities whose name another kind uses, each with the reason and exit code.
    """

    namespace: str
    control: NamespaceControl
    calls: Calls
    document: EntitiesDocument
    pair: Pair
    queues: Sequence[QueueSpec] = ()
    plan: Plan = field(default_factory=Plan)
    listed: int = 0
    created: list[EntityItem] = field(default_factory=list)
    _here: Capacity = field(default_factory=lambda: Capacity(tiers.STANDARD))
    _taken: dict[Key, tuple[Described, str, int]] = field(default_factory=dict)
    _outcomes: dict[Key, asyncio.Future[Outcome]] = field(default_factory=dict)
    _doubtful: set[Key] = field(default_factory=set)
    _included: set[Key] = field(default_factory=set)  # rules that were created with their subscriptions

    @property
    def tier(self) -> tiers.Tier:
        return self._here.tier

    @property
    def desired(self) -> Iterator[Described]:
        yield from self.document.entities
        yield from self.queues

    def items(self, *, dry_run: bool) -> list[EntityItem]:
        """Return all items: what alters messages, then in the order of the file, and backlog queues by index."""
        taken = [self.item(entity, Outcome.FAILED, why, code) for entity, why, code in self._taken.values()]
        known = [each for each in self.plan.changes if dry_run or each.kind is not Outcome.MISSING]
        order = {each.path.lower(): number for number, each in enumerate(self.document.entities)}

        def position(item: EntityItem) -> tuple[bool, int, int]:
            index = item.detail.index if item.detail else None
            place = (order.get(item.name.lower(), len(order)), -1) if index is None else (len(order) + 1, index)
            return not (item.detail and item.detail.alters), *place

        return sorted([*taken, *map(self._change_item, known), *self.created], key=position)

    def item(self, entity: Described, outcome: Outcome, reason: str = "", code: int = 0) -> EntityItem:
        """Return the item of an entity without differences."""
        return self._change_item(Change(outcome, entity, self._index(entity)), reason, code)

    def _change_item(self, change: Change, reason: str = "", code: int = 0) -> EntityItem:
        partitioned = change.state.partitioned if change.state else _asks_for_partitions(change.entity)
        detail = EntityFinding(self.namespace, change.entity.kind, change.index, partitioned, change.differences)
        outcome = Outcome.WOULD_CREATE if change.kind is Outcome.MISSING else change.kind
        return ReportItem(change.path, outcome, reason or describe_differences(change.differences), detail, code)

    def _index(self, entity: Described) -> int | None:
        return backlog.index_of(self.pair.primary.name, entity.path) if type(entity) is QueueSpec else None

    # Reading: every error stops the run, before anything is created

    async def read(self) -> None:
        """Read the namespace and plan it."""
        listed: list[QueueState] = []

        async def list_queues() -> None:
            prefix = backlog.prefix(self.pair.primary.name)
            listed.extend(await self.calls.read("list the queues", lambda: self.control.list_under(prefix)))

        await gather_all([self._read_tier(), *([list_queues()] if self.queues else [])])
        self._check_tier([*self.queues[:1], *(fit_to_tier(each, self.tier) for each in self.document.entities)])
        found = await self._plan_entities()
        queues = plan_backlog(self.pair, listed, self.tier).changes if self.queues else ()
        known = [change for change in queues if change.kind is not Outcome.EXTRA]
        self.plan, self.listed = Plan((*found.changes, *known), found.default_rules), len(listed)

    async def _plan_entities(self) -> Plan:
        desired = [fit_to_tier(entity, self.tier) for entity in self.document.entities]
        actual = await self._existing(desired)
        actual |= await self._rules(desired, actual)
        found = plan_entities(desired, actual, self._taken)
        await self._check_forwards(desired)
        await self._check_partitions([change.entity for change in found.creates])
        if (count := len(found.creates)) > MAX_CREATES:
            raise errors.Unsafe(
                f"{count} entities would be created in {self.namespace}, and {MAX_CREATES} is the most at once",
                hint="make the file smaller: a namespace of Standard holds 10000 entities",
            )
        return found

    async def list_all(self) -> list[AnyEntity]:
        """List the queues, topics, subscriptions and rules of the namespace, without backlog queues."""
        await self._read_tier()
        listed = await self.calls.read("list the entities", lambda: partitioning.list_entities(self.control, self.tier))
        found: list[AnyEntity] = [entity for entity, _ in listed if not backlog.primary_of(entity.path)]

        async def read_below(topic: str) -> None:
            # Resource Manager is refused before: it has the values of rules as text only.
            listing = partial(self.control.subscriptions, topic)  # type: ignore[union-attr]
            for each in await self.calls.read(f"list the subscriptions of {topic}", listing):
                found.extend([each, *await self._list_rules(topic, each.name)])

        await gather_all([read_below(each.path) for each in found if isinstance(each, Topic)])
        return sorted(found, key=lambda each: each.path.lower())

    async def _read_tier(self) -> None:
        self._here = await self.calls.read("read the namespace's tier", self.control.capacity)
        self.calls.counted = self.tier is not tiers.PREMIUM

    def _check_tier(self, desired: Sequence[Described]) -> None:
        """Raise UsageError for everything that a namespace of this tier would refuse."""
        errors.raise_all(
            errors.UsageError(
                f"{self.document.where(entity, each.name)}{each.message} ({self.namespace})",
                hint="correct it: the service would refuse the entity, and nothing was created",
            )
            for entity in desired
            for each in tier_violations(entity, self.tier)
        )

    async def _check_partitions(self, creates: Sequence[Described]) -> None:
        """Raise UsageError for partitions that the namespace has no room for, or lacks as a whole, as far as known."""
        more = [each for each in creates if _asks_for_partitions(each)]
        if not more:
            return
        listed = await self.calls.read("list the entities", lambda: partitioning.list_entities(self.control, self.tier))
        others = [each for each, _ in listed]
        try:
            partitioning.possible_partitions(self._here, others, self.namespace)
            partitioning.check_number(len(more), others, self.tier, self.namespace)
        except errors.ServiceRefused as error:
            where = self.document.where(more[0], "enable_partitioning")
            raise errors.UsageError(f"{where}{error.message}", hint=error.hint) from error

    async def _existing(self, desired: Sequence[AnyEntity]) -> dict[Key, Described]:
        """Return the existing entities, and record the desired ones whose name another kind uses."""
        actual: dict[Key, Described] = {}

        async def read(entity: AnyEntity) -> None:
            key = entity_key(entity)
            try:
                actual[key] = await self.calls.read(f"read {entity.path}", lambda: self._read_entity(entity))
            except errors.EntityMissing:
                return
            except errors.NameTaken as error:
                self._taken[key] = entity, f"{error.message}: {error.hint}", error.exit_code

        await gather_all(read(each) for each in desired if isinstance(each, (Queue, Topic)))
        subscriptions = [each for each in desired if isinstance(each, Subscription)]
        await gather_all(read(each) for each in subscriptions if parent_key(each) in actual)
        return actual

    async def _read_entity(self, entity: AnyEntity) -> AnyEntity:
        found = await self.control.read(entity)
        return without_namespace_partitions(found, entity, self.tier)

    async def _rules(self, desired: Sequence[Described], actual: Mapping[Key, Described]) -> dict[Key, Rule]:
        """Return the rules of each existing subscription with desired rules."""
        found: dict[Key, Rule] = {}

        async def read(topic: str, name: str) -> None:
            found.update({entity_key(each): each for each in await self._list_rules(topic, name)})

        by_key = {parent_key(each): (each.topic, each.subscription) for each in desired if isinstance(each, Rule)}
        await gather_all(read(*names) for key, names in by_key.items() if key in actual)
        return found

    async def _list_rules(self, topic: str, name: str) -> list[Rule]:
        return await self.calls.read(f"list the rules of {topic}/{name}", partial(self.control.rules, topic, name))

    async def _check_forwards(self, desired: Sequence[Described]) -> None:
        missing = []

        async def check(path: str) -> None:
            with suppress(errors.NameTaken):
                try:
                    await self.calls.read(f"read {path}", lambda: self.control.read(Queue(path)))
                except errors.EntityMissing:
                    missing.append(path)

        await gather_all(check(path) for path in external_targets(desired).values())
        errors.raise_all(self._no_target(desired, path) for path in sorted(missing))

    def _no_target(self, desired: Sequence[Described], path: str) -> errors.UsageError:
        entity, name = next((each, name) for each in desired for name in TARGETS if getattr(each, name, "") == path)
        return errors.UsageError(
            f"{self.document.where(entity, name)}{entity.kind} {entity.path} forwards to {path}, which does not exist"
            f" in {self.namespace}",
            hint="describe it too, or create it first",
        )

    # Creating: each entity after those it needs

    def tasks(self) -> list[Coroutine[Any, Any, EntityItem | None]]:
        """Return a coroutine for each entity to create and each default rule to delete, to be run concurrently."""
        loop = asyncio.get_running_loop()
        creates = [change.entity for change in self.plan.creates]
        self._outcomes = {key: loop.create_future() for key in (*map(entity_key, creates), *self._taken)}
        for key in self._taken:
            self._outcomes[key].set_result(Outcome.FAILED)
        deletions = (self._delete_default(rule) for rule in self.plan.default_rules)
        return [*(self._create(entity) for entity in creates), *deletions]

    async def _create(self, entity: Described) -> EntityItem:
        for need in needs(entity) & self._outcomes.keys():
            if await self._outcomes[need] in _NOT_CREATED:
                reason = f"it needs {'/subscriptions/'.join(need)}, which could not be created"
                item = self.item(entity, Outcome.NOT_TRIED, reason)
                break
        else:
            item = await self._item_of(entity, f"create {entity.path}", lambda: self._create_or_compare(entity))
        self._outcomes[entity_key(entity)].set_result(item.outcome)
        return item

    async def _delete_default(self, rule: Rule) -> EntityItem | None:
        """Delete the service's own rule from a subscription that this run created, once it created the others."""
        subscription = parent_key(rule)
        if (made := self._outcomes.get(subscription)) and await made is not Outcome.CREATED:
            return None
        if any(key[:-1] == subscription for key in self._included):
            return None
        if self._stays_open(subscription):
            reason = f"{DEFAULT_RULE}, which accepts every message, stays until all other rules exist: delete it then"
            return self.item(rule, Outcome.NOT_TRIED, reason)
        for others in [each for key, each in self._outcomes.items() if key[:-1] == subscription]:
            await others  # if one was refused, the subscription must not select every message either
        item = await self._item_of(rule, f"delete {rule.path}", lambda: self._delete(rule))
        return None if item.outcome is Outcome.OK else item

    async def _item_of(self, entity: Described, what: str, action: Callable[[], Awaitable[EntityItem]]) -> EntityItem:
        try:
            return await self.calls.change(what, action)
        except NotTried as error:
            return self.item(entity, Outcome.NOT_TRIED, str(error))
        except TimeoutError:
            return self.item(entity, Outcome.FAILED, IN_DOUBT, errors.ExitCode.UNAVAILABLE)
        except errors.AccessError as error:
            self.calls.halt.refuse(error)
            return self.item(entity, Outcome.FAILED, f"{error.message}: {error.hint}", error.exit_code)
        except errors.SbpairError as error:
            return self.item(entity, Outcome.FAILED, error.message, error.exit_code)

    async def _delete(self, rule: Rule) -> EntityItem:
        await self.control.delete_rule(rule)
        return self.item(rule, Outcome.OK)

    async def _create_or_compare(self, entity: Described) -> EntityItem:
        try:
            if await self._create_in(entity):
                return self.item(entity, Outcome.CREATED)
            found = await self._compare_again(entity)
        except errors.Unavailable as error:
            if not isinstance(error, errors.Throttled):
                self._doubtful |= {entity_key(each) for each in (entity, self._first_rule(entity)) if each}
            raise
        except (errors.EntityMissing, errors.NameTaken) as error:
            reason = f"{entity.path} is taken, and not by a {entity.kind}: rename or delete the entity of that name"
            return self.item(entity, Outcome.FAILED, reason, error.exit_code)
        if found.outcome is Outcome.EXISTING and entity_key(entity) in self._doubtful:
            return self.item(entity, Outcome.CREATED, "at the first attempt, which had no answer")
        return found

    async def _create_in(self, entity: Described) -> bool:
        if entity_key(entity) in self._included:
            return True
        if (first := self._first_rule(entity)) is None or not isinstance(entity, Subscription):
            return await self.control.create(entity)
        created = await self.control.create_with_rule(entity, first)  # type: ignore[union-attr]  # `takes_first_rule`
        if created and first.name != DEFAULT_RULE:
            self._included.add(entity_key(first))
        return created

    def _first_rule(self, entity: Described) -> Rule | None:
        """Return the rule to create together with a subscription: the service's own would select every message."""
        key, own = entity_key(entity), {parent_key(each): each for each in self.plan.default_rules}
        if key not in own or self._stays_open(key) or not self.control.takes_first_rule:
            return None
        rules = (each.entity for each in self.plan.creates if isinstance(each.entity, Rule))
        closed = replace(own[key], filter=SqlFilter(NO_MESSAGE))
        return next((each for each in rules if parent_key(each) == key), closed)

    def _stays_open(self, subscription: Key) -> bool:
        """Return whether messages for a rule that cannot be copied arrive by the service's own rule."""
        return any(key[:-1] == subscription for key in self._taken)

    async def _compare_again(self, entity: Described) -> EntityItem:
        if isinstance(entity, AnyEntity):
            return self._change_item(compare(entity, await self._read_entity(entity)))
        state, index = await self.control.get(entity.path), self._index(entity) or 0
        return self._change_item(compare_backlog_queue(entity, index, state, self.tier))


@dataclass(eq=False)
class MirrorProvision(NamespaceProvision):
    """The provisioning of a secondary with the entities of the live primary, which is `source`.

    An entity that the tier of the secondary refuses is an item of the report, and stops no other.
    """

    source: NamespaceProvision = field(kw_only=True)

    async def _plan_entities(self) -> Plan:
        wanted, present = await self.source.list_all(), await self.list_all()
        actual = {entity_key(each): each for each in present}
        desired = []
        for entity in (without_namespace_partitions(each, None, self.source.tier) for each in wanted):
            key = entity_key(entity)
            if found := actual.get(key):
                desired.append(_accepting(entity, found))
                actual[key] = without_namespace_partitions(found, entity, self.tier)
                if found.kind != entity.kind:
                    why = f"{found.path} is a {found.kind} in {self.namespace}: rename or delete it"
                    self._taken[key] = entity, why, NameTaken.exit_code
            else:
                desired.append(self._fitted(entity))
        self.document = EntitiesDocument(tuple(desired))
        plan = plan_entities(desired, actual, self._taken, whole=True)
        known = {entity_key(each) for each in desired}
        # An unexpected rule is a difference of its subscription.
        extra = (each for each in present if not isinstance(each, Rule) and entity_key(each) not in known)
        return replace(plan, changes=(*plan.changes, *(Change(Outcome.EXTRA, each) for each in extra)))

    def _fitted(self, entity: AnyEntity) -> AnyEntity:
        """Return an entity to create, with the defaults of the tier; note why it cannot be created."""
        entity = fit_to_tier(entity, self.tier)
        if isinstance(entity, (Queue, Topic)):
            kilobytes = entity.max_message_size_in_kilobytes
            if kilobytes == self.source.tier.message_kilobytes[0]:
                entity = replace(entity, max_message_size_in_kilobytes=None)
        refused = [each.message for each in tier_violations(entity, self.tier)]
        if isinstance(entity, Rule) and (lost := _not_copied(entity)):
            refused = [f"it has values of other types than sbpair writes, and is not copied: {lost}"]
        if refused:
            self._taken[entity_key(entity)] = entity, refused[0], ServiceRefused.exit_code
        return entity


def _accepting(entity: AnyEntity, found: AnyEntity) -> AnyEntity:
    """Return an entity without its limit of a message, where the one that is there accepts larger ones."""
    if isinstance(entity, (Queue, Topic)) and isinstance(found, (Queue, Topic)):
        limit, there = entity.max_message_size_in_kilobytes or 0, found.max_message_size_in_kilobytes or 0
        return replace(entity, max_message_size_in_kilobytes=None) if there >= limit else entity
    return entity


def _not_copied(rule: Rule) -> str:
    """Return the values of a rule that provisioning cannot write: parameters, and those of further types."""
    return ", ".join(str(each) for each in rule.filter.typed if each.plain is None)


def _asks_for_partitions(entity: Described) -> bool:
    return bool(getattr(entity, "enable_partitioning", False))


EntityReport = Report[EntityFinding]
Opens = Callable[[Endpoint], AbstractAsyncContextManager[NamespaceControl]]


async def provision(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    entities: EntitiesDocument = NO_ENTITIES,
    side: Side | None = None,
    mirror: bool = False,
    dry_run: bool = False,
    stop: asyncio.Event | None = None,
    grace_seconds: float = GRACE_SECONDS,
    opens: Opens | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> EntityReport:
    """Provision `pair`: its backlog queues in the secondary, and `entities` in both. With `dry_run`, only report.

    With `side`, only that namespace is contacted, and gets what is missing there. With `mirror`, the secondary gets the
    entities that the live primary has, in place of `entities`; the primary is only read.

    With `group`, which contains both namespaces, they are reached through Azure Resource Manager; `opens` reaches them
    otherwise. Once `stop` is set, no more calls begin, and those in progress have `grace_seconds`.

    Raises every error that prevents the start: UsageError, AccessError, a namespace that cannot be read, an unsafe
    plan. After the first creation every outcome is an item of the report: failed, and not tried because of `stop` or
    refused access.
    """
    # Wrong names or numbers are reported before any call.
    queues = desired_queues(pair)
    if len(queues) > MAX_CREATES:
        raise Unsafe(
            f"{len(queues)} queues would be created, and {MAX_CREATES} is the most at once",
            hint="check the number of backlog queues: the original used 10",
        )
    check_document(pair, entities, in_arm=group is not None)
    if mirror:
        pair.require_primary()
        if group or side or entities.entities:
            raise UsageError("a mirror takes no group, side or entities of a file", hint="leave them out")
    open_side = opens or partial(open_namespace, group=group)
    halt = Halt(stop or asyncio.Event())
    async with AsyncExitStack() as stack:

        async def opened(endpoint: Endpoint, at_once: int, desired: list[QueueSpec]) -> NamespaceProvision:
            control = await stack.enter_async_context(open_side(endpoint))
            calls = Calls(halt, at_once, on_event, sleep)
            if mirror and endpoint is pair.secondary:
                return MirrorProvision(endpoint.name, control, calls, entities, pair, desired, source=sides.pop())
            return NamespaceProvision(endpoint.name, control, calls, entities, pair, desired)

        # The primary gets no burst of calls: applications are using it.
        sides: list[NamespaceProvision] = []
        if mirror or side == "primary" or (entities.entities and side is None):
            sides.append(await opened(pair.primary, CALLS_A_SECOND, []))
        if side != "primary":
            sides.append(await opened(pair.secondary, FIRST_SECOND_CALLS, queues))
        return await _provision(sides, halt, grace_seconds, on_event, dry_run=dry_run)


async def create_queue(
    endpoint: Endpoint,
    queue: QueueSpec,
    *,
    group: ResourceGroup | None = None,
    on_event: Callable[[Retrying], object] = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> bool:
    """Create one queue in the namespace of `endpoint`. Returns False where an entity of any kind has its name.

    An existing entity is not changed. With a `group`, the call goes to Resource Manager. Needs the Manage claim, or a
    role. Raises AccessError, Unavailable, ServiceRefused.
    """
    async with open_namespace(endpoint, group) as namespace:
        return await attempt(f"create {queue.path}", lambda: namespace.create(queue), sleep=sleep, on_event=on_event)


def provision_exit_code(report: EntityReport, *, strict: bool = False) -> int:
    """Return 5 for refused access; 3 for anything not created, or, with `strict`, for drift; else 0."""
    if any(item.exit_code == ExitCode.ACCESS for item in report.of(Outcome.FAILED)):
        return ExitCode.ACCESS
    return report.exit_code_for({Outcome.NOT_TRIED, *({Outcome.DRIFTED} if strict else ())})


def check_document(pair: Pair, entities: EntitiesDocument, *, in_arm: bool = False) -> None:
    """Raise UsageError for entities that every namespace would refuse, and for names of the pair's backlog queues.

    With `in_arm`, also for what Resource Manager has no words for.
    """
    dependency_order(entities.entities)
    where, wrong = entities.where, list[UsageError]()
    for entity in entities.entities:
        wrong += (
            UsageError(f"{where(entity, each.name)}{each.message}", hint=each.hint) for each in violations(entity)
        )
        if backlog.under_prefix(pair.primary.name, entity.path):
            text = f"{where(entity)}{entity.kind} {entity.path} has the name of a backlog queue"
            hint = "leave it out: backlog queues are created anyway; set their number with --count"
            wrong.append(NameInvalid(text, hint=hint))
        if in_arm and isinstance(entity, Rule) and entity.filter.typed:
            text = f"{where(entity, 'filter')}rule {entity.path} compares with a value that is not text"
            hint = "create it with sbpair provision --via atom: Resource Manager takes text only"
            wrong.append(UsageError(text, hint=hint))
    errors.raise_all(wrong)


async def _provision(
    sides: list[NamespaceProvision], halt: Halt, grace_seconds: float, on_event: OnEvent, *, dry_run: bool
) -> EntityReport:
    async def read() -> bool:
        await gather_all(side.read() for side in sides)
        return True

    if not await unless_set(halt.stop, read()):
        return Report(tuple(side.item(each, Outcome.NOT_TRIED, STOPPED) for side in sides for each in side.desired))
    on_event(Listed(sides[-1].namespace, sides[-1].listed))
    if not dry_run:
        await _create(sides, halt, grace_seconds, on_event)
    return Report(tuple(item for side in sides for item in side.items(dry_run=dry_run)))


async def _create(sides: list[NamespaceProvision], halt: Halt, grace_seconds: float, on_event: OnEvent) -> None:
    work = [(side, each) for side in sides for each in side.tasks()]
    for side in sides:
        side.calls.expect(len(side.plan.creates))
    done = 0

    async def one(side: NamespaceProvision, task: Coroutine[Any, Any, EntityItem | None]) -> None:
        nonlocal done
        item = await task
        done += 1
        if item is not None:
            side.created.append(item)
            on_event(QueueProvisioned(item.name, item.outcome, done, len(work)))

    async def watch() -> None:
        await halt.stop.wait()
        for side in sides:
            side.calls.end_soon(grace_seconds)

    watcher = asyncio.create_task(watch(), name="watch for a stop")
    try:
        await gather_all(one(side, task) for side, task in work)
    finally:
        watcher.cancel()
