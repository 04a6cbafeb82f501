"""A queue: its description, its messages and its dead letters; what it lets in, and what it counts.

Synchronous, knows no protocol. `messages` and `dead_letters` are the same engine; settle and receive on them directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from sbpair.emulator.entities.description import MEGABYTE, QueueDescription
from sbpair.emulator.entities.duplicates import DuplicateDetector
from sbpair.emulator.entities.forwarding import Forwarder
from sbpair.emulator.entities.idle import AutoDelete
from sbpair.emulator.entities.partitions import PartitionedMessages, Partitions
from sbpair.emulator.entities.sessions import PartitionedSessions, SessionMessages, check_sessions
from sbpair.emulator.entities.stored_message import DeadLetterReason, StoredMessage
from sbpair.emulator.entities.subqueue import CallSoon, SubQueue, call_now
from sbpair.emulator.service_errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityFull,
    EntityNotFound,
    MessageTooLarge,
    NotAllowed,
    ServiceError,
)

if TYPE_CHECKING:
    from sbpair.emulator.clock import Clock
    from sbpair.emulator.timers import Timers

MAX_BATCH_MESSAGES: Final = 4500
MAX_BATCH_BYTES: Final = 1_048_576
"""A batch may have so many, also where a single message may have more."""

Watcher = Callable[[ServiceError], None]
"""Told why the entity cannot be used any more, or not in every way; whoever has links to it closes them."""


class EntityRegistry(Protocol):
    """Where an entity lives among others."""

    def find_target(self, address: str) -> QueueEntity:
        """The queue or topic that something is forwarded to. Raises EntityNotFound."""

    def check_up(self, path: str) -> None:
        """EntityUnavailable while that entity is down."""

    def delete(self, entity: QueueEntity) -> None: ...


@dataclass(frozen=True, slots=True)
class EntityCounts:
    """The service's CountDetails. `transfer` is what waits to be forwarded, and then is not active."""

    active: int
    dead_letter: int
    scheduled: int
    transfer_dead_letter: int = 0
    transfer: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer_dead_letter + self.transfer


class QueueEntity:
    """`path` is written as it was created; paths are compared in lower case by whoever looks a queue up."""

    def __init__(
        self, path: str, description: QueueDescription, clock: Clock, timers: Timers, call_soon: CallSoon = call_now
    ) -> None:
        self.path = path
        self._clock = clock
        self.description = description
        self._watchers: dict[Watcher, None] = {}
        self.partitions = self._make_partitions(description)
        lock_ms = description.lock_ms
        self.dead_letters = self._engine(clock, timers, lock_ms=lock_ms, call_soon=call_soon)
        self.messages = self._make_messages(clock, timers, lock_ms, call_soon)
        self._transfers: SubQueue | None = None
        self._make_transfers = partial(SubQueue, clock, timers, call_soon=call_soon)
        self._duplicates: DuplicateDetector | None = None
        self._home: EntityRegistry | None = None
        self._forwarders: list[Forwarder] = []
        self._auto_delete = AutoDelete(self, clock, timers, self._delete)
        for part in (self.messages, self.dead_letters):
            if self.partitions is not None and isinstance(part, PartitionedMessages):
                part.divide(self.partitions)
        self.created_at_ms = clock.now_ms()
        self.update(description)

    def _make_messages(self, clock: Clock, timers: Timers, lock_ms: int, call_soon: CallSoon) -> SubQueue:
        make = self._engine
        if self.description.requires_session:
            make = SessionMessages if self.partitions is None else PartitionedSessions
        return make(clock, timers, lock_ms=lock_ms, expel=self._bury, call_soon=call_soon)

    def _make_partitions(self, description: QueueDescription) -> Partitions | None:
        return Partitions(description.partition_count) if description.partition_count > 1 else None

    @property
    def _engine(self) -> type[SubQueue]:
        return SubQueue if self.partitions is None else PartitionedMessages

    def update(self, description: QueueDescription) -> None:
        """Takes on a description that has been validated. Messages already in keep their deadlines."""
        self.description = description
        self.updated_at_ms = self._clock.now_ms()
        self._max_bytes = description.total_size_in_megabytes * MEGABYTE
        self._max_message_bytes = description.max_message_size_in_kilobytes * 1024
        self.messages.configure(
            lock_ms=description.lock_ms,
            ttl_ms=description.ttl_ms,
            max_delivery_count=description.max_delivery_count,
            dead_letter_expired=description.dead_lettering_on_message_expiration,
        )
        self.dead_letters.change_lock_duration(description.lock_ms)
        self._detect_duplicates(description)
        self._settle_forwarding()
        if description.status != "Active" or description.forward_to is not None:
            for watcher in list(self._watchers):
                watcher(EntityDisabled(f"Messaging entity '{self.path}' is currently disabled."))

    def _detect_duplicates(self, description: QueueDescription) -> None:
        if not description.requires_duplicate_detection:
            return
        window_ms = description.duplicate_detection_window_ms
        if self._duplicates is None:
            self._duplicates = DuplicateDetector(window_ms)
        self._duplicates.window_ms = window_ms

    # Among others

    def join(self, home: EntityRegistry) -> None:
        """There are other entities now to forward to, and somebody to delete this one."""
        self._home = home
        self._settle_forwarding()

    def _settle_forwarding(self) -> None:
        if self._home is None:
            return
        for forwarder in self._forwarders:
            forwarder.stop()
        self._forwarders = []
        d = self.description
        for messages, to in ((self.messages, d.forward_to), (self.dead_letters, d.forward_dead_lettered_messages_to)):
            if to is not None:
                self._forwarders.append(Forwarder(self.path, messages, to, self._home, self._put_aside))
        self.resume_forwarding()
        self._auto_delete.arm()

    def resume_forwarding(self) -> None:
        """Something may be up again that messages wait for."""
        for forwarder in self._forwarders:
            forwarder.start()

    def _put_aside(self, message: StoredMessage, reason: str | None, description: str | None) -> None:
        """What cannot be forwarded is kept, with the reason."""
        dead_letter = DeadLetterReason(reason, description, self.path)
        self.transfer_dead_letters.add_dead_letter(message.as_dead_letter(dead_letter))

    @property
    def transfer_dead_letters(self) -> SubQueue:
        if self._transfers is None:
            self._transfers = self._make_transfers(lock_ms=self.description.lock_ms)
        return self._transfers

    def _delete(self) -> None:
        if self._home is not None:
            self._home.delete(self)

    @property
    def auto_delete_ms(self) -> int:
        return self.description.auto_delete_on_idle_ms

    @property
    def last_used_ms(self) -> int:
        return max(self.created_at_ms, self.updated_at_ms, self.accessed_at_ms)

    @property
    def is_in_use(self) -> bool:
        waits = self.messages.has_consumers or self.dead_letters.has_consumers
        return (waits and not self._forwarders) or self.messages.scheduled_count > 0

    @property
    def max_message_bytes(self) -> int:
        """The size of the largest message that this queue takes; a batch has at most MAX_BATCH_BYTES of it."""
        return self._max_message_bytes

    @property
    def credits_per_message(self) -> int:
        """What a message that is sent here costs where credits are counted."""
        return 1

    @property
    def size_bytes(self) -> int:
        aside = 0 if self._transfers is None else self._transfers.size_bytes
        return self.messages.size_bytes + self.dead_letters.size_bytes + aside

    @property
    def accessed_at_ms(self) -> int:
        return max(self.messages.touched_ms, self.dead_letters.touched_ms)

    def counts(self) -> EntityCounts:
        now = self._clock.now_ms()
        for part in (self.messages, self.dead_letters):
            if part.due_ms <= now:
                part.advance(now)
        active, transfer = self.messages.active_count, 0
        if self.description.forward_to is not None:
            active, transfer = 0, active
        aside = 0 if self._transfers is None else len(self._transfers)
        return EntityCounts(active, len(self.dead_letters), self.messages.scheduled_count, aside, transfer)

    def send(self, messages: Sequence[StoredMessage]) -> None:
        """Takes all of them in, or none. A message with a time in the future waits on the schedule.

        Afterwards each has its sequence_number. Raises MessageTooLarge, QuotaExceeded, EntityDisabled, ArgumentInvalid.
        """
        self.check_send()
        if self.partitions is not None:
            self.partitions.check_batch(messages)
        if len(messages) > MAX_BATCH_MESSAGES:
            raise ArgumentInvalid(f"A batch of {len(messages)} messages exceeds the limit of {MAX_BATCH_MESSAGES}.")
        size = 0
        for message in messages:
            size += message.size
        limit = self._max_message_bytes if len(messages) == 1 else min(self._max_message_bytes, MAX_BATCH_BYTES)
        if size > limit:
            raise MessageTooLarge(f"The message or batch of {size} bytes exceeds the limit of {limit} bytes.")
        self.check_quota(size)
        if self.description.requires_session:
            check_sessions(messages)
        if self._duplicates is None:
            self.messages.enqueue(messages)
        else:
            self._duplicates.take_in(messages, self._clock.now_ms(), self.messages.enqueue)

    def try_send_each(self, messages: Sequence[StoredMessage]) -> bool:
        """Takes in messages that were sent one by one, as `send` would each of them; answers whether it did.

        It does nothing where one might be refused, or needs to be looked at: then each has to be sent by itself.
        """
        d = self.description
        if d.requires_session or self._duplicates is not None or self.partitions is not None or d.status != "Active":
            return False
        sizes = [message.size for message in messages]
        largest = max(sizes, default=0)
        if largest > self._max_message_bytes or self.size_bytes + sum(sizes) > self._max_bytes:
            return False
        self.messages.enqueue(messages)
        return True

    def check_quota(self, more_bytes: int) -> None:
        """QuotaExceeded where so much more is more than the entity holds."""
        if more_bytes > 0 and self.size_bytes + more_bytes > self._max_bytes:
            raise EntityFull(f"The maximum entity size of '{self.path}' has been reached: {self._max_bytes} bytes.")

    def schedule(self, messages: Sequence[StoredMessage]) -> list[int]:
        """Like `send`, for messages with a scheduled_at_ms. The sequence numbers are what cancels them."""
        self.send(messages)
        return [message.sequence_number for message in messages]

    def cancel_scheduled(self, sequences: Sequence[int]) -> None:
        self.messages.cancel_scheduled(sequences)

    def check_send(self) -> None:
        if self.description.status in ("Disabled", "SendDisabled"):
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for sending.")

    def check_all_partitions(self) -> None:
        """TimedOut while a partition is down: to be created, changed, deleted or counted, all must be there."""
        if self.partitions is not None:
            self.partitions.check_all()

    def check_receive(self) -> None:
        if self.description.status in ("Disabled", "ReceiveDisabled"):
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for receiving.")

    def check_not_forwarding(self) -> None:
        """NotAllowed where nothing stays here to be received."""
        if self.description.forward_to is not None:
            raise NotAllowed(f"Nothing can be received from '{self.path}': it forwards its messages.")

    def _bury(self, message: StoredMessage, reason: str | None, description: str | None) -> None:
        self.dead_letters.add_dead_letter(message.as_dead_letter(DeadLetterReason(reason, description, self.path)))

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def close(self) -> None:
        """The queue is deleted: its messages are gone and whoever has links to it is told."""
        self.messages.drop_all()
        self.dead_letters.drop_all()
        if self._transfers is not None:
            self._transfers.drop_all()
        self._auto_delete.stop()
        self._home = None
        watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher(EntityNotFound(f"The messaging entity '{self.path}' has been deleted."))
