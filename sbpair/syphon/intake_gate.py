"""The gate in front of a run's intakes: while it is closed, no worker receives, sends or holds a message.

Connections and leases stay. Invariant: once the gate is quiet, each message that was received is settled or unlocked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IntakeGate:
    """Closed for as long as someone keeps it closed, by name; `end` opens it for good."""

    def __init__(self) -> None:
        self._closed_by: set[str] = set()
        self._inside: list[Callable[[], None]] = []
        self._ended = False
        self._opened, self._quiet = asyncio.Event(), asyncio.Event()
        self._opened.set()
        self._quiet.set()

    @property
    def closed(self) -> bool:
        return not self._opened.is_set()

    @property
    def quiet(self) -> bool:
        """Whether no worker is inside."""
        return self._quiet.is_set()

    def close(self, by: str) -> None:
        """Close it, and ask all workers inside to leave. Pending sends finish, and held messages are released."""
        if self._ended:
            return
        self._closed_by.add(by)
        self._opened.clear()
        for leave in self._inside:
            leave()

    def open(self, by: str) -> None:
        """Open it, unless another name keeps it closed."""
        self._closed_by.discard(by)
        if not self._closed_by:
            self._opened.set()

    def end(self) -> None:
        """Open it for good: the run ends."""
        self._ended = True
        self._opened.set()

    @contextmanager
    def passed(self, leave: Callable[[], None]) -> Iterator[None]:
        """Move messages within the block. `leave` is called when the gate closes."""
        self._inside.append(leave)
        self._quiet.clear()
        try:
            yield
        finally:
            self._inside.remove(leave)
            if not self._inside:
                self._quiet.set()

    async def wait_open(self) -> None:
        while self.closed:
            await self._opened.wait()

    async def wait_quiet(self) -> None:
        """Wait until no worker is inside."""
        await self._quiet.wait()
