"""Whether a side of the pair can be reached, shared by all workers of a run.

Invariant: while a side is away, one worker tries it each PROBE_SECONDS, and all others follow its first success.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from sbpair.errors import Unavailable
from sbpair.runs.database import now_ms

PROBE_SECONDS = 1.0

Connected = TypeVar("Connected")


class SideState:
    """One side. `away_since_ms` is when it was lost, in ms since 1970; None while it can be reached."""

    def __init__(self, now_ms: Callable[[], int] = now_ms) -> None:
        self.away_since_ms: int | None = None
        self._now_ms = now_ms
        self._back = asyncio.Event()
        self._next_probe = 0.0

    async def connected(self, connecting: Awaitable[Connected]) -> Connected:
        """Return the connection, and record whether it could be made."""
        try:
            made = await connecting
        except Unavailable:
            if self.away_since_ms is None:
                self.away_since_ms = self._now_ms()
                self._next_probe = asyncio.get_running_loop().time() + PROBE_SECONDS
                self._back.clear()
            raise
        self.away_since_ms = None
        self._back.set()
        return made

    async def wait_turn(self) -> None:
        """Wait until the side is back, or it is this worker's turn to try it."""
        loop = asyncio.get_running_loop()
        while self.away_since_ms is not None:
            if loop.time() >= self._next_probe:
                self._next_probe = loop.time() + PROBE_SECONDS
                return
            with suppress(TimeoutError):
                async with asyncio.timeout_at(self._next_probe):
                    await self._back.wait()


@dataclass(frozen=True, slots=True)
class PairState:
    """Both sides."""

    primary: SideState = field(default_factory=SideState)
    secondary: SideState = field(default_factory=SideState)

    @property
    def away(self) -> SideState | None:
        """The side that is away; the secondary, which is connected first, if both are."""
        return next((side for side in (self.secondary, self.primary) if side.away_since_ms is not None), None)

    @property
    def away_name(self) -> str | None:
        away = self.away
        return None if away is None else "secondary" if away is self.secondary else "primary"
