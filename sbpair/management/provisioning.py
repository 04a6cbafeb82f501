"""Making what a pair lacks: its backlog queues, and an application's own entities in both namespaces.

What is there already is compared, reported and never changed. Running it again does nothing: that, and not a lock, is
what makes it safe to run twice at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from sbpair import backlog
from sbpair.azure.interfaces import NamespaceControl
from sbpair.errors import ExitCode, NameInvalid, Unsafe, UsageError
from sbpair.management import backlog_plan, entity_plan
from sbpair.management.calls import CALLS_A_SECOND, SECOND_OF_CALLS, Calls, Halt, OnEvent, Sleep, first_error, together
from sbpair.management.entities_file import NO_ENTITIES, EntitiesDocument
from sbpair.management.entity_limits import complaints
from sbpair.management.provision_side import EntityFinding, EntityItem, ProvisionSide
from sbpair.model.pair import Endpoint, Pair, ResourceGroup
from sbpair.model.queues import Listed, QueueProvisioned, QueueSpec
from sbpair.model.report import Outcome, Report

__all__ = ["EntitiesDocument", "EntityFinding", "EntityItem", "EntityReport", "provision", "provision_exit_code"]

EntityReport = Report[EntityFinding]
Opens = Callable[[Endpoint], AbstractAsyncContextManager[NamespaceControl]]
Result = TypeVar("Result")


async def provision(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    entities: EntitiesDocument = NO_ENTITIES,
    dry_run: bool = False,
    stop: asyncio.Event | None = None,
    opens: Opens | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> EntityReport:
    """Provision `pair`: its backlog queues in the secondary, and `entities` in both. With `dry_run`, only say it.

    Raises what keeps it from beginning: UsageError, AccessError, a namespace that cannot be read, a plan that the guard
    refuses. Once something may have been made, everything is an Item of the report: what could not be made, and what
    was not tried any more, since `stop` was set or the service does not let it in. With `group`, which both namespaces
    are in, they are reached through Azure Resource Manager; `opens` reaches them otherwise.
    """
    # What is wrong with the names or with their number is told before anything is asked or made.
    queues = backlog_plan.desired(pair)
    backlog_plan.guard(backlog_plan.diff(queues, ()))
    check(pair, entities)
    # The SDK takes half a second to load, and a bad name should not wait for it.
    if opens is None:
        from sbpair.azure.control_plane import open_namespace

        opens = partial(open_namespace, group=group)
    reach = opens
    halt = Halt(stop or asyncio.Event())
    async with AsyncExitStack() as stack:

        async def side(endpoint: Endpoint, at_once: int, wanted: list[QueueSpec]) -> ProvisionSide:
            control = await stack.enter_async_context(reach(endpoint))
            calls = Calls(halt, at_once, on_event, sleep)
            return ProvisionSide(endpoint.name, control, calls, entities, pair.primary.name, wanted)

        # Whoever works with the primary is not to notice.
        sides = [await side(pair.primary, CALLS_A_SECOND, [])] if entities.entities else []
        sides.append(await side(pair.secondary, SECOND_OF_CALLS, queues))
        return await _provision(sides, halt, on_event, dry_run=dry_run)


def provision_exit_code(report: EntityReport, *, strict: bool = False) -> int:
    """5 where the service did not let it in; 3 where something could not be made, or differs under `strict`; else 0."""
    if any(item.exit_code == ExitCode.ACCESS for item in report.of(Outcome.FAILED)):
        return ExitCode.ACCESS
    return report.exit_code_for({Outcome.NOT_TRIED, *({Outcome.DRIFTED} if strict else ())})


def check(pair: Pair, entities: EntitiesDocument) -> None:
    """Raise UsageError for what no namespace would take, and for what is the pair's own."""
    entity_plan.ordered(entities.entities)
    for entity in entities.entities:
        for each in complaints(entity):
            raise UsageError(f"{entities.where(entity, each.name)}{each.told}", hint=each.hint)
        if backlog.under_prefix(pair.primary.name, entity.path):
            raise NameInvalid(
                f"{entities.where(entity)}{entity.kind} {entity.path} has the name of a backlog queue",
                hint="those are created by themselves: --count says how many",
            )


async def _provision(sides: list[ProvisionSide], halt: Halt, on_event: OnEvent, *, dry_run: bool) -> EntityReport:
    if not await _unless_stopped(halt, together(side.look() for side in sides)):
        return Report(tuple(item for side in sides for item in side.not_tried()))
    on_event(Listed(sides[-1].namespace, sides[-1].listed))
    for side in sides:
        if len(side.plan.creates) > backlog_plan.MAX_CREATES:
            raise Unsafe(
                f"{len(side.plan.creates)} entities would be created in {side.namespace}, and"
                f" {backlog_plan.MAX_CREATES} is the most at once",
                hint="make the file smaller: a namespace of Standard holds 10000 entities",
            )
    for side in sides:
        side.items += side.would_create() if dry_run else []
    if not dry_run:
        await _make(sides, halt, on_event)
    return Report(tuple(item for side in sides for item in side.sorted_items()))


async def _make(sides: list[ProvisionSide], halt: Halt, on_event: OnEvent) -> None:
    work = [(side, each) for side in sides for each in side.tasks()]
    for side in sides:
        side.calls.expect(len(side.plan.creates))
    done = 0

    async def one(side: ProvisionSide, task: Coroutine[Any, Any, EntityItem | None]) -> None:
        nonlocal done
        item = await task
        done += 1
        if item is not None:
            side.items.append(item)
            on_event(QueueProvisioned(item.name, item.outcome, done, len(work)))

    async def watch() -> None:
        await halt.asked()
        for side in sides:
            side.calls.end_soon()

    watcher = asyncio.create_task(watch(), name="watch for a stop")
    try:
        await together(one(side, task) for side, task in work)
    finally:
        watcher.cancel()


async def _unless_stopped(halt: Halt, work: Coroutine[Any, Any, None]) -> bool:
    """Whether `work` came to its end. It is broken off where a stop is asked for."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            task, stop = group.create_task(work), group.create_task(halt.asked())
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            finished = task.done()
            task.cancel()
            stop.cancel()
    return finished
