"""Duplicate detection: the message ids that an entity has seen."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from sbpair.emulator.entities.partitions import partition_key_of
from sbpair.emulator.entities.stored_message import StoredMessage


class DuplicateDetector:
    """The message ids that an entity has seen within its window. Older ones are dropped with the next send.

    In a partitioned entity, messages of one id are duplicates only if they have the same partition key. `window_ms` may
    change at any time, and applies to earlier ids too.
    """

    def __init__(self, *, by_partition_key: bool) -> None:
        self.window_ms = 0
        self.seen: OrderedDict[str, tuple[int, int]] = OrderedDict()
        self._by_partition_key = by_partition_key

    def _key_of(self, message: StoredMessage) -> str | None:
        if message.message_id is None or not self._by_partition_key:
            return message.message_id
        key = partition_key_of(message) or ""
        return f"{len(key)}:{key}{message.message_id}"

    def enqueue_new(
        self, messages: Sequence[StoredMessage], now_ms: int, enqueue: Callable[[list[StoredMessage]], None]
    ) -> None:
        """Pass new messages to `enqueue`. A duplicate gets the sequence number of the message before it."""
        self._drop_old(now_ms)
        keys = [self._key_of(message) for message in messages]
        first: dict[str, StoredMessage] = {}
        new = [
            message
            for key, message in zip(keys, messages, strict=True)
            if key is None or (key not in self.seen and first.setdefault(key, message) is message)
        ]
        enqueue(new)
        for new_key, message in first.items():
            self.seen[new_key] = (now_ms, message.sequence_number)
        for key, message in zip(keys, messages, strict=True):
            if key is not None:
                message.sequence_number = self.seen[key][1]

    def _drop_old(self, now_ms: int) -> None:
        seen = self.seen
        while seen and seen[next(iter(seen))][0] + self.window_ms <= now_ms:
            seen.popitem(last=False)
