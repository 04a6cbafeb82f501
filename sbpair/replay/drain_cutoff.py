"""The decision that a backlog queue is drained, as far as a run is concerned. Repeated peeks decide, never one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.move.interface import PeekedHeader, ReceivedMessage
    from sbpair.move.raw_source import RawSource
    from sbpair.replay.run import ReplayRun

MIN_QUIET = 2
"""Consecutive peeks without a message of the run, each after a receive of nothing, that end a queue."""

MAX_CLOCK_SKEW_MS = 60_000


class DrainCutoff:
    """The cut-off of one queue, which is received from until `is_reached`."""

    def __init__(self, run: ReplayRun) -> None:
        self._run = run
        self._quiet = 0
        self._received_at = self._peeked_at = 0.0

    def restart(self) -> None:
        """Start the wait again, as after a connection or a message of the run."""
        self._quiet, self._received_at = 0, asyncio.get_running_loop().time()

    def note_received(self, messages: Sequence[ReceivedMessage]) -> None:
        """Restart if a message is older than the run: applications may go on sending newer ones."""
        if any(_is_older(self._run, message.facts.enqueued_at) for message in messages):
            self.restart()

    def is_due(self) -> bool:
        """Return whether to peek though newer messages arrive: none of the run's came for `empty_seconds`."""
        quiet_since = max(self._received_at, self._peeked_at)
        return asyncio.get_running_loop().time() - quiet_since >= self._run.options.empty_seconds

    async def is_reached(self, source: RawSource) -> bool:
        """Peek the queue. A message of the run that another receiver has locked is seen, and is waited for."""
        self._peeked_at = asyncio.get_running_loop().time()
        async for page in source.peek_pages():
            if any(not peeked.deferred and was_present(self._run, peeked) for peeked in page):
                self._quiet = 0
                return asyncio.get_running_loop().time() - self._received_at >= self._run.options.locked_seconds
        self._quiet += 1
        return self._quiet >= MIN_QUIET


def was_present(run: ReplayRun, peeked: PeekedHeader) -> bool:
    """Return whether a message was in its queue when the run began."""
    return _is_older(run, peeked.enqueued_at)


def _is_older(run: ReplayRun, enqueued_at_ms: int) -> bool:
    return enqueued_at_ms <= run.started_ms + MAX_CLOCK_SKEW_MS
