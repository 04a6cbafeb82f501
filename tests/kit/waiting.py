"""Waits of tests that do not depend on how long anything takes."""

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], object]) -> None:
    """Let the loop turn until a condition holds that has no event. The limit is that of the test."""
    while not holds():  # noqa: ASYNC110  a turn of the loop is no sleep
        await asyncio.sleep(0)


async def no_wait(_seconds: float) -> None:
    """Replace a sleep by one that takes no time."""
