"""Retries with back-off while a namespace is away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from sbpair.errors import Unavailable
from sbpair.model.backoff import Backoff

T = TypeVar("T")

log = logging.getLogger(__name__)

MAX_TRIES = 8
BACKOFF = Backoff(first_seconds=1.0, max_seconds=30.0)


async def retry(operation: Callable[[], Awaitable[T]]) -> T:
    """Return the operation's result. Raises Unavailable after MAX_TRIES."""
    for failures in range(1, MAX_TRIES):
        with suppress(Unavailable):
            return await operation()
        await asyncio.sleep(BACKOFF.seconds(failures))
    return await operation()


async def retry_while_progressing(
    name: str, attempt: Callable[[], Awaitable[None]], progress: Callable[[], int], stop_requested: Callable[[], bool]
) -> None:
    """Repeat an attempt until it ends without Unavailable. An attempt that made progress resets the count of failures.

    Raises Unavailable after MAX_TRIES failures in a row, or once a stop is requested.
    """
    failures = 0
    while True:
        before = progress()
        try:
            return await attempt()
        except Unavailable as error:
            failures = failures + 1 if progress() == before else 1
            if failures >= MAX_TRIES or stop_requested():
                raise
            log.info("%s: %s; trying again", name, error.message)
            await asyncio.sleep(BACKOFF.seconds(failures))
