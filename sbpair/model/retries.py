"""Retries: the waits between them, exponential with jitter or in fixed steps, and the attempts of a call.

A retry comes no earlier than the service requests, and jitter spreads concurrent ones. The SDK's own retries are off,
since nested retries multiply.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from sbpair.errors import SbpairError, Silent, Throttled, Unavailable

Result = TypeVar("Result")

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


@dataclass(frozen=True, slots=True)
class Retrying:
    """Event: something failed for now, and is retried after `wait_seconds`."""

    what: str
    attempt: int
    wait_seconds: float
    reason: str


ATTEMPTS = 3
# As the SDKs: the service counts an earlier attempt against the namespace again.
THROTTLED_WAIT_SECONDS = 10.0
JITTER = 0.5
"""Each wait is longer by up to this fraction: callers refused together must not return together."""

MAX_WAIT_SECONDS = 120.0
"""A longer wait is not begun: the error is raised instead."""

REQUEST_BACKOFF = Backoff(first_seconds=1.0, max_seconds=MAX_WAIT_SECONDS, growth=4.0)


async def attempt(
    what: str,
    action: Callable[[], Awaitable[Result]],
    *,
    sleep: Callable[[float], Awaitable[object]],
    on_event: Callable[[Retrying], object],
    chance: Callable[[], float] = random.random,
) -> Result:
    """Run `action` up to three times while its error is retriable, and not Silent. Raises the last error.

    `chance` returns the jitter, a number from 0 to 1.
    """
    for number in range(1, ATTEMPTS):
        try:
            return await action()
        except SbpairError as error:
            wait = wait_seconds(number, error, chance())
            if not error.retriable or isinstance(error, Silent) or wait > MAX_WAIT_SECONDS:
                raise
            on_event(Retrying(what, number, wait, error.message))
        await sleep(wait)
    return await action()


def wait_seconds(number: int, error: SbpairError, chance: float) -> float:
    """Return how long to wait after the failed attempt `number`, counted from 1."""
    wait = REQUEST_BACKOFF.seconds(number)
    requested = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if requested is not None:
        wait = max(wait, requested)
    elif isinstance(error, Throttled):
        wait = max(wait, THROTTLED_WAIT_SECONDS)
    return wait * (1 + JITTER * chance)
