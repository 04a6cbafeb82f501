"""When what waits on a road leaves: at once where it is many, or a little later, with what has come meanwhile.

The law: once `stopping` is set nothing sets out any more, and what is on its way is left to land.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from sbpair.move.destination_queue import DestinationQueue
    from sbpair.move.destination_queues import DestinationQueues

UNORDERED_ROUNDS = 4
"""How many rounds may be on their way to one destination where nobody minds the order."""


class Dispatcher:
    """`advance` is one round with what is at the head of a road; `changed` is set when one sends no more for now."""

    def __init__(
        self,
        roads: DestinationQueues,
        tasks: asyncio.TaskGroup,
        advance: Callable[[DestinationQueue], Coroutine[object, object, None]],
        *,
        stopping: asyncio.Event,
        changed: asyncio.Event,
        ordered: bool,
        gather_seconds: float = 0.02,
    ) -> None:
        self._roads = roads
        self._tasks = tasks
        self._advance = advance
        self._stopping = stopping
        self._changed = changed
        self._max_workers = 1 if ordered else UNORDERED_ROUNDS
        self._gather_seconds = gather_seconds
        self._gathering = False

    def schedule(self, road: DestinationQueue) -> None:
        """Begin to send, now or soon."""
        if self._may_begin(road):
            if road.is_due:
                self._begin(road)
            elif not self._gathering:
                self._gathering = True
                self._tasks.create_task(self._gather(), name="gather")

    def _may_begin(self, road: DestinationQueue) -> bool:
        return len(road) > 0 and road.workers < self._max_workers and not self._stopping.is_set()

    def _begin(self, road: DestinationQueue) -> None:
        road.workers += 1
        self._tasks.create_task(self._work(road), name=f"send to {road.destination}")

    async def _gather(self) -> None:
        await asyncio.sleep(self._gather_seconds)
        self._gathering = False
        for road in self._roads:
            if self._may_begin(road):
                self._begin(road)

    async def _work(self, road: DestinationQueue) -> None:
        try:
            while len(road) and not self._stopping.is_set():
                await self._advance(road)
                if not road.is_due:
                    break
        finally:
            road.workers -= 1
            self._changed.set()
        self.schedule(road)
