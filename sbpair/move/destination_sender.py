"""The middle stage of a mover: sends the messages of one destination in the order of their source, retries included.

Invariant: the journal has a batch on disk before the batch is sent. A destination that fails backs off with its
messages, and the others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from sbpair.errors import EntityMissing, InDoubt, ProtocolError, SbpairError, ServiceRefused, Throttled, Unavailable
from sbpair.move.context import DEFAULT_BATCH_LIMITS
from sbpair.move.events import DestinationBackingOff, DestinationRecovered
from sbpair.move.failure_latch import set_within, start_task
from sbpair.move.interface import get_lock_until, get_message, get_place
from sbpair.move.message.route import Send, TimeToLive, missing, refused
from sbpair.move.settlement import BatchSend

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.failure_latch import FailureLatch
    from sbpair.move.interface import Destination, DestinationLink, ReceivedMessage, RoutedMessage
    from sbpair.move.message.route import Facts, Route
    from sbpair.move.settlement import Settlement
    from sbpair.rules.filters import TopicFilters

MAX_ROUND = 1_000
"""How many messages are sent in one round. Those beyond a batch are sent in the next one."""

UNORDERED_ROUNDS = 4
"""Rounds in progress for one destination, if the order does not matter."""


class DestinationQueue:
    """Waiting messages in the order of their source, and the batches that the destination accepts. Pure.

    It learns the size of batches from refusals.

    Invariant: of messages with an order among them, none is sent before those in front of it are accepted. All messages
    of a destination have one order, until it turns out to accept only messages of one key in a batch: then it is
    partitioned, and only messages of one key have an order among them.
    """

    def __init__(self, *, ordered: bool = True, min_round: int = DEFAULT_BATCH_LIMITS.min_round) -> None:
        self._ordered = ordered
        self._min_round = min_round
        self._waiting: deque[RoutedMessage] = deque()
        self._by_key = self._one_by_one = False
        self._suspects: set[int] = set()
        self._all_accepted, self._mixed_keys = True, False

    def __len__(self) -> int:
        """Count waiting messages, without those being sent."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[RoutedMessage]:
        return iter(self._waiting)

    @property
    def is_full_round(self) -> bool:
        """Whether a wait for more messages gains nothing: they are many, or are sent one by one anyway."""
        return len(self._waiting) >= self._min_round or not self._in_batches

    @property
    def _in_batches(self) -> bool:
        return not (self._by_key or self._one_by_one or self._suspects)

    def add(self, routed: Sequence[RoutedMessage]) -> None:
        """Add messages. A redelivery gets its old place, in front of those behind it in the source."""
        added = sorted(routed, key=get_place)
        if self._waiting and added[0].ordinal < self._waiting[-1].ordinal:
            self.put_back(added)
        else:
            self._waiting += added

    def take(self, limit: int) -> list[RoutedMessage]:
        if limit >= len(self._waiting):
            routed = list(self._waiting)
            self._waiting.clear()
            return routed
        return [self._waiting.popleft() for _ in range(limit)]

    def put_back(self, routed: Iterable[RoutedMessage]) -> None:
        """Add messages that were not accepted, each in its old place."""
        back = sorted(routed, key=get_place)
        if back and self._waiting and back[-1].ordinal > self._waiting[0].ordinal:
            self._waiting = deque(sorted([*back, *self._waiting], key=get_place))
        else:
            self._waiting.extendleft(reversed(back))

    def drop(self, message: ReceivedMessage) -> bool:
        """Remove a message. Return False if it does not wait here."""
        for routed in self._waiting:
            if routed.message is message:
                self._waiting.remove(routed)
                return True
        return False

    def next_round(self, limit: int, max_groups: int) -> list[list[RoutedMessage]]:
        """Remove and return groups of messages that may be sent at the same time, each in order."""
        if self._in_batches:
            return [self.take(min(limit, MAX_ROUND))] if max_groups and self._waiting else []
        groups: dict[str | int | None, list[RoutedMessage]] = {}
        closed: set[str | int | None] = set()
        kept: list[RoutedMessage] = []
        for routed in self.take(min(limit, MAX_ROUND)):
            alone = self._one_by_one or routed.ordinal in self._suspects
            key = self._group_key(routed, alone=alone)
            group = groups.get(key)
            if key in closed or (alone and group) or (group is None and len(groups) == max_groups):
                closed.add(key)
                kept.append(routed)
                continue
            groups.setdefault(key, []).append(routed)
            if alone:
                closed.add(key)
        self._waiting.extendleft(reversed(kept))
        return list(groups.values())

    def _group_key(self, routed: RoutedMessage, *, alone: bool) -> str | int | None:
        """Return the key of messages that may not overtake each other."""
        if alone and not self._ordered:
            return routed.ordinal
        return routed.partition_key if self._by_key else None

    def batch_refused(self, routed: Sequence[RoutedMessage]) -> None:
        """Send each of these alone from now on: one of them is the cause, or the batch as such."""
        self._suspects.update(each.ordinal for each in routed)
        self._all_accepted = True
        self._mixed_keys = len({each.partition_key for each in routed}) > 1

    def sent_alone(self, routed: RoutedMessage, *, accepted: bool) -> None:
        """Record an outcome. If each message of a refused batch is accepted alone, the batch was the cause."""
        if routed.ordinal not in self._suspects:
            return
        self._suspects.discard(routed.ordinal)
        self._all_accepted = self._all_accepted and accepted
        if not self._suspects and self._all_accepted:
            self._one_by_one = self._one_by_one or not self._mixed_keys
            self._by_key = self._by_key or self._mixed_keys


class DestinationSender:
    """`failures` counts those in a row. `backoff_reason` is why nothing is sent for now, and `backoff_hint` the remedy.

    `rounds` are in progress, with `sending` messages.
    """

    def __init__(
        self,
        destination: str,
        *,
        source_queue: str,
        namespace: Destination,
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
        self.rounds = self.sending = 0
        self._cost: float | None = None
        self._source_queue = source_queue
        self._namespace = namespace
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
        link = await self._latch.links.unless_ended(self._namespace.ready(self.destination))
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
        elif not batches:
            await asyncio.sleep(0)  # redeliveries of returned messages take their places, before those behind them
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
                # They are delivered again, here or to another receiver: their redeliveries go before those behind them.
                for each in group:
                    if each.message.lock_until > now:
                        left_over.append(each)
                    else:
                        self._settlement.count_returned(each.message)
                continue
            if self._context.ttl is TimeToLive.REMAINING:
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
            if await set_within(self._latch.stopping, seconds):
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
        count = sum(len(batch.routed) for batch in batches)
        self.sending += count
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
            self.sending -= count
            self._record_outcomes(batches, accepted)
        self._settlement.settle_soon()
        if len(accepted) < len(batches):
            with suppress(SbpairError):  # the next batch reports it; a crash leaves no doubt about refused ones
                await self._context.journal.flush()
        if worst is not None:
            raise worst
        if self.backoff_reason is not None:
            self._context.missing.found(self.destination)
        self._clear_failures()

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
            decision = missing(self.destination, self._context.missing.namespace)
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

    def _clear_failures(self) -> None:
        if self.backoff_reason is not None:
            self._context.on_event(DestinationRecovered(self._source_queue, self.destination))
        self.backoff_reason, self.failures = None, 0

    async def _back_off(self, error: SbpairError) -> None:
        self.failures += 1
        self.backoff_reason, self.backoff_hint = error.message, error.hint
        if isinstance(error, Throttled) and self._context.rate_limiter is not None:
            self._context.rate_limiter.on_busy(self._loop.time())
        seconds = self._context.timings.backoff.seconds(self.failures, self._context.jitter())
        self._context.on_event(
            DestinationBackingOff(self._source_queue, self.destination, error.message, seconds, len(self.queue))
        )
        self._latch.changed.set()
        await self._latch.backoffs.unless_ended(self._latch.stopping.wait(), seconds)


class DestinationSenders:
    """The senders of a worker, one per destination, created on demand by `new_sender`; and when each starts a round.

    Many messages are sent at once; few wait a moment for more. Invariant: once the mover is stopping no round starts,
    and those in progress finish.
    """

    def __init__(
        self,
        new_sender: Callable[[str], DestinationSender],
        tasks: asyncio.TaskGroup,
        context: MoveContext,
        latch: FailureLatch,
    ) -> None:
        self._new_sender = new_sender
        self._tasks = tasks
        self._latch = latch
        self._gather_seconds = context.timings.gather_seconds
        self._max_rounds = 1 if context.ordered else UNORDERED_ROUNDS
        self._senders: dict[str, DestinationSender] = {}
        self._by_spelling: dict[str, DestinationSender] = {}
        self._gathering = False

    def __iter__(self) -> Iterator[DestinationSender]:
        return iter(self._senders.values())

    def to(self, destination: str) -> DestinationSender:
        return self._by_spelling.get(destination) or self._add_spelling(destination)

    def _add_spelling(self, destination: str) -> DestinationSender:
        # Service Bus compares paths without regard to case: one sender for every spelling.
        name = destination.lower()
        sender = self._senders.get(name)
        if sender is None:
            sender = self._senders[name] = self._new_sender(destination)
        self._by_spelling[destination] = sender
        return sender

    # The messages of all senders.

    @property
    def busy(self) -> bool:
        return any(sender.rounds for sender in self)

    def backing_off(self) -> list[DestinationSender]:
        return [sender for sender in self if sender.backoff_reason is not None]

    def count_stuck(self, failures: int) -> int:
        """Count messages of destinations with so many failures in a row. A next attempt may be in progress."""
        return sum(len(sender.queue) + sender.sending for sender in self if sender.failures >= failures)

    def waiting(self) -> list[ReceivedMessage]:
        """Return the messages that are not being sent."""
        return [routed.message for sender in self for routed in sender.queue]

    def drop(self, message: ReceivedMessage) -> bool:
        """Remove a message from its queue. Return False if it waits in none."""
        return any(sender.queue.drop(message) for sender in self)

    def drop_newest(self) -> ReceivedMessage | None:
        """Remove and return the last of all waiting messages."""
        newest = max((routed for sender in self for routed in sender.queue), key=get_place, default=None)
        if newest is None:
            return None
        self.to(newest.send.destination).queue.drop(newest.message)
        return newest.message

    # Rounds.

    def send(self, destination: str, routed: Sequence[RoutedMessage]) -> None:
        """Queue messages for a destination, and send them now or soon."""
        sender = self.to(destination)
        sender.queue.add(routed)
        self._schedule(sender)

    def _schedule(self, sender: DestinationSender) -> None:
        if self._may_start(sender):
            if sender.is_due:
                self._start(sender)
            elif not self._gathering:
                self._gathering = True
                start_task(self._tasks, self._gather(), "gather")

    def _may_start(self, sender: DestinationSender) -> bool:
        return len(sender.queue) > 0 and sender.rounds < self._max_rounds and not self._latch.stopping.is_set()

    def _start(self, sender: DestinationSender) -> None:
        sender.rounds += 1
        start_task(self._tasks, self._run(sender), f"send to {sender.destination}")

    async def _gather(self) -> None:
        await asyncio.sleep(self._gather_seconds)
        self._gathering = False
        for sender in self:
            if self._may_start(sender):
                self._start(sender)

    async def _run(self, sender: DestinationSender) -> None:
        try:
            while len(sender.queue) and not self._latch.stopping.is_set():
                await sender.send_round()
                if not sender.is_due:
                    break
        finally:
            sender.rounds -= 1
            self._latch.changed.set()
        self._schedule(sender)
