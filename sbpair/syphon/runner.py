"""The syphon: brings what waits in the backlog queues back to the primary, once or for as long as it runs.

result = await sbpair.syphon.run(pair, once=True)
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import EntityMissing, ExitCode, SbpairError
from sbpair.move import backlog_queues
from sbpair.move.context import MoveContext
from sbpair.move.message.route import TimeToLive
from sbpair.move.raw_engine import RawEngine
from sbpair.move.receipt import NamedMessage, Tally
from sbpair.move.run_store import RunStore
from sbpair.move.wrong_primary import WrongPrimaryBreaker
from sbpair.runs.database import now_ms
from sbpair.runs.lease_location import check_queue
from sbpair.runs.run_log import new_id
from sbpair.runs.session_lease import hold_lease
from sbpair.syphon.depth_sampler import DepthSampler
from sbpair.syphon.limits import MoveLimits, PairTiers, SendCosts, effective_limits, tier_of
from sbpair.syphon.pool import WorkerPool
from sbpair.syphon.worker import Count, QueueWorker, RunPlan

if TYPE_CHECKING:
    from sbpair.azure.interfaces import QueueControl
    from sbpair.model.pair import Pair
    from sbpair.move.events import QueuesFound, SyphonEvent
    from sbpair.move.receipt import Receipt
    from sbpair.runs.journal import Journal
    from sbpair.runs.session_lease import SessionLease

log = logging.getLogger(__name__)

Prepared = TypeVar("Prepared")

RECORD_SECONDS = 5.0
"""How old the figures may be that a crash leaves."""

STOPPING = (ExitCode.UNSAFE, ExitCode.ACCESS, ExitCode.MACHINE, ExitCode.UNAVAILABLE)
"""Exit codes of what no message is at fault for, the gravest first: a lost lease, a refused key, a full disk, a side
that is gone."""


@dataclass(frozen=True, slots=True)
class SyphonResult:
    """`failures` are the lanes that could not go on: (queue, why). `run` is what `sbpair runs show` knows it by.

    `hurried` is whether not even what was in flight was waited for.
    """

    receipt: Receipt
    failures: tuple[tuple[str, SbpairError], ...]
    seconds: float
    stopped: bool
    run: str = ""
    hurried: bool = False

    @property
    def exit_code(self) -> int:
        """The receipt's, unless nothing could be moved at all, or it had to be stopped: then why."""
        if not self.failures:
            return self.receipt.exit_code
        codes = {error.exit_code for _, error in self.failures}
        worst = next((code for code in STOPPING if code in codes), min(codes))
        return worst if worst in STOPPING or not self.receipt.sent else ExitCode.PARTIAL_OR_FINDINGS


async def run(
    pair: Pair,
    *,
    once: bool,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    on_event: Callable[[SyphonEvent], None] = lambda _event: None,
    max_held: int = 1_000,
    state: Path | None = None,
    lease: bool = True,
    lease_queue: str | None = None,
    ordered: bool = True,
    limits: MoveLimits | None = None,
    sample_seconds: float | None = None,
    reconnect: bool = True,
    allow_missing: bool = False,
) -> SyphonResult:
    """Move what is in the pair's backlog queues to where it was meant to go.

    With `once`, ends when every message that was there at the start is settled or held; else when `stop` is set.
    Without the Manage claim, the queues are 0 to the pair's count, and emptiness is judged by waiting. At most
    `max_held` messages are held for destinations that take nothing for now. Once `hurry` is set, after `stop`, not
    even the answer to what is in flight is waited for: that is in doubt then, and the rest is given back, within a
    few seconds.

    `state` is the directory where the pair's journal and runs are kept, so that the next run knows what this one has
    moved, also if this one is killed; and unless `lease` is False, no second one moves the pair at the same time.
    Without `state`, nothing is kept. With `lease_queue`, a queue with sessions in the secondary namespace, no mover of
    another machine that names it moves the pair at the same time either; where that lease is lost, so ends the run.

    `ordered` keeps the order that a queue's messages for a destination have. `limits` are how fast it may go, and what
    becomes of a time to live; without them it goes as fast as it can.

    `sample_seconds` is for those who watch: `on_event` is told of destinations too, and, with the Manage claim,
    how many messages each queue holds, counted no more often than that. Without it, nothing is counted for show.
    A lane that has lost a connection, to either side, ends the other and makes both anew, unless `reconnect` is False:
    then ConnectionFaulted ends it, and a watch as a whole. Where none of the first destinations is in the primary, it
    stops with Unsafe before it dead-letters more, unless `allow_missing`.

    Raises only what is wrong before anything is received, such as EntityMissing where there is no backlog queue at all,
    LeaseHeld, or StateRefused for the state of another pair.
    """
    stop = stop or asyncio.Event()
    tally = Tally()
    command = f"syphon {'--once' if once else '--watch'}"
    name = new_id(now_ms())
    async with AsyncExitStack() as stack:
        across = await _lease(stack, pair, lease_queue, name, stop) if lease_queue is not None else None
        check = across.check if across is not None else lambda: None
        books = stack.enter_context(
            RunStore(pair, state, command, tally.receipt, lease=lease, run=name, may_send=check)
        )
        context = MoveContext(
            namespace=pair.secondary.name,
            tally=tally,
            journal=books.journal,
            on_event=on_event,
            max_held=max_held,
            ordered=ordered,
            ttl=limits.ttl if limits is not None else TimeToLive.ORIGINAL,
            breaker=WrongPrimaryBreaker(trusted=allow_missing),
        )
        plan = RunPlan(pair, once, context, stop, reconnect=reconnect, lease=across)
        result = await _move(plan, limits, books, hurry or asyncio.Event(), sample_seconds)
        error = result.failures[0][1].message if result.failures else ""
        books.finish(result.exit_code, stopped=result.stopped and not error, error=error)
    return result


async def _move(
    plan: RunPlan, limits: MoveLimits | None, books: RunStore, hurry: asyncio.Event, sample_seconds: float | None
) -> SyphonResult:
    started = time.monotonic()
    lanes = WorkerPool(plan)
    async with AsyncExitStack() as stack:
        prepared = await _unless_stopped(plan.stop, _prepare(stack, plan, limits))
        if prepared is not None:
            find, found = prepared
            lanes = WorkerPool(plan, find if found.managed and not plan.once else None)
            gauge = None if sample_seconds is None else DepthSampler(plan, lanes, sample_seconds)
            await _run_all(lanes, found.queues, hurry, books, gauge, plan.lease)
    result = _result(plan, lanes.all, time.monotonic() - started, books.run)
    return replace(result, hurried=hurry.is_set())


async def _prepare(stack: AsyncExitStack, plan: RunPlan, limits: MoveLimits | None) -> tuple[_Finder, QueuesFound]:
    """Have the plan be whole, and find the first queues."""
    # The SDK takes half a second to load: a wrong option should not have to wait for it.
    from sbpair.azure.atom import open_atom
    from sbpair.azure.credentials import token_getter

    pair = plan.pair
    control = await stack.enter_async_context(open_atom(pair.secondary))
    plan.engine = RawEngine(pair, await stack.enter_async_context(token_getter(pair)))
    if limits is not None:
        await _limit(stack, pair, plan, limits)
    find = _Finder(plan, control)
    return find, await find()


async def _unless_stopped(stop: asyncio.Event, preparing: Awaitable[Prepared]) -> Prepared | None:
    """None where the stop comes first: nothing is in hand yet that would have to be waited for."""

    async def end(patience: asyncio.Timeout) -> None:
        await stop.wait()
        patience.reschedule(0.0)

    try:
        async with asyncio.timeout(None) as patience, asyncio.TaskGroup() as tasks:
            stopping = tasks.create_task(end(patience), name="watch for an early stop")
            prepared = await preparing
            stopping.cancel()
    except TimeoutError:
        return None
    except BaseExceptionGroup as group:
        raise _first(group) from None
    return prepared


async def _lease(stack: AsyncExitStack, pair: Pair, queue: str, run: str, stop: asyncio.Event) -> SessionLease:
    check_queue(queue)  # a wrong option should not have to wait for the SDK
    from sbpair.azure.credentials import token_getter

    get_token = await stack.enter_async_context(token_getter(pair))
    return await stack.enter_async_context(hold_lease(pair, queue, run, stop=stop, get_token=get_token))


async def _limit(stack: AsyncExitStack, pair: Pair, plan: RunPlan, limits: MoveLimits) -> None:
    """Have the run go no faster than its limits say, for namespaces of these tiers."""
    from sbpair.azure.destinations import open_destinations

    tiers = PairTiers()
    if limits.credits is None or not math.isinf(limits.credits):
        primary, secondary = [
            await stack.enter_async_context(open_destinations(side)) for side in (pair.primary, pair.secondary)
        ]
        tiers = PairTiers(*await asyncio.gather(tier_of(primary), tier_of(secondary)))
        plan.context.send_cost = SendCosts(primary).of
    effective = effective_limits(limits, tiers)
    if any(limit is not None for limit in (effective.rate, effective.primary_credits, effective.secondary_credits)):
        plan.context.rate_limiter = effective.rate_limiter(asyncio.get_running_loop().time())


def _result(plan: RunPlan, lanes: list[QueueWorker], seconds: float, run: str) -> SyphonResult:
    context = plan.context
    missing = [lane for lane in lanes if isinstance(lane.error, EntityMissing)]
    if len(missing) == len(lanes) and not plan.stop.is_set() and not context.tally.receipt().received:
        raise backlog_queues.none_there(plan.pair)
    # Where nothing can be, nothing is left behind: a queue that is not there has been told of, and is no failure.
    failures = [(lane.queue, lane.error) for lane in lanes if lane.error is not None and lane not in missing]
    if plan.lease is not None:
        context.tally.spent("renewals", plan.lease.renewals)
        if plan.lease.error is not None:
            # Lanes that had no connection at that moment were only stopped.
            failures.append((plan.lease.location.queue, plan.lease.error))
    for named in _may_be_twice(context.journal, run):
        context.tally.doubtful(named)
    return SyphonResult(context.tally.receipt(), tuple(failures), seconds, plan.stop.is_set(), run)


def _may_be_twice(journal: Journal, run: str) -> Iterator[NamedMessage]:
    """What the mover did not name itself: the end of this run, and what crashed ones left behind."""
    for _, queue, number, _, message_id in journal.unconfirmed():
        why = "the primary has it, and the backlog did not confirm that it has let go of it"
        yield NamedMessage(queue, number, message_id, None, why)
    for doubt in journal.in_doubt():
        if doubt.run != run:
            why = f"run {doubt.run} ended before an answer to it came"
            yield NamedMessage(doubt.queue, doubt.sequence_number, doubt.message_id, doubt.destination, why)


async def _run_all(
    lanes: WorkerPool,
    found: tuple[str, ...],
    hurry: asyncio.Event,
    books: RunStore,
    gauge: DepthSampler | None,
    lease: SessionLease | None,
) -> None:
    try:
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(_record(books), name="write the figures down")]
            if lease is not None:
                beside.append(tasks.create_task(_end_without(lease, lanes), name="look after the lease"))
            if gauge is not None:
                beside.append(tasks.create_task(gauge.run(), name="look at the depths"))
            await lanes.run(found, hurry)
            if gauge is not None:
                gauge.tell_destinations()
            for task in beside:
                task.cancel()
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def _end_without(lease: SessionLease, lanes: WorkerPool) -> None:
    lanes.fail(await lease.lost())


async def _record(books: RunStore) -> None:
    while True:
        await asyncio.sleep(RECORD_SECONDS)
        books.record()


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


class _Finder:
    """Finds the backlog queues, and tells of them when they are others than before."""

    def __init__(self, plan: RunPlan, control: QueueControl) -> None:
        self._plan = plan
        self._control = control
        self._told: QueuesFound | None = None

    async def __call__(self) -> QueuesFound:
        found = await backlog_queues.find(self._plan.pair, self._control)
        if found.managed:
            self._plan.count = _counter(self._control, self._plan.context.tally)
        if found != self._told:
            self._told = found
            self._plan.context.on_event(found)
        return found


def _counter(control: QueueControl, tally: Tally) -> Count:
    async def count(queue: str) -> int:
        tally.spent("management_calls", 1)
        return (await control.counts(queue)).active

    return count
