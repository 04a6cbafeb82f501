"""The deadlines of all entities and links of an emulator, so that one timer serves them all.

An entry is valid only while its item's `due_ms` equals it. An item with an earlier deadline adds another entry, which
makes the old one void. Neither a clock nor an event loop is used here.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timed(Protocol):
    """An item with a deadline. NEVER as `due_ms` voids its entries."""

    due_ms: int

    def advance(self, now_ms: int) -> None:
        """Do everything due by `now_ms` and schedule the next deadline."""


class Timers:
    """A heap of deadlines. `on_earlier` is called when the next deadline moves forward."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._entries = 0
        self.on_earlier: Callable[[], None] | None = None

    def schedule(self, at_ms: int, item: Timed) -> None:
        earlier = not self._heap or at_ms < self._heap[0][0]
        # The running number keeps the heap from comparing items.
        self._entries += 1
        heappush(self._heap, (at_ms, self._entries, item))
        if earlier and self.on_earlier is not None:
            self.on_earlier()

    def next_deadline_ms(self) -> int | None:
        while self._heap and self._heap[0][2].due_ms != self._heap[0][0]:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def advance(self, now_ms: int) -> None:
        """Run everything due by `now_ms`, in order of time."""
        while (due := self.next_deadline_ms()) is not None and due <= now_ms:
            item = heappop(self._heap)[2]
            item.advance(now_ms)
