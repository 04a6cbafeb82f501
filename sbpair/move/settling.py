"""What the primary has accepted, until the backlog is told: what stands together is settled as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.move.engine import Arrival

SETTLE_SECONDS, SETTLE_AT = 0.01, 500
"""How long, and up to how many, accepted messages are gathered."""


class Gathering:
    """`settle` is given what has come together. `flying` rounds may still bring more: they are waited for, a little."""

    def __init__(
        self, tasks: asyncio.TaskGroup, settle: Callable[[list[Arrival]], Coroutine[object, object, None]], name: str
    ) -> None:
        self.flying = 0
        self._tasks = tasks
        self._settle = settle
        self._name = name
        self._accepted: list[Arrival] = []
        self._due = False
        self._enough = asyncio.Event()

    def add(self, arrivals: Sequence[Arrival]) -> None:
        self._accepted += arrivals

    def settle_soon(self) -> None:
        if self._accepted and not self._due:
            self._due = True
            self._tasks.create_task(self._gather(), name=self._name)
        if not self.flying or len(self._accepted) >= SETTLE_AT:
            self._enough.set()

    async def _gather(self) -> None:
        if self.flying and len(self._accepted) < SETTLE_AT:
            self._enough.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._enough.wait()
        arrivals, self._accepted = self._accepted, []
        self._due = False
        await self._settle(arrivals)
