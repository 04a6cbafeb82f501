"""The two connections of a lane, to the backlog and to the primary: opened together, and ended together.

The law: when one of them has gone, it is back within FAULT_SECONDS, or the other is ended too: none is left half open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from sbpair.errors import ConnectionFaulted, SbpairError, Unavailable

if TYPE_CHECKING:
    from sbpair.move.interface import MessageSource, Primary
    from sbpair.move.raw_engine import RawEngine

FAULT_SECONDS = 5.0
"""How long one side may be without the other."""

AGAIN_SECONDS = 1.0
"""How often the primary is tried meanwhile."""


class WorkerConnections:
    """Both connections, open."""

    def __init__(self, source: MessageSource, primary: Primary) -> None:
        self.source = source
        self.primary = primary

    async def backlog_gone(self) -> ConnectionFaulted:
        """Wait until the connection to the backlog has gone: every lock went with it."""
        await self.source.wait_lost()
        return self._faulted("backlog", "primary", self.source.broken)

    async def primary_gone(self) -> ConnectionFaulted:
        """Wait until the connection to the primary has gone, and has not come back. Raises AccessError."""
        why: Exception | None = None
        while why is None:
            await self.primary.wait_lost()
            why = await self._primary_again()
        return self._faulted("primary", "backlog", why)

    def fault(self) -> ConnectionFaulted | None:
        """What is to be said of it where one of them is not there at this moment."""
        if self.source.broken is not None:
            return self._faulted("backlog", "primary", self.source.broken)
        if self.primary.broken is not None:
            return self._faulted("primary", "backlog", self.primary.broken)
        return None

    def abort(self, error: SbpairError) -> None:
        """End both at once: whoever waits for an answer over one of them fails with this error."""
        self.primary.abort(error)
        self.source.abort(error)

    async def _primary_again(self) -> Exception | None:
        """Why it could not be connected to within the time; None where it could."""
        why: Exception = TimeoutError("no answer")
        try:
            async with asyncio.timeout(FAULT_SECONDS):
                while True:
                    try:
                        await self.primary.check()
                    except Unavailable as error:
                        why = error
                        await asyncio.sleep(AGAIN_SECONDS)
                    else:
                        return None
        except TimeoutError:
            return why

    def _faulted(self, gone: str, other: str, why: Exception | None) -> ConnectionFaulted:
        return ConnectionFaulted(
            f"the {gone}'s connection is gone, and the {other}'s was ended with it: {why}",
            hint="it may work a little later",
        )


@asynccontextmanager
async def open_ends(engine: RawEngine, queue: str) -> AsyncIterator[WorkerConnections]:
    """Connect to both sides for one backlog queue; nothing is received yet. Both are closed at the end of the block.

    Raises Unavailable, AccessError; EntityMissing where the queue is not there.
    """
    async with engine.source(queue) as source:
        primary = engine.primary()
        try:
            # A primary that is not there at all is known before a single lock is taken.
            await primary.check()
            yield WorkerConnections(source, primary)
        finally:
            await primary.close()
