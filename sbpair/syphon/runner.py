"""Runs a request: moves messages from the backlog queues, or another source, once or continuously."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.credentials import open_tokens
from sbpair.azure.destinations import DestinationCache, open_destinations
from sbpair.errors import AccessError, EntityMissing, SbpairError, Unavailable, first_error
from sbpair.model.document import encoded
from sbpair.model.message_state import ASIDE, MessageState
from sbpair.move.context import MoveContext
from sbpair.move.events import QueuesFound, SyphonEvent, TopicsUnchecked
from sbpair.move.failure_latch import unless_set
from sbpair.move.receipt import KeptRecord, NamedMessage, Tally
from sbpair.move.topic_guard import TopicGuard
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import SPACING_MS
from sbpair.runs.run_record import RemainingMessages
from sbpair.runs.session_lease import SessionLease, check_queue, hold_lease
from sbpair.syphon.intake_gate import IntakeGate, obeying
from sbpair.syphon.pool import DepthSampler, Find, WorkerPool
from sbpair.syphon.run_limits import EndTiers, SendCosts, effective_limits, tier_of
from sbpair.syphon.run_plan import RunPlan
from sbpair.syphon.run_request import DEFAULT_TIMINGS
from sbpair.syphon.run_result import QueueFailure, SyphonResult
from sbpair.syphon.run_store import LiveRun, RunStore
from sbpair.syphon.sources import find_sources, none_found
from sbpair.syphon.worker import QueueWorker

if TYPE_CHECKING:
    from sbpair.syphon.ramp import Ramp
    from sbpair.syphon.run_request import RunRequest

log = logging.getLogger(__name__)

OnEvent = Callable[["SyphonEvent"], None]

RECORD_SECONDS = 5.0  # how old the recorded figures may be after a crash
COUNT_SECONDS = 3.0  # how long the count of what is left may take: a stopped run ends soon


async def run(
    request: RunRequest,
    *,
    state: Path | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    on_event: OnEvent = lambda _event: None,
    gate: IntakeGate | None = None,
    live: LiveRun | None = None,
) -> SyphonResult:
    """Move the messages that a request describes: those of `syphon_request(pair, …)` to their destinations.

    A watch ends when `stop` is set. Once `hurry` is set, after `stop`, it ends within a few seconds: pending sends are
    in doubt, and the rest is released. While the `gate` is closed, the run keeps its connections and leases, and no
    message. `live` is a new one, through which the caller reads the run's figures while it moves.

    `state` is the directory of the journal and of the records of runs. With it, the next run knows what this one has
    moved, even if this one is killed. Without it, no journal or run is kept.

    Raises only errors found before anything is received, such as EntityMissing without any backlog queue, LeaseHeld, or
    StateRefused for the state of another pair.
    """
    stop, hurry = stop or asyncio.Event(), hurry or asyncio.Event()
    live, where = live or LiveRun(), request.where
    tally = live.tally
    tally.filter_counts = where.counts if where else None
    async with AsyncExitStack() as stack:
        session = await take_lease(stack, request, live.id, stop)
        if session is not None:
            live.has_lease = lambda: session.confirmed_seconds() > 0
        may_send = session.check if session is not None else lambda: None
        store = stack.enter_context(RunStore(request, state, live, may_send=may_send))
        timings = request.timings or DEFAULT_TIMINGS
        context = MoveContext(
            namespace=request.ends.source.name,
            tally=tally,
            journal=store.journal,
            on_event=store.observing(on_event),
            timings=timings.move,
            max_held=request.max_held,
            ordered=request.ordered,
            ttl=request.ttl,
            missing=request.missing(),
            keeps_refused=request.keeps_refused,
            keeps_sessions=request.keeps_sessions,
            chosen=request.choose,
            max_skipped=request.max_skipped,
            duplicate_windows=request.duplicate_windows,
            default_ttl_ms=request.default_ttl_ms,
            traced=live.traced,
            renames=request.renames,
            record_renumbered=store.record if request.messages in ASIDE else None,
            removes=request.keep is not None,
            until_ms=request.until_ms,
        )
        started_at = asyncio.get_running_loop().time()
        plan = RunPlan(request, context, stop, timings, session, gate or IntakeGate(), started_at=started_at)
        started = time.monotonic()
        workers: list[QueueWorker] = []
        remaining: RemainingMessages | None = RemainingMessages(0, exact=False)
        ramp: Ramp | None = None
        async with AsyncExitStack() as moving:
            moving.callback(_name_possible_duplicates, tally, store.journal, live.id, request)
            await moving.enter_async_context(obeying(store, plan.gate, stop, context.on_event))
            prepared = await unless_set(stop, _prepare(moving, plan, store))
            if prepared is not None:
                find, found = prepared
                live.rate_limiter = context.rate_limiter
                if request.ramp is not None:
                    from sbpair.syphon.ramp import open_ramp

                    opening = moving.enter_async_context(open_ramp(plan, found.queues))
                    ramp = await unless_set(stop, opening)
                pool = WorkerPool(plan, find if found.managed and not request.once else None, ramp)
                live.stuck_queues = pool.stuck_queues
                workers = await _run_workers(pool, found.queues, hurry, store)
                remaining = await _remaining(plan, workers, may_count=request.count_remaining and not hurry.is_set())
        failures = _failures(plan, workers, ramp)
        limiter = context.rate_limiter
        receipt, keep = tally.receipt(), request.keep
        result = SyphonResult(
            receipt,
            tuple(failures),
            time.monotonic() - started,
            stop.is_set(),
            live.id,
            hurry.is_set(),
            context.missing.result(),
            remaining,
            None if limiter is None else limiter.main_limit(),
            request.to or None,
            request.once,
            None if keep is None else KeptRecord(keep.id or None, keep.lines, keep.size, receipt.already_sent),
        )
        error = failures[0][1].message if failures else ""
        store.finish(result.exit_code, encoded(result), stopped=result.stopped and not error, error=error)
    return result


# Before anything is received.


async def _prepare(stack: AsyncExitStack, plan: RunPlan, store: RunStore) -> tuple[Find, QueuesFound]:
    """Open both namespaces' management, and complete the plan. Return a way to list the queues, and the first ones."""
    request, context, last = plan.request, plan.context, None
    control = await stack.enter_async_context(open_atom(request.ends.source))

    async def find() -> QueuesFound:
        nonlocal last
        found = await find_sources(request, control)
        if found != last:
            last = found
            context.on_event(found)
        return found

    plan.get_token = await stack.enter_async_context(open_tokens())
    found = await find()
    destinations = await stack.enter_async_context(open_destinations(request.ends.destination))
    await _limit(plan, destinations, control, store)
    on_unchecked = lambda reason: context.on_event(TopicsUnchecked(reason))  # noqa: E731  # one line, used once
    if request.keep is None:
        context.topics = TopicGuard(
            destinations, context.tally, request.max_discard, on_unchecked, kept_out=request.kept_out
        )
    plan.control = control if found.managed else None
    if request.source is not None:
        plan.source_lock_seconds = await plan.lock_seconds(request.source)
    return find, found


async def take_lease(
    stack: AsyncExitStack, request: RunRequest, run_id: str, stop: asyncio.Event
) -> SessionLease | None:
    """Take the lease across machines, if one is wanted."""
    queue = request.lease_queue
    if queue is None:
        return None
    check_queue(queue)
    get_token = await stack.enter_async_context(open_tokens())
    ends, source = request.leased
    lease = hold_lease(ends, queue, run_id, source=source, stop=stop, get_token=get_token)
    return await stack.enter_async_context(lease)


async def _limit(plan: RunPlan, destinations: DestinationCache, control: AtomNamespace, store: RunStore) -> None:
    """Set the rate limiter for namespaces of these tiers, and the cost of a message if credits are limited."""
    request, context, tiers = plan.request, plan.context, EndTiers()
    if request.credits is None or not math.isinf(request.credits):
        tiers = EndTiers(*await asyncio.gather(tier_of(DestinationCache(control)), tier_of(destinations)))
        context.send_cost = SendCosts(destinations).of if request.keep is None else None
    effective = effective_limits(request, tiers)
    store.describe(
        primary_tier=tiers.destination,
        secondary_tier=tiers.source,
        rate=effective.rate,
        primary_credits=effective.destination_credits,
        secondary_credits=effective.source_credits,
    )
    context.rate_limiter = effective.rate_limiter(asyncio.get_running_loop().time())


# The move.


async def _run_workers(
    pool: WorkerPool, queues: Sequence[str], hurry: asyncio.Event, store: RunStore
) -> list[QueueWorker]:
    plan, sample_seconds = pool.plan, pool.plan.request.sample_seconds
    sampler = None if sample_seconds is None else DepthSampler(pool, sample_seconds)
    beside = [_record(store), _sample(store)]
    if plan.lease is not None:
        beside.append(pool.fail_without(plan.lease))
    if sampler is not None:
        beside.append(sampler.run())
    if pool.ramp is not None:
        beside.append(pool.ramp.run(lambda: pool.held))
    with first_error():
        await pool.run(queues, hurry, *beside)
    if sampler is not None:
        sampler.emit_destinations()
    if pool.ramp is not None:
        store.record()
        await unless_set(plan.stop, pool.ramp.finish())
        pool.ramp.close()
    return pool.workers


async def _record(store: RunStore) -> None:
    while True:
        await asyncio.sleep(RECORD_SECONDS)
        store.record()
        with suppress(SbpairError):  # the next batch reports it
            await store.journal.flush()


async def _sample(store: RunStore) -> None:
    while True:
        store.sample()
        await asyncio.sleep(SPACING_MS / 1000)


# The result.


def _failures(plan: RunPlan, workers: list[QueueWorker], ramp: Ramp | None) -> list[QueueFailure]:
    """Return why workers, the lease and the ramp could not go on. Raises EntityMissing if no backlog queue exists."""
    lease, tally = plan.lease, plan.context.tally
    missing = [worker for worker in workers if isinstance(worker.error, EntityMissing)]
    if len(missing) == len(workers) and not plan.stop.is_set() and not tally.receipt().received:
        raise none_found(plan.request.ends) if plan.request.source is None else cast("EntityMissing", missing[0].error)
    # A missing queue holds nothing: it was reported, and is no failure.
    failures = [
        QueueFailure(worker.queue, worker.error) for worker in workers if worker.error and worker not in missing
    ]
    if lease is not None:
        tally.spent("renewals", lease.renewals)
        if lease.error is not None:
            # Workers without a connection at that moment were only stopped.
            failures.append(QueueFailure(lease.location.queue, lease.error))
    if ramp is not None and ramp.error is not None:
        failures.append(QueueFailure(ramp.place, ramp.error))
    return failures


async def _remaining(plan: RunPlan, workers: list[QueueWorker], *, may_count: bool) -> RemainingMessages | None:
    """Return what a run left in the backlog, if it may have left something. Without a quick count: at least that."""
    receipt = plan.context.tally.receipt()
    left, most = max(0, receipt.remaining, receipt.locked), plan.request.max_messages
    is_full = most is not None and receipt.sent >= most
    there = [worker for worker in workers if not isinstance(worker.error, EntityMissing)]
    errors = [worker.error for worker in there if worker.error is not None]
    if not (plan.stop.is_set() or left or is_full or errors):
        return None
    may_count = may_count and not any(isinstance(error, (AccessError, Unavailable)) for error in errors)
    if may_count and there and plan.control is not None:
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                counts = await asyncio.gather(*(plan.count(worker.queue) for worker in there))
        except (SbpairError, TimeoutError) as error:
            log.info("what is left could not be counted: %s", error)
        else:
            if None in counts:
                return RemainingMessages(left, exact=False)
            return RemainingMessages(max(0, sum(count or 0 for count in counts) - receipt.skipped), exact=True)
    return RemainingMessages(left, exact=False)


def _name_possible_duplicates(tally: Tally, journal: Journal, run_id: str, request: RunRequest) -> None:
    """Add messages that the mover did not name itself: unconfirmed ones, and those that earlier runs left in doubt.

    Those of crashed runs are named once in any case, and each doubt once its message ended.
    """
    source, destination = request.titles
    why = f"{destination} accepted it, and {source} did not confirm its completion"
    if request.messages == MessageState.SCHEDULED:
        why = f"{destination} accepted it; it became due before it was cancelled, or {source} did not confirm that"
    full = f"{why}; the journal, which is full, has forgotten it"
    for keys, reason in ((journal.unconfirmed(), why), (journal.forgotten, full)):
        for _, queue, number, _, message_id in keys:
            tally.doubtful(NamedMessage(queue, number, message_id, None, reason))
    tally.doubtful_beyond(journal.forgotten_total - len(journal.forgotten))
    for each in journal.accepted_twice():
        found = f"also accepted by {each.namespace}, to which run {each.run} sent it"
        tally.doubtful(NamedMessage(each.queue, each.sequence_number, each.message_id, each.destination, found))
    reasons = dict.fromkeys(journal.in_doubt(), "{} ended before they were confirmed")
    for doubt, sent in journal.ended_doubts():
        reasons.setdefault(doubt, "{} left it in doubt, and this run sent it again" if sent else "{} left it in doubt")
    for doubt, why in reasons.items():
        if doubt.run != run_id:
            named = doubt.message_id, doubt.destination, why.format(f"run {doubt.run}")
            tally.doubtful(NamedMessage(doubt.queue, doubt.sequence_number, *named))
