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

from sbpair import backlog, topology
from sbpair.bus.control import NamespaceControl
from sbpair.errors import NameInvalid, Unsafe, UsageError
from sbpair.model import Endpoint, Listed, Pair, QueueDone, QueueSpec, ResourceGroup
from sbpair.provision.calls import CALLS_A_SECOND, SECOND_OF_CALLS, Calls, Halt, OnEvent, Sleep, first_error, together
from sbpair.provision.side import EntityItem, Finding, Side
from sbpair.report import Outcome, Report, exit_code
from sbpair.topology import application
from sbpair.topology.entities_file import NO_ENTITIES, Layout
from sbpair.topology.limits import complaints

__all__ = ["EntityItem", "EntityReport", "Finding", "Layout", "exit_code_of", "run"]

EntityReport = Report[Finding]
Opens = Callable[[Endpoint], AbstractAsyncContextManager[NamespaceControl]]
Result = TypeVar("Result")
ACCESS = 5


async def run(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    entities: Layout = NO_ENTITIES,
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
    queues = topology.desired(pair)
    topology.guard(topology.diff(queues, ()))
    check(pair, entities)
    # The SDK takes half a second to load, and a bad name should not wait for it.
    if opens is None:
        from sbpair.bus.management import open_namespace

        opens = partial(open_namespace, group=group)
    reach = opens
    halt = Halt(stop or asyncio.Event())
    async with AsyncExitStack() as stack:

        async def side(endpoint: Endpoint, at_once: int, wanted: list[QueueSpec]) -> Side:
            control = await stack.enter_async_context(reach(endpoint))
            calls = Calls(halt, at_once, on_event, sleep)
            return Side(endpoint.name, control, calls, entities, pair.primary.name, wanted)

        # Whoever works with the primary is not to notice.
        sides = [await side(pair.primary, CALLS_A_SECOND, [])] if entities.entities else []
        sides.append(await side(pair.secondary, SECOND_OF_CALLS, queues))
        return await _provision(sides, halt, on_event, dry_run=dry_run)


def exit_code_of(report: EntityReport, *, strict: bool = False) -> int:
    """5 where the service did not let it in; 3 where something could not be made, or differs under `strict`; else 0."""
    if any(item.exit_code == ACCESS for item in report.of(Outcome.FAILED)):
        return ACCESS
    return exit_code(report, {Outcome.NOT_TRIED, *({Outcome.DRIFTED} if strict else ())})


def check(pair: Pair, entities: Layout) -> None:
    """Raise UsageError for what no namespace would take, and for what is the pair's own."""
    application.ordered(entities.entities)
    for entity in entities.entities:
        for each in complaints(entity):
            raise UsageError(f"{entities.where(entity, each.name)}{each.told}", hint=each.hint)
        if backlog.under_prefix(pair.primary.name, entity.path):
            raise NameInvalid(
                f"{entities.where(entity)}{entity.kind} {entity.path} has the name of a backlog queue",
                hint="those are created by themselves: --count says how many",
            )


async def _provision(sides: list[Side], halt: Halt, on_event: OnEvent, *, dry_run: bool) -> EntityReport:
    if not await _unless_stopped(halt, together(side.look() for side in sides)):
        return Report(tuple(item for side in sides for item in side.not_tried()))
    for side in sides:
        on_event(Listed(side.namespace, sum(item.detail.index is not None for item in side.items if item.detail)))
        if len(side.plan.creates) > topology.MOST_CREATES:
            raise Unsafe(
                f"{len(side.plan.creates)} entities would be created in {side.namespace}, and {topology.MOST_CREATES}"
                " is the most at once",
                hint="make the file smaller: a namespace of Standard holds 10000 entities",
            )
    for side in sides:
        side.items += side.would_create() if dry_run else []
    if not dry_run:
        await _make(sides, halt, on_event)
    return Report(tuple(item for side in sides for item in side.sorted_items()))


async def _make(sides: list[Side], halt: Halt, on_event: OnEvent) -> None:
    work = [(side, each) for side in sides for each in side.tasks()]
    done = 0

    async def one(side: Side, task: Coroutine[Any, Any, EntityItem | None]) -> None:
        nonlocal done
        item = await task
        done += 1
        if item is not None:
            side.items.append(item)
            on_event(QueueDone(item.name, item.outcome, done, len(work)))

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
