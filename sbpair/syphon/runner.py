"""Runs the syphon: moves messages from the backlog queues to the primary, once or continuously."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from sbpair.errors import EntityMissing, ExitCode, SbpairError, first_error
from sbpair.model.durations import ticks
from sbpair.move import backlog_queues
from sbpair.move.context import DEFAULT_MAX_SKIPPED, MoveContext, SendCost
from sbpair.move.events import TopicsUnchecked
from sbpair.move.live_run import LiveRun
from sbpair.move.message.dead_letters import is_dead_letter_path, parent_path
from sbpair.move.message.route import TimeToLive
from sbpair.move.missing_destinations import MAX_MISSING, MissingDestinations
from sbpair.move.receipt import MissingDestination, NamedMessage, RemainingMessages, Tally
from sbpair.move.run_store import RunStore, ends_settings
from sbpair.move.topic_guard import TopicGuard
from sbpair.runs.database import now_ms
from sbpair.runs.run_log import SPACING_MS
from sbpair.runs.session_lease import check_queue, hold_lease
from sbpair.syphon.intake_gate import IntakeGate
from sbpair.syphon.limits import MoveLimits, PairTiers, SendCosts, effective_limits, tier_of
from sbpair.syphon.move_spec import MoveSpec
from sbpair.syphon.obey import obeying
from sbpair.syphon.pool import DepthSampler, Find, WorkerPool
from sbpair.syphon.run_plan import DEFAULT_TIMINGS, Count, LockSeconds, RunPlan, RunTimings
from sbpair.timespan import TICKS_PER_SECOND

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.azure.destinations import DestinationCache
    from sbpair.model.pair import Ends
    from sbpair.move.events import QueuesFound, SyphonEvent
    from sbpair.move.filter import MessageFilter
    from sbpair.move.rate_limit import Limit, RateLimiter
    from sbpair.move.receipt import Receipt
    from sbpair.runs.journal import Journal
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.ramp import Ramp, RampPlan
    from sbpair.syphon.worker import QueueWorker

log = logging.getLogger(__name__)

Prepared = TypeVar("Prepared")
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
    *,
    once: bool,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    on_event: OnEvent = lambda _event: None,
    max_held: int = 1_000,
    state: Path | None = None,
    lease: bool = True,
    lease_queue: str | None = None,
    ordered: bool = True,
    limits: MoveLimits | None = None,
    sample_seconds: float | None = None,
    count_remaining: bool = False,
    reconnect: bool = True,
    max_missing: int = MAX_MISSING,
    allow_missing: bool = False,
    max_discard: int | None = 0,
    wait_for_locks: bool = True,
    where: MessageFilter | None = None,
    max_skipped: int = DEFAULT_MAX_SKIPPED,
    ramp: RampPlan | None = None,
    timings: RunTimings = DEFAULT_TIMINGS,
    spec: MoveSpec | None = None,
    gate: IntakeGate | None = None,
    live: LiveRun | None = None,
) -> SyphonResult:
    """Move the messages of the pair's backlog queues to their destinations in the primary.

    With a `spec`, move what it describes instead; `pair` is then the one whose state and runs these are.

    With `once`, ends when every message that was there at the start is settled or held; otherwise when `stop` is set.
    It waits for messages that others have locked; without `wait_for_locks` it leaves them, and counts them as `locked`.
    Without the Manage claim it drains queues 0 to the pair's count - 1. At most `max_held` messages are held for
    destinations that back off. Once `hurry` is set, after `stop`, it ends within a few seconds: pending sends are in
    doubt, and the rest is released.

    `state` is the directory of the pair's journal and runs. With it, the next run knows what this one has moved, even
    if this one is killed. Without it, no journal or run is kept. Unless `lease` is False, no other process of this user
    on this machine moves the pair at the same time. With `lease_queue`, a session queue in the secondary namespace, no
    mover on any machine that names it does; the run ends if that lease is lost.

    `ordered` keeps the order of a queue's messages for a destination. `limits` bound the rate, and select the time
    to live; None is as fast as possible. With `sample_seconds`, `on_event` also gets the progress of
    destinations, and with the Manage claim the depth of each queue, at most that often. With `count_remaining`, a run
    that may leave messages counts them in the end.

    A worker that has lost a connection ends the other one and opens both again. If `reconnect` is False,
    ConnectionFaulted ends it, and a watch as a whole. After `max_missing` dead-lettered messages of a destination that
    the primary lacks, its other messages stay in the backlog, unless `allow_missing`. So do those of a topic that no
    subscription of it takes, and all behind them, after `max_discard` such messages; None sends them all. Without the
    Manage claim on the primary, that is not known, and they are sent.

    `live` is a new one, through which the caller reads the run's figures while it moves.

    With `where`, only messages are moved for which that filter is true. The others are `skipped`: kept locked until the
    run ends, at most `max_skipped` of them, and released with their delivery counts unchanged. While the `gate` is
    closed, the run keeps its connections and leases, and no message.

    Raises only errors found before anything is received, such as EntityMissing without any backlog queue, LeaseHeld, or
    StateRefused for the state of another pair.
    """
    stop, hurry = stop or asyncio.Event(), hurry or asyncio.Event()
    spec = spec or MoveSpec(pair)
    live = live or LiveRun()
    run_id, tally = live.id, Tally(where.counts if where else None)
    live.tally = tally
    async with AsyncExitStack() as stack:
        session = None if lease_queue is None else await _take_lease(stack, spec, lease_queue, run_id, stop)
        may_send = session.check if session is not None else lambda: None
        if session is not None:
            live.has_lease = lambda: session.confirmed_seconds() > 0
        command = f"{spec.command} {'--once' if once else '--watch'}"
        store = stack.enter_context(
            RunStore(pair, state, command, tally.receipt, lease=lease, of=spec.leased, run=run_id, may_send=may_send)
        )
        store.describe(
            **ends_settings(spec.ends),
            source=spec.source,
            mode="once" if once else "watch",
            order="backlog" if ordered else "none",
            ttl=str((limits or MoveLimits()).ttl),
            max_held=max_held,
            max_missing="all" if allow_missing else max_missing,
            max_discard="all" if max_discard is None else max_discard,
            wait_for_locks=wait_for_locks,
            lease=lease_queue or ("this machine" if lease else "none"),
            **({} if where is None else {"where": where.text, "max_skipped": max_skipped}),
        )
        missing = MissingDestinations(None if allow_missing else max_missing)
        context = MoveContext(
            namespace=spec.ends.secondary.name,
            tally=tally,
            journal=store.journal,
            on_event=store.observing(on_event),
            timings=timings.move,
            max_held=max_held,
            ordered=ordered,
            ttl=limits.ttl if limits is not None else TimeToLive.ORIGINAL,
            missing=missing,
            keeps_refused=spec.keeps_refused,
            chosen=None if where is None else where.choose,
            max_skipped=max_skipped,
            duplicate_window_ms=spec.duplicate_window_ms,
            traced=live.traced,
        )
        plan = RunPlan(
            once,
            context,
            stop,
            spec,
            get_token=None,
            started_ms=now_ms(),
            reconnect=reconnect,
            wait_for_locks=wait_for_locks,
            lease=session,
            timings=timings,
            gate=gate or IntakeGate(),
            # The limit is that of all queues: no worker may receive what another one may still send.
            in_turn=None if spec.max_messages is None or spec.source is not None else asyncio.Lock(),
        )
        started = time.monotonic()
        workers: list[QueueWorker] = []
        remaining: RemainingMessages | None = None
        opened: Ramp | None = None
        async with AsyncExitStack() as open_while_moving:
            await open_while_moving.enter_async_context(obeying(store, plan.gate, stop, context.on_event))
            preparing = _prepare(open_while_moving, plan, pair, limits, store, max_discard)
            prepared = await _unless_stopped(stop, preparing)
            if prepared is not None:
                plan, find, found = prepared
                live.rate_limiter = plan.context.rate_limiter
                if ramp is not None:
                    from sbpair.syphon.ramp import open_ramp

                    opening = open_while_moving.enter_async_context(open_ramp(ramp, plan, found.queues))
                    opened = await _unless_stopped(stop, opening)
                pool = WorkerPool(plan, find if found.managed and not once else None, opened)
                live.stuck_queues = pool.stuck_queues
                workers = await _run_workers(pool, found.queues, hurry, store, sample_seconds)
                may_count = count_remaining and not hurry.is_set()
                remaining = await _remaining(plan, workers, plan.count if may_count else None)
        failures = _failures(pair, spec, workers, tally, session, stopped=stop.is_set())
        if opened is not None and opened.error is not None:
            failures.append((opened.place, opened.error))
        for named in _possible_duplicates(store.journal, run_id, spec):
            tally.doubtful(named)
        limiter = plan.context.rate_limiter
        result = SyphonResult(
            tally.receipt(),
            tuple(failures),
            time.monotonic() - started,
            stop.is_set(),
            run_id,
            hurry.is_set(),
            tuple(
                MissingDestination(name, missing.dead_lettered[name], missing.held(name)) for name in sorted(missing)
            ),
            remaining,
            None if limiter is None else limiter.main_limit(),
        )
        error = failures[0][1].message if failures else ""
        store.finish(result.exit_code, stopped=result.stopped and not error, error=error)
        store.journal.note_named()
    return result


# Before anything is received.


async def _prepare(
    stack: AsyncExitStack,
    plan: RunPlan,
    pair: Ends,
    limits: MoveLimits | None,
    store: RunStore,
    max_discard: int | None,
) -> tuple[RunPlan, Find, QueuesFound]:
    """Open both namespaces' management, and return the whole plan, a way to list the queues, and the first queues."""
    # Loading the SDK takes half a second: a wrong option is reported before.
    from sbpair.azure.atom import open_atom
    from sbpair.azure.credentials import token_getter
    from sbpair.azure.destinations import open_destinations

    spec, context = plan.spec, plan.context
    control = await stack.enter_async_context(open_atom(spec.ends.secondary))
    get_token = await stack.enter_async_context(token_getter(spec.ends))
    find = _queue_finder(pair, spec, control, context.on_event)
    found = await find()
    primary = await stack.enter_async_context(open_destinations(spec.ends.primary))
    rate_limiter, send_cost = await _limit(primary, spec.ends, control, limits, store)
    context = replace(context, rate_limiter=rate_limiter, send_cost=send_cost)
    unchecked = lambda reason: context.on_event(TopicsUnchecked(reason))  # noqa: E731  # one line, used once
    context = replace(context, topics=TopicGuard(primary, context.tally, max_discard, unchecked))
    plan = replace(plan, context=context, get_token=get_token)
    if found.managed:
        count, lock_seconds = _counter(control, context.tally), _lock_reader(control, context.tally)
        plan = replace(plan, count=count, lock_seconds=lock_seconds)
    if spec.source is not None:
        known = plan.lock_seconds and await plan.lock_seconds(spec.source)
        plan = replace(plan, source_lock_seconds=known)
    return plan, find, found


async def _unless_stopped(stop: asyncio.Event, preparing: Awaitable[Prepared]) -> Prepared | None:
    """Return None if `stop` comes first: nothing is held yet that needs to be settled."""

    async def abort(wait: asyncio.Timeout) -> None:
        await stop.wait()
        wait.reschedule(0.0)

    with first_error():
        try:
            async with asyncio.timeout(None) as wait, asyncio.TaskGroup() as tasks:
                stopping = tasks.create_task(abort(wait), name="watch for an early stop")
                prepared = await preparing
                stopping.cancel()
        except TimeoutError:
            return None
    return prepared


async def _take_lease(
    stack: AsyncExitStack, spec: MoveSpec, queue: str, run_id: str, stop: asyncio.Event
) -> SessionLease:
    check_queue(queue)  # before the SDK is loaded
    from sbpair.azure.credentials import token_getter

    get_token = await stack.enter_async_context(token_getter(spec.ends))
    ends, source = spec.leased
    lease = hold_lease(ends, queue, run_id, source=source, stop=stop, get_token=get_token)
    return await stack.enter_async_context(lease)


async def _limit(
    primary: DestinationCache, pair: Ends, control: AtomNamespace, limits: MoveLimits | None, store: RunStore
) -> tuple[RateLimiter | None, SendCost | None]:
    """Return the rate limiter for namespaces of these tiers, and the cost of a message if credits are limited."""
    if limits is None:
        return None, None
    from sbpair.azure.destinations import DestinationCache

    tiers, send_cost = PairTiers(), None
    if limits.credits is None or not math.isinf(limits.credits):
        tiers = PairTiers(*await asyncio.gather(tier_of(primary), tier_of(DestinationCache(control))))
        send_cost = SendCosts(primary).of
    effective = effective_limits(limits, tiers)
    if pair.same:
        effective = effective.shared()
    store.describe(primary_tier=tiers.primary, secondary_tier=tiers.secondary, **asdict(effective))
    return effective.rate_limiter(asyncio.get_running_loop().time()), send_cost


def _queue_finder(pair: Ends, spec: MoveSpec, control: AtomNamespace, on_event: OnEvent) -> Find:
    """Return a function that lists the sources, and emits QueuesFound when they have changed."""
    last: QueuesFound | None = None

    async def find() -> QueuesFound:
        nonlocal last
        found = await backlog_queues.find_sources(pair, spec.source, control, dead_letters=spec.takes_dead_letters)
        if found != last:
            last = found
            on_event(found)
        return found

    return find


def _counter(control: AtomNamespace, tally: Tally) -> Count:
    async def count(queue: str) -> int:
        tally.spent("management_calls", 1)
        counts = await control.counts(parent_path(queue))
        return counts.dead_letter if is_dead_letter_path(queue) else counts.active

    return count


def _lock_reader(control: AtomNamespace, tally: Tally) -> LockSeconds:
    async def lock_seconds(queue: str) -> float:
        tally.spent("management_calls", 1)
        return ticks((await control.get(parent_path(queue))).spec.lock_duration) / TICKS_PER_SECOND

    return lock_seconds


# The move.


async def _run_workers(
    pool: WorkerPool, queues: Sequence[str], hurry: asyncio.Event, store: RunStore, sample_seconds: float | None
) -> list[QueueWorker]:
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
        await _unless_stopped(pool.plan.stop, pool.ramp.finish())
        pool.ramp.close()
    return pool.workers


async def _record(store: RunStore) -> None:
    while True:
        await asyncio.sleep(RECORD_SECONDS)
        store.record()


async def _sample(store: RunStore) -> None:
    while True:
        store.sample()
        await asyncio.sleep(SPACING_MS / 1000)


# The result.


def _failures(
    pair: Ends, spec: MoveSpec, workers: list[QueueWorker], tally: Tally, lease: SessionLease | None, *, stopped: bool
) -> list[tuple[str, SbpairError]]:
    """Return why workers and the lease could not go on. Raises EntityMissing if no backlog queue exists."""
    missing = [worker for worker in workers if isinstance(worker.error, EntityMissing)]
    if len(missing) == len(workers) and not stopped and not tally.receipt().received:
        raise backlog_queues.none_found(pair) if spec.source is None else cast("EntityMissing", missing[0].error)
    # A missing queue holds nothing: it was reported, and is no failure.
    failures = [(worker.queue, worker.error) for worker in workers if worker.error and worker not in missing]
    if lease is not None:
        tally.spent("renewals", lease.renewals)
        if lease.error is not None:
            # Workers without a connection at that moment were only stopped.
            failures.append((lease.location.queue, lease.error))
    return failures


async def _remaining(plan: RunPlan, workers: list[QueueWorker], count: Count | None) -> RemainingMessages | None:
    """Return what a run left in the backlog, if it may have left something. Without a quick count: at least that."""
    receipt = plan.context.tally.receipt()
    left = max(0, receipt.remaining, receipt.locked)
    if not (plan.stop.is_set() or left):
        return None
    there = [worker for worker in workers if not isinstance(worker.error, EntityMissing)]
    if count is not None and not any(worker.error for worker in there):
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                counts = await asyncio.gather(*(count(worker.queue) for worker in there))
        except (SbpairError, TimeoutError) as error:
            log.info("what is left could not be counted: %s", error)
        else:
            return RemainingMessages(sum(counts), exact=True)
    return RemainingMessages(left, exact=False)


def _possible_duplicates(journal: Journal, run_id: str, spec: MoveSpec) -> Iterator[NamedMessage]:
    """Yield messages that the mover did not name itself: unconfirmed ones, and those that earlier runs left in doubt.

    Doubts of crashed runs are named once in any case, and each doubt once its message ended.
    """
    source, destination = spec.words
    for _, queue, number, _, message_id in journal.unconfirmed():
        why = f"the {destination} accepted it, and the {source} did not confirm its completion"
        yield NamedMessage(queue, number, message_id, None, why)
    reasons = dict.fromkeys(journal.in_doubt(), "{} ended before they were confirmed")
    for doubt, sent in journal.ended_doubts():
        reasons.setdefault(doubt, "{} left it in doubt, and this run sent it again" if sent else "{} left it in doubt")
    for doubt, why in reasons.items():
        if doubt.run != run_id:
            named = doubt.message_id, doubt.destination, why.format(f"run {doubt.run}")
            yield NamedMessage(doubt.queue, doubt.sequence_number, *named)
