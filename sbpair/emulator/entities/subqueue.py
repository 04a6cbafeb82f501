"""The engine: messages are scheduled, enqueued, received under lock, settled, peeked and expired.

It is synchronous, knows no protocol and looks into no message. An entity has one sub-queue for its messages and one for
its dead letters. Every operation first runs due timers, so that its result does not depend on when the loop runs them.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal, Protocol

from sbpair.amqp_server.refusals import NotAllowed, ServiceError
from sbpair.emulator.clock import NEVER, Runtime
from sbpair.emulator.entities.message_order import Deadlines, Locks, MessageStore, ReadyQueue, message_lock_lost
from sbpair.emulator.entities.stored_message import ACTIVE, DEFERRED, LOCKED, REMOVED, SCHEDULED, StoredMessage
from sbpair.emulator.service_errors import MessageNotFound

if TYPE_CHECKING:
    from sbpair.emulator.entities.description import QueueDescription

OnDeadLettered = Callable[[StoredMessage, str | None, str | None], None]
"""Takes over a message that has left for the dead letters, with the reason and its description."""

NOT_DEFERRED: Final = (
    "Failed to lock one or more specified messages. Either the message is already locked or does not exist."
)


class Consumer(Protocol):
    """A receiver with credit. Compared and hashed by identity."""

    def wake(self) -> None:
        """React to messages that may be there: call `receive` now with the credit there is, and nothing else."""


class SubQueue:
    """The messages of an entity, or its dead letters.

    `on_dead_lettered` receives the messages that cannot be delivered. Without it (a dead-letter queue has none)
    nothing expires, and deliveries are not counted. Many attributes change: an operation updates several counters,
    times and containers together.
    """

    _partition = 0
    """The partition to store in: there is one, or more in a sub-queue that is in partitions."""

    def __init__(
        self,
        runtime: Runtime,
        description: QueueDescription,
        on_dead_lettered: OnDeadLettered | None = None,
    ) -> None:
        self.due_ms = NEVER
        self.accessed_at_ms = self.read_at_ms = 0
        self.scheduled_count = 0
        self._description = description
        self._clock = runtime.clock
        self._timers = runtime.timers
        self.last_numbers = [0]
        self._on_dead_lettered = on_dead_lettered
        self._locks = Locks(description.lock_ms)
        self._waiting: OrderedDict[Consumer, None] = OrderedDict()
        self._call_soon = runtime.call_soon
        self._waking: Literal["", "soon", "now"] = ""
        self._reset()

    def _reset(self) -> None:
        self._store = MessageStore()
        self._ready = ReadyQueue()
        self._expiries = Deadlines(self._is_valid_expiry)
        self._schedule = Deadlines(self._is_valid_schedule)

    def configure(self, description: QueueDescription) -> None:
        """Apply an entity's description. Messages already stored keep their deadlines."""
        self._description = description
        self._locks.change_duration(description.lock_ms)

    def __len__(self) -> int:
        """Return the number of all messages: active, locked, deferred and scheduled."""
        return len(self._store)

    def checked(self) -> SubQueue:
        """Return this sub-queue, as a held session does while it is held."""
        return self

    @property
    def size_bytes(self) -> int:
        return self._store.size_bytes

    @property
    def active_count(self) -> int:
        """The service's count: locked and deferred messages are active, scheduled ones are not."""
        return len(self._store) - self.scheduled_count

    @property
    def locked_count(self) -> int:
        return len(self._locks)

    @property
    def has_consumers(self) -> bool:
        return bool(self._waiting)

    # Enqueue and schedule

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        """Give each message its sequence number and store it; a scheduled one waits for its time."""
        now = self.accessed_at_ms = self.advance_if_due()
        number, ttl_limit = self.last_numbers[self._partition], self._description.ttl_ms
        for message in messages:
            number += 1
            message.sequence_number = number
            message.enqueued_at_ms = now
            self._store.add(message)
            scheduled_at = message.scheduled_at_ms
            if scheduled_at is not None and scheduled_at > now:
                self._put_on_schedule(message, scheduled_at)
                continue
            ttl = message.ttl_ms
            if ttl is None or ttl > ttl_limit:
                ttl = ttl_limit
            if ttl < NEVER:
                message.expires_at_ms = now + ttl
                self._expiries.add(now + ttl, number)
                self._advance_by(now + ttl)
            self._ready.put(message)
        self.last_numbers[self._partition] = number
        self._store.numbered()
        self._wake_soon()

    def add_dead_letter(self, message: StoredMessage) -> None:
        """Store a message that has its sequence number already."""
        self._store.add(message)
        self._ready.put(message)
        self._wake_soon()

    def add_numbered_dead_letter(self, message: StoredMessage) -> None:
        """Store a message under a number of this sub-queue's own: others may have messages of the same number."""
        self._number(message, self._partition)
        self.add_dead_letter(message)

    def dead_letter_on_arrival(self, message: StoredMessage, reason: str, description: str) -> None:
        """Dead-letter a message under a number of its own, before it can be received."""
        message.enqueued_at_ms = self.accessed_at_ms = self.advance_if_due()
        self._number(message, self._partition)
        assert self._on_dead_lettered is not None  # noqa: S101  # only a dead-letter queue has none
        self._on_dead_lettered(message, reason, description)

    def reserve(self, messages: Iterable[StoredMessage]) -> None:
        """Give messages the sequence numbers under which `put_scheduled` stores them later, or never."""
        self.advance_if_due()
        for partition, message in self._assign(messages):
            self._number(message, partition)

    def _number(self, message: StoredMessage, partition: int) -> None:
        self.last_numbers[partition] += 1
        message.sequence_number = self.last_numbers[partition]
        self._store.numbered()

    def _assign(self, messages: Iterable[StoredMessage]) -> Iterator[tuple[int, StoredMessage]]:
        """Yield each message with its partition."""
        return ((0, message) for message in messages)

    def put_scheduled(self, messages: Iterable[StoredMessage]) -> None:
        """Store messages that have reserved numbers, until they are due. Enqueue those that are due already."""
        now = self.accessed_at_ms = self.advance_if_due()
        due: list[StoredMessage] = []
        for message in messages:
            if message.scheduled_at_ms is None or message.scheduled_at_ms <= now:
                due.append(message)
                continue
            message.enqueued_at_ms = now
            self._store.add(message)
            self._put_on_schedule(message, message.scheduled_at_ms)
        if due:
            self.enqueue(due)

    def _put_on_schedule(self, message: StoredMessage, at_ms: int) -> None:
        message.state = message.reported_state = SCHEDULED
        self.scheduled_count += 1
        self._schedule.add(at_ms, message.sequence_number)
        self._advance_by(at_ms)

    def cancel_scheduled(self, sequences: Sequence[int]) -> None:
        """Remove all of these scheduled messages, or raise MessageNotFound and remove none."""
        for message in self.scheduled(sequences):
            self._remove(message)
            self.scheduled_count -= 1
            self._schedule.add_void()

    def scheduled(self, sequences: Sequence[int]) -> list[StoredMessage]:
        """Return the scheduled messages with these numbers, or raise MessageNotFound."""
        self.advance_if_due()
        return self._numbered(sequences, SCHEDULED)

    def _numbered(self, sequences: Sequence[int], state: int) -> list[StoredMessage]:
        """Return the messages with these numbers, each once. Raises MessageNotFound if one is not in this state."""
        messages = []
        for sequence in dict.fromkeys(sequences):
            message = self._store.get(sequence)
            if message is None or message.state != state:
                if state == DEFERRED:
                    raise MessageNotFound(NOT_DEFERRED)
                raise MessageNotFound(f"No scheduled message has the sequence number {sequence}.")
            messages.append(message)
        return messages

    # Storage

    def keep_in(self, store: MessageStore) -> None:
        """Use this empty store, which records what changes in it, in place of the present empty one."""
        self._store = store

    def restore(self, messages: Iterable[StoredMessage]) -> None:
        """Store messages in the state that they have. What is due by now happens with the next operation."""
        for message in messages:
            self._store.add(message)
            if message.state == SCHEDULED:
                self._put_on_schedule(message, message.scheduled_at_ms or 0)
                continue
            if message.expires_at_ms != NEVER:
                self._expiries.add(message.expires_at_ms, message.sequence_number)
                self._advance_by(message.expires_at_ms)
            if message.state == ACTIVE:
                self._ready.put(message)

    # Receive and peek

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        """Lock and return up to `max_messages`, lowest sequence number first.

        A consumer that gets fewer waits, and is woken when there may be more. Consumers are served in the order in
        which they came: while others wait, a new one gets nothing yet. Without a consumer nothing waits.
        """
        now = self.accessed_at_ms = self.read_at_ms = self.advance_if_due()
        if consumer is not None and self._waiting and self._waking != "now":
            self._wait(consumer, max_messages)
            return []
        taken = self._ready.take(max_messages)
        if taken:
            self._advance_by(self._locks.take(taken, now))
        if consumer is not None:
            self._wait(consumer, max_messages - len(taken))
        return taken

    def _wait(self, consumer: Consumer, wanted: int) -> None:
        if wanted > 0:
            self._waiting.setdefault(consumer)
            self._wake_soon()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Stop waking this consumer. Its locks stay."""
        self._waiting.pop(consumer, None)

    def resume(self) -> None:
        """Wake receivers: something that was down is up again."""
        self._wake_soon()

    def _wake_soon(self) -> None:
        if self._waiting and not self._waking and len(self._ready):
            self._schedule_wake()

    def _schedule_wake(self) -> None:
        """Wake receivers once for a burst of reasons, and never while they are being woken."""
        if not self._waking:
            self._waking = "soon"
            self._call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = "now"
        try:
            self._wake_waiting()
        finally:
            self._waking = ""

    def _wake_waiting(self) -> None:
        while self._waiting and len(self._ready):
            self._waiting.popitem(last=False)[0].wake()

    def receive_deferred(self, sequences: Sequence[int]) -> list[StoredMessage]:
        """Lock deferred messages by their sequence numbers, all of them or none."""
        now = self.accessed_at_ms = self.read_at_ms = self.advance_if_due()
        messages = self._numbered(sequences, DEFERRED)
        if messages:
            self._advance_by(self._locks.take(messages, now))
        return messages

    def peek(self, from_sequence: int, max_messages: int) -> list[StoredMessage]:
        """Return up to `max_messages` in order of sequence number, in any state, and change nothing."""
        self.accessed_at_ms = self.read_at_ms = self.advance_if_due()
        return list(islice(self._store.read_from(from_sequence), max(0, max_messages)))

    def oldest_ms(self) -> int | None:
        """Return when the first message was enqueued, in ms since 1970; None without messages. This is no access."""
        return next((each.enqueued_at_ms for each in self._store.read_from(0)), None)

    def delete(self, max_messages: int, before_ms: int, session_id: str | None = None) -> int:
        """Delete up to `max_messages` ready messages that were enqueued before a time; return how many."""
        self.accessed_at_ms = self.read_at_ms = self.advance_if_due()
        found = (
            message
            for message in self._store.read_from(0)
            if (session_id is None or message.is_in_session(session_id))
            and message.state == ACTIVE
            and message.enqueued_at_ms < before_ms
        )
        selected = list(islice(found, max(0, max_messages)))
        for message in selected:
            self._remove(message)
            self._ready.add_void(message)
        return len(selected)

    # Settlement: each operation raises MessageLockExpired if the token holds no message.

    def complete(self, token: bytes) -> None:
        self._remove(self._unlock(token))

    def complete_all(self, tokens: Iterable[bytes]) -> dict[bytes, ServiceError]:
        """Complete each message that can be; return the errors of the others."""
        self.advance_if_due()
        errors: dict[bytes, ServiceError] = {}
        for token in tokens:
            try:
                self._remove(self._end_lock(token))
            except ServiceError as error:
                errors[token] = error
        return errors

    def abandon(self, token: bytes) -> None:
        """Return a message to its place in the order, and count a failed delivery."""
        self._delivery_failed(self._unlock(token))

    def release(self, token: bytes) -> None:
        """Return a message to its place in the order, as if it had never been delivered."""
        self._return(self._unlock(token))

    def defer(self, token: bytes) -> None:
        """Set a message aside, to be received by its sequence number only. It counts as a delivery."""
        message = self._unlock(token)
        message.reported_state = DEFERRED
        self._delivery_failed(message)

    def dead_letter(self, token: bytes, reason: str | None = None, description: str | None = None) -> None:
        self.check_dead_letter()
        assert self._on_dead_lettered is not None  # noqa: S101  # checked
        message = self._unlock(token)
        self._remove(message)
        self._on_dead_lettered(message, reason, description)

    def check_dead_letter(self) -> None:
        """Raise NotAllowed if messages cannot be dead-lettered here."""
        if self._on_dead_lettered is None:
            raise NotAllowed("A message of a dead-letter queue cannot be dead-lettered again.")

    def renew(self, token: bytes) -> StoredMessage:
        """Lock a message for a whole LockDuration from now, and return it."""
        return self._locks.renew(token, self.advance_if_due())

    def get_locked(self, token: bytes) -> StoredMessage:
        self.advance_if_due()
        message = self._locks.get(token)
        if message is None:
            raise message_lock_lost()
        return message

    def modify(self, token: bytes, change: Callable[[StoredMessage], None]) -> None:
        """Let `change` alter a message under lock, its size too."""
        message = self.get_locked(token)
        before = message.size
        change(message)
        self._store.size_bytes += message.size - before

    def _unlock(self, token: bytes) -> StoredMessage:
        self.advance_if_due()
        return self._end_lock(token)

    def _end_lock(self, token: bytes) -> StoredMessage:
        return self._locks.pop(token)

    def _delivery_failed(self, message: StoredMessage) -> None:
        if self._on_dead_lettered is None:
            # Dead letters keep the count that they had.
            self._return(message)
            return
        message.delivery_count += 1
        if message.delivery_count < self._description.max_delivery_count:
            self._return(message)
            return
        self._remove(message)
        text = f"Message could not be consumed after {message.delivery_count} delivery attempts."
        self._on_dead_lettered(message, "MaxDeliveryCountExceeded", text)

    def _return(self, message: StoredMessage) -> None:
        if message.expires_at_ms <= self._clock.now_ms():
            self._expire(message)
            return
        self._store.changed(message)
        if message.reported_state == DEFERRED:
            message.state = DEFERRED
        else:
            message.state = ACTIVE
            self._ready.put(message)
            self._wake_soon()

    def _remove(self, message: StoredMessage) -> None:
        self._store.remove(message.sequence_number)
        message.state = REMOVED
        if message.expires_at_ms != NEVER:
            self._expiries.add_void()

    # Time

    def advance_if_due(self) -> int:
        """Run due timers, and return the time."""
        now = self._clock.now_ms()
        if now >= self.due_ms:
            self.advance(now)
        return now

    def advance(self, now_ms: int) -> None:
        """Do all that is due: expire messages and locks, activate scheduled messages."""
        # Not due again before this is done, whatever it calls.
        self.due_ms = NEVER
        for sequence in self._expiries.pop_due(now_ms):
            message = self._store.get(sequence)
            # A locked message stays with its receiver; its expiry is checked when it comes back.
            if message is not None and message.expires_at_ms <= now_ms and message.state != LOCKED:
                self._expire(message)
        self._end_locks(now_ms)
        self._activate_scheduled(now_ms)
        self._advance_by(self.next_deadline_ms())

    def pause(self) -> None:
        """Do everything due, and nothing more until `unpause`: locks that are valid now stay valid."""
        self.advance_if_due()
        self.due_ms = NEVER

    def unpause(self) -> None:
        self._advance_by(self.next_deadline_ms())

    def next_deadline_ms(self) -> int:
        return min(self._first_lock_ms(), self._expiries.first_ms(), self._schedule.first_ms())

    def expire_locks(self) -> None:
        """Expire every lock now."""
        self._end_locks(NEVER)

    def _end_locks(self, now_ms: int) -> None:
        for message in self._locks.pop_expired(now_ms):
            self._delivery_failed(message)

    def _first_lock_ms(self) -> int:
        return self._locks.first_ms()

    def _activate_scheduled(self, now_ms: int) -> None:
        """Enqueue scheduled messages as if they had been sent at this moment, under a new number."""
        ready: list[StoredMessage] = []
        for sequence in self._schedule.pop_due(now_ms):
            message = self._store.get(sequence)
            if message is not None and message.state == SCHEDULED:
                self._store.remove(sequence)
                self.scheduled_count -= 1
                message.state = ACTIVE
                ready.append(message)
        if ready:
            self.enqueue(ready)

    def _expire(self, message: StoredMessage) -> None:
        was_ready = message.state == ACTIVE
        self._remove(message)
        if was_ready:
            self._ready.add_void(message)
        if self._description.dead_lettering_on_message_expiration and self._on_dead_lettered is not None:
            self._on_dead_lettered(message, "TTLExpiredException", "The message expired and was dead lettered.")

    def _advance_by(self, at_ms: int) -> None:
        if at_ms < self.due_ms:
            self.due_ms = at_ms
            self._timers.schedule(at_ms, self)

    def _is_valid_expiry(self, at_ms: int, sequence: int) -> bool:
        message = self._store.get(sequence)
        return message is not None and message.expires_at_ms == at_ms

    def _is_valid_schedule(self, at_ms: int, sequence: int) -> bool:
        message = self._store.get(sequence)
        return message is not None and message.state == SCHEDULED and message.scheduled_at_ms == at_ms

    def clear(self) -> None:
        """Drop all messages and locks: the entity is deleted."""
        self._locks.clear()
        self._waiting.clear()
        self._reset()
        self.scheduled_count = 0
        self.due_ms = NEVER


class MessageCopies:
    """The messages of a sub-queue as a client browses them: in order, each once, as copies with tokens of their own.

    Deferred and scheduled messages are left out. Nothing waits here: later messages come with a later `receive`.
    """

    def __init__(self, queue: SubQueue) -> None:
        self._queue = queue
        self._next = 0

    def receive(self, max_messages: int, consumer: Consumer | None = None) -> list[StoredMessage]:
        del consumer
        copies: list[StoredMessage] = []
        while peeked := self._queue.peek(self._next, max_messages - len(copies)):
            self._next = peeked[-1].sequence_number + 1
            copies += [copy(message) for message in peeked if message.state not in (DEFERRED, SCHEDULED)]
        for each in copies:
            each.lock_token = uuid.uuid4().bytes
        return copies

    def remove_consumer(self, consumer: Consumer) -> None:
        """Do nothing: no consumer waits."""

    def checked(self) -> MessageCopies:
        return self

    def complete(self, token: bytes) -> None:
        """Do nothing: the message stays."""
