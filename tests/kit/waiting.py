"""Waits of tests that do not depend on how long anything takes."""

import asyncio
from collections.abc import Callable

TURNS = 200
"""Turns of the loop without a pause: what this process does by itself is done by then."""
PAUSE_SECONDS = 0.002
PATIENCE_SECONDS = 240
"""How long something may take that a test waits for: it ends a hang, and a busy machine hangs nothing."""


async def until(holds: Callable[[], object]) -> None:
    """Let the loop turn until a condition holds that has no event. The limit is that of the test.

    After some turns it pauses between them: what it waits for then needs a socket or a process, and a core.
    """
    turns = 0
    while not holds():
        await asyncio.sleep(0 if turns < TURNS else PAUSE_SECONDS)
        turns += 1


async def no_wait(_seconds: float) -> None:
    """Replace a sleep by one that takes no time."""
