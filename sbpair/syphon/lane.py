"""One lane: one backlog queue, emptied over connections of its own, once or for ever.

It takes in at most what it may hold; that is all the backpressure there is, and memory does not depend on the backlog.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sbpair.errors import AccessError, SbpairError, Unavailable
from sbpair.move.envelope import facts_of
from sbpair.move.events import LaneBlocked, LaneDone, LaneFailed, LaneOpened, Progress
from sbpair.move.mover import Mover
from sbpair.move.wire_engine import WirePrimary, WireSource
from sbpair.wire.client import connect

if TYPE_CHECKING:
    from sbpair.model import Pair
    from sbpair.move.engine import Arrival
    from sbpair.move.mover import Setting
    from sbpair.wire.client import GetToken, Wire

log = logging.getLogger(__name__)

BATCH = 100
LONG_POLL_SECONDS = 900.0
"""How long a receive waits in a lane that watches an idle queue: four calls an hour."""

EMPTY_WAIT_SECONDS = 5.0
"""How long `--once` waits before it believes that nothing comes, where it may not count; it takes two such waits."""

COUNT_WAIT_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)
"""How long it waits before it counts, where it may: ever longer, since a count costs as much as ten messages."""

TRIES = 3
"""How often `--once` tries a connection, or a destination, before it leaves the rest where it is."""

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
    count: Count | None = None
    get_token: GetToken | None = None
    started_ms: int = field(default_factory=lambda: int(time.time() * 1000))


class Lane:
    def __init__(self, queue: str, plan: Plan) -> None:
        self.queue = queue
        self._plan = plan
        self._failures = 0
        self._quiet = 0
        self._source: WireSource | None = None
        self.error: SbpairError | None = None

    async def run(self) -> None:
        """Empty the queue until done or told to stop. Why it could not go on, if it could not, is in `error`."""
        plan = self._plan
        primary = WirePrimary(plan.pair.primary, get_token=plan.get_token)
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
        """Look at `stop` now, and not when the poll is over."""
        if self._source is not None:
            self._source.interrupt()

    async def _connected(self, primary: WirePrimary) -> None:
        async with connect(self._plan.pair.secondary, get_token=self._plan.get_token) as wire:
            self._source = source = await WireSource.open(wire, self.queue)
            try:
                if self._plan.once:
                    # A primary that is not there at all is known before a single lock is taken.
                    await primary.check()
                self._plan.setting.on_event(LaneOpened(self.queue))
                await self._move(wire, source, primary)
            finally:
                self._source = None

    async def _move(self, wire: Wire, source: WireSource, primary: WirePrimary) -> None:
        failure: SbpairError | None = None
        mover: Mover | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                mover = Mover(source, primary, tasks, self._plan.setting)
                locks = tasks.create_task(mover.keep_locks(), name=f"locks of {self.queue}")
                try:
                    await self._drain(wire, source, mover)
                except SbpairError as error:
                    failure = error
                await mover.finish()
                locks.cancel()
        finally:
            if mover is not None:
                mover.write_off()
        if failure is not None or mover.fatal is not None:
            raise failure or mover.fatal  # type: ignore[misc]

    async def _drain(self, wire: Wire, source: WireSource, mover: Mover) -> None:
        while not self._plan.stop.is_set() and mover.fatal is None:
            if mover.room == 0:
                if await self._blocked(mover):
                    return
                continue
            source.grant(min(BATCH, mover.room))
            arrivals = await source.take(BATCH, seconds=self._poll_seconds())
            if arrivals:
                self._failures = self._quiet = 0
                mover.accept(arrivals)
                self._tell(mover)
                if await self._past_the_start(wire, arrivals):
                    await self._let_it_settle(mover)
                    return
            elif self._plan.once and await self._empty(mover):
                return

    def _poll_seconds(self) -> float:
        if not self._plan.once:
            return LONG_POLL_SECONDS
        if self._plan.count is None:
            return EMPTY_WAIT_SECONDS
        return COUNT_WAIT_SECONDS[min(self._quiet, len(COUNT_WAIT_SECONDS) - 1)]

    async def _blocked(self, mover: Mover) -> bool:
        """Nothing more may be taken in. True where waiting for room makes no sense."""
        resting = mover.resting()
        if resting:
            self._plan.setting.on_event(LaneBlocked(self.queue, tuple(sorted(resting))))
            if self._plan.once and mover.stuck(TRIES):
                return True
        await mover.changed(EMPTY_WAIT_SECONDS)
        return False

    async def _empty(self, mover: Mover) -> bool:
        """Nothing came for a while: is that all? A single empty receive proves nothing."""
        self._quiet += 1
        if mover.in_hand and not mover.stuck(TRIES):
            return False
        if self._plan.count is None:
            return self._quiet >= 2
        remaining = await self._plan.count(self.queue)
        self._tell(mover, remaining)
        return remaining <= mover.in_hand

    async def _past_the_start(self, wire: Wire, arrivals: Sequence[Arrival]) -> bool:
        """Whether what is left was all enqueued after `--once` began: a busy backlog would never be empty."""
        if not self._plan.once or min(each.facts.enqueued_at for each in arrivals) <= self._plan.started_ms:
            return False
        for payload in await wire.peek(self.queue, 0, BATCH):
            _, facts = facts_of(self.queue, payload)
            if facts.enqueued_at <= self._plan.started_ms:
                return False
        return True

    async def _let_it_settle(self, mover: Mover) -> None:
        while mover.in_hand and not mover.stuck(TRIES) and mover.fatal is None and not self._plan.stop.is_set():
            await mover.changed(EMPTY_WAIT_SECONDS)

    async def _back_off(self, error: Unavailable) -> bool:
        """Wait before the next connection; False where there is to be none."""
        self._failures += 1
        if self._plan.once and self._failures >= TRIES:
            self._fail(error, None)
            return False
        longest = min(BACK_OFF_MOST_SECONDS, BACK_OFF_SECONDS * 2 ** (self._failures - 1))
        seconds = longest * (0.5 + self._plan.setting.jitter() / 2)
        self._fail(error, seconds)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._plan.stop.wait()
        return True

    def _fail(self, error: SbpairError, retry_seconds: float | None) -> None:
        if retry_seconds is None:
            self.error = error
            if isinstance(error, AccessError):
                # The same key opens every queue: the other lanes would only find out one by one.
                self._plan.stop.set()
        self._plan.setting.on_event(LaneFailed(self.queue, error.message, retry_seconds))

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
