"""What a lane has in hand, and the locks of it: they are renewed in time, or lost on purpose, never by surprise."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from itertools import takewhile
from operator import is_
from typing import TYPE_CHECKING

from sbpair.errors import MessageLockLost, SbpairError
from sbpair.move.interface import get_key, get_size

if TYPE_CHECKING:
    from sbpair.model.message_key import Key
    from sbpair.move.interface import MessageSource, ReceivedMessage
    from sbpair.move.receipt import Tally

log = logging.getLogger(__name__)

RENEW_LEFT_SECONDS = 25.0
"""Locks are renewed when this much is left of them."""


MIN_RENEW_INTERVAL_SECONDS = 1.0
"""How often locks are looked at in the worst case: those of a queue whose lock is shorter than what should be left."""


class HeldMessages:
    """Deliveries by their keys, as they came. One whose message comes again is an elder from then on.

    `bytes` is what they add up to, `largest` the size of the largest that there ever was. `lost` is told of a delivery
    whose lock could not be renewed.
    """

    def __init__(self, lost: Callable[[ReceivedMessage], None]) -> None:
        self.bytes = self.largest = 0
        self._lost = lost
        self._by_key: dict[Key, ReceivedMessage] = {}
        self._elders: list[ReceivedMessage] = []
        self._taken = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_key) + len(self._elders)

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """All of them, as they are now."""
        return iter([*self._by_key.values(), *self._elders])

    def first(self) -> ReceivedMessage | None:
        return next(iter(self._by_key.values()), None)

    def first_among(self, some: Mapping[Key, ReceivedMessage]) -> list[ReceivedMessage]:
        """Those that came first, up to the first one that is not among these."""
        if self._elders:
            return [
                arrival for _, arrival in takewhile(lambda item: some.get(item[0]) is item[1], self._by_key.items())
            ]
        return list(map(self._by_key.__getitem__, takewhile(some.__contains__, self._by_key)))

    def take(self, arrival: ReceivedMessage) -> ReceivedMessage | None:
        """Take a delivery over; answers the one of the same message that is in hand already: now it is an elder."""
        key, size = arrival.key, arrival.facts.size
        before = self._by_key.get(key)
        if before is not None:
            self._elders.append(before)
        self._by_key[key] = arrival
        self.bytes += size
        if size > self.largest:
            self.largest = size
        return before

    def take_all(self, arrivals: dict[Key, ReceivedMessage]) -> None:
        """Take deliveries over, none of which is of a message that is in hand."""
        self._by_key.update(arrivals)
        sizes = list(map(get_size, arrivals.values()))
        self.bytes += sum(sizes)
        self.largest = max([self.largest, *sizes])

    def know_any(self, keys: KeysView[Key]) -> bool:
        """Whether any of these messages is in hand."""
        return not keys.isdisjoint(self._by_key.keys())

    def all_taken(self) -> None:
        """No more for now: their locks are to be kept."""
        self._taken.set()

    def has(self, arrival: ReceivedMessage) -> bool:
        return self._by_key.get(arrival.key) is arrival or arrival in self._elders

    def let_go(self, arrival: ReceivedMessage) -> bool:
        """Whether that is news."""
        if self._by_key.get(arrival.key) is arrival:
            del self._by_key[arrival.key]
        elif arrival in self._elders:
            self._elders.remove(arrival)
        else:
            return False
        self.bytes -= arrival.facts.size
        return True

    def let_go_all(self, arrivals: Sequence[ReceivedMessage]) -> None:
        """Of what is in hand."""
        keys = list(map(get_key, arrivals))
        if not all(map(is_, map(self._by_key.get, keys), arrivals)):
            for arrival in arrivals:
                self.let_go(arrival)
            return
        deque(map(self._by_key.__delitem__, keys), maxlen=0)
        self.bytes -= sum(map(get_size, arrivals))

    async def keep_locks(self, source: MessageSource, tally: Tally) -> None:
        """Renew locks until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            locked = [arrival for arrival in self if arrival.lock_until > 0.0]
            if not locked:
                self._taken.clear()
                await self._taken.wait()
                continue
            # A lock that is taken later runs out later: nothing that arrives while this sleeps is more urgent.
            soonest = min(arrival.lock_until for arrival in locked)
            await asyncio.sleep(max(MIN_RENEW_INTERVAL_SECONDS, soonest - RENEW_LEFT_SECONDS - loop.time()))
            due = loop.time() + RENEW_LEFT_SECONDS
            await self._renew([each for each in self if 0.0 < each.lock_until <= due], source, tally)

    async def _renew(self, arrivals: list[ReceivedMessage], source: MessageSource, tally: Tally) -> None:
        if not arrivals:
            return
        tally.spent("renewals", len(arrivals))
        try:
            await source.renew(arrivals)
        except MessageLockLost:
            if len(arrivals) == 1:
                arrivals[0].lock_until = 0.0
                self._lost(arrivals[0])
                return
            for arrival in arrivals:
                if self.has(arrival):
                    await self._renew([arrival], source, tally)
        except SbpairError as error:
            log.info("locks of %s were not renewed: %s", source.queue, error)
