"""When a backlog queue is empty, as far as a run goes: judged by looking at what lies there, and never by one look."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.engine import Seen, Source
    from sbpair.replay.run import Run

QUIET_LEAST = 2
"""How many times in a row nothing may come, and nothing be seen, before a queue is empty."""

STRANGERS_SECONDS = 150.0
"""How long a queue may show messages and give none: somebody has them locked, and locks run out."""

CLOCKS_DIFFER_MS = 60_000


class Ending:
    """Of one queue, which is received from until `reached`."""

    def __init__(self, run: Run) -> None:
        self._started_ms = run.started_ms
        self._quiet = 0
        self._came = 0.0

    def came(self) -> None:
        """Something has, or may from now on."""
        self._quiet, self._came = 0, asyncio.get_running_loop().time()

    async def reached(self, source: Source, held: Collection[int] = ()) -> bool:
        """Nothing came: is that all? A locked message is seen, and does not come; a new one is none of ours.

        `held` are the sequence numbers of what is in hand.
        """
        async for page in source.pages():
            if any(self._is_ours(seen) and seen.sequence_number not in held for seen in page):
                self._quiet = 0
                return asyncio.get_running_loop().time() - self._came >= STRANGERS_SECONDS
        self._quiet += 1
        return self._quiet >= QUIET_LEAST

    def _is_ours(self, seen: Seen) -> bool:
        return not seen.deferred and seen.enqueued_at <= self._started_ms + CLOCKS_DIFFER_MS
