"""What only those who watch want to know: how deep the queues are, and how far each destination is.

Reckoned from what lanes tell wherever that is enough: a count costs as much as ten messages, and is asked for seldom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sbpair.errors import AccessError, SbpairError
from sbpair.move.events import DestinationProgress, QueueDepths

if TYPE_CHECKING:
    from sbpair.syphon.pool import WorkerPool
    from sbpair.syphon.worker import QueueWorker, RunPlan

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""How often destinations are told of, where there is something new."""

COUNT_CREDITS = 10


def _summed(counts: Iterable[tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Counts by path, which Service Bus compares without regard to case: {key: (one of its spellings, sum)}."""
    sums: dict[str, tuple[str, int]] = {}
    for path, count in counts:
        name, before = sums.get(path.lower(), (path, 0))
        sums[path.lower()] = name, before + count
    return sums


class DepthSampler:
    """Looks at the lanes of one run until it is cancelled. Each queue is counted every `seconds` at most."""

    def __init__(self, plan: RunPlan, lanes: WorkerPool, seconds: float) -> None:
        self._plan = plan
        self._lanes = lanes
        self._seconds = seconds
        self._counted: dict[str, tuple[int, int]] = {}
        self._told: dict[str, DestinationProgress] = {}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell(), name="tell of the destinations")
            tasks.create_task(self._count(), name="count the queues")

    async def _tell(self) -> None:
        while True:
            self.tell_destinations()
            await asyncio.sleep(TELL_SECONDS)

    def tell_destinations(self) -> None:
        """Tell of those that have changed."""
        sent = _summed(self._plan.context.tally.sent_to().items())
        waiting = _summed(pair for lane in self._lanes.all for pair in lane.waiting().items())
        for key in sorted(sent.keys() | waiting.keys() | self._told.keys()):
            told = self._told.get(key)
            name = told.destination if told is not None else (sent.get(key) or waiting[key])[0]
            now = DestinationProgress(name, sent.get(key, ("", 0))[1], waiting.get(key, ("", 0))[1])
            if told != now:
                self._told[key] = now
                self._plan.context.on_event(now)

    async def _count(self) -> None:
        while True:
            for lane in self._lanes.all:
                if self._is_due(lane.queue) and not await self._look(lane):
                    return
            await asyncio.sleep(self._seconds)

    def _is_due(self, queue: str) -> bool:
        """A queue that was empty, and of which nothing has come since, is as it was."""
        received = self._plan.context.tally.count(queue, "received")
        return self._counted.get(queue) != (0, received)

    async def _look(self, lane: QueueWorker) -> bool:
        """Count one queue, and tell. False where that is not to be asked again."""
        context, queue = self._plan.context, lane.queue
        if self._plan.count is None:
            return False
        if context.rate_limiter is not None:
            context.rate_limiter.received(asyncio.get_running_loop().time(), COUNT_CREDITS)
        counts = lane.counts
        try:
            messages = await self._plan.count(queue)
            oldest_ms = await lane.oldest_ms() if messages else None
        except AccessError:
            return False
        except SbpairError as error:
            log.debug("%s was not counted: %s", queue, error)
            return True
        if lane.counts != counts:
            # The lane knows it better by now, and may be done.
            return True
        self._counted[queue] = (messages, context.tally.count(queue, "received"))
        lane.report()
        context.on_event(QueueDepths(queue, messages, oldest_ms))
        return True
