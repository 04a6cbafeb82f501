"""The worker of one backlog queue: empties it over its own two connections, once or continuously.

It receives at most what it may hold. That is the only backpressure, so memory does not depend on the backlog.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sbpair.amqp_client.limits import UNUSED_SECONDS
from sbpair.amqp_client.raw_links import RELEASED
from sbpair.errors import (
    AccessError,
    EntityMissing,
    MachineLacks,
    SbpairError,
    ServiceRefused,
    Silent,
    SkipLimitReached,
    TokenExpired,
    Unavailable,
    Unsafe,
)
from sbpair.move.aside_source import AsideSource
from sbpair.move.events import QueueBlocked, QueueDone, QueueFailed, QueueOpened, QueueProgress
from sbpair.move.failure_latch import Waits, set_within
from sbpair.move.held import ParkedSessions, SkippedMessages
from sbpair.move.message.route import REMOVED
from sbpair.move.mover import Mover
from sbpair.move.raw_source import RawSource, SessionSource, SessionsSource, settle_left
from sbpair.syphon.queue_end import TRIES, QueueEnd
from sbpair.syphon.worker_connections import PROBE_SECONDS, WorkerConnections, open_connections

if TYPE_CHECKING:
    from sbpair.amqp.link import Delivery
    from sbpair.move.interface import ReceivedMessage
    from sbpair.syphon.ramp import Ramp
    from sbpair.syphon.run_plan import RunPlan

log = logging.getLogger(__name__)

SESSION_SECONDS = 60.0  # how long a watch waits for a session that has messages
TURN_SECONDS = 1.0  # how long a worker waits for messages, in a ramp, before the next one does
DELETED_AT_ONCE = 4_000, 500  # in Premium, in Standard
RELEASE_SECONDS = 2.0  # how long releasing held messages may take before the connection is ended


class QueueWorker:
    """`error` is why it could not go on. `end` decides when `--once` is done.

    Most attributes are the state of the current connection, which other tasks interrupt and sample.
    """

    def __init__(self, queue: str, plan: RunPlan, ramp: Ramp | None = None) -> None:
        self.queue = queue
        self.end = QueueEnd(queue, plan, self._emit_progress)
        self.error: SbpairError | None = None
        self._plan = plan
        self._ramp = ramp
        self._failures = 0
        self._was_open = self._interrupted = False
        self._blocked_by: tuple[str, ...] = ()
        self._connections: WorkerConnections | None = None
        self._waits = Waits()
        self._mover: Mover | None = None
        self._skipped = SkippedMessages()
        self._last_used = 0.0
        self._turned_at: float | None = None
        self._unsettled: Sequence[ReceivedMessage] = ()
        self._refused: Sequence[ReceivedMessage] = ()
        self._prefetched: Sequence[Delivery] = ()
        self._unsettleable: list[str] = []

    async def run(self) -> None:
        """Empty the queue until done or stopped. Sets `error` instead of raising."""
        async with self._plan.in_turn or nullcontext():
            if self._left_to_send() > 0:
                await self._run()

    async def _run(self) -> None:
        plan = self._plan
        try:
            while not plan.stop.is_set():
                try:
                    is_done = await self._connect_and_move()
                except Unavailable as error:
                    if not await self._back_off(error):
                        return
                    continue
                if is_done:
                    plan.context.on_event(QueueDone(self.queue))
                    return
        except SbpairError as error:
            self._fail(error, None)
        finally:
            self._turned_at = None
            plan.context.tally.locked(self.queue, len(self.end.locked))
            self._report_stuck()

    def interrupt(self) -> None:
        """Move no more, without waiting for the receive or the attempt to connect."""
        self._interrupted = True
        if self._mover is not None:
            self._mover.halt()
        elif self._connections is not None:
            self._connections.source.interrupt()
        self._waits.end()

    def abort(self, error: Unavailable, *, source: bool = False) -> None:
        """End the connection to the destination; with `source`, both."""
        if self._connections is not None:
            (self._connections if source else self._connections.destination).abort(error)

    def fail(self, error: SbpairError) -> None:
        """Start no more sends because of an error that every message would meet. Pending sends finish."""
        if self._mover is not None:
            self._mover.fail(error)

    @property
    def held(self) -> int:
        """Messages received and not settled."""
        return 0 if self._mover is None else self._mover.held

    # For samples.

    @property
    def is_stuck(self) -> bool:
        """Whether it should have taken a turn: an attempt to connect, or a receive. A pause has no limit."""
        if self._turned_at is None:
            return False
        return asyncio.get_running_loop().time() - self._turned_at > self._plan.timings.stuck_seconds

    def _take_turn(self) -> None:
        self._turned_at = asyncio.get_running_loop().time()

    def report_progress(self) -> None:
        if self._mover is not None:
            self._emit_progress(self._mover)

    def waiting(self) -> dict[str, int]:
        """Return how many messages wait, by destination that backs off."""
        return self._mover.waiting() if self._mover is not None else {}

    async def oldest_ms(self) -> int | None:
        """Return when the first message was enqueued, in ms since 1970: from those held, otherwise by a peek."""
        if self._connections is None or self._mover is None:
            return None
        if self._mover.oldest_ms is not None:
            return self._mover.oldest_ms
        self._plan.context.tally.spent("management_calls", 1)
        page = await self._connections.source.peek(0, 1)
        return page[0].enqueued_at or None if page else None

    # Connections.

    async def _may_move(self) -> bool:
        """Wait until the gate is open. Return False for a run that stops."""
        self._turned_at = None
        await self._plan.gate.wait_open()
        self._take_turn()
        return not self._plan.stop.is_set()

    async def _connect_and_move(self) -> bool:
        """Move until done or stopped. Return False if a connection ended in a pause: connect again at once.

        The service ends connections that have had no links for some minutes.
        """
        if not await self._may_move():
            return True
        async with AsyncExitStack() as stack:
            plan = self._plan
            lock_seconds = plan.source_lock_seconds
            opening = open_connections(plan.request, plan.get_token, self.queue, plan.ends, lock_seconds, plan.context)
            connections = await self._waits.unless_ended(stack.enter_async_context(opening))
            if connections is None:
                return True
            self._connections, self._was_open = connections, True
            try:
                self._plan.context.on_event(QueueOpened(self.queue))
                await self._settle_left(connections.source)
                while await self._may_move():
                    if self._interrupted and connections.fault() is not None:
                        return False
                    if await self._move_until_closed(connections):
                        break
            finally:
                self._connections = None
        return True

    async def _move_until_closed(self, connections: WorkerConnections) -> bool:
        """Move until done or stopped, or until the gate closes. Return False if it did: all messages are back."""
        self._interrupted = False
        with self._plan.gate.passed(self.interrupt):
            if isinstance(connections.source, SessionsSource):
                await self._move_sessions(connections, connections.source)
            else:
                await self._delete_unseen(connections.source)
                await self._move(connections, self._skipped)
        return not self._interrupted

    async def _delete_unseen(self, source: RawSource) -> None:
        """Delete messages in batches, if all are to be removed and none is kept, as far as the service can."""
        plan, sizes = self._plan, [*DELETED_AT_ONCE]
        while plan.request.may_delete and sizes and not (plan.stop.is_set() or self._interrupted):
            self._take_turn()
            plan.context.tally.spent("management_calls", 1)
            try:
                count = await source.delete(sizes[0], plan.request.until_ms or 0)
            except ServiceRefused as error:
                log.info("%s: no deletion of %d messages at once: %s", self.queue, sizes.pop(0), error.message)
                continue
            except Unavailable:
                log.warning("%s: up to %d messages may be removed that are not counted", self.queue, sizes[0])
                raise
            if not count:
                return
            plan.context.tally.received(self.queue, count)
            plan.context.tally.sent(self.queue, REMOVED, count, 0)

    async def _move_sessions(self, connections: WorkerConnections, source: SessionsSource) -> None:
        """Move one session after the other, until none is left."""
        parked = ParkedSessions(source)
        parked.times = self._skipped.times  # those of earlier connections, and from before a pause
        renewing = asyncio.create_task(parked.keep_locked(self._plan.context), name=f"renew sessions of {self.queue}")
        try:
            idle = Mover(source, connections.destination, asyncio.TaskGroup(), self._plan.context, parked)
            while not (self._plan.stop.is_set() or self._interrupted or self._is_full(idle)):
                if await self._move_next(connections, source, idle, parked):
                    return
        finally:
            renewing.cancel()
            await parked.close(self._plan.context)

    async def _move_next(
        self, connections: WorkerConnections, source: SessionsSource, idle: Mover, parked: ParkedSessions
    ) -> bool:
        """Move the next session, if there is one. Return whether nothing remains to wait for."""
        plan = self._plan
        self._take_turn()
        seconds = self.end.poll_seconds if plan.request.once else SESSION_SECONDS
        session = await self._waits.unless_ended(source.next_session(seconds))
        if session is None:
            plan.context.tally.spent("empty_receives", 1)
            return plan.request.once and not self._interrupted and await self._is_empty(source, idle)
        self._connections = replace(connections, source=session)
        try:
            return await self._move(self._connections, parked.skipped_in(session), parked)
        finally:
            self._connections = connections
            if session not in parked:
                session.close()

    async def _settle_left(self, source: RawSource) -> None:
        """Settle what a lost connection left locked: complete what the destination accepted, and unlock the rest."""
        prefetched, self._prefetched = self._prefetched, ()
        await source.unlock(prefetched)
        left, self._unsettled = self._unsettled, ()
        journal = self._plan.context.journal
        accepted = [each for each in left if journal.was_accepted(each.key)]
        others = [each for each in left if not journal.was_accepted(each.key)]
        completed = await settle_left(source, accepted, others)
        journal.note_completed([each.key for each in completed])

    def _locked_still(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        now = asyncio.get_running_loop().time()
        return [message for message in messages if message.lock_until > now]

    async def _move(
        self, connections: WorkerConnections, skipped: SkippedMessages, parked: ParkedSessions | None = None
    ) -> bool:
        """Move what the source has. Return whether all that is left is new, or for destinations that back off."""
        plan, tasks = self._plan, asyncio.TaskGroup()
        failure: SbpairError | None = None
        skipped.source = connections.source
        plan.context.tally.backing_off(self.queue, ())
        mover = self._mover = Mover(connections.source, connections.destination, tasks, plan.context, skipped)
        destination_lost = partial(connections.destination_lost, mover.retry_now)
        try:
            async with tasks:
                background = (
                    tasks.create_task(mover.renew_locks()),
                    tasks.create_task(self._report(mover)),
                    # Wait for outstanding outcomes of sends; releasing held messages needs no wait.
                    tasks.create_task(connections.end_together(connections.source_lost, mover.fail)),
                    tasks.create_task(connections.end_together(destination_lost, mover.fail, RELEASE_SECONDS)),
                )
                try:
                    await self._drain(connections.source, mover)
                    failure = connections.fault() if mover.held and not plan.stop.is_set() else None
                except SbpairError as error:
                    failure = connections.fault() or error
                plan.context.missing.note_left(self.queue, mover.waiting())
                is_stuck = mover.held > 0
                if parked is not None and isinstance(connections.source, SessionSource):
                    parked.park(connections.source, skipped.detach())
                await mover.finish()
                self._emit_progress(mover)
                for task in background:
                    task.cancel()
        finally:
            self._mover = None
            plan.context.tally.backing_off(self.queue, mover.backing_off())
            if connections.source.broken is None:
                # Held messages remain only after a cancellation or a mistake. Their locks would outlive the connection.
                with suppress(TimeoutError):
                    async with asyncio.timeout(RELEASE_SECONDS):
                        await mover.release_held()
            mover.abandon_all()
            self._prefetched = connections.source.lost
            self._unsettled, self._refused = mover.unsettled, [*self._locked_still(self._refused), *mover.refused]
            self._unsettleable = list(mover.unsettleable(1).values())
        if plan.request.once and not plan.stop.is_set():
            # The backlog may not know all that was sent: the next connection completes it.
            failure = failure or mover.settlement_error
        failure = mover.fatal or failure
        if failure is not None:
            raise failure
        # Not before the end: each of them would come again at once.
        await connections.source.settle_by_token(self._locked_still(self._refused), RELEASED)
        return is_stuck or self.end.only_new

    # Receive.

    async def _drain(self, source: RawSource, mover: Mover) -> None:
        plan, loop = self._plan, asyncio.get_running_loop()
        self._last_used = loop.time()
        while not (plan.stop.is_set() or self._interrupted or mover.halted or self._is_full(mover)):
            if source.error is not None and mover.held:
                raise source.error
            self._take_turn()
            await self._touch_link(source, mover)
            if mover.room == 0:
                if await self._blocked(mover):
                    return
                continue
            self._blocked_by = ()
            messages = await self._take(source, mover, await self._receivable(mover))
            if messages is None:
                continue
            if messages:
                self._failures = 0
                self.end.received(messages, source.service_ms)
                if plan.context.rate_limiter is not None:
                    plan.context.rate_limiter.received(loop.time(), len(messages))
                self._emit_progress(mover)
                if plan.request.once and await self._waits.unless_ended(
                    self.end.only_new_remain(source, messages, mover)
                ):
                    await self._wait_settled(source, mover)
                    return
                continue
            plan.context.tally.spent("empty_receives", 1)
            if await self._is_over(source, mover):
                return

    async def _is_over(self, source: RawSource, mover: Mover) -> bool:
        """Return whether nothing remains to wait for, after a receive that returned nothing."""
        if isinstance(source, (AsideSource, SessionSource)):
            if mover.held:
                await mover.wait_changed(self._plan.timings.empty_wait_seconds)
            if mover.held or isinstance(source, SessionSource):
                return not mover.held or (self._plan.request.once and mover.stuck(TRIES))
            return bool(await self._waits.unless_ended(self.end.is_left_locked(source, mover)))
        return self._plan.request.once and not mover.halted and await self._is_empty(source, mover)

    async def _is_empty(self, source: RawSource, mover: Mover) -> bool:
        return bool(await self._waits.unless_ended(self.end.is_empty(source, mover)))

    async def _take(self, source: RawSource, mover: Mover, limit: int) -> Sequence[ReceivedMessage] | None:
        """Receive once, and move what came; None if nothing may be received now."""
        if limit == 0:
            return None
        if self._ramp is not None and self._ramp.is_limited:
            return await self._take_in_turn(self._ramp, source, mover, limit)
        messages = await self._receive(source, mover, limit)
        if messages:
            mover.accept(messages)
        return messages

    async def _take_in_turn(
        self, ramp: Ramp, source: RawSource, mover: Mover, limit: int
    ) -> Sequence[ReceivedMessage] | None:
        """Receive while no other worker does, so that all together take no more than the step permits."""
        async with ramp.turn:
            limit = min(limit, ramp.room)
            if limit == 0 or self._interrupted:
                return None
            is_shared = self._plan.request.source is None
            messages = await self._receive(source, mover, limit, TURN_SECONDS if is_shared else math.inf)
            if messages:
                try:
                    admitted = await ramp.admit(messages)
                except BaseException:
                    await source.release(messages)
                    raise
                if not admitted:
                    await source.release(messages)
                    return None
                mover.accept(messages)
            if is_shared:
                await source.stop()  # what it has prefetched may be another worker's share
        return messages

    async def _receive(
        self, source: RawSource, mover: Mover, limit: int, max_seconds: float = math.inf
    ) -> Sequence[ReceivedMessage]:
        """Receive once, and reopen the link each time the service closes it as unused."""
        loop = asyncio.get_running_loop()
        seconds = self.end.poll_seconds if self._plan.request.once else self._plan.timings.long_poll_seconds
        until = loop.time() + min(seconds, max_seconds)
        if mover.locked:
            until = min(until, self._last_used + UNUSED_SECONDS)
        # The order of a session needs all of its messages.
        is_filtered = self._plan.context.chosen is not None and not isinstance(source, SessionSource)
        receive = source.receive_for_filter if is_filtered else source.receive
        while not self._interrupted:
            self._take_turn()
            source.grant(limit)
            try:
                messages = await receive(limit, seconds=max(0.0, until - loop.time()))
            except Unavailable:
                if mover.locked or await self._waits.unless_ended(source.reopen()) is False:
                    raise
            else:
                self._last_used = loop.time() if messages else self._last_used
                return messages
        return ()

    async def _touch_link(self, source: RawSource, mover: Mover) -> None:
        """Keep the link alive while messages are held for long: they are settled over it."""
        now = asyncio.get_running_loop().time()
        if mover.locked and now - self._last_used >= UNUSED_SECONDS:
            await source.stop()
            await mover.touch_link()
            self._last_used = now

    async def _receivable(self, mover: Mover) -> int:
        """Return how many messages to receive; 0 after a wait for the rate, during which anything may change."""
        limiter, now = self._plan.context.rate_limiter, asyncio.get_running_loop().time()
        room = int(min(mover.room, self._allowed(mover)))
        if self._ramp is not None and self._ramp.is_limited:
            room = min(room, self._ramp.room)
        if limiter is None or room == 0:
            if room == 0:
                await mover.wait_changed(self._plan.timings.empty_wait_seconds)
            return room
        limit = min(room, limiter.receivable(now))
        if limit == 0:
            await mover.wait_changed(min(limiter.receive_delay(now), self._plan.timings.long_poll_seconds))
        return limit

    async def _blocked(self, mover: Mover) -> bool:
        """Wait for room. Return True if that makes no sense."""
        backing_off = tuple(sorted(mover.waiting()))
        if backing_off and backing_off != self._blocked_by:
            self._plan.context.on_event(QueueBlocked(self.queue, backing_off))
            self._blocked_by = backing_off
        if self._plan.request.once and mover.stuck(TRIES):
            return True
        await mover.wait_changed(self._plan.timings.empty_wait_seconds)
        return False

    def _left_to_send(self) -> float:
        """Return how many more messages may be sent, by all workers."""
        limit = self._plan.request.max_messages
        return math.inf if limit is None else limit - sum(self._plan.context.tally.sent_to().values())

    def _allowed(self, mover: Mover) -> float:
        """Return how many more messages may be received, if only so many may be sent."""
        return max(0, self._left_to_send() - mover.held)

    def _is_full(self, mover: Mover) -> bool:
        """Return whether as many messages as permitted were sent, or are held and will not be sent now."""
        ramp = self._ramp
        if ramp is not None and ramp.is_limited and ramp.room == 0 and mover.held:
            return self._plan.request.once and mover.stuck(TRIES)
        if self._plan.request.max_messages is None or self._allowed(mover):
            return False
        return not mover.held or (self._plan.request.once and mover.stuck(TRIES))

    async def _wait_settled(self, source: RawSource, mover: Mover) -> None:
        while mover.held and not mover.stuck(TRIES) and not mover.halted:
            if source.error is not None:
                raise source.error
            await mover.wait_changed(self._plan.timings.empty_wait_seconds)

    # Failures and progress.

    async def _back_off(self, error: Unavailable) -> bool:
        """Wait before the next connection. Return False if the worker ends instead."""
        self._failures = 1 if isinstance(error, TokenExpired) else self._failures + 1
        self._turned_at = None  # a namespace may be away for days
        plan = self._plan
        never_answered = isinstance(error, Silent) and plan.request.once and not self._was_open
        if never_answered or not plan.request.reconnect or (plan.request.once and self._failures >= TRIES):
            self._fail(error, None)
            return False
        away = None if plan.request.once else plan.ends.away
        backoff = plan.timings.backoff.seconds(self._failures, plan.context.jitter())
        self._fail(error, backoff if away is None else PROBE_SECONDS)
        if away is None:
            await set_within(plan.stop, backoff)
        elif not plan.stop.is_set():
            await self._waits.unless_ended(away.wait_turn())
        return True

    def _fail(self, error: SbpairError, retry_seconds: float | None) -> None:
        if retry_seconds is None:
            self.error = error
            # All workers share the key, state and lease: the others would fail one by one. And a watch without one of
            # its queues would look like a complete one.
            shared = isinstance(error, (AccessError, Unsafe, MachineLacks, SkipLimitReached))
            if shared or (isinstance(error, Unavailable) and not self._plan.request.once):
                self._plan.stop.set()
        since_ms, side = None, None
        if isinstance(error, Unavailable):
            away, side = self._plan.ends.away, error.side
            if away is not None:
                since_ms, side = away.away_since_ms, side or away.name
        reason = error.message
        if isinstance(error, EntityMissing) and self._plan.request.source is None:
            reason = f"not found in {self._plan.request.ends.source.name}; create missing queues with sbpair provision"
        self._plan.context.on_event(QueueFailed(self.queue, reason, retry_seconds, since_ms, side))

    def _report_stuck(self) -> None:
        """Set `error` for messages that could be neither sent nor dead-lettered."""
        if self._unsettleable and self.error is None:
            count, why = len(self._unsettleable), self._unsettleable[0]
            self.error = ServiceRefused(
                f"{count} message{'s' if count > 1 else ''} could neither be sent nor dead-lettered, and stayed: {why}",
                hint="the next run tries again",
            )

    async def _report(self, mover: Mover) -> None:
        """Emit progress after each change."""
        while True:
            await mover.wait_changed(self._plan.timings.long_poll_seconds)
            await asyncio.sleep(self._plan.timings.report_seconds)
            self._emit_progress(mover)

    def _emit_progress(self, mover: Mover, remaining: int | None = None) -> None:
        tally, queue = self._plan.context.tally, self.queue
        received, sent, gone = tally.count(queue, "received"), tally.count(queue, "sent"), tally.gone(queue)
        ends, skipped = (received, sent, mover.held, remaining, gone, mover.oldest_ms), tally.count(queue, "skipped")
        self._plan.context.on_event(QueueProgress(queue, *ends, *self.end.waits_for, skipped))
