"""The engine: messages that are put in, received under lock, settled, peeked at, and that expire.

Synchronous; the clock and the way to run something soon are arguments; it knows no protocol and looks into no message.
An entity has one of these for its messages and one for its dead letters. Every operation first does what is due by
the clock, so that what it answers does not depend on when the timer runs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from sbpair.emulator.clock import NEVER, Clock
from sbpair.emulator.entities.locks import Locks
from sbpair.emulator.entities.message_order import Deadlines, MessageStore, ReadyQueue
from sbpair.emulator.entities.stored_message import ACTIVE, DEFERRED, GONE, LOCKED, SCHEDULED, StoredMessage
from sbpair.emulator.service_errors import MessageLockExpired, MessageNotFound, NotAllowed, ServiceError

if TYPE_CHECKING:
    from sbpair.emulator.timers import Timers

CallSoon = Callable[[Callable[[], None]], object]
"""Runs something soon: a loop's `call_soon`, so that a burst of sends wakes a receiver once; `call_now` in tests."""

Expel = Callable[[StoredMessage, str | None, str | None], None]
"""Takes over a message that has left for the dead letters, with the reason and its description."""

MAX_DELIVERY_COUNT_EXCEEDED = "MaxDeliveryCountExceeded"
TTL_EXPIRED = "TTLExpiredException"


def call_now(callback: Callable[[], None]) -> None:
    callback()


class Consumer(Protocol):
    """Who wants messages. Compared and hashed by identity."""

    def wake(self) -> None:
        """There may be messages: call `receive` now, with the credit there is. Nothing else of the engine."""


class SubQueue:
    """The messages of an entity, or its dead letters.

    `expel` is where messages go that cannot be delivered; without one (a dead-letter queue has none) nothing expires
    and no delivery is one too many. `size_bytes` is what the held messages add up to.
    """

    def __init__(
        self, clock: Clock, timers: Timers, *, lock_ms: int, expel: Expel | None = None, call_soon: CallSoon = call_now
    ) -> None:
        self.due_ms = NEVER
        self.touched_ms = self.drawn_ms = 0
        self.size_bytes = 0
        self.scheduled_count = 0
        self.ttl_ms = NEVER
        self.max_delivery_count = 1
        self.dead_letter_expired = False
        self._clock = clock
        self._timers = timers
        self._expel = expel
        self._call_soon = call_soon
        self._locks = Locks(lock_ms)
        self._waiting: OrderedDict[Consumer, None] = OrderedDict()
        self._sequence = 0
        self._pump_is_due = False
        self._pumping = False
        self._make_empty()

    def _make_empty(self) -> None:
        self._shelf = MessageStore()
        self._line: ReadyQueue = self._make_line()
        self._expiries = Deadlines(self._still_expires)
        self._schedule = Deadlines(self._still_scheduled)

    def _make_line(self) -> ReadyQueue:
        return ReadyQueue()

    def configure(self, *, lock_ms: int, ttl_ms: int, max_delivery_count: int, dead_letter_expired: bool) -> None:
        """What the entity's description says. Messages already in keep the deadlines that they were given."""
        self.change_lock_duration(lock_ms)
        self.ttl_ms = ttl_ms
        self.max_delivery_count = max_delivery_count
        self.dead_letter_expired = dead_letter_expired

    def change_lock_duration(self, lock_ms: int) -> None:
        self._locks.change_duration(lock_ms)

    def __len__(self) -> int:
        """All messages held: active, locked, deferred and scheduled."""
        return len(self._shelf)

    @property
    def active_count(self) -> int:
        """As the service counts: locked and deferred messages are active, scheduled ones are not."""
        return len(self._shelf) - self.scheduled_count

    @property
    def locked_count(self) -> int:
        return len(self._locks)

    # In

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        """Gives each message its sequence number and takes it in; one that is scheduled waits for its time."""
        now = self._now()
        self.touched_ms = now
        sequence, ttl_limit = self._sequence, self.ttl_ms
        for message in messages:
            sequence += 1
            message.sequence_number = sequence
            message.enqueued_at_ms = now
            self.size_bytes += message.size
            self._shelf.add(message)
            scheduled_at = message.scheduled_at_ms
            if scheduled_at is not None and scheduled_at > now:
                self._put_on_schedule(message, scheduled_at)
                continue
            ttl = message.ttl_ms
            if ttl is None or ttl > ttl_limit:
                ttl = ttl_limit
            if ttl < NEVER:
                self._will_expire(message, now + ttl)
            self._line.put(message)
        self._sequence = sequence
        if self._waiting:
            self._pump_soon()

    def add_dead_letter(self, message: StoredMessage) -> None:
        """Takes in a message that has its sequence number already: a dead letter."""
        self._shelf.add(message)
        self.size_bytes += message.size
        self._line.put(message)
        self._pump_soon()

    def _will_expire(self, message: StoredMessage, at_ms: int) -> None:
        message.expires_at_ms = at_ms
        self._expiries.add(at_ms, message.sequence_number)
        self._due_by(at_ms)

    def _put_on_schedule(self, message: StoredMessage, at_ms: int) -> None:
        message.state = SCHEDULED
        self.scheduled_count += 1
        self._schedule.add(at_ms, message.sequence_number)
        self._due_by(at_ms)

    def cancel_scheduled(self, sequences: Sequence[int]) -> None:
        """All of them, or none: MessageNotFound where one is not a scheduled message."""
        self._now()
        messages = [self._scheduled(sequence) for sequence in dict.fromkeys(sequences)]
        for message in messages:
            self._remove(message)
            self.scheduled_count -= 1
            self._schedule.leave()

    def _scheduled(self, sequence: int) -> StoredMessage:
        message = self._shelf.get(sequence)
        if message is None or message.state != SCHEDULED:
            raise MessageNotFound(f"No scheduled message has the sequence number {sequence}.")
        return message

    # Out

    def receive(self, limit: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        """Locks and returns up to `limit` messages, lowest sequence number first.

        A consumer that got fewer than it asked for stands in line and is woken when there may be more, in
        the order in which consumers came. While others stand in line it joins them and gets nothing yet. Without a
        consumer this is now or never.
        """
        now = self._now()
        self.touched_ms = self.drawn_ms = now
        if consumer is not None and self._waiting and not self._pumping:
            self._wait(consumer, limit)
            return []
        taken = self._line.take(limit)
        if taken:
            self._due_by(self._locks.take(taken, now))
        if consumer is not None:
            self._wait(consumer, limit - len(taken))
        return taken

    def _wait(self, consumer: Consumer, wanted: int) -> None:
        if wanted > 0:
            self._waiting.setdefault(consumer)
            self._pump_soon()

    def remove_consumer(self, consumer: Consumer) -> None:
        """This consumer wants nothing any more. What it has under lock stays so."""
        self._waiting.pop(consumer, None)

    def _pump_soon(self) -> None:
        if self._waiting and not self._pump_is_due and not self._pumping and len(self._line):
            self._pump_is_due = True
            self._call_soon(self._pump)

    def _pump(self) -> None:
        """Wakes waiting consumers, first come first served, while there is something for them."""
        self._pump_is_due = False
        self._pumping = True
        try:
            while self._waiting and len(self._line):
                self._waiting.popitem(last=False)[0].wake()
        finally:
            self._pumping = False

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        """Locks deferred messages by their numbers, all of them or none."""
        now = self._now()
        self.touched_ms = self.drawn_ms = now
        messages = [self._deferred(sequence) for sequence in dict.fromkeys(sequences)]
        if messages:
            self._due_by(self._locks.take(messages, now))
        return messages

    def _deferred(self, sequence: int) -> StoredMessage:
        message = self._shelf.get(sequence)
        if message is None or message.state != DEFERRED:
            raise MessageNotFound(f"No deferred message has the sequence number {sequence}.")
        return message

    def peek(self, from_sequence: int, limit: int) -> list[StoredMessage]:
        """Up to `limit` messages in order of sequence number, whatever their state; nothing changes for them."""
        self.touched_ms = self.drawn_ms = self._now()
        found: list[StoredMessage] = []
        if limit > 0:
            for message in self._shelf.read_from(from_sequence):
                found.append(message)
                if len(found) == limit:
                    break
        return found

    @property
    def has_consumers(self) -> bool:
        return bool(self._waiting)

    def delete(self, limit: int, before_ms: int, session_id: str | None = None) -> int:
        """Deletes up to `limit` messages that wait to be received and came before a time; returns how many."""
        self.touched_ms = self.drawn_ms = self._now()
        doomed: list[StoredMessage] = []
        for message in self._shelf.read_from(0):
            if len(doomed) >= limit:
                break
            wanted = session_id is None or message.session_id == session_id
            if wanted and message.state == ACTIVE and message.enqueued_at_ms < before_ms:
                doomed.append(message)
        for message in doomed:
            self._remove(message)
            self._leave_line(message)
        return len(doomed)

    # Settlement. Each raises MessageLockLost where the token holds nothing any more.

    def complete(self, token: bytes) -> None:
        self._remove(self._unlock(token))

    def complete_all(self, tokens: Iterable[bytes]) -> dict[bytes, ServiceError]:
        """Each that can be; those that cannot, with why."""
        self._now()
        refused: dict[bytes, ServiceError] = {}
        for token in tokens:
            try:
                self._remove(self._end_lock(token))
            except ServiceError as refusal:
                refused[token] = refusal
        return refused

    def abandon(self, token: bytes) -> None:
        """Back to its place in the order, counted as a failed delivery."""
        self._delivery_failed(self._unlock(token))

    def release(self, token: bytes) -> None:
        """Back to its place in the order, as if it had never been delivered."""
        self._put_back(self._unlock(token))

    def defer(self, token: bytes) -> None:
        """Aside, to be received by its sequence number only."""
        message = self._unlock(token)
        message.deferred = True
        self._put_back(message)

    def dead_letter(self, token: bytes, reason: str | None = None, description: str | None = None) -> None:
        if self._expel is None:
            raise NotAllowed("A message of a dead-letter queue cannot be dead-lettered again.")
        message = self._unlock(token)
        self._remove(message)
        self._expel(message, reason, description)

    def renew(self, token: bytes) -> StoredMessage:
        """The message, locked for a whole LockDuration from now."""
        message = self._locks.renew(token, self._now())
        if message is None:
            raise lock_lost()
        return message

    def get_locked(self, token: bytes) -> StoredMessage:
        """The message that this token holds."""
        self._now()
        message = self._locks.get(token)
        if message is None:
            raise lock_lost()
        return message

    def modify(self, token: bytes, change: Callable[[StoredMessage], None]) -> None:
        """Lets `change` alter a message under lock, its size too."""
        message = self.get_locked(token)
        before = message.size
        change(message)
        self.size_bytes += message.size - before

    def _unlock(self, token: bytes) -> StoredMessage:
        now = self._clock.now_ms()
        if now >= self.due_ms:
            self.advance(now)
        return self._end_lock(token)

    def _end_lock(self, token: bytes) -> StoredMessage:
        message = self._locks.pop(token)
        if message is None:
            raise lock_lost()
        return message

    def _delivery_failed(self, message: StoredMessage) -> None:
        message.delivery_count += 1
        if self._expel is None or message.delivery_count < self.max_delivery_count:
            self._put_back(message)
            return
        self._remove(message)
        attempts = message.delivery_count
        text = f"Message could not be consumed after {attempts} delivery attempts."
        self._expel(message, MAX_DELIVERY_COUNT_EXCEEDED, text)

    def _put_back(self, message: StoredMessage) -> None:
        if message.expires_at_ms <= self._clock.now_ms():
            self._expire(message)
        elif message.deferred:
            message.state = DEFERRED
        else:
            message.state = ACTIVE
            self._line.put(message)
            self._pump_soon()

    def _remove(self, message: StoredMessage) -> None:
        self._shelf.remove(message.sequence_number)
        self.size_bytes -= message.size
        message.state = GONE
        if message.expires_at_ms != NEVER:
            self._expiries.leave()

    def expire_locks(self) -> None:
        """As if every lock had run out at this moment."""
        self._end_locks(NEVER)

    def _end_locks(self, now_ms: int) -> None:
        for message in self._locks.expired(now_ms):
            self._delivery_failed(message)

    # Time

    def _now(self) -> int:
        now = self._clock.now_ms()
        if now >= self.due_ms:
            self.advance(now)
        return now

    def advance_if_due(self) -> None:
        self._now()

    def advance(self, now_ms: int) -> None:
        """Does all that is due: locks that ran out, messages that expire, messages whose time has come."""
        # Not due again before this is done, whatever it calls.
        self.due_ms = NEVER
        for sequence in self._expiries.due(now_ms):
            found = self._shelf.get(sequence)
            # A locked message is its receiver's; whether it expired is asked when it comes back.
            if found is not None and found.expires_at_ms <= now_ms and found.state != LOCKED:
                self._expire(found)
        self._end_locks(now_ms)
        self._activate(now_ms)
        self._due_by(self.next_deadline_ms())

    def _activate(self, now_ms: int) -> None:
        """A scheduled message joins the queue as if it had been sent at this moment, under a new number."""
        ready: list[StoredMessage] = []
        for sequence in self._schedule.due(now_ms):
            message = self._shelf.get(sequence)
            if message is not None and message.state == SCHEDULED:
                self._shelf.remove(sequence)
                self.size_bytes -= message.size
                self.scheduled_count -= 1
                message.state = ACTIVE
                ready.append(message)
        if ready:
            self.enqueue(ready)

    def _expire(self, message: StoredMessage) -> None:
        waited = message.state == ACTIVE
        self._remove(message)
        if waited:
            self._leave_line(message)
        if self.dead_letter_expired and self._expel is not None:
            self._expel(message, TTL_EXPIRED, "The message expired and was dead lettered.")

    def _first_lock_ms(self) -> int:
        return self._locks.first_ms()

    def _leave_line(self, message: StoredMessage) -> None:  # noqa: ARG002  # for those who have several lines
        self._line.leave()

    def next_deadline_ms(self) -> int:
        return min(self._first_lock_ms(), self._expiries.first_ms(), self._schedule.first_ms())

    def _due_by(self, at_ms: int) -> None:
        if at_ms < self.due_ms:
            self.due_ms = at_ms
            self._timers.schedule(at_ms, self)

    def _still_expires(self, at_ms: int, sequence: int) -> bool:
        message = self._shelf.get(sequence)
        return message is not None and message.expires_at_ms == at_ms

    def _still_scheduled(self, at_ms: int, sequence: int) -> bool:
        message = self._shelf.get(sequence)
        return message is not None and message.state == SCHEDULED and message.scheduled_at_ms == at_ms

    def drop_all(self) -> None:
        """The entity is deleted: its messages are gone, and every token lost its lock."""
        for message in self._shelf.read_from(0):
            message.state = GONE
        self._locks.clear()
        self._waiting.clear()
        self._make_empty()
        self.size_bytes = self.scheduled_count = 0
        self.due_ms = NEVER


def lock_lost() -> MessageLockExpired:
    return MessageLockExpired(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the queue."
    )
