"""Messages held: received, locked and not settled; and the renewal of their locks in time."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Container, Iterator, KeysView, Sequence
from itertools import takewhile
from operator import is_
from typing import TYPE_CHECKING

from sbpair.errors import MessageLockLost, SbpairError
from sbpair.move.interface import get_key, get_size

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.context import MoveContext
    from sbpair.move.interface import MessageSource, ReceivedMessage

log = logging.getLogger(__name__)


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

    def note_largest(self, messages: Sequence[ReceivedMessage]) -> None:
        """Update `largest` for messages that are not held."""
        self.note_size(max(map(get_size, messages), default=0))

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
        await _renew([each for each in held if 0.0 < each.lock_until <= due], held, source, context, on_lost)


async def _renew(
    messages: list[ReceivedMessage],
    held: HeldMessages,
    source: MessageSource,
    context: MoveContext,
    on_lost: Callable[[ReceivedMessage], None],
) -> None:
    if not messages:
        return
    context.tally.spent("renewals", len(messages))
    try:
        await source.renew(messages)
    except MessageLockLost:
        if len(messages) == 1:
            messages[0].lock_until = 0.0
            on_lost(messages[0])
            return
        for message in messages:
            if message in held:
                await _renew([message], held, source, context, on_lost)
    except SbpairError as error:
        log.info("locks of %s were not renewed: %s", source.queue, error)
