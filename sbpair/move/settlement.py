"""The last stage of a mover: settles deliveries in the source, and counts each in one bucket of the receipt.

Invariant: a delivery is completed only after the destination accepted its message, and after the journal recorded that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import zip_longest
from typing import TYPE_CHECKING

from sbpair.errors import InDoubt, SbpairError, SkipLimitReached, Unavailable
from sbpair.model.cost import UNIT_BYTES, units
from sbpair.move.events import DeadLettered
from sbpair.move.failure_latch import start_task
from sbpair.move.held import HeldMessages
from sbpair.move.interface import get_key, get_message, get_size
from sbpair.move.message.route import DeadLetter, Expire
from sbpair.move.receipt import NamedMessage, RenumberedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from sbpair.move.context import MoveContext
    from sbpair.move.failure_latch import FailureLatch
    from sbpair.move.held import SkippedMessages
    from sbpair.move.interface import (
        Batch,
        DestinationLink,
        Failures,
        KeptMessage,
        MessageSource,
        ReceivedMessage,
        RoutedMessage,
        SendOutcome,
    )
    from sbpair.runs.journal import Key

log = logging.getLogger(__name__)

DEAD_LETTER_TRIES = 3
"""How often the source may refuse to dead-letter a message before it counts as unsettleable."""

MAX_UNSETTLED = 10_000
"""Limit of remembered deliveries that ended without a confirmation. The locks of others expire by themselves."""

MAX_SHARE = 0.8
"""Share of the held messages that are accepted, from which nothing waits any more."""


class BatchSend:
    """Messages that are accepted or refused together. `number` is the journal's for them."""

    def __init__(self, routed: Sequence[RoutedMessage], batch: Batch) -> None:
        self.routed = routed
        self.messages: list[ReceivedMessage] = list(map(get_message, routed))
        self.keys: list[Key] = list(map(get_key, self.messages))
        self.number = 0
        self.batch = batch
        self._outcome: SendOutcome | None = None

    @property
    def pending(self) -> bool:
        """Whether it was sent and has no outcome yet."""
        return self._outcome is not None

    @property
    def size(self) -> int:
        return sum(map(get_size, self.messages))

    def start(self, link: DestinationLink) -> SbpairError | None:
        """Send it. Return why it was not sent, or None."""
        try:
            self._outcome = link.send(self.batch)
        except SbpairError as error:
            return error
        return None

    async def outcome(self) -> SbpairError | None:
        """Wait for the outcome: None if accepted. If the wait is cancelled, it stays pending."""
        assert self._outcome is not None  # noqa: S101  it was started
        error: SbpairError | None = None
        try:
            await self._outcome()
        except SbpairError as refusal:
            error = refusal
        self._outcome = None
        return error


class Settlement:
    """Held messages, and each way in which a delivery ends.

    `error` is why the source may not know the end of some messages. `unsettled` are deliveries that ended without a
    confirmation, and are perhaps still locked; `refused`, those that could not be dead-lettered.
    """

    def __init__(
        self,
        source: MessageSource,
        tasks: asyncio.TaskGroup,
        context: MoveContext,
        latch: FailureLatch,
        skipped: SkippedMessages,
    ) -> None:
        self.held = HeldMessages()
        self.skipped = skipped
        self.error: Unavailable | None = None
        self.unsettled: deque[ReceivedMessage] = deque(maxlen=MAX_UNSETTLED)
        self.refused: deque[ReceivedMessage] = deque(maxlen=MAX_UNSETTLED)
        self._source = source
        self._tasks = tasks
        self._context = context
        self._latch = latch
        self._in_doubt: set[int] = set()
        self._ends: dict[int, asyncio.Future[None]] = {}
        name = f"settle in {source.queue}"
        self._accepted = SettlementBuffer(self.held, tasks, self._complete_accepted, name, context)
        self.settle_soon = self._accepted.settle_soon
        self.flush = self._accepted.flush

    def unsettleable(self, times: int = DEAD_LETTER_TRIES) -> dict[int, str]:
        """Return why messages of the queue could not be dead-lettered so often, by sequence number."""
        queue, refusals = self._source.queue.lower(), self._context.dead_letter_refusals.items()
        return {key[2]: why for key, (count, why) in refusals if key[1] == queue and count >= times}

    def spend(self, operation: str, messages: Sequence[ReceivedMessage]) -> None:
        """Count billable operations."""
        self.spend_sizes(operation, len(messages), map(get_size, messages))

    def spend_sizes(self, operation: str, count: int, sizes: Iterable[int]) -> None:
        """Count billable operations on so many messages. Their sizes are not read while none has been large."""
        if operation == "sent" and self._context.removes:
            return
        if self.held.largest > UNIT_BYTES:
            count += sum([units(size) - 1 for size in sizes if size > UNIT_BYTES])
        self._context.tally.spent(operation, count)

    def end_of(self, message: ReceivedMessage) -> asyncio.Future[None]:
        """Return a future that is done once a held delivery has ended."""
        return self._ends.setdefault(id(message), asyncio.get_running_loop().create_future())

    # Accepted by the destination.

    def record_accepted(self, destination: str, batches: Sequence[BatchSend]) -> None:
        """Count batches as sent, and complete their messages soon after `settle_soon`."""
        for batch in batches:
            self._context.tally.sent(self._source.queue, destination, len(batch.messages), batch.size)
            self.spend("sent", batch.messages)
            self._accepted.add(batch.messages)
            if self._context.record_renumbered is not None:
                self._name_renumbered(batch.messages, batch.batch.numbers, destination)
        self._context.journal.note_accepted([batch.number for batch in batches])

    def end_already_sent(self, message: ReceivedMessage) -> None:
        """End a delivery, without completing it, whose message the destination accepted before."""
        self._end(message, "already_sent")

    def complete_already_sent(self, message: ReceivedMessage) -> None:
        """Complete a message that the destination accepted before."""
        self._context.tally.ended(self._source.queue, "already_sent")
        if self._context.record_renumbered is not None:
            self._name_renumbered([message], (), None)
        self._spawn(self._complete([message]), message)

    def _name_renumbered(
        self, messages: Sequence[ReceivedMessage], numbers: Sequence[int], destination: str | None
    ) -> None:
        """Name messages that applications know by their numbers, with the new ones where these are known."""
        for message, number in zip_longest(messages, numbers):
            facts = message.facts
            old = facts.queue, facts.sequence_number, facts.message_id
            to = None if self._context.removes else destination
            self._context.tally.renumbered(RenumberedMessage(*old, number, to))

    async def _complete_accepted(self, messages: list[ReceivedMessage]) -> None:
        if self._context.record_renumbered is not None:
            self._context.record_renumbered()  # the journal knows no new number
        try:
            await self._context.journal.flush()
        except SbpairError as error:
            # The destination has them all the same; but nothing more is sent.
            self._latch.fail(error)
        await self._complete(messages)

    async def _complete(self, messages: list[ReceivedMessage]) -> None:
        """Complete accepted messages. A failure changes no count."""
        self.spend("received", messages)
        failures = await self._source.complete(messages)
        done = messages
        if failures:
            self._log_failures("completed", failures)
            failed = {id(message) for message, _ in failures}
            done = [message for message in messages if id(message) not in failed]
        self._context.journal.note_completed(list(map(get_key, done)))
        self._end_all(messages)

    # Not accepted.

    def turn_away(self, message: ReceivedMessage, decision: DeadLetter | Expire) -> None:
        """Dead-letter a message that cannot be sent, or leave it in its source."""
        if self._context.keeps_refused:
            self.skip([message], decision.description)
            return
        self._spawn(self._dead_letter(message, decision), message)

    async def release(self, messages: list[ReceivedMessage]) -> None:
        """Unlock messages. If that fails, they are back in the source once their locks expire."""
        self.spend("received", messages)
        self._log_failures("released", await self._source.release(messages))
        for message in messages:
            self.count_returned(message)

    def skip(self, messages: Sequence[ReceivedMessage], reason: str | None = None) -> None:
        """Keep messages in the source, locked until the run ends.

        With a `reason`, each is named in the receipt, and may be held; without, none is held. Beyond the limit they
        are released, and the run ends.
        """
        context, queue = self._context, self._source.queue
        room = max(0, context.max_skipped - context.tally.skipped)
        if len(messages) > room:
            self._latch.fail(_limit_reached(context.max_skipped))
            self._spawn(self.release([self._hold(each) for each in messages[room:]]), messages[room])
            messages = messages[:room]
        self.skipped.add(messages)
        context.tally.ended(queue, "skipped", len(messages))
        if reason is None:
            return
        for message in messages:
            context.tally.stayed(_named(message, reason))
            self._end(message, None)

    def has_room_to_skip(self, count: int) -> bool:
        """Return whether so many more messages may be skipped."""
        return count <= self._context.max_skipped - self._context.tally.skipped

    def skip_kept(self, kept: Sequence[KeptMessage]) -> None:
        """Keep messages in the source, as `skip` does, for which there is room."""
        self.skipped.add_kept(kept)
        self._context.tally.ended(self._source.queue, "skipped", len(kept))

    def _hold(self, message: ReceivedMessage) -> ReceivedMessage:
        if message not in self.held:
            self.held.add(message)
        return message

    async def release_skipped(self) -> None:
        """Unlock skipped messages, with their delivery counts unchanged."""
        self._context.tally.spent("received", await self.skipped.release_all())

    def count_returned(self, message: ReceivedMessage) -> None:
        """End a delivery that is back in the source: as released, or in doubt. No-op if it ended before."""
        if message not in self.held:
            return
        key = message.key
        if self._context.journal.was_accepted(key):
            self._end(message, None)  # counted when the destination accepted it
            return
        self._context.journal.note_returned([key])
        self._end(message, "in_doubt" if id(message) in self._in_doubt else "released")

    def doubt(self, batch: BatchSend, why: str) -> None:
        """Record that a batch was sent without an outcome. Each message is named once: it may arrive twice."""
        self._context.journal.note_in_doubt(batch.number)
        self.spend("sent", batch.messages)
        for message in batch.messages:
            if id(message) not in self._in_doubt:
                self._in_doubt.add(id(message))
                self._context.tally.doubtful(_named(message, why))

    async def end_held(self) -> None:
        """Complete messages that the destination accepted, and release the others."""
        accepted = [message for message in self.held if self._context.journal.was_accepted(message.key)]
        if accepted:
            await self._complete_accepted(accepted)
        if rest := list(self.held):
            await self.release(rest)

    def return_all(self) -> None:
        """End everything held: the messages are in the source, and locked until their locks expire."""
        self.unsettled += self.held
        for message in self.held:
            self.count_returned(message)

    async def _dead_letter(self, message: ReceivedMessage, decision: DeadLetter | Expire) -> None:
        context, reason = self._context, decision.reason.value
        self.spend("received", [message])
        try:
            await self._source.dead_letter(message, reason, decision.description)
        except SbpairError as error:
            # Not released, or it would come again at once: it stays locked until its lock expires.
            count, _ = context.dead_letter_refusals.get(message.key, (0, ""))
            context.dead_letter_refusals[message.key] = (count + 1, error.message)
            if count + 1 < DEAD_LETTER_TRIES:
                self._log_failures("dead-lettered", [(message, error)])
            if not isinstance(error, InDoubt):
                self.refused.append(message)
            self.count_returned(message)
            return
        context.dead_letter_refusals.pop(message.key, None)
        named = _named(message, decision.description)
        bucket = "expired" if isinstance(decision, Expire) else "dead_lettered"
        context.tally.dead_lettered(named, reason, bucket=bucket)
        context.on_event(
            DeadLettered(named.queue, named.sequence_number, named.message_id, reason, named.reason, named.destination)
        )
        context.journal.note_completed([message.key])
        self._end(message, None)

    def _log_failures(self, action: str, failures: Failures) -> None:
        if failures:
            numbers = ", ".join(str(message.facts.sequence_number) for message, _ in failures[:10])
            log.info("%s: not %s: %s: %s", self._source.queue, action, numbers, failures[0][1])
        for message, error in failures:
            if isinstance(error, Unavailable):
                self.error = error
                if action != "dead-lettered" or isinstance(error, InDoubt):
                    self.unsettled.append(message)

    # The end of a delivery.

    def _end_all(self, messages: list[ReceivedMessage]) -> None:
        """End deliveries that were counted before."""
        if self._in_doubt or self._ends:
            for message in messages:
                self._end(message, None)
            return
        self.held.remove_all(messages)
        self._latch.changed.set()

    def _end(self, message: ReceivedMessage, bucket: str | None) -> None:
        if not self.held.remove(message):
            return
        self._in_doubt.discard(id(message))
        if bucket is not None:
            self._context.tally.ended(self._source.queue, bucket)
        self._latch.changed.set()
        if self._ends and (end := self._ends.pop(id(message), None)) is not None:
            end.add_done_callback(lambda _: self._latch.changed.set())  # again, after those who wait for this end
            end.set_result(None)

    def _spawn(self, ending: Coroutine[object, object, None], message: ReceivedMessage) -> None:
        start_task(self._tasks, ending, f"settle {message.facts.sequence_number}")


def _limit_reached(limit: int) -> SkipLimitReached:
    return SkipLimitReached(
        f"{limit} messages are skipped and kept locked, which is the limit",
        hint="choose more messages, or raise --max-skipped: a skipped message takes about 400 bytes of memory",
    )


def _named(message: ReceivedMessage, reason: str) -> NamedMessage:
    facts = message.facts
    return NamedMessage(facts.queue, facts.sequence_number, facts.message_id, facts.path, reason)


class SettlementBuffer:
    """Accepted messages among `held` that wait to be completed together; `settle` gets those.

    Destinations take turns in a source, and one disposition completes a contiguous range of deliveries. So accepted
    messages wait a little for those between them.
    """

    def __init__(
        self,
        held: HeldMessages,
        tasks: asyncio.TaskGroup,
        settle: Callable[[list[ReceivedMessage]], Coroutine[object, object, None]],
        name: str,
        context: MoveContext,
    ) -> None:
        self._held = held
        self._tasks = tasks
        self._settle = settle
        self._name = name
        self._batch_limits = context.batch_limits
        self._max_seconds = context.timings.settle_seconds
        self._accepted: dict[ReceivedMessage, None] = {}
        self._timer: asyncio.Task[None] | None = None
        self._flushing = self._deciding = False

    def add(self, messages: Sequence[ReceivedMessage]) -> None:
        self._accepted.update(dict.fromkeys(messages))

    def settle_soon(self) -> None:
        """Settle the leading messages if they are many, or all of them if a wait gains nothing.

        Decides at the end of this turn of the loop: until then, more messages between them may be accepted.
        """
        limit = min(self._batch_limits.min_contiguous, self._max_unsettled)
        if not self._deciding and (self._flushing or len(self._accepted) >= limit):
            self._deciding = True
            start_task(self._tasks, self._settle_due(), self._name)
        if self._accepted and self._timer is None:
            self._timer = start_task(self._tasks, self._settle_late(), self._name)

    def flush(self) -> None:
        """Let nothing wait from now on."""
        self._flushing = True
        self.settle_soon()

    @property
    def _max_unsettled(self) -> float:
        return min(self._batch_limits.max_unsettled, MAX_SHARE * len(self._held))

    async def _settle_due(self) -> None:
        self._deciding = False
        leading = [] if self._flushing else self._held.leading(self._accepted)
        if len(leading) >= self._batch_limits.min_contiguous:
            deque(map(self._accepted.__delitem__, leading), maxlen=0)
            await self._settle(leading)
        elif self._flushing or len(self._accepted) >= self._max_unsettled:
            await self._settle_all()

    async def _settle_late(self) -> None:
        await asyncio.sleep(self._max_seconds)
        self._timer = None
        await self._settle_all()

    async def _settle_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._accepted:
            messages, self._accepted = list(self._accepted), {}
            await self._settle(messages)
