"""Messages that a run leaves in their queue: kept locked until it ends, so that they are not received again.

Invariant: a message is counted once, however often it is received. The locks that a lost connection leaves expire, and
its messages come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from sbpair.errors import MessageLockLost, SbpairError

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import KeepingSource, KeptMessage, ReceivedMessage

log = logging.getLogger(__name__)

_number_of: Callable[[KeptMessage], int] = attrgetter("number")
_time_of: Callable[[KeptMessage], int] = attrgetter("enqueued_at")

RENEWED_TOGETHER = 100


class SkippedMessages:
    """Those of one queue. `times` are when all were enqueued, by sequence number, also of those whose locks were lost.

    A queue that is deleted and created again has the same numbers, for other messages.
    `source` is the queue's current link; None for a source whose messages are never skipped.
    """

    def __init__(self, source: KeepingSource | None = None) -> None:
        self.source = source
        self.times: dict[int, int] = {}
        self._kept: dict[int, KeptMessage] = {}
        self._renewals: deque[KeptMessage] = deque()  # the first lock to expire first
        self._added = asyncio.Event()

    def __len__(self) -> int:
        """Return how many are locked."""
        return len(self._kept)

    def add(self, messages: Sequence[ReceivedMessage]) -> None:
        """Keep messages locked, or their later deliveries."""
        assert self.source is not None  # noqa: S101  # or nothing is skipped
        self.add_kept(self.source.keep(messages))

    def add_kept(self, kept: Sequence[KeptMessage]) -> None:
        numbers = list(map(_number_of, kept))
        self._kept.update(zip(numbers, kept, strict=True))
        self.times.update(zip(numbers, map(_time_of, kept), strict=True))
        self._renewals += kept
        self._added.set()

    def detach(self) -> SkippedMessages:
        """Return all that are locked, to be released apart from those to come. Both know the same times."""
        detached = SkippedMessages(self.source)
        detached.times = self.times
        detached._kept, self._kept = self._kept, {}
        self._renewals.clear()
        return detached

    def forget_locks(self) -> None:
        """Give up all locks, after the link has gone: the messages come again."""
        self._kept.clear()
        self._renewals.clear()

    async def release_all(self) -> int:
        """Unlock all messages, and return how many there were. Where that fails, the locks expire."""
        kept = list(self._kept.values())
        self.forget_locks()
        await self._release(kept)
        return len(kept)

    async def release_newest(self) -> None:
        if self._kept:
            await self._release([self._kept.popitem()[1]])

    async def _release(self, messages: Sequence[KeptMessage]) -> None:
        if messages and self.source is not None and (failed := await self.source.release_kept(messages)):
            log.info("%s: %d of %d skipped messages were not released", self.source.queue, failed, len(messages))

    async def renew(self, context: MoveContext) -> None:
        """Renew locks until cancelled."""
        loop, timings = asyncio.get_running_loop(), context.timings
        while True:
            if not self._renewals:
                self._added.clear()
                await self._added.wait()
                continue
            soonest = self._renewals[0].lock_until - timings.renew_before_seconds
            await asyncio.sleep(max(timings.min_renewal_seconds, soonest - loop.time()))
            due = loop.time() + timings.renew_before_seconds
            count = next((at for at, each in enumerate(self._renewals) if each.lock_until > due), len(self._renewals))
            for _ in range(0, count, RENEWED_TOGETHER):
                await self._renew_first(min(count, RENEWED_TOGETHER), context)

    async def _renew_first(self, count: int, context: MoveContext) -> None:
        first = [each for each in islice(self._renewals, count) if self._is_kept(each)]
        await self._renew(first, context)
        for _ in range(min(count, len(self._renewals))):
            each = self._renewals.popleft()
            if self._is_kept(each):
                self._renewals.append(each)

    async def _renew(self, messages: Sequence[KeptMessage], context: MoveContext) -> None:
        if not messages or self.source is None:
            return
        context.tally.spent("renewals", len(messages))
        try:
            await self.source.renew_kept(messages)
        except MessageLockLost:
            if len(messages) == 1:
                self._kept.pop(messages[0].number, None)  # it comes again
                return
            half = len(messages) // 2
            await self._renew(messages[:half], context)
            await self._renew(messages[half:], context)
        except SbpairError as error:
            log.info("locks of %s were not renewed: %s", self.source.queue, error)

    def _is_kept(self, message: KeptMessage) -> bool:
        return self._kept.get(message.number) is message
