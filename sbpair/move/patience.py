"""Waits on somebody else's code that can all be broken off at once, with a reason."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.errors import SbpairError


class Patience:
    """`over` is why nobody waits any more; None as long as somebody may."""

    def __init__(self) -> None:
        self.over: SbpairError | None = None
        self._waits: set[asyncio.Timeout] = set()

    def end(self, error: SbpairError) -> None:
        self.over = self.over or error
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(asyncio.get_running_loop().time())

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Raises what the patience has been ended with, before or inside of the block."""
        if self.over is not None:
            raise self.over
        wait = asyncio.timeout(None)
        try:
            async with wait:
                self._waits.add(wait)
                yield
        except TimeoutError:
            if self.over is None:
                raise
            raise self.over from None
        finally:
            self._waits.discard(wait)
