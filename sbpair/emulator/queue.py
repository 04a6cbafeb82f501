"""A queue: its description, its messages and its dead letters; what it lets in, and what it counts.

Synchronous, knows no protocol. `messages` and `dead_letters` are the same engine; settle and receive on them directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbpair.emulator.description import MEGABYTE, QueueDescription
from sbpair.emulator.errors import (
    ArgumentInvalid,
    EntityDisabled,
    EntityNotFound,
    MessageTooLarge,
    QuotaExceeded,
    Refusal,
)
from sbpair.emulator.message import DeadLetter, Message
from sbpair.emulator.partitions import Partitioned, Partitions
from sbpair.emulator.sessions import PartitionedSessions, SessionMessages, check_sessions
from sbpair.emulator.subqueue import CallSoon, SubQueue, at_once

if TYPE_CHECKING:
    from sbpair.emulator.agenda import Agenda
    from sbpair.emulator.clock import Clock

BATCH_LIMIT: Final = 4500
BATCH_BYTES: Final = 1_048_576
"""A batch may have so many, also where a single message may have more."""

Watcher = Callable[[Refusal], None]
"""Told why the entity cannot be used any more, or not in every way; whoever has links to it closes them."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The service's CountDetails. Nothing is transferred yet, so two of them are always 0."""

    active: int
    dead_letter: int
    scheduled: int
    transfer_dead_letter: int = 0
    transfer: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer_dead_letter + self.transfer


class Queue:
    """`path` is written as it was created; paths are compared in lower case by whoever looks a queue up."""

    def __init__(
        self, path: str, description: QueueDescription, clock: Clock, agenda: Agenda, call_soon: CallSoon = at_once
    ) -> None:
        self.path = path
        self._clock = clock
        self.description = description
        self._watchers: dict[Watcher, None] = {}
        self.partitions = self._make_partitions(description)
        lock_ms = description.lock_ms
        self.dead_letters = self._engine(clock, agenda, lock_ms=lock_ms, call_soon=call_soon)
        self.messages = self._make_messages(clock, agenda, lock_ms, call_soon)
        for part in (self.messages, self.dead_letters):
            if self.partitions is not None and isinstance(part, Partitioned):
                part.divide(self.partitions)
        self.created_at_ms = clock.now_ms()
        self.update(description)

    def _make_messages(self, clock: Clock, agenda: Agenda, lock_ms: int, call_soon: CallSoon) -> SubQueue:
        make = self._engine
        if self.description.requires_session:
            make = SessionMessages if self.partitions is None else PartitionedSessions
        return make(clock, agenda, lock_ms=lock_ms, expel=self._bury, call_soon=call_soon)

    def _make_partitions(self, description: QueueDescription) -> Partitions | None:
        return Partitions(description.partition_count) if description.partition_count > 1 else None

    @property
    def _engine(self) -> type[SubQueue]:
        return SubQueue if self.partitions is None else Partitioned

    def update(self, description: QueueDescription) -> None:
        """Takes on a description that has been validated. Messages already in keep their deadlines."""
        self.description = description
        self.updated_at_ms = self._clock.now_ms()
        self._limit_bytes = description.total_size_in_megabytes * MEGABYTE
        self._message_limit_bytes = description.max_message_size_in_kilobytes * 1024
        self.messages.configure(
            lock_ms=description.lock_ms,
            ttl_ms=description.ttl_ms,
            max_delivery_count=description.max_delivery_count,
            dead_letter_expired=description.dead_lettering_on_message_expiration,
        )
        self.dead_letters.change_lock_duration(description.lock_ms)
        if description.status != "Active":
            for watcher in list(self._watchers):
                watcher(EntityDisabled(f"Messaging entity '{self.path}' is currently disabled."))

    @property
    def message_limit_bytes(self) -> int:
        """The size of the largest message that this queue takes; a batch has at most BATCH_BYTES of it."""
        return self._message_limit_bytes

    @property
    def credits_a_message(self) -> int:
        """What a message that is sent here costs where credits are counted."""
        return 1

    @property
    def size_bytes(self) -> int:
        return self.messages.size_bytes + self.dead_letters.size_bytes

    @property
    def accessed_at_ms(self) -> int:
        return max(self.messages.touched_ms, self.dead_letters.touched_ms)

    def counts(self) -> Counts:
        now = self._clock.now_ms()
        for part in (self.messages, self.dead_letters):
            if part.due_ms <= now:
                part.advance(now)
        return Counts(self.messages.active_count, len(self.dead_letters), self.messages.scheduled_count)

    def send(self, messages: Sequence[Message]) -> None:
        """Takes all of them in, or none. A message with a time in the future waits on the schedule.

        Afterwards each has its sequence_number. Raises MessageTooLarge, QuotaExceeded, EntityDisabled, ArgumentInvalid.
        """
        self.check_send()
        if self.partitions is not None:
            self.partitions.check_batch(messages)
        if len(messages) > BATCH_LIMIT:
            raise ArgumentInvalid(f"A batch of {len(messages)} messages exceeds the limit of {BATCH_LIMIT}.")
        size = 0
        for message in messages:
            size += message.size
        limit = self._message_limit_bytes if len(messages) == 1 else min(self._message_limit_bytes, BATCH_BYTES)
        if size > limit:
            raise MessageTooLarge(
                f"The message or batch of {size} bytes exceeds the limit of {limit} bytes."
            )
        if self.size_bytes + size > self._limit_bytes:
            raise QuotaExceeded(
                f"The maximum entity size of '{self.path}' has been reached: {self._limit_bytes} bytes."
            )
        if self.description.requires_session:
            check_sessions(messages)
        self.messages.enqueue(messages)

    def schedule(self, messages: Sequence[Message]) -> list[int]:
        """Like `send`, for messages with a scheduled_at_ms. The sequence numbers are what cancels them."""
        self.send(messages)
        return [message.sequence_number for message in messages]

    def cancel_scheduled(self, sequences: Sequence[int]) -> None:
        self.messages.cancel_scheduled(sequences)

    def check_send(self) -> None:
        if self.description.status in ("Disabled", "SendDisabled"):
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for sending.")

    def check_whole(self) -> None:
        """TimedOut while a partition is down: to be created, changed, deleted or counted, all must be there."""
        if self.partitions is not None:
            self.partitions.check_all()

    def check_receive(self) -> None:
        if self.description.status in ("Disabled", "ReceiveDisabled"):
            raise EntityDisabled(f"Messaging entity '{self.path}' is currently disabled for receiving.")

    def _bury(self, message: Message, reason: str | None, description: str | None) -> None:
        self.dead_letters.adopt(message.for_dead_letters(DeadLetter(reason, description, self.path)))

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)

    def close(self) -> None:
        """The queue is deleted: its messages are gone and whoever has links to it is told."""
        self.messages.drop_all()
        self.dead_letters.drop_all()
        watchers, self._watchers = list(self._watchers), {}
        for watcher in watchers:
            watcher(EntityNotFound(f"The messaging entity '{self.path}' has been deleted."))
