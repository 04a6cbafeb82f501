"""Messages that a run keeps locked, and the renewal of their locks in time.

Held ones are received and not settled yet. Skipped ones stay in their queue, and are kept locked until the run ends, so
that they are not received again. Invariant: a skipped message is counted once, however often it is received. The locks
that a lost connection leaves expire, and its messages come again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, KeysView, Sequence
from itertools import islice, takewhile
from operator import attrgetter, is_
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import MessageLockLost, SbpairError
from sbpair.move.interface import get_key, get_size

if TYPE_CHECKING:
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import KeptMessage, MessageSource, ReceivedMessage
    from sbpair.move.raw_source import RawSource, SessionSource, SessionsSource
    from sbpair.runs.journal import Key

log = logging.getLogger(__name__)

RENEWED_TOGETHER = 100

SESSION_RENEWAL_SECONDS = 2.0
"""How often the locks of parked sessions are renewed: the shortest lock of Service Bus is 5 s."""

Locked = TypeVar("Locked")
_number_of: Callable[[KeptMessage], int] = attrgetter("number")
_time_of: Callable[[KeptMessage], int] = attrgetter("enqueued_at")


class HeldMessages:
    """Deliveries by key, in the order received. A redelivery supersedes the earlier delivery of its message.

    `bytes` is their total size, `largest` the largest size so far. `added` is set when deliveries were added.
    """

    def __init__(self) -> None:
        self.bytes = self.largest = 0
        self.added = asyncio.Event()
        self._by_key: dict[Key, ReceivedMessage] = {}
        self._superseded: list[ReceivedMessage] = []

    def __len__(self) -> int:
        return len(self._by_key) + len(self._superseded)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Iterate over a copy."""
        return iter([*self._by_key.values(), *self._superseded])

    def __contains__(self, message: ReceivedMessage) -> bool:
        return self._by_key.get(message.key) is message or message in self._superseded

    def first(self) -> ReceivedMessage | None:
        return next(iter(self._by_key.values()), None)

    def leading(self, among: Container[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return the first deliveries, up to the first one that is not `among` these."""
        return list(takewhile(among.__contains__, self._by_key.values()))

    def add(self, message: ReceivedMessage) -> ReceivedMessage | None:
        """Add a delivery. Return the one that it supersedes, if any."""
        key, size = message.key, message.facts.size
        before = self._by_key.get(key)
        if before is not None:
            self._superseded.append(before)
        self._by_key[key] = message
        self.bytes += size
        if size > self.largest:
            self.largest = size
        return before

    def add_all(self, messages: dict[Key, ReceivedMessage]) -> None:
        """Add deliveries, none of which supersedes another."""
        self._by_key.update(messages)
        sizes = list(map(get_size, messages.values()))
        self.bytes += sum(sizes)
        self.largest = max([self.largest, *sizes])

    def note_size(self, size: int) -> None:
        """Update `largest` for the size of a message that is not held."""
        self.largest = max(self.largest, size)

    def keys(self) -> KeysView[Key]:
        return self._by_key.keys()

    def contains_any(self, keys: KeysView[Key]) -> bool:
        return not keys.isdisjoint(self._by_key.keys())

    def remove(self, message: ReceivedMessage) -> bool:
        """Remove a delivery. Return False if it was not held."""
        if self._by_key.get(message.key) is message:
            del self._by_key[message.key]
        elif message in self._superseded:
            self._superseded.remove(message)
        else:
            return False
        self.bytes -= message.facts.size
        return True

    def remove_all(self, messages: Sequence[ReceivedMessage]) -> None:
        keys = list(map(get_key, messages))
        if not all(map(is_, map(self._by_key.get, keys), messages)):
            for message in messages:
                self.remove(message)
            return
        deque(map(self._by_key.__delitem__, keys), maxlen=0)
        self.bytes -= sum(map(get_size, messages))


async def renew_locks(
    held: HeldMessages, source: MessageSource, context: MoveContext, on_lost: Callable[[ReceivedMessage], None]
) -> None:
    """Renew locks until cancelled. `on_lost` gets each delivery whose lock could not be renewed."""
    loop, timings = asyncio.get_running_loop(), context.timings

    def lose(message: ReceivedMessage) -> None:
        message.lock_until = 0.0
        on_lost(message)

    while True:
        locked = [message for message in held if message.lock_until > 0.0]
        if not locked:
            held.added.clear()
            await held.added.wait()
            continue
        # A later lock expires later: nothing that arrives during this sleep is more urgent.
        soonest = min(message.lock_until for message in locked)
        await asyncio.sleep(max(timings.min_renewal_seconds, soonest - timings.renew_before_seconds - loop.time()))
        due = loop.time() + timings.renew_before_seconds
        await _renew([each for each in held if 0.0 < each.lock_until <= due], source, context, held.__contains__, lose)


async def _renew(
    messages: Iterable[Locked],
    source: MessageSource,
    context: MoveContext,
    is_locked: Callable[[Locked], bool],
    on_lost: Callable[[Locked], None],
) -> None:
    """Renew the locks of messages that are still locked. `on_lost` gets each whose lock is lost."""
    locked = list(filter(is_locked, messages))
    if not locked:
        return
    context.tally.spent("renewals", len(locked))
    try:
        await source.renew(locked)
    except MessageLockLost:
        # One lost lock refuses all: halves find it.
        half = len(locked) // 2
        if not half:
            on_lost(locked[0])
            return
        await _renew(locked[:half], source, context, is_locked, on_lost)
        await _renew(locked[half:], source, context, is_locked, on_lost)
    except SbpairError as error:
        log.info("locks of %s were not renewed: %s", source.queue, error)


class SkippedMessages:
    """Those of one queue. `times` are when all were enqueued, by sequence number, also of those whose locks were lost.

    A queue that is deleted and created again has the same numbers, for other messages.
    `source` is the queue's current link; None for a source whose messages are never skipped.
    """

    def __init__(self, source: RawSource | None = None) -> None:
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
        """Return all that are locked, to be released apart from those to come."""
        detached = SkippedMessages(self.source)
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
            for start in range(0, count, RENEWED_TOGETHER):
                await self._renew_first(min(count - start, RENEWED_TOGETHER), context)

    async def _renew_first(self, count: int, context: MoveContext) -> None:
        if self.source is not None:
            await _renew(islice(self._renewals, count), self.source, context, self._is_kept, self._lose)
        for _ in range(min(count, len(self._renewals))):
            each = self._renewals.popleft()
            if self._is_kept(each):
                self._renewals.append(each)

    def _lose(self, message: KeptMessage) -> None:
        self._kept.pop(message.number, None)  # it comes again

    def _is_kept(self, message: KeptMessage) -> bool:
        return self._kept.get(message.number) is message


class ParkedSessions(SkippedMessages):
    """Sessions with skipped messages, and these. They stay locked until the run ends, or they would come again."""

    def __init__(self, source: SessionsSource) -> None:
        super().__init__(source)
        self._sessions: dict[SessionSource, SkippedMessages] = {}

    def __contains__(self, session: SessionSource) -> bool:
        return session in self._sessions

    def __len__(self) -> int:
        return sum(map(len, self._sessions.values()))

    def skipped_in(self, session: SessionSource) -> SkippedMessages:
        """Return the skipped messages of a session that is moved next: those that were skipped before are known."""
        skipped = SkippedMessages(session)
        skipped.times = self.times
        return skipped

    def park(self, session: SessionSource, skipped: SkippedMessages) -> None:
        """Keep a session, if messages of it were skipped."""
        if len(skipped):
            self._sessions[session] = skipped

    async def keep_locked(self, context: MoveContext) -> None:
        """Renew the locks of sessions until cancelled. One whose lock is lost comes again."""
        while True:
            await asyncio.sleep(SESSION_RENEWAL_SECONDS)
            for session in list(self._sessions):
                context.tally.spent("renewals", 1)
                try:
                    await session.renew([])
                except SbpairError as error:
                    log.info("a session of %s is not locked any more: %s", session.queue, error.message)
                    del self._sessions[session]

    async def close(self, context: MoveContext) -> None:
        """Release all skipped messages, and their sessions."""
        sessions, self._sessions = self._sessions, {}
        for session, skipped in sessions.items():
            context.tally.spent("received", await skipped.release_all())
            session.close()
