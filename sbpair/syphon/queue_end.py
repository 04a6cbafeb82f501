"""The end of one queue in a run with `--once`: nothing remains, or nothing that the run waits for.

Invariant: an empty receive proves nothing. Messages that others have locked are not delivered, and shown only by a
count or a peek.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from sbpair.errors import SbpairError
from sbpair.model.message_state import ASIDE
from sbpair.move.aside_source import AsideSource
from sbpair.move.events import MessagesLocked
from sbpair.move.filter import enqueued_times
from sbpair.move.interface import PeekedHeader, ReceivedMessage
from sbpair.move.mover import Mover
from sbpair.move.peek.locked import LockedMessages, NewMessages, PeekedQueue, peek_old
from sbpair.move.raw_source import RawSource
from sbpair.runs.database import now_ms
from sbpair.syphon.run_plan import RunPlan

log = logging.getLogger(__name__)

TRIES = 3  # how often `--once` tries a connection or a destination before it leaves the rest
EMPTY_RECEIVES = 3  # receives that return nothing before peeked messages count as locked, and not as on their way
EXCESS_RECEIVES = 8  # receives that return nothing before counted messages that no peek shows count as locked
MAX_LOCKED = 10_000  # how many locked messages of a queue are counted
PEEK_SECONDS = 5.0  # how often a queue is peeked that delivers new messages while old ones are locked


class QueueEnd:
    """`counts` is how often the queue was counted and the result reported. `locked` are its messages as last peeked.

    `only_new` is whether the run left only messages that were enqueued after it began. `report` gets the result of a
    count, or None after a change of `locked`.
    """

    def __init__(self, queue: str, plan: RunPlan, report: Callable[[Mover, int | None], None]) -> None:
        self.counts = 0
        self.only_new = False
        self.locked = LockedMessages()
        self._queue = queue
        self._plan = plan
        self._report = report
        self._empty_receives = 0
        self._excess_receives = 0
        self._new = NewMessages(plan.request.until_ms)
        self._peeked: frozenset[int] = frozenset()
        self._peek_at = 0.0
        self._free = 0.0, 0

    @property
    def waits_for(self) -> tuple[int, int | None]:
        """How many locked messages it waits for, and when they are free at the latest, in ms since 1970."""
        return (len(self.locked), self._free[1]) if self.locked and self._plan.request.wait_for_locks else (0, None)

    @property
    def poll_seconds(self) -> float:
        """How long the next receive waits: ever longer, since a count costs as much as ten messages."""
        if self._plan.request.idle_seconds is not None:
            return self._plan.request.idle_seconds
        seconds = self._plan.timings.count_wait_seconds
        return seconds[min(self._empty_receives, len(seconds) - 1)]

    def received(self, messages: Sequence[ReceivedMessage], service_ms: int | None) -> None:
        """Take note of received messages, and of the service's time that they show: before, none counts as new."""
        self._empty_receives = self._excess_receives = 0
        if service_ms is not None:
            # By seconds that passed: the local clock may have been set since.
            self._new.note_start(service_ms - int(1000 * (asyncio.get_running_loop().time() - self._plan.started_at)))
        if self._peeked or self.locked:
            self._peeked = frozenset()
            self.locked.discard([message.facts.sequence_number for message in messages])
            self.locked.discard_counted()

    async def is_empty(self, source: RawSource, mover: Mover) -> bool:
        """Return whether nothing remains to wait for, after a receive that returned nothing."""
        self._empty_receives += 1
        if mover.held and not mover.stuck(TRIES):
            return False
        if self._plan.request.idle_seconds is not None:
            others = (await self._peek_old(source, mover.own_numbers(), MAX_LOCKED)).active - mover.own_numbers()
            self.locked.update(others, asyncio.get_running_loop().time())
            return True
        remaining = 0
        if (counted := await self._plan.count(self._queue)) is not None:
            remaining = counted - len(mover.unsettleable()) - mover.locked
            self._report(mover, remaining + mover.locked)
            self.counts += 1
            if remaining <= 0:
                self.locked.clear()
                return True
        if await self._is_first_still_there(source):
            return False
        # A slow service has not delivered yet what it has: the whole queue is peeked only when that is unlikely.
        mine = mover.own_numbers() | mover.unsettleable().keys()
        found = await self._peek_old(source, mine, 1 if self._empty_receives < EMPTY_RECEIVES else MAX_LOCKED)
        others = found.active - mine
        before, self._peeked = self._peeked, others
        if not others:
            lost = max(0, len(found.active) - len(mover.unsettleable()) - mover.locked)  # skipped ones
            return await self._is_excess_left(mover, 0 if found.skipped else remaining - found.deferred - lost)
        self._excess_receives = 0
        if self._empty_receives < EMPTY_RECEIVES or not others <= before:
            return False
        await self._note_locked(others, mover)
        return not self._plan.request.wait_for_locks

    async def is_left_locked(self, source: AsideSource, mover: Mover) -> bool:
        """Return whether nothing remains, or what others have locked is left; otherwise, the source tries it again."""
        if not source.left:
            self.locked.clear()
            return True
        await self._note_locked(frozenset(source.left), mover)
        if not self._plan.request.wait_for_locks:
            return True
        self._empty_receives += 1
        await asyncio.sleep(self.poll_seconds)
        source.try_again()
        return False

    async def _is_excess_left(self, mover: Mover, excess: int) -> bool:
        """Return whether the run does not wait for the messages that a count has more than a peek shows.

        A count may be late, or include messages of a partition that is down: they count as locked only if they last.
        """
        self._excess_receives = self._excess_receives + 1 if excess > 0 else 0
        if self._excess_receives < EXCESS_RECEIVES:
            self.locked.clear()
            return excess <= 0
        await self._note_locked(frozenset(range(-min(excess, MAX_LOCKED), 0)), mover)
        return not self._plan.request.wait_for_locks

    async def only_new_remain(self, source: RawSource, messages: Sequence[ReceivedMessage], mover: Mover) -> bool:
        """Return whether all that remains was enqueued after `--once` began: a busy backlog is never empty."""
        if self._plan.request.messages in ASIDE or self._plan.request.idle_seconds is not None:
            return False
        if not all(map(self._new.include, enqueued_times(messages))):
            return False
        now = asyncio.get_running_loop().time()
        if self.locked and now < self._peek_at:
            return False
        self._peek_at = now + PEEK_SECONDS  # a busy queue would be peeked at each receive
        if await self._is_first_still_there(source):
            return False
        mine = mover.own_numbers() | mover.unsettleable().keys()
        others = (await self._peek_old(source, mine, MAX_LOCKED)).active - mine
        if others and self._plan.request.sessions:
            return False  # of sessions to come
        if others:
            # Older than those received: they would have been delivered before.
            self._peeked = others
            await self._note_locked(others, mover)
        self.only_new = not (others and self._plan.request.wait_for_locks)
        return self.only_new

    async def _peek_old(self, source: RawSource, mine: set[int], limit: int) -> PeekedQueue:
        """Peek old messages until `limit` of them are not `mine`."""
        return await peek_old(
            partial(self._peek, source), self._new.include, lambda active: len(active - mine) >= limit
        )

    async def _peek(self, source: RawSource, *window: int) -> list[PeekedHeader]:
        self._plan.context.tally.spent("management_calls", 1)
        return await source.peek(*window)

    async def _is_first_still_there(self, source: RawSource) -> bool:
        """Return whether the first locked message is still in the queue, and may still be locked."""
        if not self.locked or self.locked.first < 0 or self.locked.free_at <= asyncio.get_running_loop().time():
            return False
        page = await self._peek(source, self.locked.first, 1)
        return bool(page) and page[0].sequence_number == self.locked.first

    async def _note_locked(self, numbers: frozenset[int], mover: Mover) -> None:
        locked, plan, now = self.locked, self._plan, asyncio.get_running_loop().time()
        if locked.lock_seconds is None:
            try:
                locked.lock_seconds = await plan.lock_seconds(self._queue)
            except SbpairError as error:
                log.info("the lock duration of %s is not known: %s", self._queue, error.message)
        overdue = locked.update(numbers, now)
        if locked.free_at != self._free[0]:
            self._free = locked.free_at, now_ms() + int(1000 * (locked.free_at - now))
        if locked.is_news():
            until_ms = self._free[1]
            plan.context.on_event(
                MessagesLocked(self._queue, len(locked), until_ms, plan.request.wait_for_locks, overdue)
            )
        self._report(mover, None)
