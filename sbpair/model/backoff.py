"""Back-off: exponential with jitter, or a fixed sequence. Pure."""

from __future__ import annotations

from dataclasses import dataclass

MAX_EXPONENT = 16


@dataclass(frozen=True, slots=True)
class Backoff:
    """Waits that grow by a factor with each failure in a row, from `first_seconds` up to `max_seconds`."""

    first_seconds: float
    max_seconds: float
    growth: float = 2.0

    def seconds(self, failures: int, jitter: float = 1.0) -> float:
        """Return the wait after `failures` in a row: half of the limit, and `jitter` (0 to 1) of the other half."""
        limit = min(self.max_seconds, self.first_seconds * self.growth ** min(max(failures - 1, 0), MAX_EXPONENT))
        return limit * (0.5 + jitter / 2)


@dataclass(frozen=True, slots=True)
class StepBackoff:
    """Waits of a fixed sequence: the first one after the first failure, and the last one ever after."""

    steps: tuple[float, ...]

    def seconds(self, failures: int) -> float:
        """Return the wait after `failures` in a row."""
        return self.steps[min(max(failures, 1), len(self.steps)) - 1]
