"""Which message ids an entity has seen within its window, so that what is sent twice is taken in once.

Pure but for its memory: the time is an argument. What has left the window is forgotten with the next send.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sbpair.emulator.entities.stored_message import StoredMessage


class DuplicateDetector:
    """`window_ms` may be changed at any time, and counts for what was seen before too."""

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self._seen: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def take_in(
        self, messages: Sequence[StoredMessage], now_ms: int, enqueue: Callable[[list[StoredMessage]], None]
    ) -> None:
        """Gives `enqueue` those that are new. A repeated one gets the sequence number of the first of its id."""
        self._forget(now_ms)
        fresh: list[StoredMessage] = []
        repeated: list[tuple[str, StoredMessage]] = []
        named: dict[str, StoredMessage] = {}
        for message in messages:
            message_id = message.message_id
            if message_id is None:
                fresh.append(message)
            elif message_id in self._seen or message_id in named:
                repeated.append((message_id, message))
            else:
                named[message_id] = message
                fresh.append(message)
        enqueue(fresh)
        for message_id, message in named.items():
            self._seen[message_id] = (now_ms, message.sequence_number)
        for message_id, message in repeated:
            message.sequence_number = self._seen[message_id][1]

    def _forget(self, now_ms: int) -> None:
        seen = self._seen
        while seen and seen[next(iter(seen))][0] + self.window_ms <= now_ms:
            seen.popitem(last=False)
