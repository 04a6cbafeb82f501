"""How often, and how long apart, a namespace is asked again that is away for a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sbpair.errors import Unavailable

T = TypeVar("T")

TRIES, MAX_BACK_OFF_SECONDS = 8, 30.0


def back_off_seconds(failures: int) -> float:
    return min(MAX_BACK_OFF_SECONDS, 0.5 * 2.0**failures)


async def patiently(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask until there is an answer. Raises Unavailable where the namespace stays away."""
    for failures in range(1, TRIES):
        with suppress(Unavailable):
            return await ask()
        await asyncio.sleep(back_off_seconds(failures))
    return await ask()
