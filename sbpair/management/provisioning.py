"""Creation of a pair's missing backlog queues, and of an application's entities in both namespaces.

Existing entities are compared, reported and never changed. A second run changes nothing: that, and no lock, makes
concurrent runs safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any

from sbpair import backlog
from sbpair.azure import NamespaceControl, open_namespace
from sbpair.azure.retry import attempt
from sbpair.errors import ExitCode, NameInvalid, Unsafe, UsageError, first_error
from sbpair.management.calls import (
    CALLS_A_SECOND,
    FIRST_SECOND_CALLS,
    GRACE_SECONDS,
    STOPPED,
    Calls,
    Halt,
    OnEvent,
    Sleep,
    gather_all,
)
from sbpair.management.comparison import MAX_CREATES, dependency_order, desired_queues
from sbpair.management.entities_file import NO_ENTITIES, EntitiesDocument
from sbpair.management.entity_limits import violations
from sbpair.management.provision_namespace import EntityFinding, EntityItem, NamespaceProvision
from sbpair.model.pair import Endpoint, Pair, ResourceGroup
from sbpair.model.queues import Listed, QueueProvisioned, QueueSpec, Retrying
from sbpair.model.report import Outcome, Report

EntityReport = Report[EntityFinding]
Opens = Callable[[Endpoint], AbstractAsyncContextManager[NamespaceControl]]


async def provision(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    entities: EntitiesDocument = NO_ENTITIES,
    dry_run: bool = False,
    stop: asyncio.Event | None = None,
    grace_seconds: float = GRACE_SECONDS,
    opens: Opens | None = None,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> EntityReport:
    """Provision `pair`: its backlog queues in the secondary, and `entities` in both. With `dry_run`, only report.

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
    check_document(pair, entities)
    open_side = opens or partial(open_namespace, group=group)
    halt = Halt(stop or asyncio.Event())
    async with AsyncExitStack() as stack:

        async def side(endpoint: Endpoint, at_once: int, desired: list[QueueSpec]) -> NamespaceProvision:
            control = await stack.enter_async_context(open_side(endpoint))
            calls = Calls(halt, at_once, on_event, sleep)
            return NamespaceProvision(endpoint.name, control, calls, entities, pair, desired)

        # The primary gets no burst of calls: applications are using it.
        sides = [await side(pair.primary, CALLS_A_SECOND, [])] if entities.entities else []
        sides.append(await side(pair.secondary, FIRST_SECOND_CALLS, queues))
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


def check_document(pair: Pair, entities: EntitiesDocument) -> None:
    """Raise UsageError for entities that every namespace would refuse, and for names of the pair's backlog queues."""
    dependency_order(entities.entities)
    for entity in entities.entities:
        for each in violations(entity):
            raise UsageError(f"{entities.where(entity, each.name)}{each.message}", hint=each.hint)
        if backlog.under_prefix(pair.primary.name, entity.path):
            raise NameInvalid(
                f"{entities.where(entity)}{entity.kind} {entity.path} has the name of a backlog queue",
                hint="sbpair provision creates backlog queues itself; set their number with --count",
            )


async def _provision(
    sides: list[NamespaceProvision], halt: Halt, grace_seconds: float, on_event: OnEvent, *, dry_run: bool
) -> EntityReport:
    if not await _unless_stopped(halt, gather_all(side.read() for side in sides)):
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
        await halt.wait()
        for side in sides:
            side.calls.end_soon(grace_seconds)

    watcher = asyncio.create_task(watch(), name="watch for a stop")
    try:
        await gather_all(one(side, task) for side, task in work)
    finally:
        watcher.cancel()


async def _unless_stopped(halt: Halt, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or a stop is requested. Returns whether it ended."""
    with first_error():
        async with asyncio.TaskGroup() as group:
            task, stop = group.create_task(work), group.create_task(halt.wait())
            await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
            finished = task.done()
            task.cancel()
            stop.cancel()
    return finished
