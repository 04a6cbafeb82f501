"""The service's clock beside ours: when its locks run out by the loop's clock, and what time it is there."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

Now = Callable[[], float]

LOCK_SECONDS = 60.0
"""A backlog queue's lock, assumed where the service's answer makes no sense by this machine's clock."""


class ServiceClock:
    """`now` is seconds since 1970; `ahead_ms` is by how much the service's clock is before it, by the first lock."""

    def __init__(self, now: Now) -> None:
        self.ahead_ms = 0
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._known = False
        self._offset_ms = -math.inf
        self.look()

    def look(self) -> None:
        """See what time it is, for the locks that are told of next."""
        self.loop_time, self._wall = self._loop.time(), self._now()

    @property
    def service_ms(self) -> int | None:
        """What time it is by the service's clock, in ms since 1970, whatever ours says; None before the first lock.

        Rather too early than too late: by the time that an answer takes.
        """
        return int(1000 * self._loop.time() + self._offset_ms) if self._offset_ms > -math.inf else None

    def until(self, until_ms: int) -> float:
        """When a lock runs out, by the loop's clock. More than the usual is not believed, nor is nothing at all."""
        if until_ms and not self._known:
            self._known = True
            self.ahead_ms = int(until_ms - 1000 * (LOCK_SECONDS + self._wall))
        if until_ms:
            # Whatever has told of a lock was under way for a while: the latest of all moments is nearest to the truth.
            self._offset_ms = max(self._offset_ms, until_ms - 1000 * (LOCK_SECONDS + self.loop_time))
        left = until_ms / 1000 - self._wall
        return self.loop_time + (left if 1.0 <= left <= LOCK_SECONDS else LOCK_SECONDS)

    def moments(self, locks: Sequence[int]) -> dict[int, float]:
        """`until` of each: what comes in one go is locked until the same moment, or few of them."""
        return {until_ms: self.until(until_ms) for until_ms in dict.fromkeys(locks)}
