"""The service's clock beside the local one: lock expiry by the loop's clock, and the service's time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence

Now = Callable[[], float]

LOCK_SECONDS = 60.0
"""A backlog queue's lock duration, assumed if a lock's expiry makes no sense by the local clock."""


class ServiceClock:
    """`now` is in seconds since 1970. `ahead_ms` is how far the service's clock is ahead of it, by the first lock."""

    def __init__(self, now: Now) -> None:
        self.ahead_ms = 0
        self._now = now
        self._loop = asyncio.get_running_loop()
        self._known = False
        self._offset_ms = -math.inf
        self.sample()

    def sample(self) -> None:
        """Sample both clocks before lock expiry times are interpreted."""
        self._loop_time, self._wall = self._loop.time(), self._now()

    @property
    def service_ms(self) -> int | None:
        """The service's time in ms since 1970, independent of the local clock; None before the first lock.

        Rather too early than too late: by the duration of a response.
        """
        return int(1000 * self._loop.time() + self._offset_ms) if self._offset_ms > -math.inf else None

    def local_time(self, until_ms: int) -> float:
        """Convert a lock's expiry to the loop's clock. Assumes LOCK_SECONDS for none, or for a longer lock."""
        if until_ms and not self._known:
            self._known = True
            self.ahead_ms = int(until_ms - 1000 * (LOCK_SECONDS + self._wall))
        if until_ms:
            # A lock's expiry is some time in transit: the latest of all estimates is nearest to the truth.
            self._offset_ms = max(self._offset_ms, until_ms - 1000 * (LOCK_SECONDS + self._loop_time))
        left = until_ms / 1000 - self._wall
        return self._loop_time + (left if 1.0 <= left <= LOCK_SECONDS else LOCK_SECONDS)

    def local_times(self, locks: Sequence[int]) -> dict[int, float]:
        """Convert each distinct expiry: messages received together have few of them."""
        return {until_ms: self.local_time(until_ms) for until_ms in dict.fromkeys(locks)}
