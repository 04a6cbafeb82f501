"""Partitioned entities: the partition that a message belongs to, and a sub-queue in several partitions.

A sequence number has its partition in the top 16 bits. A message with a key goes to the key's partition or nowhere;
one without a key goes to the next partition that is up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING
from zlib import crc32

from sbpair.amqp_server.refusals import NotAllowed
from sbpair.emulator.entities.message_order import ReadyQueue
from sbpair.emulator.entities.service_envelope import via_partition_key
from sbpair.emulator.entities.sessions import SessionMessages
from sbpair.emulator.entities.stored_message import DEFERRED, NUMBER_BITS, partition_id
from sbpair.emulator.entities.subqueue import OnDeadLettered, SubQueue
from sbpair.emulator.service_errors import OperationTimedOut, partition_unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.clock import Runtime
    from sbpair.emulator.entities.description import QueueDescription
    from sbpair.emulator.entities.sessions import HeldSession, SessionState
    from sbpair.emulator.entities.stored_message import StoredMessage


def partition_of(sequence: int) -> int:
    return partition_id(sequence) - 1


def _first_number(partition: int) -> int:
    return partition + 1 << NUMBER_BITS


def partition_key_of(message: StoredMessage) -> str | None:
    """Return SessionId, PartitionKey, ViaPartitionKey, or MessageId (known only where duplicates are detected).

    A PartitionKey goes before an empty SessionId.
    """
    session, key = message.session_id, message.partition_key
    if session is not None and (session or key is None):
        if key is not None and key != session:
            raise NotAllowed(
                f"InvalidOperation: the PartitionKey '{key[:128]}' of a message must be its SessionId "
                f"'{session[:128]}' where both are set."
            )
        return session
    if key is None:
        key = via_partition_key(message)
    return message.message_id if key is None else key


def transfer_key_of(message: StoredMessage) -> str | None:
    """Return the key in an entity that a message is sent by way of: ViaPartitionKey, else SessionId or PartitionKey."""
    via = via_partition_key(message)
    return partition_key_of(message) if via is None else via


class Partitions:
    """The partitions of one entity: how many, which are down, and which one was chosen last."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._down: Counter[int] = Counter()
        self._last_chosen = 0

    def take_down(self, partition: int) -> None:
        """Begin an outage. Several outages of one partition may overlap."""
        self._down[partition] += 1

    def bring_up(self, partition: int) -> None:
        self._down -= Counter({partition: 1})

    def is_up(self, partition: int) -> bool:
        return partition not in self._down

    def check(self, partition: int) -> None:
        """Raise OperationTimedOut if this partition is down."""
        if partition in self._down:
            raise partition_unavailable(partition)

    def check_all(self) -> None:
        """Raise OperationTimedOut if any partition is down."""
        for partition in self._down:
            self.check(partition)

    def check_batch(self, messages: Sequence[StoredMessage]) -> None:
        """Raise an error unless all messages have the same key, or none, and can be stored now."""
        keys = {partition_key_of(message) for message in messages}
        if len(keys) > 1:
            raise NotAllowed("InvalidOperation: all messages of a batch must have the same SessionId or PartitionKey.")
        self.check_keys(keys)
        if not self.up_count:
            self.choose()

    def check_keys(self, keys: Set[str | None]) -> None:
        """Raise OperationTimedOut if the partition of one of these keys is down."""
        for key in keys - {None}:
            self.check(self.for_key(str(key)))

    @property
    def up_count(self) -> int:
        return self.count - len(self._down)

    def for_key(self, key: str) -> int:
        return crc32(key.lower().encode()) % self.count  # as ids of sessions, whose case is ignored

    def choose(self) -> int:
        """Return the next partition that is up, in turn. Raises OperationTimedOut if all are down."""
        for _ in range(self.count):
            self._last_chosen = (self._last_chosen + 1) % self.count
            if self.is_up(self._last_chosen):
                return self._last_chosen
        raise OperationTimedOut("The operation did not complete within the allotted time: no partition is available.")


class PartitionedReadyQueue(ReadyQueue):
    """A ready queue for each partition. `take` begins with another partition each time."""

    __slots__ = ("_first", "_partitions", "_queues")

    def __init__(self, partitions: Partitions) -> None:
        super().__init__()
        self._partitions = partitions
        self._queues = [ReadyQueue() for _ in range(partitions.count)]
        self._first = 0

    def __len__(self) -> int:
        """Return the number of ready messages in the partitions that are up."""
        return sum(len(queue) for number, queue in enumerate(self._queues) if self._partitions.is_up(number))

    def put(self, message: StoredMessage) -> None:
        self._queues[partition_of(message.sequence_number)].put(message)

    def take(self, max_messages: int) -> list[StoredMessage]:
        taken: list[StoredMessage] = []
        self._first = (self._first + 1) % len(self._queues)
        for step in range(len(self._queues)):
            number = (self._first + step) % len(self._queues)
            if len(taken) < max_messages and self._partitions.is_up(number):
                taken += self._queues[number].take(max_messages - len(taken))
        return taken

    def add_void(self, message: StoredMessage) -> None:
        self._queues[partition_of(message.sequence_number)].add_void(message)


class PartitionedMessages(SubQueue):
    """A sub-queue in partitions. It combines with other kinds of SubQueue.

    A message in a partition that is down can neither be settled nor be found by its number.
    """

    def __init__(
        self,
        runtime: Runtime,
        description: QueueDescription,
        on_dead_lettered: OnDeadLettered | None = None,
        *,
        partitions: Partitions,
    ) -> None:
        self._partitions = partitions
        super().__init__(runtime, description, on_dead_lettered)

    def _reset(self) -> None:
        super()._reset()
        self._ready = PartitionedReadyQueue(self._partitions)
        self.last_numbers = [_first_number(number) for number in range(self._partitions.count)]

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        by_partition: dict[int, list[StoredMessage]] = {}
        for partition, message in self._assign(messages):
            by_partition.setdefault(partition, []).append(message)
        before = self._partition
        try:
            for self._partition, group in by_partition.items():
                super().enqueue(group)
        finally:
            # `enqueue` may do what is due first, and that may enqueue more.
            self._partition = before

    def _assign(self, messages: Iterable[StoredMessage]) -> Iterator[tuple[int, StoredMessage]]:
        """Yield each message with its partition. Messages without a key, sent together, stay together."""
        chosen: int | None = None
        for message in messages:
            key = partition_key_of(message)
            if message.sequence_number:
                # A scheduled message stays where it is.
                yield partition_of(message.sequence_number), message
            elif key is not None:
                yield self._partitions.for_key(key), message
            else:
                chosen = self._partitions.choose() if chosen is None else chosen
                yield chosen, message

    def peek(self, from_sequence: int, max_messages: int) -> list[StoredMessage]:
        """Peek at one partition at a time. Fewer may come than there are: ask on until none do."""
        for partition in range(max(0, partition_of(from_sequence)), self._partitions.count):
            if self._partitions.is_up(partition):
                first = max(from_sequence, _first_number(partition))
                found = super().peek(first, max_messages)
                here = [each for each in found if partition_of(each.sequence_number) == partition]
                if here:
                    return here
        return []

    def _check_token(self, token: bytes) -> None:
        message = self._locks.get(token)
        if message is not None:
            self._partitions.check(partition_of(message.sequence_number))

    def _end_lock(self, token: bytes) -> StoredMessage:
        self._check_token(token)
        return super()._end_lock(token)

    def get_locked(self, token: bytes) -> StoredMessage:
        self._check_token(token)
        return super().get_locked(token)

    def renew(self, token: bytes) -> StoredMessage:
        self._check_token(token)
        return super().renew(token)

    def _numbered(self, sequences: Sequence[int], state: int) -> list[StoredMessage]:
        if state == DEFERRED and len({partition_of(sequence) for sequence in sequences}) > 1:
            raise NotAllowed(
                "ReceiveBatch of sequence numbers from different partitions is not supported for an entity with "
                "partitioning enabled."
            )
        for sequence in sequences:
            self._partitions.check(partition_of(sequence))
        return super()._numbered(sequences, state)


class PartitionedSessions(SessionMessages, PartitionedMessages):
    """The sessions of a partitioned entity. All of a session is in one partition, since its id is the key.

    While that partition is down the session cannot be locked, and its holder receives nothing more.
    """

    def is_available(self, session: SessionState) -> bool:
        return self._partitions.is_up(self._partitions.for_key(session.id))

    def accept(self, session_id: str) -> HeldSession:
        self._partitions.check(self._partitions.for_key(session_id))
        return super().accept(session_id)

    def _next_available(self) -> SessionState | None:
        if self._partitions.up_count == self._partitions.count:
            return super()._next_available()
        # Sessions that are passed over keep their places.
        available = self._sessions.available
        found = next((each for each in available if len(each.ready) and self.is_available(each)), None)
        if found is not None:
            del available[found]
        return found

    def resume(self) -> None:
        for held in self._holds.values():
            if len(held.session.ready):
                self._sessions.to_wake.setdefault(held.session)
        super().resume()
