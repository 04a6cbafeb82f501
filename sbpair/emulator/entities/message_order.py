"""The orders of messages: by sequence number, by readiness, by deadline, by lock.

Every operation is O(1) or O(log n) in the messages held, amortised. An entry that leaves from the middle is only
counted as void. The void ones are swept when they outnumber the rest, so nothing here grows without bound.
"""

from __future__ import annotations

import secrets
from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from sbpair.emulator.clock import NEVER
from sbpair.emulator.entities.stored_message import ACTIVE, LOCKED, StoredMessage
from sbpair.emulator.service_errors import MessageLockExpired

PAGE_BITS: Final = 10
"""A page has 1024 sequence numbers: small enough to sort, large enough to keep the pages few."""

SWEEP_AT: Final = 64


class MessageStore:
    """All messages of a sub-queue by sequence number, and their total size.

    It has two levels, so that reading from any number costs one page at most, however many messages were there
    before. No single table of a million entries is ever rebuilt.
    """

    __slots__ = ("_count", "_numbers", "_pages", "size_bytes")

    def __init__(self) -> None:
        self._pages: dict[int, dict[int, StoredMessage]] = {}
        self._numbers: list[int] = []
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, message: StoredMessage) -> None:
        sequence = message.sequence_number
        page = self._pages.get(sequence >> PAGE_BITS) or self._new_page(sequence >> PAGE_BITS)
        page[sequence] = message
        self._count += 1
        self.size_bytes += message.size

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
        self.size_bytes -= page.pop(sequence).size
        self._count -= 1
        if not page:
            del self._pages[number]
            del self._numbers[bisect_left(self._numbers, number)]

    # A store that is kept in a file overrides these.

    def changed(self, message: StoredMessage) -> None:
        """React to a message whose lock has ended, with its delivery count or state changed."""

    def numbered(self) -> None:
        """React to another last number of the sub-queue."""

    def session_changed(self, session_id: str, state: bytes | None, changed_ms: int) -> None:
        """React to another state of a session, or to its removal."""

    def read_from(self, sequence: int) -> Iterator[StoredMessage]:
        """Yield the messages numbered `sequence` and above, in order. The store must not change meanwhile."""
        numbers = self._numbers
        for index in range(bisect_left(numbers, sequence >> PAGE_BITS), len(numbers)):
            page = self._pages[numbers[index]]
            # Dead letters arrive out of order, so a page may be out of order too.
            for key in sorted(page):
                if key >= sequence:
                    yield page[key]


class ReadyQueue:
    """The messages ready to be received, lowest sequence number first.

    New messages join a deque at its end. A message that comes back belongs before them, and goes to a heap.
    """

    __slots__ = ("_new", "_returned", "_void")

    def __init__(self) -> None:
        self._new: deque[StoredMessage] = deque()
        self._returned: list[tuple[int, StoredMessage]] = []
        self._void = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._returned) - self._void

    def put(self, message: StoredMessage) -> None:
        new = self._new
        if not new or new[-1].sequence_number < message.sequence_number:
            new.append(message)
        else:
            heappush(self._returned, (message.sequence_number, message))

    def take(self, max_messages: int) -> list[StoredMessage]:
        """Remove and return up to `max_messages` from the front."""
        new, returned = self._new, self._returned
        taken: list[StoredMessage] = []
        while len(taken) < max_messages:
            if returned and not (new and new[0].sequence_number < returned[0][0]):
                message = heappop(returned)[1]
            elif new:
                message = new.popleft()
            else:
                break
            if message.state == ACTIVE:
                taken.append(message)
            else:
                self._void -= 1
        return taken

    def add_void(self, message: StoredMessage) -> None:  # noqa: ARG002  # for those with several queues
        """Record that a message of this queue stopped being ACTIVE, other than by `take`."""
        self._void += 1
        if self._void > SWEEP_AT and self._void * 2 > len(self._new) + len(self._returned):
            self._new = deque(message for message in self._new if message.state == ACTIVE)
            self._returned = [entry for entry in self._returned if entry[1].state == ACTIVE]
            heapify(self._returned)
            self._void = 0


class Deadlines:
    """Sequence numbers by the time at which something is due for them.

    `is_valid(at_ms, sequence)` returns whether an entry still applies; it is called when sweeping only.
    """

    __slots__ = ("_heap", "_is_valid", "_void")

    def __init__(self, is_valid: Callable[[int, int], bool]) -> None:
        self._heap: list[tuple[int, int]] = []
        self._void = 0
        self._is_valid = is_valid

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at_ms: int, sequence: int) -> None:
        heappush(self._heap, (at_ms, sequence))

    def add_void(self) -> None:
        """Record that one of the entries no longer applies."""
        self._void += 1
        if self._void > SWEEP_AT and self._void * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if self._is_valid(*entry)]
            heapify(self._heap)
            self._void = 0

    def first_ms(self) -> int:
        return self._heap[0][0] if self._heap else NEVER

    def pop_due(self, now_ms: int) -> Iterator[int]:
        """Remove and yield the due entries, one by one. One may be void: the caller checks."""
        while self._heap and self._heap[0][0] <= now_ms:
            yield heappop(self._heap)[1]


class Locks:
    """Lock tokens and their messages, and the lock that expires first.

    Locks of one duration expire in the order in which they were taken or renewed, so an ordered table needs no heap
    and leaves nothing behind when a lock is settled. Only a change of LockDuration breaks that order; locks taken
    before the change are kept apart until they are gone.
    """

    __slots__ = ("_by_token", "_earlier_duration", "_last", "_prefix", "duration_ms")

    def __init__(self, lock_ms: int) -> None:
        self.duration_ms = lock_ms
        self._by_token: OrderedDict[bytes, StoredMessage] = OrderedDict()
        self._earlier_duration: OrderedDict[bytes, StoredMessage] = OrderedDict()
        # A random half and a counting half: unique like a GUID (with the version and variant bits of a random one, in
        # .NET's byte order), at a tenth of the cost of making one.
        random = secrets.token_bytes(8)
        self._prefix = random[:7] + bytes([0x40 | random[7] & 0x0F])
        self._last = 1 << 63

    def __len__(self) -> int:
        return len(self._by_token) + len(self._earlier_duration)

    def change_duration(self, lock_ms: int) -> None:
        """Use `lock_ms` for new locks. Locks already taken keep their deadline."""
        if lock_ms == self.duration_ms:
            return
        self.duration_ms = lock_ms
        both = [*self._earlier_duration.values(), *self._by_token.values()]
        both.sort(key=lambda message: message.locked_until_ms)
        self._earlier_duration = OrderedDict((message.lock_token, message) for message in both)
        self._by_token = OrderedDict()

    def take(self, messages: Iterable[StoredMessage], now_ms: int) -> int:
        """Lock each message under a new token; return when these locks expire."""
        until = now_ms + self.duration_ms
        by_token, prefix, last = self._by_token, self._prefix, self._last
        for message in messages:
            last += 1
            token = prefix + last.to_bytes(8, "big")
            message.lock_token = token
            message.locked_until_ms = until
            message.state = LOCKED
            by_token[token] = message
        self._last = last
        return until

    def get(self, token: bytes) -> StoredMessage | None:
        return self._by_token.get(token) or self._earlier_duration.get(token)

    def pop(self, token: bytes) -> StoredMessage:
        """End the lock of this token; return its message. Raises MessageLockExpired."""
        message = self._by_token.pop(token, None) or self._earlier_duration.pop(token, None)
        if message is None:
            raise message_lock_lost()
        return message

    def renew(self, token: bytes, now_ms: int) -> StoredMessage:
        """Lock a message for the whole duration. Raises MessageLockExpired."""
        message = self._by_token[token] = self.pop(token)
        message.locked_until_ms = now_ms + self.duration_ms
        return message

    def first_ms(self) -> int:
        """Return when the next lock expires."""
        first = NEVER
        for table in (self._by_token, self._earlier_duration):
            if table:
                first = min(first, table[next(iter(table))].locked_until_ms)
        return first

    def pop_expired(self, now_ms: int) -> list[StoredMessage]:
        """Remove and return the messages whose locks have expired, in that order."""
        expired: list[StoredMessage] = []
        for table in (self._earlier_duration, self._by_token):
            while table and table[next(iter(table))].locked_until_ms <= now_ms:
                expired.append(table.popitem(last=False)[1])
        return expired

    def clear(self) -> None:
        self._by_token.clear()
        self._earlier_duration.clear()


def message_lock_lost() -> MessageLockExpired:
    return MessageLockExpired(
        "The lock supplied is invalid. Either the lock expired, or the message has already been removed from the "
        "queue, or was received by a different receiver instance."
    )
