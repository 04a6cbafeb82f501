"""The orders that messages stand in: by sequence number, by readiness, by deadline.

Every operation is O(1) or O(log n) in the messages held, amortised. What leaves from the middle is only marked, and
swept when the marked outnumber the rest; so nothing here grows without bound.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.stored_message import ACTIVE, StoredMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE_BITS: Final = 10
"""A page is 1024 sequence numbers: small enough to look through, large enough that there are few of them."""

SWEEP_AT: Final = 64


class MessageStore:
    """All messages of a sub-queue by sequence number.

    Two levels, so that reading on from any number costs no more than one page, however many messages were there
    before, and so that no single table of a million entries is ever rebuilt.
    """

    __slots__ = ("_count", "_numbers", "_pages")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, StoredMessage]] = {}
        self._numbers: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: StoredMessage) -> None:
        sequence = message.sequence_number
        page = self._pages.get(sequence >> PAGE_BITS)
        if page is None:
            page = self._new_page(sequence >> PAGE_BITS)
        page[sequence] = message
        self._count += 1

    def _new_page(self, number: int) -> dict[int, StoredMessage]:
        page = self._pages[number] = {}
        insort(self._numbers, number)
        return page

    def get(self, sequence: int) -> StoredMessage | None:
        page = self._pages.get(sequence >> PAGE_BITS)
        return None if page is None else page.get(sequence)

    def remove(self, sequence: int) -> None:
        number = sequence >> PAGE_BITS
        page = self._pages[number]
        del page[sequence]
        self._count -= 1
        if not page:
            del self._pages[number]
            del self._numbers[bisect_left(self._numbers, number)]

    def read_from(self, sequence: int) -> Iterator[StoredMessage]:
        """The messages numbered `sequence` and above, in order. The shelf must not change meanwhile."""
        numbers = self._numbers
        for index in range(bisect_left(numbers, sequence >> PAGE_BITS), len(numbers)):
            page = self._pages[numbers[index]]
            # Dead letters arrive out of order, so a page may be out of order too.
            for key in sorted(page):
                if key >= sequence:
                    yield page[key]


class ReadyQueue:
    """The messages that wait to be received, lowest sequence number first.

    New ones join a deque at its end. One that comes back has its place before them, and goes to a heap.
    """

    __slots__ = ("_back", "_fresh", "_left")

    def __init__(self) -> None:
        self._fresh: deque[StoredMessage] = deque()
        self._back: list[tuple[int, StoredMessage]] = []
        self._left = 0

    def __len__(self) -> int:
        return len(self._fresh) + len(self._back) - self._left

    def put(self, message: StoredMessage) -> None:
        fresh = self._fresh
        if not fresh or fresh[-1].sequence_number < message.sequence_number:
            fresh.append(message)
        else:
            heappush(self._back, (message.sequence_number, message))

    def take(self, limit: int) -> list[StoredMessage]:
        """Up to `limit` messages from the front."""
        fresh, back = self._fresh, self._back
        taken: list[StoredMessage] = []
        while len(taken) < limit:
            if back and not (fresh and fresh[0].sequence_number < back[0][0]):
                message = heappop(back)[1]
            elif fresh:
                message = fresh.popleft()
            else:
                break
            if message.state == ACTIVE:
                taken.append(message)
            else:
                self._left -= 1
        return taken

    def leave(self) -> None:
        """A message that stood in this line is not ACTIVE any more, other than by `take`."""
        self._left += 1
        if self._left > SWEEP_AT and self._left * 2 > len(self._fresh) + len(self._back):
            self._fresh = deque(message for message in self._fresh if message.state == ACTIVE)
            self._back = [entry for entry in self._back if entry[1].state == ACTIVE]
            heapify(self._back)
            self._left = 0


class Deadlines:
    """Sequence numbers by the time at which something is due for them.

    `still(at_ms, sequence)` says whether an entry is meant any more; it is only asked when sweeping.
    """

    __slots__ = ("_heap", "_left", "_still")

    def __init__(self, still: Callable[[int, int], bool]) -> None:
        self._heap: list[tuple[int, int]] = []
        self._left = 0
        self._still = still

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_ms: int, sequence: int) -> None:
        heappush(self._heap, (at_ms, sequence))

    def leave(self) -> None:
        """One of the entries is not meant any more."""
        self._left += 1
        if self._left > SWEEP_AT and self._left * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if self._still(*entry)]
            heapify(self._heap)
            self._left = 0

    def first_ms(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def due(self, now_ms: int) -> Iterator[int]:
        """Takes out, one by one, what is due. It may no longer be meant: the caller looks."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heappop(self._heap)[1]
