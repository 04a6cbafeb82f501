"""When a backlog queue is empty, as far as a run goes: judged by looking at what lies there, and never by one look."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.move.interface import MessageSource, PeekedHeader, ReceivedMessage
    from sbpair.replay.run import ReplayRun

MIN_QUIET = 2
"""How many times in a row nothing may come, and nothing be seen, before a queue is empty."""

CLOCKS_DIFFER_MS = 60_000


class DrainCutoff:
    """Of one queue, which is received from until `reached`."""

    def __init__(self, run: ReplayRun) -> None:
        self._run = run
        self._quiet = 0
        self._came = self._looked = 0.0

    def begun(self) -> None:
        """Something may come from now on."""
        self._quiet, self._came = 0, asyncio.get_running_loop().time()

    def came(self, arrivals: Sequence[ReceivedMessage]) -> None:
        """Where senders go on, something always does: what was not there when the run began does not count."""
        if any(_was_there(self._run, arrival.facts.enqueued_at) for arrival in arrivals):
            self.begun()

    def is_time(self) -> bool:
        """Whether to look, though something came: nothing of ours has for as long as an empty queue is waited for."""
        quiet_since = max(self._came, self._looked)
        return asyncio.get_running_loop().time() - quiet_since >= self._run.options.empty_seconds

    async def reached(self, source: MessageSource) -> bool:
        """Nothing came: is that all? A locked message is seen, and does not come; a new one is none of ours."""
        self._looked = asyncio.get_running_loop().time()
        async for page in source.peek_pages():
            if any(not seen.deferred and is_ours(self._run, seen) for seen in page):
                self._quiet = 0
                return asyncio.get_running_loop().time() - self._came >= self._run.options.strangers_seconds
        self._quiet += 1
        return self._quiet >= MIN_QUIET


def is_ours(run: ReplayRun, seen: PeekedHeader) -> bool:
    """Whether a message was there when the run began."""
    return _was_there(run, seen.enqueued_at)


def _was_there(run: ReplayRun, enqueued_at_ms: int) -> bool:
    return enqueued_at_ms <= run.started_ms + CLOCKS_DIFFER_MS
