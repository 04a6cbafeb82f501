"""Retries of management calls and peeks. The SDK's own retries are off, since nested retries multiply.

A retry comes no earlier than the service requests, and jitter spreads concurrent ones.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import SbpairError, Silent, Throttled, Unavailable
from sbpair.model.backoff import Backoff
from sbpair.model.queues import Retrying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

ATTEMPTS = 3
# As the SDKs: the service counts an earlier attempt against the namespace again.
THROTTLED_WAIT_SECONDS = 10.0
JITTER = 0.5
"""Each wait is longer by up to this fraction: callers refused together must not return together."""

MAX_WAIT_SECONDS = 120.0
"""A longer wait is not begun: the error is raised instead."""

BACKOFF = Backoff(first_seconds=1.0, max_seconds=MAX_WAIT_SECONDS, growth=4.0)


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
    wait = BACKOFF.seconds(number)
    requested = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if requested is not None:
        wait = max(wait, requested)
    elif isinstance(error, Throttled):
        wait = max(wait, THROTTLED_WAIT_SECONDS)
    return wait * (1 + JITTER * chance)
