"""Partitioned entities: which partition a message belongs to, and an engine whose messages lie in several.

A sequence number has its partition in the top 16 bits. With a key a message goes to the key's partition or nowhere;
without one, to the next that is up. What an unpartitioned entity does is untouched by all of this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final
from weakref import WeakSet
from zlib import crc32

from sbpair.emulator.entities.message_order import ReadyQueue
from sbpair.emulator.entities.subqueue import SubQueue
from sbpair.emulator.service_errors import NotAllowed, OperationTimedOut

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sbpair.emulator.entities.stored_message import StoredMessage

NUMBER_BITS: Final = 48


def partition_of(sequence: int) -> int:
    return sequence >> NUMBER_BITS


def partition_key_of(message: StoredMessage) -> str | None:
    """SessionId, then PartitionKey, then MessageId, which is only known where duplicates are detected."""
    session, key = message.session_id, message.partition_key
    if session is not None:
        if key is not None and key != session:
            raise NotAllowed(
                f"InvalidOperation: the PartitionKey '{key[:128]}' of a message must be its SessionId "
                f"'{session[:128]}' where both are set."
            )
        return session
    return message.message_id if key is None else key


class Partitions:
    """The partitions of one entity: how many, which are down, and whose turn it is."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.engines: WeakSet[PartitionedMessages] = WeakSet()
        self._down: Counter[int] = Counter()
        self._turn = 0

    def take_down(self, partition: int) -> None:
        """Several outages of one partition may overlap."""
        self._down[partition] += 1

    def bring_up(self, partition: int) -> None:
        self._down -= Counter({partition: 1})
        if self.is_up(partition):
            for engine in list(self.engines):
                engine.resume()

    def is_up(self, partition: int) -> bool:
        return partition not in self._down

    def check(self, partition: int) -> None:
        if partition in self._down:
            raise OperationTimedOut(
                f"The operation did not complete within the allotted time: partition {partition} is not available."
            )

    def check_all(self) -> None:
        """What touches every partition fails while one is down."""
        for partition in self._down:
            self.check(partition)

    def check_batch(self, messages: Sequence[StoredMessage]) -> None:
        """All that is sent at once goes to one partition, so it has one key, or none."""
        keys = {partition_key_of(message) for message in messages}
        if len(keys) > 1:
            raise NotAllowed("InvalidOperation: all messages of a batch must have the same SessionId or PartitionKey.")
        for key in keys - {None}:
            self.check(self.for_key(str(key)))
        if not self.up_count:
            self.next_up()

    @property
    def up_count(self) -> int:
        return self.count - len(self._down)

    def for_key(self, key: str) -> int:
        return crc32(key.encode()) % self.count

    def next_up(self) -> int:
        for _ in range(self.count):
            self._turn = (self._turn + 1) % self.count
            if self.is_up(self._turn):
                return self._turn
        raise OperationTimedOut("The operation did not complete within the allotted time: no partition is available.")


class PartitionedReadyQueue(ReadyQueue):
    """A Line for each partition. Who takes gets from one after the other, and each time another one is first."""

    __slots__ = ("_first", "_lines", "_partitions")

    def __init__(self, partitions: Partitions) -> None:
        super().__init__()
        self._partitions = partitions
        self._lines = [ReadyQueue() for _ in range(partitions.count)]
        self._first = 0

    def __len__(self) -> int:
        """What waits in a partition that is down waits for nobody."""
        return sum(len(line) for number, line in enumerate(self._lines) if self._partitions.is_up(number))

    def put(self, message: StoredMessage) -> None:
        self._lines[partition_of(message.sequence_number)].put(message)

    def take(self, limit: int) -> list[StoredMessage]:
        taken: list[StoredMessage] = []
        self._first = (self._first + 1) % len(self._lines)
        for step in range(len(self._lines)):
            number = (self._first + step) % len(self._lines)
            if len(taken) < limit and self._partitions.is_up(number):
                taken += self._lines[number].take(limit - len(taken))
        return taken

    def leave_from(self, partition: int) -> None:
        self._lines[partition].leave()


class PartitionedMessages(SubQueue):
    """A SubQueue in partitions, once `divide` has said which; others can be made of it and another SubQueue."""

    _line: PartitionedReadyQueue
    _partitions = Partitions(1)
    _partition = 0

    def divide(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._counters = [number << NUMBER_BITS for number in range(partitions.count)]
        self._make_empty()
        partitions.engines.add(self)

    def resume(self) -> None:
        """A partition is up again: there may be something for those who wait."""
        self._pump_soon()

    def _make_line(self) -> PartitionedReadyQueue:
        return PartitionedReadyQueue(self._partitions)

    def _leave_line(self, message: StoredMessage) -> None:
        self._line.leave_from(partition_of(message.sequence_number))

    # The engine counts on from `_sequence`: each partition has its own.

    @property
    def _sequence(self) -> int:
        return self._counters[self._partition]

    @_sequence.setter
    def _sequence(self, value: int) -> None:
        # The engine's first word comes before it is divided.
        if self._partitions.count > 1:
            self._counters[self._partition] = value

    def enqueue(self, messages: Iterable[StoredMessage]) -> None:
        placed: dict[int, list[StoredMessage]] = {}
        for partition, message in self._placed(messages):
            placed.setdefault(partition, []).append(message)
        before = self._partition
        try:
            for self._partition, group in placed.items():
                super().enqueue(group)
        finally:
            # Taking in may do what is due first, and that may take in more.
            self._partition = before

    def _placed(self, messages: Iterable[StoredMessage]) -> Iterator[tuple[int, StoredMessage]]:
        """Each message with its partition. What has no key, and comes together, stays together."""
        chosen: int | None = None
        for message in messages:
            key = partition_key_of(message)
            if message.sequence_number:
                # What was on the schedule stays where it is.
                yield partition_of(message.sequence_number), message
            elif key is not None:
                yield self._partitions.for_key(key), message
            else:
                chosen = self._partitions.next_up() if chosen is None else chosen
                yield chosen, message

    def peek(self, from_sequence: int, limit: int) -> list[StoredMessage]:
        """Of one partition at a time, so that fewer may come than there are: ask on until none do."""
        for partition in range(max(0, partition_of(from_sequence)), self._partitions.count):
            if self._partitions.is_up(partition):
                first = max(from_sequence, partition << NUMBER_BITS)
                found = super().peek(first, limit)
                here = [each for each in found if partition_of(each.sequence_number) == partition]
                if here:
                    return here
        return []

    # What is in a partition that is down cannot be settled, nor asked for by its number.

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

    def _deferred(self, sequence: int) -> StoredMessage:
        self._partitions.check(partition_of(sequence))
        return super()._deferred(sequence)

    def _scheduled(self, sequence: int) -> StoredMessage:
        self._partitions.check(partition_of(sequence))
        return super()._scheduled(sequence)
