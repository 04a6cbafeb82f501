"""One lane: one backlog queue, emptied over connections of its own, once or for ever.

It takes in at most what it may hold; that is all the backpressure there is, and memory does not depend on the backlog.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import AccessError, MachineLacks, SbpairError, Unavailable, Unsafe
from sbpair.move.events import LaneBlocked, LaneDone, LaneFailed, LaneOpened, Progress
from sbpair.move.mover import Mover

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.move.engine import Arrival, Engine, Primary, Source
    from sbpair.move.mover import Setting

log = logging.getLogger(__name__)

LONG_POLL_SECONDS = 900.0
"""How long a receive waits in a lane that watches an idle queue: four calls an hour."""

REPORT_SECONDS = 0.25

EMPTY_WAIT_SECONDS = 5.0
"""How long `--once` waits before it believes that nothing comes, where it may not count; it takes two such waits."""

COUNT_WAIT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""How long it waits before it counts, where it may: ever longer, since a count costs as much as ten messages."""

TRIES = 3
"""How often `--once` tries a connection, or a destination, before it leaves the rest where it is."""

CLOCKS_DIFFER_MS = 60_000
"""By how much the service's clock may be behind ours before `--once` takes what was there for what came later."""

BACK_OFF_SECONDS, BACK_OFF_MOST_SECONDS = 1.0, 60.0

Count = Callable[[str], Awaitable[int]]


@dataclass
class Plan:
    """What the lanes of a run have in common.

    `count` answers how many messages a queue holds, locked ones included; None where that may not be asked.
    `started_ms` is when the run began, in ms since 1970.
    """

    pair: Pair
    once: bool
    setting: Setting
    stop: asyncio.Event
    engine: Engine = field(init=False)
    count: Count | None = None
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))


class Lane:
    def __init__(self, queue: str, plan: Plan) -> None:
        self.queue = queue
        self._plan = plan
        self._failures = 0
        self._quiet = 0
        self._blocked_by: tuple[str, ...] = ()
        self._source: Source | None = None
        self._opening: asyncio.Timeout | None = None
        self.error: SbpairError | None = None

    async def run(self) -> None:
        """Empty the queue until done or told to stop. Why it could not go on, if it could not, is in `error`."""
        plan = self._plan
        primary = plan.engine.primary()
        try:
            while not plan.stop.is_set():
                try:
                    await self._connected(primary)
                except Unavailable as error:
                    if not await self._back_off(error):
                        return
                else:
                    plan.setting.on_event(LaneDone(self.queue))
                    return
        except SbpairError as error:
            self._fail(error, None)
        finally:
            await primary.close()

    def interrupt(self) -> None:
        """Look at `stop` now, and not when the poll, or the attempt to connect, is over."""
        if self._source is not None:
            self._source.interrupt()
        elif self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())

    async def _connected(self, primary: Primary) -> None:
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(None) as self._opening:
                    source = await self._open(stack, primary)
            except TimeoutError:
                return  # interrupted
            finally:
                self._opening = None
            self._source = source
            try:
                self._plan.setting.on_event(LaneOpened(self.queue))
                await self._move(source, primary)
            finally:
                self._source = None

    async def _open(self, stack: AsyncExitStack, primary: Primary) -> Source:
        source = await stack.enter_async_context(self._plan.engine.source(self.queue))
        if self._plan.once:
            # A primary that is not there at all is known before a single lock is taken.
            await primary.check()
        return source

    async def _move(self, source: Source, primary: Primary) -> None:
        plan = self._plan
        failure: SbpairError | None = None
        mover: Mover | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                mover = Mover(source, primary, tasks, plan.setting)
                beside = (
                    tasks.create_task(mover.keep_locks(), name=f"locks of {self.queue}"),
                    tasks.create_task(self._report(mover), name=f"progress of {self.queue}"),
                )
                try:
                    await self._drain(source, mover)
                except SbpairError as error:
                    failure = error
                await mover.finish()
                for task in beside:
                    task.cancel()
        finally:
            if mover is not None:
                mover.write_off()
        if plan.once and not plan.stop.is_set():
            # The backlog has not heard of all that was done: the next connection tells it.
            failure = failure or mover.trouble
        if mover.fatal is not None or failure is not None:
            raise mover.fatal or failure  # type: ignore[misc]

    async def _drain(self, source: Source, mover: Mover) -> None:
        while not self._plan.stop.is_set() and mover.fatal is None:
            if source.error is not None:
                raise source.error
            if mover.room == 0:
                if await self._blocked(mover):
                    return
                continue
            self._blocked_by = ()
            most = await self._receivable(mover)
            if most == 0:
                continue
            source.grant(most)
            arrivals = await source.take(most, seconds=self._poll_seconds())
            if arrivals:
                self._failures = self._quiet = 0
                mover.accept(arrivals)
                if self._plan.setting.pace is not None:
                    self._plan.setting.pace.received(asyncio.get_running_loop().time(), len(arrivals))
                self._tell(mover)
                if await self._past_the_start(source, arrivals, mover):
                    await self._let_it_settle(source, mover)
                    return
            elif self._plan.once and mover.fatal is None and await self._empty(source, mover):
                return

    async def _receivable(self, mover: Mover) -> int:
        """How many messages may be asked for. 0 after a wait for the pace, in which anything may have happened."""
        pace, now = self._plan.setting.pace, asyncio.get_running_loop().time()
        if pace is None:
            return mover.room
        most = min(mover.room, pace.receivable(now))
        if most == 0:
            await mover.changed(pace.receive_delay(now))
        return most

    def _poll_seconds(self) -> float:
        if not self._plan.once:
            return LONG_POLL_SECONDS
        if self._plan.count is None:
            return EMPTY_WAIT_SECONDS
        return COUNT_WAIT_SECONDS[min(self._quiet, len(COUNT_WAIT_SECONDS) - 1)]

    async def _blocked(self, mover: Mover) -> bool:
        """Nothing more may be taken in. True where waiting for room makes no sense."""
        resting = tuple(sorted(mover.resting()))
        if resting and resting != self._blocked_by:
            self._plan.setting.on_event(LaneBlocked(self.queue, resting))
            self._blocked_by = resting
        if self._plan.once and mover.stuck(TRIES):
            return True
        await mover.changed(EMPTY_WAIT_SECONDS)
        return False

    async def _empty(self, source: Source, mover: Mover) -> bool:
        """Nothing came for a while: is that all? A single empty receive proves nothing."""
        self._quiet += 1
        if mover.in_hand and not mover.stuck(TRIES):
            return False
        if self._plan.count is None:
            return self._quiet >= 2
        remaining = await self._plan.count(self.queue)
        if remaining > mover.in_hand and self._quiet >= len(COUNT_WAIT_SECONDS):
            remaining -= await self._deferred(source)
        self._tell(mover, remaining)
        return remaining <= mover.in_hand

    async def _deferred(self, source: Source) -> int:
        """How many messages somebody has put aside: they count, and never come."""
        return sum([sum(each.deferred for each in page) async for page in source.pages()])

    async def _past_the_start(self, source: Source, arrivals: Sequence[Arrival], mover: Mover) -> bool:
        """Whether all that is left was enqueued after `--once` began: a busy backlog would never be empty."""
        if not self._plan.once or not all(self._is_new(arrival.facts.enqueued_at) for arrival in arrivals):
            return False
        async for page in source.pages():
            held = mover.holds()
            if all(self._is_new(each.enqueued_at) for each in page):
                return True
            if not all(
                self._is_new(each.enqueued_at) or each.deferred or each.sequence_number in held for each in page
            ):
                return False
        return True

    def _is_new(self, enqueued_ms: int) -> bool:
        return enqueued_ms > self._plan.started_ms + CLOCKS_DIFFER_MS

    async def _let_it_settle(self, source: Source, mover: Mover) -> None:
        while mover.in_hand and not mover.stuck(TRIES) and mover.fatal is None and not self._plan.stop.is_set():
            if source.error is not None:
                raise source.error
            await mover.changed(EMPTY_WAIT_SECONDS)

    async def _back_off(self, error: Unavailable) -> bool:
        """Wait before the next connection; False where there is to be none."""
        self._failures += 1
        if self._plan.once and self._failures >= TRIES:
            self._fail(error, None)
            return False
        longest = min(BACK_OFF_MOST_SECONDS, BACK_OFF_SECONDS * 2 ** min(self._failures - 1, 16))
        seconds = longest * (0.5 + self._plan.setting.jitter() / 2)
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
        self._plan.setting.on_event(LaneFailed(self.queue, error.message, retry_seconds))

    async def _report(self, mover: Mover) -> None:
        """Say how far the lane is when something has changed, but not more often than anybody looks."""
        while True:
            await mover.changed(LONG_POLL_SECONDS)
            await asyncio.sleep(REPORT_SECONDS)
            self._tell(mover)

    def _tell(self, mover: Mover, remaining: int | None = None) -> None:
        tally = self._plan.setting.tally
        self._plan.setting.on_event(
            Progress(
                self.queue,
                tally.count(self.queue, "received"),
                tally.count(self.queue, "sent"),
                mover.in_hand,
                remaining,
            )
        )
