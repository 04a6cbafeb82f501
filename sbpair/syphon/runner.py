"""Runs the syphon: moves messages from the backlog queues to the primary, once or continuously."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.credentials import token_getter
from sbpair.azure.destinations import DestinationCache, open_destinations
from sbpair.errors import EntityMissing, ExitCode, SbpairError, first_error
from sbpair.model.pair import Ends
from sbpair.move.context import MissingDestinations, MoveContext
from sbpair.move.events import QueuesFound, SyphonEvent, TopicsUnchecked
from sbpair.move.failure_latch import unless_set
from sbpair.move.rate_limit import Limit
from sbpair.move.receipt import MissingDestination, NamedMessage, Receipt, RemainingMessages, Tally
from sbpair.move.topic_guard import TopicGuard
from sbpair.runs.journal import Journal
from sbpair.runs.run_log import SPACING_MS
from sbpair.runs.session_lease import SessionLease, check_queue, hold_lease
from sbpair.syphon.intake_gate import IntakeGate, obeying
from sbpair.syphon.move_spec import MoveLimits, MoveSpec, PairTiers, SendCosts, effective_limits, none_found, tier_of
from sbpair.syphon.pool import DepthSampler, Find, WorkerPool
from sbpair.syphon.run_plan import DEFAULT_OPTIONS, DEFAULT_TIMINGS, MoveOptions, RunPlan
from sbpair.syphon.run_store import LiveRun, RunStore, ends_settings
from sbpair.syphon.worker import QueueWorker

if TYPE_CHECKING:
    from sbpair.syphon.ramp import Ramp

log = logging.getLogger(__name__)

OnEvent = Callable[["SyphonEvent"], None]

RECORD_SECONDS = 5.0  # how old the recorded figures may be after a crash
COUNT_SECONDS = 3.0  # how long the count of what is left may take: a stopped run ends soon
STOPPING = (ExitCode.UNSAFE, ExitCode.ACCESS, ExitCode.MACHINE, ExitCode.UNAVAILABLE)
"""Exit codes of errors that no message caused, the gravest first: a lost lease, a refused key, a full disk, a lost
side."""


@dataclass(frozen=True, slots=True)
class SyphonResult:
    """`failures` are the workers that could not go on: (queue, error). `run` is its id in `sbpair runs show`.

    `hurried` is whether the run ended without a wait for pending sends. `remaining` is None for a run that emptied the
    backlog, or received nothing. `limit` slowed the run down most.
    """

    receipt: Receipt
    failures: tuple[tuple[str, SbpairError], ...]
    seconds: float
    stopped: bool
    run: str = ""
    hurried: bool = False
    missing: tuple[MissingDestination, ...] = ()
    remaining: RemainingMessages | None = None
    limit: Limit | None = None

    @property
    def exit_code(self) -> int:
        """The receipt's; that of a failure if nothing was moved, or if the failure stopped the run."""
        if not self.failures:
            return self.receipt.exit_code
        codes = {error.exit_code for _, error in self.failures}
        worst = next((code for code in STOPPING if code in codes), min(codes))
        return worst if worst in STOPPING or not self.receipt.sent else ExitCode.PARTIAL_OR_FINDINGS


async def run(
    pair: Ends,
    options: MoveOptions = DEFAULT_OPTIONS,
    *,
    once: bool,
    spec: MoveSpec | None = None,
    state: Path | None = None,
    lease: bool = True,
    lease_queue: str | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    on_event: OnEvent = lambda _event: None,
    gate: IntakeGate | None = None,
    live: LiveRun | None = None,
) -> SyphonResult:
    """Move the messages of the pair's backlog queues to their destinations in the primary.

    With a `spec`, move what it describes instead; `pair` is then the one whose state and runs these are.

    With `once`, ends when every message that was there at the start is settled or held; otherwise when `stop` is set.
    Without the Manage claim it drains queues 0 to the pair's count - 1. Once `hurry` is set, after `stop`, it ends
    within a few seconds: pending sends are in doubt, and the rest is released. While the `gate` is closed, the run
    keeps its connections and leases, and no message. `live` is a new one, through which the caller reads the run's
    figures while it moves.

    `state` is the directory of the pair's journal and runs. With it, the next run knows what this one has moved, even
    if this one is killed. Without it, no journal or run is kept. Unless `lease` is False, no other process of this user
    on this machine moves the pair at the same time. With `lease_queue`, a session queue in the secondary namespace, no
    mover on any machine that names it does; the run ends if that lease is lost.

    Raises only errors found before anything is received, such as EntityMissing without any backlog queue, LeaseHeld, or
    StateRefused for the state of another pair.
    """
    stop, hurry = stop or asyncio.Event(), hurry or asyncio.Event()
    spec, live = spec or MoveSpec(pair), live or LiveRun()
    limits, where = options.limits or MoveLimits(), options.where
    tally = live.tally
    tally.filter_counts = where.counts if where else None
    async with AsyncExitStack() as stack:
        session = None if lease_queue is None else await _take_lease(stack, spec, lease_queue, live.id, stop)
        if session is not None:
            live.has_lease = lambda: session.confirmed_seconds() > 0
        store = stack.enter_context(
            RunStore(
                pair,
                state,
                f"{spec.command} {'--once' if once else '--watch'}",
                tally.receipt,
                lease=lease,
                of=spec.leased,
                run=live.id,
                may_send=session.check if session is not None else lambda: None,
            )
        )
        store.describe(
            **ends_settings(spec.ends),
            source=spec.source,
            mode="once" if once else "watch",
            order="backlog" if options.ordered else "none",
            ttl=str(limits.ttl),
            max_held=options.max_held,
            max_missing="all" if options.allow_missing else options.max_missing,
            max_discard="all" if options.max_discard is None else options.max_discard,
            wait_for_locks=options.wait_for_locks,
            lease=lease_queue or ("this machine" if lease else "none"),
            **({} if where is None else {"where": where.text, "max_skipped": options.max_skipped}),
        )
        timings = options.timings or DEFAULT_TIMINGS
        context = MoveContext(
            namespace=spec.ends.secondary.name,
            tally=tally,
            journal=store.journal,
            on_event=store.observing(on_event),
            timings=timings.move,
            max_held=options.max_held,
            ordered=options.ordered,
            ttl=limits.ttl,
            missing=MissingDestinations(None if options.allow_missing else options.max_missing),
            keeps_refused=spec.keeps_refused,
            chosen=None if where is None else where.choose,
            max_skipped=options.max_skipped,
            duplicate_window_ms=spec.duplicate_window_ms,
            traced=live.traced,
        )
        plan = RunPlan(once, context, stop, spec, options, session, timings, gate or IntakeGate())
        started = time.monotonic()
        workers: list[QueueWorker] = []
        remaining: RemainingMessages | None = None
        opened: Ramp | None = None
        async with AsyncExitStack() as moving:
            moving.callback(_name_possible_duplicates, tally, store.journal, live.id, spec)
            await moving.enter_async_context(obeying(store, plan.gate, stop, context.on_event))
            prepared = await unless_set(stop, _prepare(moving, plan, pair, store))
            if prepared is not None:
                find, found = prepared
                live.rate_limiter = context.rate_limiter
                if options.ramp is not None:
                    from sbpair.syphon.ramp import open_ramp

                    opening = moving.enter_async_context(open_ramp(options.ramp, plan, found.queues))
                    opened = await unless_set(stop, opening)
                pool = WorkerPool(plan, find if found.managed and not once else None, opened)
                live.stuck_queues = pool.stuck_queues
                workers = await _run_workers(pool, found.queues, hurry, store)
                remaining = await _remaining(plan, workers, may_count=options.count_remaining and not hurry.is_set())
        failures = _failures(pair, plan, workers)
        if opened is not None and opened.error is not None:
            failures.append((opened.place, opened.error))
        limiter = context.rate_limiter
        result = SyphonResult(
            tally.receipt(),
            tuple(failures),
            time.monotonic() - started,
            stop.is_set(),
            live.id,
            hurry.is_set(),
            context.missing.result(),
            remaining,
            None if limiter is None else limiter.main_limit(),
        )
        error = failures[0][1].message if failures else ""
        store.finish(result.exit_code, stopped=result.stopped and not error, error=error)
    return result


# Before anything is received.


async def _prepare(stack: AsyncExitStack, plan: RunPlan, pair: Ends, store: RunStore) -> tuple[Find, QueuesFound]:
    """Open both namespaces' management, and complete the plan. Return a way to list the queues, and the first ones."""
    spec, context, last = plan.spec, plan.context, None
    control = await stack.enter_async_context(open_atom(spec.ends.secondary))

    async def find() -> QueuesFound:
        nonlocal last
        found = await spec.find_sources(pair, control)
        if found != last:
            last = found
            context.on_event(found)
        return found

    plan.get_token = await stack.enter_async_context(token_getter(spec.ends))
    found = await find()
    primary = await stack.enter_async_context(open_destinations(spec.ends.primary))
    await _limit(plan, primary, control, store)
    on_unchecked = lambda reason: context.on_event(TopicsUnchecked(reason))  # noqa: E731  # one line, used once
    context.topics = TopicGuard(primary, context.tally, plan.options.max_discard, on_unchecked)
    plan.control = control if found.managed else None
    if spec.source is not None:
        plan.source_lock_seconds = await plan.lock_seconds(spec.source)
    return find, found


async def _take_lease(
    stack: AsyncExitStack, spec: MoveSpec, queue: str, run_id: str, stop: asyncio.Event
) -> SessionLease:
    check_queue(queue)
    get_token = await stack.enter_async_context(token_getter(spec.ends))
    ends, source = spec.leased
    lease = hold_lease(ends, queue, run_id, source=source, stop=stop, get_token=get_token)
    return await stack.enter_async_context(lease)


async def _limit(plan: RunPlan, primary: DestinationCache, control: AtomNamespace, store: RunStore) -> None:
    """Set the rate limiter for namespaces of these tiers, and the cost of a message if credits are limited."""
    limits, context = plan.options.limits, plan.context
    if limits is None:
        return
    tiers = PairTiers()
    if limits.credits is None or not math.isinf(limits.credits):
        tiers = PairTiers(*await asyncio.gather(tier_of(primary), tier_of(DestinationCache(control))))
        context.send_cost = SendCosts(primary).of
    effective = effective_limits(limits, tiers)
    if plan.spec.ends.same:
        effective = effective.shared()
    store.describe(primary_tier=tiers.primary, secondary_tier=tiers.secondary, **asdict(effective))
    context.rate_limiter = effective.rate_limiter(asyncio.get_running_loop().time())


# The move.


async def _run_workers(
    pool: WorkerPool, queues: Sequence[str], hurry: asyncio.Event, store: RunStore
) -> list[QueueWorker]:
    sample_seconds = pool.plan.options.sample_seconds
    sampler = None if sample_seconds is None else DepthSampler(pool, sample_seconds)
    beside = [_record(store), _sample(store)]
    if pool.plan.lease is not None:
        beside.append(pool.fail_without(pool.plan.lease))
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
        await unless_set(pool.plan.stop, pool.ramp.finish())
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


def _failures(pair: Ends, plan: RunPlan, workers: list[QueueWorker]) -> list[tuple[str, SbpairError]]:
    """Return why workers and the lease could not go on. Raises EntityMissing if no backlog queue exists."""
    lease, tally = plan.lease, plan.context.tally
    missing = [worker for worker in workers if isinstance(worker.error, EntityMissing)]
    if len(missing) == len(workers) and not plan.stop.is_set() and not tally.receipt().received:
        raise none_found(pair) if plan.spec.source is None else cast("EntityMissing", missing[0].error)
    # A missing queue holds nothing: it was reported, and is no failure.
    failures = [(worker.queue, worker.error) for worker in workers if worker.error and worker not in missing]
    if lease is not None:
        tally.spent("renewals", lease.renewals)
        if lease.error is not None:
            # Workers without a connection at that moment were only stopped.
            failures.append((lease.location.queue, lease.error))
    return failures


async def _remaining(plan: RunPlan, workers: list[QueueWorker], *, may_count: bool) -> RemainingMessages | None:
    """Return what a run left in the backlog, if it may have left something. Without a quick count: at least that."""
    receipt = plan.context.tally.receipt()
    left = max(0, receipt.remaining, receipt.locked)
    if not (plan.stop.is_set() or left):
        return None
    there = [worker for worker in workers if not isinstance(worker.error, EntityMissing)]
    if may_count and plan.control is not None and not any(worker.error for worker in there):
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                counts = await asyncio.gather(*(plan.count(worker.queue) for worker in there))
        except (SbpairError, TimeoutError) as error:
            log.info("what is left could not be counted: %s", error)
        else:
            return RemainingMessages(sum(count or 0 for count in counts), exact=True)
    return RemainingMessages(left, exact=False)


def _name_possible_duplicates(tally: Tally, journal: Journal, run_id: str, spec: MoveSpec) -> None:
    """Add messages that the mover did not name itself: unconfirmed ones, and those that earlier runs left in doubt.

    Those of crashed runs are named once in any case, and each doubt once its message ended.
    """
    source, destination = spec.words
    for _, queue, number, _, message_id in journal.unconfirmed():
        why = f"the {destination} accepted it, and the {source} did not confirm its completion"
        tally.doubtful(NamedMessage(queue, number, message_id, None, why))
    reasons = dict.fromkeys(journal.in_doubt(), "{} ended before they were confirmed")
    for doubt, sent in journal.ended_doubts():
        reasons.setdefault(doubt, "{} left it in doubt, and this run sent it again" if sent else "{} left it in doubt")
    for doubt, why in reasons.items():
        if doubt.run != run_id:
            named = doubt.message_id, doubt.destination, why.format(f"run {doubt.run}")
            tally.doubtful(NamedMessage(doubt.queue, doubt.sequence_number, *named))
