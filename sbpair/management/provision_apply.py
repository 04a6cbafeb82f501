"""The creating half of provisioning: the missing entities of one namespace, each after those it needs.

A failure is an item of the report, never an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from sbpair.errors import AccessError, EntityMissing, ExitCode, NameTaken, SbpairError, Throttled, Unavailable
from sbpair.management.calls import NotTried
from sbpair.management.comparison import Key, compare, compare_backlog_queue, entity_key
from sbpair.management.entity_plan import needs
from sbpair.management.provision_read import read_entity
from sbpair.model.entities import DEFAULT_RULE, AnyEntity, Described, Rule, Subscription
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.management.provision_read import NamespacePlan
    from sbpair.management.provision_target import EntityItem, NamespaceTarget

IN_DOUBT = "no answer came before the run was stopped: it may exist"
_NOT_CREATED = (Outcome.FAILED, Outcome.NOT_TRIED)


class ProvisionTasks:
    """The tasks that carry out a namespace's plan. To be made inside a running loop."""

    def __init__(self, target: NamespaceTarget, planned: NamespacePlan) -> None:
        self._target = target
        self._planned = planned
        self._creates = [change.entity for change in planned.plan.creates]
        self._doubtful: set[Key] = set()
        loop = asyncio.get_running_loop()
        self._outcomes: dict[Key, asyncio.Future[Outcome]] = {
            key: loop.create_future() for key in (*map(entity_key, self._creates), *planned.taken)
        }
        for key in planned.taken:
            self._outcomes[key].set_result(Outcome.FAILED)

    def coroutines(self) -> list[Coroutine[Any, Any, EntityItem | None]]:
        """Return a coroutine for each entity to create and each default rule to delete, to be run concurrently."""
        deletions = (self._delete_default(rule) for rule in self._planned.plan.default_rules)
        return [*(self._create(entity) for entity in self._creates), *deletions]

    async def _create(self, entity: Described) -> EntityItem:
        item = await self._create_after_needs(entity)
        self._outcomes[entity_key(entity)].set_result(item.outcome)
        return item

    async def _create_after_needs(self, entity: Described) -> EntityItem:
        for need in needs(entity):
            if need in self._outcomes and await self._outcomes[need] in _NOT_CREATED:
                return self._target.item(entity, Outcome.NOT_TRIED, f"it needs {need[1]}, which could not be created")
        return await self._item_of(entity, f"create {entity.path}", lambda: self._create_or_compare(entity))

    async def _delete_default(self, rule: Rule) -> EntityItem | None:
        """Delete the service's own rule from a subscription that this run created, once all others exist."""
        subscription = entity_key(Subscription(rule.topic, rule.subscription))
        if await self._outcomes[subscription] is not Outcome.CREATED:
            return None
        others = [each for each in self._creates if isinstance(each, Rule) and subscription in needs(each)]
        if any([await self._outcomes[entity_key(each)] in _NOT_CREATED for each in others]):
            reason = f"{DEFAULT_RULE}, which accepts every message, stays until all other rules exist: delete it then"
            return self._target.item(rule, Outcome.NOT_TRIED, reason)
        item = await self._item_of(rule, f"delete {rule.path}", lambda: self._delete(rule))
        return None if item.outcome is Outcome.OK else item

    async def _item_of(self, entity: Described, what: str, action: Callable[[], Awaitable[EntityItem]]) -> EntityItem:
        try:
            return await self._target.calls.change(what, action)
        except NotTried as error:
            return self._target.item(entity, Outcome.NOT_TRIED, str(error))
        except TimeoutError:
            return self._target.item(entity, Outcome.FAILED, IN_DOUBT, ExitCode.UNAVAILABLE)
        except AccessError as error:
            self._target.calls.halt.refuse(error)
            return self._target.item(entity, Outcome.FAILED, f"{error.message}: {error.hint}", error.exit_code)
        except SbpairError as error:
            return self._target.item(entity, Outcome.FAILED, error.message, error.exit_code)

    async def _delete(self, rule: Rule) -> EntityItem:
        await self._target.control.delete_rule(rule)
        return self._target.item(rule, Outcome.OK)

    async def _create_or_compare(self, entity: Described) -> EntityItem:
        try:
            if await self._target.control.create(entity):
                return self._target.item(entity, Outcome.CREATED)
            found = await self._compare_again(entity)
        except Unavailable as error:
            if not isinstance(error, Throttled):
                self._doubtful.add(entity_key(entity))
            raise
        except (EntityMissing, NameTaken) as error:
            reason = f"{entity.path} is taken, and not by a {entity.kind}: rename or delete the entity of that name"
            return self._target.item(entity, Outcome.FAILED, reason, error.exit_code)
        if found.outcome is Outcome.EXISTING and entity_key(entity) in self._doubtful:
            return self._target.item(entity, Outcome.CREATED, "at the first attempt, which had no answer")
        return found

    async def _compare_again(self, entity: Described) -> EntityItem:
        tier = self._planned.tier
        if isinstance(entity, AnyEntity):
            change = compare(entity, await read_entity(self._target, entity, tier))
        else:
            state, index = await self._target.control.get(entity.path), self._target.index(entity) or 0
            change = compare_backlog_queue(entity, index, state, tier)
        return self._target.change_item(change)
