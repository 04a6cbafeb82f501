"""Making the backlog queues that a pair lacks. What is there already is compared, reported and never changed.

Running it again does nothing: that, and not a lock, is what makes it safe to run twice at the same time.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from sbpair import backlog, topology
from sbpair.bus.attempts import attempt
from sbpair.errors import AccessError, EntityMissing, SbpairError
from sbpair.model import Change, ControlEvent, Create, Drift, Listed, Match, Pair, QueueDone, QueueFinding
from sbpair.report import Item, Outcome, Report, exit_code

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sbpair.bus.control import QueueControl
    from sbpair.model import ResourceGroup

    Sleep = Callable[[float], Awaitable[object]]
    OnEvent = Callable[[ControlEvent], object]

# Creations reach every partition of a namespace, and a management call costs ten throttling credits.
CONCURRENCY = 8

QueueItem = Item[QueueFinding]
QueueReport = Report[QueueFinding]


async def run(
    pair: Pair,
    *,
    group: ResourceGroup | None = None,
    dry_run: bool = False,
    on_event: OnEvent = lambda _event: None,
    sleep: Sleep = asyncio.sleep,
) -> QueueReport:
    """Provision `pair`'s secondary namespace, or with `dry_run` say what that would create.

    With `group`, through Azure Resource Manager, signed in as an identity.

    Raises what stops everything: AccessError, a secondary that cannot be listed, a plan that the guard refuses. A
    queue that could not be made is an Item of the report, and the others are made all the same.
    """
    # What is wrong with the names or with their number is told before anything is asked or made.
    topology.guard(topology.diff(topology.desired(pair), ()))
    # The SDK takes half a second to load, and a bad name should not wait for it.
    from sbpair.bus.management import open_namespace

    async with open_namespace(pair.secondary, group) as queues:
        return await Provisioner(queues, pair, on_event, sleep).run(dry_run=dry_run)


def exit_code_of(report: QueueReport, *, strict: bool = False) -> int:
    """0 for drift, which is only worth a warning, unless `strict`; 3 where a queue could not be made."""
    return exit_code(report, {Outcome.DRIFTED} if strict else set())


class Provisioner:
    """One run: read, compare, create. `queues` is anything that answers as a namespace does."""

    def __init__(self, queues: QueueControl, pair: Pair, on_event: OnEvent, sleep: Sleep) -> None:
        self._queues = queues
        self._pair = pair
        self._on_event = on_event
        self._attempt = partial(attempt, sleep=sleep, on_event=on_event)
        self._places = asyncio.Semaphore(CONCURRENCY)
        self._done = 0

    async def run(self, *, dry_run: bool) -> QueueReport:
        plan = await self._plan()
        topology.guard(plan)
        there: list[Match | Drift] = [*plan.matches, *plan.drifted]
        items = [_compared(change) for change in there]
        if dry_run:
            items += [_item(create, Outcome.WOULD_CREATE) for create in plan.creates]
        else:
            items += await self._create_all(plan.creates)
        return Report(tuple(sorted(items, key=_index)))

    async def _plan(self) -> topology.Plan:
        prefix = backlog.prefix(self._pair.primary.name)
        there = await self._attempt("list the queues", lambda: self._queues.list_under(prefix))
        self._on_event(Listed(self._pair.secondary.name, len(there)))
        return topology.diff(topology.desired(self._pair), there)

    async def _create_all(self, creates: tuple[Create, ...]) -> list[QueueItem]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._create(each, len(creates)), name=f"create {each.path}") for each in creates
                ]
        except ExceptionGroup as stopped:
            # Whoever may not create one queue may create none: the group has called off the others.
            raise stopped.exceptions[0] from stopped
        return [task.result() for task in tasks]

    async def _create(self, create: Create, total: int) -> QueueItem:
        async with self._places:
            try:
                item = await self._attempt(f"create {create.path}", lambda: self._create_or_compare(create))
            except AccessError:
                raise
            except SbpairError as error:
                item = _item(create, Outcome.FAILED, error.message, error.exit_code)
        self._done += 1
        self._on_event(QueueDone(item.name, item.outcome, self._done, total))
        return item

    async def _create_or_compare(self, create: Create) -> QueueItem:
        if await self._queues.create(create.spec):
            return _item(create, Outcome.CREATED)
        try:
            state = await self._queues.get(create.path)
        except EntityMissing as error:
            reason = f"{create.path} is taken, and not by a queue: rename or delete what has its name"
            return _item(create, Outcome.FAILED, reason, error.exit_code)
        differences = topology.compare(create.spec, state)
        return _compared(Drift(state, create.index, differences) if differences else Match(state, create.index))


def _compared(change: Match | Drift) -> QueueItem:
    if isinstance(change, Drift):
        return _item(change, Outcome.DRIFTED, topology.told(change.differences))
    return _item(change, Outcome.EXISTING)


def _item(change: Change, outcome: Outcome, reason: str = "", code: int = 0) -> QueueItem:
    return Item(change.path, outcome, reason, topology.finding(change), code)


def _index(item: QueueItem) -> int:
    return item.detail.index if item.detail and item.detail.index is not None else 0
