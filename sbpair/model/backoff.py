"""Exponential back-off with jitter. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MAX_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that double with each failure in a row, from `first_seconds` up to `max_seconds`."""

    first_seconds: float
    max_seconds: float

    def seconds(self, failures: int, jitter: float = 1.0) -> float:
        """Return the wait after `failures` in a row: half of the limit, and `jitter` (0 to 1) of the other half."""
        limit = min(self.max_seconds, self.first_seconds * 2.0 ** min(max(failures - 1, 0), MAX_DOUBLINGS))
        return limit * (0.5 + jitter / 2)
