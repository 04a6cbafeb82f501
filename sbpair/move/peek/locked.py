"""Messages that a run does not move: those that others have locked, and those that were enqueued after it began.

A receive does not deliver locked ones, and only a peek shows that they exist.

Peeked messages carry no lock time, so the time when they are free follows from the queue's lock duration.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from sbpair.model.namespace_clock import ASSUMED_LOCK_SECONDS, MAX_LOCK_SECONDS
from sbpair.move.interface import PeekedHeader

CLOCKS_DIFFER_MS = 60_000
"""How far a comparison of the clocks may be wrong."""

PARTITION_BITS = 48
"""In a partitioned queue, the bits of a sequence number above these are the partition."""

PeekPage = Callable[[int], Awaitable["list[PeekedHeader]"]]
"""Peeks from a sequence number on: some messages, or none at the end."""


class PeekedQueue(NamedTuple):
    """Peeked messages: `active` ones by sequence number, locked ones included. `skipped`: others were not peeked."""

    active: frozenset[int]
    deferred: int
    skipped: bool


async def peek_old(
    peek_page: PeekPage,
    is_new: Callable[[int], bool] = lambda _enqueued_ms: False,
    is_enough: Callable[[set[int]], bool] = lambda _active: False,
) -> PeekedQueue:
    """Peek a queue until nothing comes, or the active messages so far are enough.

    Messages whose time of enqueueing `is_new` are left out. New messages follow old ones, so a page of new ones ends
    the peek of its partition. Scheduled and deferred messages are never active.
    """
    active: set[int] = set()
    start = deferred = 0
    skipped = False
    while page := await peek_page(start):
        old = [each for each in page if not is_new(each.enqueued_at)]
        active.update(each.sequence_number for each in old if each.active)
        deferred += sum(each.deferred for each in page)
        highest = max(each.sequence_number for each in page)
        skipped = skipped or len(old) < len(page) or highest < start
        if highest < start:
            break  # an unreadable message hides the ones after it
        if is_enough(active):
            return PeekedQueue(frozenset(active), deferred, skipped=True)
        start = highest + 1 if old else ((highest >> PARTITION_BITS) + 1) << PARTITION_BITS
    return PeekedQueue(frozenset(active), deferred, skipped)


class LockedMessages:
    """Locked messages of one queue by sequence number, and when they are free at the latest.

    Negative numbers stand for messages that only a count shows. `lock_seconds` is the queue's lock duration; None if
    unknown. Times are seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.lock_seconds: float | None = None
        self._free_at: dict[int, float] = {}
        self._reported: tuple[frozenset[int], float] = frozenset(), 0.0

    def __len__(self) -> int:
        return len(self._free_at)

    @property
    def first(self) -> int:
        return min(self._free_at)

    @property
    def free_at(self) -> float:
        """When the last of them is free, unless its lock is renewed; 0 without any."""
        return max(self._free_at.values(), default=0.0)

    def update(self, numbers: Iterable[int], now: float) -> bool:
        """Take over the result of a peek. Return whether some should have been free by now.

        Those are renewed by a live receiver, or their unknown lock duration is longer than assumed.
        """
        before = self._free_at
        overdue = [number for number in numbers if before.get(number, now + 1) <= now]
        seconds = self.lock_seconds or (MAX_LOCK_SECONDS if overdue else ASSUMED_LOCK_SECONDS)
        self._free_at = {
            number: now + seconds if number in overdue else before.get(number, now + seconds) for number in numbers
        }
        return bool(overdue)

    def discard(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._free_at.pop(number, None)

    def discard_counted(self) -> None:
        """Drop the messages that only a count shows."""
        self.discard([number for number in self._free_at if number < 0])

    def clear(self) -> None:
        self._free_at.clear()

    def is_news(self) -> bool:
        """Return whether more messages are locked, or for longer, than at the last call that returned True."""
        numbers, free_at = self._reported
        now = frozenset(self._free_at)
        if now <= numbers and self.free_at <= free_at:
            return False
        self._reported = now, self.free_at
        return True


class NewMessages:
    """The messages that were enqueued after a run began: it need not move them.

    Invariant: messages are stamped by the service's clock, so none counts as new before the run's start is known by it.
    All after `until_ms` are, if that is given.
    """

    def __init__(self, until_ms: int | None = None) -> None:
        self._until_ms = until_ms
        self._from_ms = math.inf if until_ms is None else until_ms

    def note_start(self, started_ms: int) -> None:
        """Take note of when the run began by the service's clock, in ms since 1970."""
        if self._until_ms is None:
            self._from_ms = started_ms + CLOCKS_DIFFER_MS

    def include(self, enqueued_ms: int) -> bool:
        """Return whether a message enqueued at this time is new."""
        return enqueued_ms > self._from_ms
