"""The middle stage of a mover: sends the messages of one destination, in backlog order, also across a retry.

Invariant: the journal has a batch on disk before the batch is sent. A destination that fails backs off with its
messages, and the others go on.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sbpair.errors import EntityMissing, InDoubt, ProtocolError, SbpairError, ServiceRefused, Throttled, Unavailable
from sbpair.move.destination_queue import MAX_ROUND, DestinationQueue
from sbpair.move.events import DestinationBackingOff, DestinationRecovered
from sbpair.move.interface import get_lock_until, get_message
from sbpair.move.message.route import Send, TimeToLive, missing, refused
from sbpair.move.settlement import BatchSend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbpair.move.context import MoveContext
    from sbpair.move.failure_latch import FailureLatch
    from sbpair.move.interface import Destination, DestinationLink, RoutedMessage
    from sbpair.move.message.route import Facts, Route
    from sbpair.move.settlement import Settlement
    from sbpair.rules.filters import TopicFilters


class DestinationSender:
    """`failures` counts those in a row. `backoff_reason` is why nothing is sent for now, and `backoff_hint` the remedy.

    `rounds` are in progress.
    """

    def __init__(
        self,
        destination: str,
        *,
        backlog_queue: str,
        primary: Destination,
        route: Callable[[Sequence[Facts]], list[Route]],
        settlement: Settlement,
        context: MoveContext,
        latch: FailureLatch,
    ) -> None:
        self.destination = destination
        self.queue = DestinationQueue(ordered=context.ordered, min_round=context.batch_limits.min_round)
        self.failures = 0
        self.backoff_reason: str | None = None
        self.backoff_hint = ""
        self.rounds = 0
        self._cost: float | None = None
        self._backlog_queue = backlog_queue
        self._primary = primary
        self._route = route
        self._settlement = settlement
        self._context = context
        self._latch = latch
        self._loop = asyncio.get_running_loop()

    @property
    def is_due(self) -> bool:
        """Whether the next round should not wait for more messages."""
        return self.backoff_reason is not None or self.queue.is_full_round

    async def send_round(self) -> None:
        """Send messages from the head of the queue, and handle their outcomes."""
        try:
            link = await self._link()
            if self._context.send_cost is not None and self._cost is None:
                self._cost = await self._context.send_cost(self.destination)
            if link is not None:
                await self._send_over(link, await self._filters())
        except (Unavailable, ProtocolError) as error:
            await self._back_off(error)
        except (ServiceRefused, EntityMissing) as error:
            held = self._refuse(self.queue.take(MAX_ROUND), error)
            if held is not None:
                await self._back_off(held)
        except SbpairError as error:
            self._latch.fail(error)

    async def _link(self) -> DestinationLink | None:
        """Wait until the destination accepts a message; None if the mover is stopping."""
        link = await self._latch.unless_aborted(self._primary.ready(self.destination))
        return None if self._latch.stopping.is_set() else link

    async def _filters(self) -> TopicFilters | None:
        """Return the filters of a topic that may discard messages; None for any other destination."""
        topics = self._context.topics
        if topics is None:
            return None
        return await topics.filters(self.destination, again=self.backoff_reason is not None)

    async def _send_over(self, link: DestinationLink, filters: TopicFilters | None) -> None:
        batches, held = self._form_batches(link, filters)
        recorded = False
        try:
            if batches and await self._within_rate(batches):
                await self._record_sending(batches)
                recorded = True
        finally:
            if not recorded:
                self.queue.put_back(routed for batch in batches for routed in batch.routed)
        if recorded:
            await self._send_batches(link, batches)
        if held is not None:
            raise held

    # Form batches.

    def _form_batches(
        self, link: DestinationLink, filters: TopicFilters | None
    ) -> tuple[list[BatchSend], Unavailable | None]:
        """Return batches to send now, and why messages behind them may not be sent."""
        batches: list[BatchSend] = []
        held: Unavailable | None = None
        left_over: list[RoutedMessage] = []
        now = self._loop.time()
        for group in self.queue.next_round(self._max_messages(), link.credit):
            routed = group
            if min(map(get_lock_until, map(get_message, group))) <= now:
                # Their redeliveries go before those behind them.
                self._return_lost(group, now)
                left_over += [each for each in group if each.message.lock_until > now]
                continue
            if self._context.ttl is not TimeToLive.ORIGINAL:
                routed = [each for each in map(self._routed_again, routed) if each is not None]
            if filters is not None and self._context.topics is not None:
                count, held = (0, held) if held else self._context.topics.admit(filters, routed, self._context.now_ms())
                left_over += routed[count:]
                routed = routed[:count]
            if routed:
                batch = link.encode(routed)
                batches.append(BatchSend(routed[: batch.count], batch))
                left_over += routed[batch.count :]
        if left_over:
            self.queue.put_back(left_over)
        return batches, held

    def _return_lost(self, group: list[RoutedMessage], now: float) -> None:
        """Return messages whose lock has expired: they are delivered again, here or to another receiver."""
        for routed in group:
            if routed.message.lock_until <= now:
                self._settlement.count_returned(routed.message)

    def _routed_again(self, routed: RoutedMessage) -> RoutedMessage | None:
        """Route again: with a remaining time to live, the decision changes with time."""
        [decision] = self._route([routed.message.facts])
        if isinstance(decision, Send):
            return routed._replace(send=decision)
        self._settlement.turn_away(routed.message, decision)
        return None

    def _max_messages(self) -> int:
        limiter = self._context.rate_limiter
        if limiter is None:
            return MAX_ROUND
        return min(MAX_ROUND, limiter.max_batch(self._loop.time(), self._cost or 1.0))

    # Before they are sent.

    async def _within_rate(self, batches: list[BatchSend]) -> bool:
        """Wait as the rate demands. Return False if the batches may not be sent any more."""
        limiter = self._context.rate_limiter
        if limiter is None:
            return True
        count = sum(len(batch.routed) for batch in batches)
        seconds = limiter.reserve(self._loop.time(), count, self._cost or 1.0)
        while seconds > 0.0:
            if await self._latch.stopping_within(seconds):
                return False
            seconds = limiter.pause_seconds(self._loop.time())
        now = self._loop.time()
        return all(message.lock_until > now for batch in batches for message in batch.messages)

    async def _record_sending(self, batches: list[BatchSend]) -> None:
        journal = self._context.journal
        numbers = journal.note_sending([batch.keys for batch in batches], self.destination)
        try:
            await journal.flush()
            journal.may_send()  # the write may have taken longer than the lease lasts
        except BaseException:
            for number in numbers:
                journal.note_unsent(number)
            raise
        for batch, number in zip(batches, numbers, strict=True):
            batch.number = number

    # Send them.

    async def _send_batches(self, link: DestinationLink, batches: list[BatchSend]) -> None:
        """Send batches at once, and wait for every outcome. Raises the error to back off for."""
        accepted: list[BatchSend] = []
        worst: SbpairError | None = None
        try:
            for batch in batches:
                if worst is not None:
                    self._put_back_unsent(batch)
                elif (error := batch.start(link)) is not None:
                    worst = self._on_failure(batch, error)
            for batch in batches:
                if not batch.pending:
                    continue
                error = await batch.outcome()
                if error is None:
                    accepted.append(batch)
                else:
                    worst = self._on_failure(batch, error) or worst
        finally:
            self._record_outcomes(batches, accepted)
        self._settlement.settle_soon()
        if worst is not None:
            raise worst
        self._recover()

    def _record_outcomes(self, batches: list[BatchSend], accepted: list[BatchSend]) -> None:
        for batch in batches:
            if batch.pending:
                self._settlement.doubt(batch, "the send was cancelled")
                self.queue.put_back(batch.routed)
        for batch in accepted:
            if self._context.topics is not None:
                self._context.topics.accepted(self.destination, batch.keys)
            if len(batch.routed) == 1:
                self.queue.sent_alone(batch.routed[0], accepted=True)
        self._settlement.record_accepted(self.destination, accepted)

    def _on_failure(self, batch: BatchSend, error: SbpairError) -> SbpairError | None:
        """Handle a batch that was not accepted. Return the error to back off for, if any."""
        if isinstance(error, InDoubt):
            self._settlement.doubt(batch, error.message)
            self.queue.put_back(batch.routed)
            return error
        if isinstance(error, (ServiceRefused, EntityMissing)):
            self._context.journal.note_unsent(batch.number)
            if isinstance(error, ServiceRefused) and len(batch.routed) > 1:
                self.queue.batch_refused(batch.routed)
                self.queue.put_back(batch.routed)
                return None
            return self._refuse(batch.routed, error)
        self._put_back_unsent(batch)
        return error

    def _put_back_unsent(self, batch: BatchSend) -> None:
        self._context.journal.note_unsent(batch.number)
        self.queue.put_back(batch.routed)

    def _refuse(self, refused_messages: Sequence[RoutedMessage], error: SbpairError) -> SbpairError | None:
        """Dead-letter messages. If the destination is missing and held, return the error to back off for."""
        decision, held = refused(self.destination, error.message), None
        if isinstance(error, EntityMissing):
            decision = missing(self.destination)
            allowed = self._context.missing.allow(self.destination, len(refused_messages))
            if allowed < len(refused_messages):
                self.queue.put_back(refused_messages[allowed:])
                refused_messages = refused_messages[:allowed]
                held = self._context.missing.hold_error(self.destination)
        if held is None:
            self._clear_failures()
        for routed in refused_messages:
            self.queue.sent_alone(routed, accepted=False)
            self._settlement.turn_away(routed.message, decision)
        return held

    # After a failure.

    def _recover(self) -> None:
        if self.backoff_reason is not None:
            self._context.missing.found(self.destination)
        self._clear_failures()

    def _clear_failures(self) -> None:
        if self.backoff_reason is not None:
            self._context.on_event(DestinationRecovered(self._backlog_queue, self.destination))
        self.backoff_reason, self.failures = None, 0

    async def _back_off(self, error: SbpairError) -> None:
        self.failures += 1
        self.backoff_reason, self.backoff_hint = error.message, error.hint
        if isinstance(error, Throttled) and self._context.rate_limiter is not None:
            self._context.rate_limiter.on_busy(self._loop.time())
        seconds = self._context.timings.backoff.seconds(self.failures, self._context.jitter())
        self._context.on_event(
            DestinationBackingOff(self._backlog_queue, self.destination, error.message, seconds, len(self.queue))
        )
        self._latch.changed.set()
        await self._latch.back_off(seconds)
