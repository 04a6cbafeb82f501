"""Duplicate detection: the message ids that an entity has seen within its window.

The time is an argument. Ids older than the window are dropped with the next send.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbpair.emulator.entities.stored_message import StoredMessage


class DuplicateDetector:
    """The seen message ids of one entity. `window_ms` may change at any time, and applies to earlier ids too."""

    def __init__(self) -> None:
        self.window_ms = 0
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def enqueue_new(
        self, messages: Sequence[StoredMessage], now_ms: int, enqueue: Callable[[list[StoredMessage]], None]
    ) -> None:
        """Pass new messages to `enqueue`. A duplicate gets the sequence number of the first message of its id."""
        self._drop_old(now_ms)
        new: list[StoredMessage] = []
        duplicates: list[tuple[str, StoredMessage]] = []
        new_by_id: dict[str, StoredMessage] = {}
        for message in messages:
            message_id = message.message_id
            if message_id is None:
                new.append(message)
            elif message_id in self._seen or message_id in new_by_id:
                duplicates.append((message_id, message))
            else:
                new_by_id[message_id] = message
                new.append(message)
        enqueue(new)
        for message_id, message in new_by_id.items():
            self._seen[message_id] = (now_ms, message.sequence_number)
        for message_id, message in duplicates:
            message.sequence_number = self._seen[message_id][1]

    def _drop_old(self, now_ms: int) -> None:
        seen = self._seen
        while seen and seen[next(iter(seen))][0] + self.window_ms <= now_ms:
            seen.popitem(last=False)
