"""The reading half of provisioning: existing entities, and the plan made from them. Nothing is created here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.errors import EntityMissing, NameTaken, ServiceRefused, UsageError
from sbpair.management import partitioned
from sbpair.management.backlog_plan import plan_backlog
from sbpair.management.calls import first_error, gather_all
from sbpair.management.comparison import FORWARDS, ChangeKind, Key, Plan, entity_key, path_key
from sbpair.management.entity_limits import fit_to_tier, tier_violations, without_namespace_partitions
from sbpair.management.entity_plan import external_targets, plan_entities
from sbpair.model import tiers
from sbpair.model.entities import AnyEntity, Described, Queue, Rule, Subscription, Topic

if TYPE_CHECKING:
    from sbpair.management.provision_target import NamespaceTarget
    from sbpair.model.queues import QueueState
    from sbpair.model.tiers import Tier


@dataclass(frozen=True, slots=True)
class NamespacePlan:
    """The plan of one namespace. `taken` are the names that another kind uses, each with the reason and exit code.

    `listed` is the number of backlog queues that were read.
    """

    plan: Plan = field(default_factory=Plan)
    tier: Tier = tiers.STANDARD
    taken: Mapping[Key, tuple[Described, str, int]] = field(default_factory=dict)
    listed: int = 0


async def read_plan(target: NamespaceTarget) -> NamespacePlan:
    """Read the namespace and plan it. Raises every error that stops the run, before anything is created."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            listing, asking = group.create_task(_backlog_queues(target)), group.create_task(_tier(target))
    listed, tier = listing.result(), asking.result()
    backlog_plan = plan_backlog(target.queues, listed, tier) if target.queues else Plan()
    desired = [fit_to_tier(entity, tier) for entity in target.document.entities]
    _check_tier(target, [*desired, *target.queues[:1]], tier)
    actual, taken = await _existing(target, desired, tier)
    found = plan_entities(desired, actual, await _rules(target, desired, actual), taken)
    await _check_forwards(target, desired)
    await _check_partitions(target, [change.entity for change in found.creates], tier)
    known = [change for change in backlog_plan.changes if change.kind is not ChangeKind.UNEXPECTED]
    return NamespacePlan(Plan((*found.changes, *known), found.default_rules), tier, taken, len(listed))


async def read_entity(target: NamespaceTarget, entity: AnyEntity, tier: Tier) -> AnyEntity:
    """Read the entity of that kind and name. Raises EntityMissing, and NameTaken by another kind."""
    # An arm for each kind, since the result has the type of the argument.
    match entity:
        case Queue():
            return without_namespace_partitions(await target.control.read(entity), entity, tier)
        case Topic():
            return without_namespace_partitions(await target.control.read(entity), entity, tier)
        case Subscription():
            return await target.control.read(entity)
        case Rule():
            return await target.control.read(entity)


async def _backlog_queues(target: NamespaceTarget) -> list[QueueState]:
    if not target.queues:
        return []
    prefix = backlog.prefix(target.primary)
    return await target.calls.read("list the queues", lambda: target.control.list_under(prefix))


async def _tier(target: NamespaceTarget) -> Tier:
    tier = tiers.tier_named(await target.calls.read("read the namespace's tier", target.control.tier))
    target.calls.counted = tier is not tiers.PREMIUM
    return tier


def _check_tier(target: NamespaceTarget, desired: Sequence[Described], tier: Tier) -> None:
    for entity in desired:
        for each in tier_violations(entity, tier):
            raise UsageError(
                f"{target.document.where(entity, each.name)}{each.message} ({target.namespace})",
                hint="correct it: the service would refuse the entity, and nothing was created",
            )


async def _check_partitions(target: NamespaceTarget, creates: Iterable[Described], tier: Tier) -> None:
    """Raise UsageError for partitions that the namespace has no room for, or lacks as a whole, as far as is known."""
    more = [each for each in creates if getattr(each, "enable_partitioning", False)]
    if not more:
        return
    capacity = await target.calls.read("read the namespace's tier", target.control.capacity)
    others: list[Queue | Topic] = [*await target.calls.read("list the queues", target.control.queues)]
    if tier.has_everything:
        others += await target.calls.read("list the topics", target.control.topics)
    try:
        partitioned.possible_partitions(capacity, others, target.namespace)
        partitioned.check_number(len(more), others, tier, target.namespace)
    except ServiceRefused as error:
        where = target.document.where(more[0], "enable_partitioning")
        raise UsageError(f"{where}{error.message}", hint=error.hint) from error


async def _existing(
    target: NamespaceTarget, desired: Sequence[AnyEntity], tier: Tier
) -> tuple[dict[Key, Described], dict[Key, tuple[Described, str, int]]]:
    """Return the existing entities, and the desired ones whose name another kind uses."""
    actual: dict[Key, Described] = {}
    taken: dict[Key, tuple[Described, str, int]] = {}

    async def read(entity: AnyEntity) -> None:
        try:
            actual[entity_key(entity)] = await target.calls.read(
                f"read {entity.path}", lambda: read_entity(target, entity, tier)
            )
        except EntityMissing:
            return
        except NameTaken as error:
            taken[entity_key(entity)] = entity, f"{error.message}: {error.hint}", error.exit_code

    await gather_all(read(each) for each in desired if isinstance(each, (Queue, Topic)))
    subscriptions = [each for each in desired if isinstance(each, Subscription)]
    await gather_all(read(each) for each in subscriptions if path_key(each.topic) in actual)
    return actual, taken


async def _rules(
    target: NamespaceTarget, desired: Sequence[Described], actual: dict[Key, Described]
) -> Mapping[Key, Sequence[Rule]]:
    """Return the rules of each existing subscription with desired rules, and add them to `actual`."""
    found: dict[Key, list[Rule]] = {}

    async def read(key: Key, of: Rule) -> None:
        found[key] = await target.calls.read(
            f"list the rules of {of.topic}/{of.subscription}",
            lambda: target.control.rules(of.topic, of.subscription),
        )

    subscriptions = {
        entity_key(Subscription(each.topic, each.subscription)): each for each in desired if isinstance(each, Rule)
    }
    await gather_all(read(key, of) for key, of in subscriptions.items() if key in actual)
    actual |= {entity_key(rule): rule for rules in found.values() for rule in rules}
    return found


async def _check_forwards(target: NamespaceTarget, desired: Sequence[Described]) -> None:
    async def check(path: str) -> None:
        try:
            await target.calls.read(f"read {path}", lambda: target.control.read(Queue(path)))
        except NameTaken:
            return
        except EntityMissing as error:
            raise _no_target(target, desired, path) from error

    await gather_all(check(path) for path in external_targets(desired).values())


def _no_target(target: NamespaceTarget, desired: Iterable[Described], path: str) -> UsageError:
    entity, name = next((each, name) for each in desired for name in FORWARDS if getattr(each, name, "") == path)
    return UsageError(
        f"{target.document.where(entity, name)}{entity.kind} {entity.path} forwards to {path}, which does not exist in"
        f" {target.namespace}",
        hint="describe it too, or create it first",
    )
