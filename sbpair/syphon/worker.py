"""One lane: one backlog queue, emptied over connections of its own, once or for ever.

It takes in at most what it may hold; that is all the backpressure there is, and memory does not depend on the backlog.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import AccessError, ConnectionFaulted, MachineLacks, SbpairError, ServiceRefused, Unavailable, Unsafe
from sbpair.move.events import QueueBlocked, QueueDone, QueueFailed, QueueOpened, QueueProgress
from sbpair.move.mover import Mover
from sbpair.syphon.worker_connections import FAULT_SECONDS, WorkerConnections, open_ends

if TYPE_CHECKING:
    from sbpair.model.pair import Pair
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import MessageSource, PeekedHeader, ReceivedMessage
    from sbpair.move.raw_engine import RawEngine
    from sbpair.runs.session_lease import SessionLease

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 900.0
"""How long a receive waits in a lane that watches an idle queue: four calls an hour."""

UNUSED_SECONDS = 540.0
"""How long a link may go unused while messages are held: after ten minutes it is taken away, with every lock."""

RELEASE_SECONDS = 2.0
"""How long giving back what is held may take, where nobody can wait for the answer."""

REPORT_SECONDS = 0.25

EMPTY_WAIT_SECONDS = 5.0
"""How long `--once` waits before it believes that nothing comes, where it may not count; it takes two such waits."""

COUNT_WAIT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""How long it waits before it counts, where it may: ever longer, since a count costs as much as ten messages."""

TRIES = 3
"""How often `--once` tries a connection, or a destination, before it leaves the rest where it is."""

CLOCKS_DIFFER_MS = 60_000
"""By how much the service's clock may be behind ours before `--once` takes what was there for what came later."""

BACK_OFF_SECONDS, MAX_BACK_OFF_SECONDS = 1.0, 60.0

Count = Callable[[str], Awaitable[int]]
Gone = Callable[[], Awaitable[ConnectionFaulted]]
Opened = TypeVar("Opened")


@dataclass
class RunPlan:
    """What the lanes of a run have in common.

    `count` answers how many messages a queue holds, locked ones included; None where that may not be asked.
    `started_ms` is when the run began, in ms since 1970. `reconnect` is whether a connection that is lost is made anew.
    `lease` is what holds movers of other machines off, where that was asked for.
    """

    pair: Pair
    once: bool
    context: MoveContext
    stop: asyncio.Event
    engine: RawEngine = field(init=False)
    count: Count | None = None
    reconnect: bool = True
    lease: SessionLease | None = None
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))

    @property
    def tries(self) -> float:
        """How many connections in a row may fail before a lane ends."""
        if not self.reconnect:
            return 1
        return TRIES if self.once else math.inf


class QueueWorker:
    def __init__(self, queue: str, plan: RunPlan) -> None:
        self.queue = queue
        self._plan = plan
        self._failures = 0
        self._quiet = 0
        self._blocked_by: tuple[str, ...] = ()
        self._ends: WorkerConnections | None = None
        self._opening: asyncio.Timeout | None = None
        self._moving: tuple[MessageSource, Mover] | None = None
        self._used = 0.0
        self._undead: list[str] = []
        self._clock_ahead_ms = 0
        self.counts = 0
        """How often it has counted its queue by itself, and told what came of it."""
        self.error: SbpairError | None = None

    async def run(self) -> None:
        """Empty the queue until done or told to stop. Why it could not go on, if it could not, is in `error`."""
        plan = self._plan
        try:
            while not plan.stop.is_set():
                try:
                    await self._connected()
                except Unavailable as error:
                    if not await self._back_off(error):
                        return
                else:
                    plan.context.on_event(QueueDone(self.queue))
                    return
        except SbpairError as error:
            self._fail(error, None)
        finally:
            self._confess()

    def interrupt(self) -> None:
        """Look at `stop` now, and not when the poll, or the attempt to connect, is over."""
        if self._ends is not None:
            self._ends.source.interrupt()
        if self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())

    def abort(self, error: Unavailable, *, backlog: bool = False) -> None:
        """Wait for no answer of the primary any more; with `backlog`, nor of the backlog."""
        if self._ends is not None and backlog:
            self._ends.abort(error)
        elif self._ends is not None:
            self._ends.primary.abort(error)

    def fail(self, error: SbpairError) -> None:
        """Send nothing more, for a reason that is no message's fault; what is in flight is finished."""
        if self._moving is not None:
            self._moving[1].fail(error)

    # What those ask who watch.

    def report(self) -> None:
        """Say how far the lane is."""
        if self._moving is not None:
            self._tell(self._moving[1])

    def waiting(self) -> dict[str, int]:
        """How many messages wait for each destination that takes nothing for now."""
        return self._moving[1].waiting() if self._moving is not None else {}

    async def oldest_ms(self) -> int | None:
        """When the first message was enqueued, in ms since 1970: by what is in hand, or else by a peek."""
        if self._moving is None:
            return None
        source, mover = self._moving
        if mover.oldest_ms is not None:
            return mover.oldest_ms
        async for page in self._pages(source):
            return page[0].enqueued_at or None
        return None

    async def _connected(self) -> None:
        async with AsyncExitStack() as stack:
            opening = open_ends(self._plan.engine, self.queue)
            ends = await self._unless_interrupted(stack.enter_async_context(opening))
            if ends is None:
                return
            self._ends = ends
            try:
                self._plan.context.on_event(QueueOpened(self.queue))
                await self._move(ends)
            finally:
                self._ends = None

    async def _unless_interrupted(self, opening: Awaitable[Opened]) -> Opened | None:
        try:
            async with asyncio.timeout(None) as self._opening:
                return await opening
        except TimeoutError:
            return None
        finally:
            self._opening = None

    async def _move(self, ends: WorkerConnections) -> None:
        plan = self._plan
        failure: SbpairError | None = None
        mover: Mover | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                mover = Mover(ends.source, ends.primary, tasks, plan.context)
                self._moving = ends.source, mover
                beside = [tasks.create_task(each) for each in self._beside(ends, mover)]
                try:
                    await self._drain(ends, mover)
                    failure = ends.fault() if mover.held and not plan.stop.is_set() else None
                except SbpairError as error:
                    failure = ends.fault() or error
                await mover.finish()
                self._tell(mover)
                for task in beside:
                    task.cancel()
        finally:
            self._moving = None
            if mover is not None:
                mover.abandon_all()
                self._undead = mover.unsettleable(1)
        if plan.once and not plan.stop.is_set():
            # The backlog has not heard of all that was done: the next connection tells it.
            failure = failure or mover.settlement_error
        if mover.fatal is not None or failure is not None:
            raise mover.fatal or failure  # type: ignore[misc]

    def _beside(self, ends: WorkerConnections, mover: Mover) -> tuple[Coroutine[object, object, None], ...]:
        """What goes on while messages are moved."""
        return (
            mover.renew_locks(),
            self._report(mover),
            # What the primary is still to say to, it may say; to give back what is held takes no time.
            self._keep_together(ends, mover, ends.backlog_gone, FAULT_SECONDS),
            self._keep_together(ends, mover, ends.primary_gone, RELEASE_SECONDS),
        )

    async def _keep_together(self, ends: WorkerConnections, mover: Mover, gone: Gone, seconds: float) -> None:
        """Once one of the two connections is gone for good, end the other: so many seconds later at the latest."""
        try:
            error: SbpairError = await gone()
        except SbpairError as refusal:
            error = refusal
        mover.fail(error)
        await asyncio.sleep(seconds)
        ends.abort(error)

    async def _drain(self, ends: WorkerConnections, mover: Mover) -> None:
        source = ends.source
        self._used = asyncio.get_running_loop().time()
        while not self._plan.stop.is_set() and mover.fatal is None:
            if source.error is not None and mover.held:
                raise source.error
            await self._use(source, mover)
            if mover.room == 0:
                if await self._blocked(mover):
                    return
                continue
            self._blocked_by = ()
            limit = await self._receivable(mover)
            if limit == 0:
                continue
            arrivals = await self._take(source, mover, limit)
            self._clock_ahead_ms = source.clock_ahead_ms
            if arrivals:
                self._failures = self._quiet = 0
                mover.accept(arrivals)
                if self._plan.context.rate_limiter is not None:
                    self._plan.context.rate_limiter.received(asyncio.get_running_loop().time(), len(arrivals))
                self._tell(mover)
                if await self._past_the_start(source, arrivals, mover):
                    await self._let_it_settle(source, mover)
                    return
                continue
            self._plan.context.tally.spent("empty_receives", 1)
            if self._plan.once and mover.fatal is None and await self._empty(source, mover):
                return

    async def _take(self, source: MessageSource, mover: Mover, limit: int) -> Sequence[ReceivedMessage]:
        """One receive, however often the service takes the link away meanwhile because nothing goes over it."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._poll_seconds()
        if mover.held:
            until = min(until, self._used + UNUSED_SECONDS)
        while not self._plan.stop.is_set():
            source.grant(limit)
            try:
                arrivals = await source.receive(limit, seconds=max(0.0, until - loop.time()))
            except Unavailable:
                if mover.held or await self._unless_interrupted(source.reopen()) is False:
                    raise
            else:
                self._used = loop.time() if arrivals else self._used
                return arrivals
        return ()

    async def _use(self, source: MessageSource, mover: Mover) -> None:
        """Keep the link of messages that are held for long, and with it their locks."""
        now = asyncio.get_running_loop().time()
        if mover.held and now - self._used >= UNUSED_SECONDS:
            await source.stop()
            await mover.touch_link()
            self._used = now

    async def _receivable(self, mover: Mover) -> int:
        """How many messages may be asked for. 0 after a wait for the pace, in which anything may have happened."""
        pace, now = self._plan.context.rate_limiter, asyncio.get_running_loop().time()
        if pace is None:
            return mover.room
        limit = min(mover.room, pace.receivable(now))
        if limit == 0:
            await mover.wait_changed(pace.receive_delay(now))
        return limit

    def _poll_seconds(self) -> float:
        if not self._plan.once:
            return LONG_POLL_SECONDS
        if self._plan.count is None:
            return EMPTY_WAIT_SECONDS
        return COUNT_WAIT_SECONDS[min(self._quiet, len(COUNT_WAIT_SECONDS) - 1)]

    async def _blocked(self, mover: Mover) -> bool:
        """Nothing more may be taken in. True where waiting for room makes no sense."""
        resting = tuple(sorted(mover.waiting()))
        if resting and resting != self._blocked_by:
            self._plan.context.on_event(QueueBlocked(self.queue, resting))
            self._blocked_by = resting
        if self._plan.once and mover.stuck(TRIES):
            return True
        await mover.wait_changed(EMPTY_WAIT_SECONDS)
        return False

    async def _empty(self, source: MessageSource, mover: Mover) -> bool:
        """Nothing came for a while: is that all? A single empty receive proves nothing."""
        self._quiet += 1
        if mover.held and not mover.stuck(TRIES):
            return False
        if self._plan.count is None:
            return self._quiet >= 2
        remaining = await self._plan.count(self.queue) - len(mover.unsettleable())
        if remaining > mover.held and self._quiet >= len(COUNT_WAIT_SECONDS):
            remaining -= await self._deferred(source)
        self._tell(mover, remaining)
        self.counts += 1
        return remaining <= mover.held

    async def _deferred(self, source: MessageSource) -> int:
        """How many messages somebody has put aside: they count, and never come."""
        return sum([sum(each.deferred for each in page) async for page in self._pages(source)])

    async def _past_the_start(self, source: MessageSource, arrivals: Sequence[ReceivedMessage], mover: Mover) -> bool:
        """Whether all that is left was enqueued after `--once` began: a busy backlog would never be empty."""
        if not self._plan.once or not all(self._is_new(arrival.facts.enqueued_at) for arrival in arrivals):
            return False
        async for page in self._pages(source):
            held = mover.held_numbers()
            if all(self._is_new(each.enqueued_at) for each in page):
                return True
            if not all(
                self._is_new(each.enqueued_at) or each.deferred or each.sequence_number in held for each in page
            ):
                return False
        return True

    def _is_new(self, enqueued_ms: int) -> bool:
        return enqueued_ms > self._plan.started_ms + self._clock_ahead_ms + CLOCKS_DIFFER_MS

    async def _pages(self, source: MessageSource) -> AsyncIterator[list[PeekedHeader]]:
        """All messages of the queue, looked at without locking them."""
        async for page in source.peek_pages():
            self._plan.context.tally.spent("management_calls", 1)
            yield page

    async def _let_it_settle(self, source: MessageSource, mover: Mover) -> None:
        while mover.held and not mover.stuck(TRIES) and mover.fatal is None and not self._plan.stop.is_set():
            if source.error is not None:
                raise source.error
            await mover.wait_changed(EMPTY_WAIT_SECONDS)

    async def _back_off(self, error: Unavailable) -> bool:
        """Wait before the next connection; False where there is to be none."""
        self._failures += 1
        if self._failures >= self._plan.tries:
            self._fail(error, None)
            return False
        longest = min(MAX_BACK_OFF_SECONDS, BACK_OFF_SECONDS * 2 ** min(self._failures - 1, 16))
        seconds = longest * (0.5 + self._plan.context.jitter() / 2)
        self._fail(error, seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._plan.stop.wait()
        return True

    def _fail(self, error: SbpairError, retry_seconds: float | None) -> None:
        if retry_seconds is None:
            self.error = error
            if isinstance(error, (AccessError, Unsafe, MachineLacks)):
                # The same key, state and lease are every lane's: the others would only find out one by one.
                self._plan.stop.set()
            if isinstance(error, Unavailable) and not self._plan.once:
                # A watch that has lost one of its queues for good would be taken for one that has them all.
                self._plan.stop.set()
        self._plan.context.on_event(QueueFailed(self.queue, error.message, retry_seconds))

    def _confess(self) -> None:
        """Say what was left because it can go neither here nor there."""
        if self._undead and self.error is None:
            count, why = len(self._undead), self._undead[0]
            self.error = ServiceRefused(
                f"{count} message{'s' if count > 1 else ''} could neither be sent nor dead-lettered, and stayed: {why}",
                hint="the next run tries again",
            )

    async def _report(self, mover: Mover) -> None:
        """Say how far the lane is when something has changed, but not more often than anybody looks."""
        while True:
            await mover.wait_changed(LONG_POLL_SECONDS)
            await asyncio.sleep(REPORT_SECONDS)
            self._tell(mover)

    def _tell(self, mover: Mover, remaining: int | None = None) -> None:
        tally = self._plan.context.tally
        self._plan.context.on_event(
            QueueProgress(
                self.queue,
                tally.count(self.queue, "received"),
                tally.count(self.queue, "sent"),
                mover.held,
                remaining,
                tally.gone(self.queue),
                mover.oldest_ms,
            )
        )
