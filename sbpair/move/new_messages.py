"""The messages that were enqueued after a run began: it need not move them.

Invariant: messages are stamped by the service's clock, so none counts as new before the clocks are compared.
"""

from __future__ import annotations

import math

CLOCKS_DIFFER_MS = 60_000
"""How far a comparison of the clocks may be wrong."""


class NewMessages:
    """`started_ms` is when the run began by the local clock, in ms since 1970."""

    def __init__(self, started_ms: int) -> None:
        self._started_ms = started_ms
        self._from_ms = math.inf

    def compare_clocks(self, ahead_ms: int) -> None:
        """Take note of how far the service's clock is ahead of the local one, as received messages show."""
        self._from_ms = self._started_ms + ahead_ms + CLOCKS_DIFFER_MS

    def include(self, enqueued_ms: int) -> bool:
        """Return whether a message enqueued at this time is new."""
        return enqueued_ms > self._from_ms
