"""Trying again what may work a little later. The only place where management calls are repeated.

The SDK's own retries are switched off: two of them, one inside the other, multiply. Nothing is asked again earlier than
the service wishes, nor by many at the same moment.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

from sbpair.errors import SbpairError, Throttled, Unavailable
from sbpair.model.queues import Retrying

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

Result = TypeVar("Result")

ATTEMPTS = 3
FIRST_WAIT_SECONDS = 1.0
GROWTH = 4.0
# What the SDKs wait for, too: less, and the service counts the attempt against the namespace again.
THROTTLED_WAIT_SECONDS = 10.0
JITTER = 0.5
"""By up to so much of itself every wait is longer: those who were refused together must not come back together."""

MAX_WAIT_SECONDS = 120.0
"""Whoever is to wait longer than that is told so instead."""


async def attempt(
    what: str,
    action: Callable[[], Awaitable[Result]],
    *,
    sleep: Callable[[float], Awaitable[object]],
    on_event: Callable[[Retrying], object],
    chance: Callable[[], float] = random.random,
) -> Result:
    """`action()`, up to three times while its error is retriable; the last error is raised as it is.

    `chance` is a number from 0 to 1, by which waits differ.
    """
    for number in range(1, ATTEMPTS):
        try:
            return await action()
        except SbpairError as error:
            wait = wait_seconds(number, error, chance())
            if not error.retriable or wait > MAX_WAIT_SECONDS:
                raise
            on_event(Retrying(what, number, wait, error.message))
        await sleep(wait)
    return await action()


def wait_seconds(number: int, error: SbpairError, chance: float) -> float:
    """How long to wait after the failed attempt `number`, counted from 1."""
    wait: float = FIRST_WAIT_SECONDS * GROWTH ** (number - 1)
    asked = error.retry_after_seconds if isinstance(error, Unavailable) else None
    if asked is not None:
        wait = max(wait, asked)
    elif isinstance(error, Throttled):
        wait = max(wait, THROTTLED_WAIT_SECONDS)
    return wait * (1 + JITTER * chance)
