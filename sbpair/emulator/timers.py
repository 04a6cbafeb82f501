"""What is due when, over all sub-queues of a server, so that one timer drives them all.

An entry counts only while its item still says that it is due then: an item that finds itself due earlier adds another
entry, and the old one lapses. No clock and no loop in here.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timed(Protocol):
    due_ms: int

    def advance(self, now_ms: int) -> None:
        """Does all that is due, and enters its next deadline."""


class Timers:
    """`on_earlier` is called when the next deadline has become earlier than it was: time to set the timer anew."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Timed]] = []
        self._entries = 0
        self.on_earlier: Callable[[], None] | None = None

    def enter(self, at_ms: int, item: Timed) -> None:
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
        """Everything that is due by now happens, in order of time."""
        while (due := self.next_deadline_ms()) is not None and due <= now_ms:
            item = heappop(self._heap)[2]
            item.advance(now_ms)
