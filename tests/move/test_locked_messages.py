"""What a peek of a queue finds, page by page, and for how long the messages that others have locked stay so."""

import pytest

from sbpair.move.interface import PeekedHeader
from sbpair.move.peek.locked import (
    ASSUMED_LOCK_SECONDS,
    MAX_LOCK_SECONDS,
    PARTITION_BITS,
    LockedMessages,
    PeekedQueue,
    peek_old,
)

NEW = 100
"""Messages that were enqueued from this time on are new."""

SECOND = 1 << PARTITION_BITS
"""The first number of the second partition."""


def page(*numbers: int, enqueued_at: int = 1, active: bool = True, deferred: bool = False) -> list[PeekedHeader]:
    return [PeekedHeader(number, enqueued_at, active=active, deferred=deferred) for number in numbers]


@pytest.mark.parametrize(
    ("pages", "asked", "active", "deferred", "skipped"),
    [
        ([], [0], set(), 0, False),
        ([page(0), page(1, 2), page(3, active=False, deferred=True)], [0, 1, 3, 4], {0, 1, 2}, 1, False),
        ([page(1), page(2, enqueued_at=NEW), page(SECOND)], [0, 2, SECOND, SECOND + 1], {1, SECOND}, 0, True),
        ([page(1), [*page(2), *page(3, enqueued_at=NEW)]], [0, 2, 4], {1, 2}, 0, True),
        ([page(4), page(0), page(9)], [0, 5], {0, 4}, 0, True),
        ([page(1, active=False, deferred=True), page(2, 3, 4, 5), page(6)], [0, 2], {2, 3, 4, 5}, 1, True),
    ],
    ids=["empty", "all", "new in a partition", "new at the end", "unreadable", "enough"],
)
async def test_a_peek_goes_on_until_nothing_old_comes(
    pages: list[list[PeekedHeader]], asked: list[int], active: set[int], deferred: int, skipped: bool
) -> None:
    starts: list[int] = []

    async def peek_page(start: int) -> list[PeekedHeader]:
        starts.append(start)
        return pages[len(starts) - 1] if len(starts) <= len(pages) else []

    found = await peek_old(peek_page, lambda enqueued_ms: enqueued_ms >= NEW, lambda active: len(active) > 3)
    assert found == PeekedQueue(frozenset(active), deferred, skipped)
    assert starts == asked


def test_messages_are_locked_for_a_lock_from_when_they_were_first_seen() -> None:
    locked = LockedMessages()
    assert (len(locked), locked.free_at) == (0, 0.0)
    assert not locked.update([1, -1], 10.0)
    assert (locked.first, locked.free_at) == (-1, 10.0 + ASSUMED_LOCK_SECONDS)
    assert (locked.is_news(), locked.is_news()) == (True, False)
    locked.discard_counted()
    assert (len(locked), locked.is_news()) == (1, False)
    assert not locked.update([0, 1], 20.0)
    assert (locked.free_at, locked.is_news()) == (20.0 + ASSUMED_LOCK_SECONDS, True)
    locked.discard_counted()
    assert len(locked) == 2
    locked.discard([0, 7])
    assert locked.free_at == 10.0 + ASSUMED_LOCK_SECONDS
    assert locked.update([1], locked.free_at)
    assert locked.free_at == 10.0 + ASSUMED_LOCK_SECONDS + MAX_LOCK_SECONDS
    locked.lock_seconds = 30.0
    assert not locked.update([2], 40.0)
    assert locked.free_at == 70.0
    locked.clear()
    assert len(locked) == 0
