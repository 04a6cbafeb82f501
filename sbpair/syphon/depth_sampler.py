"""Samples for a progress display: how deep the queues are, and how far each destination is.

Figures come from the workers where those suffice: a count costs as much as ten messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sbpair.errors import AccessError, SbpairError
from sbpair.move.events import DestinationProgress, LimitChanged, QueueDepths

if TYPE_CHECKING:
    from sbpair.syphon.pool import WorkerPool
    from sbpair.syphon.worker import QueueWorker, RunPlan

log = logging.getLogger(__name__)

COUNT_CREDITS = 10


def _sum_by_path(counts: Iterable[tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Add up counts by path without regard to case: {key: (one of its spellings, sum)}."""
    sums: dict[str, tuple[str, int]] = {}
    for path, count in counts:
        name, before = sums.get(path.lower(), (path, 0))
        sums[path.lower()] = name, before + count
    return sums


class DepthSampler:
    """Emits DestinationProgress, LimitChanged and QueueDepths. Counts each queue every `seconds` at most."""

    def __init__(self, plan: RunPlan, pool: WorkerPool, seconds: float) -> None:
        self._plan = plan
        self._pool = pool
        self._seconds = seconds
        self._counted: dict[str, tuple[int, int]] = {}
        self._emitted: dict[str, DestinationProgress] = {}
        self._limit = LimitChanged(None, None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._sample_destinations(), name="sample the destinations")
            tasks.create_task(self._sample_queues(), name="count the queues")

    async def _sample_destinations(self) -> None:
        while True:
            self.emit_destinations()
            self._emit_limit()
            await asyncio.sleep(self._plan.timings.destinations_seconds)

    def emit_destinations(self) -> None:
        sent = _sum_by_path(self._plan.context.tally.sent_to().items())
        waiting = _sum_by_path(pair for worker in self._pool.workers for pair in worker.waiting().items())
        for key in sorted(sent.keys() | waiting.keys() | self._emitted.keys()):
            before = self._emitted.get(key)
            name = before.destination if before is not None else (sent.get(key) or waiting[key])[0]
            now = DestinationProgress(name, sent.get(key, ("", 0))[1], waiting.get(key, ("", 0))[1])
            if before != now:
                self._emitted[key] = now
                self._plan.context.on_event(now)

    def _emit_limit(self) -> None:
        limiter = self._plan.context.rate_limiter
        limit = None if limiter is None else limiter.limit(asyncio.get_running_loop().time())
        now = LimitChanged(*(limit or (None, None)))
        if now != self._limit:
            self._limit = now
            self._plan.context.on_event(now)

    async def _sample_queues(self) -> None:
        # A short run costs no counts.
        await asyncio.sleep(self._plan.timings.destinations_seconds)
        while True:
            for worker in self._pool.workers:
                if self._is_due(worker.queue) and not await self._count(worker):
                    return
            await asyncio.sleep(self._seconds)

    def _is_due(self, queue: str) -> bool:
        """Return False for a queue that was empty and has received nothing since."""
        received = self._plan.context.tally.count(queue, "received")
        return self._counted.get(queue) != (0, received)

    async def _count(self, worker: QueueWorker) -> bool:
        """Count one queue and emit the result. Return False if counts are not permitted."""
        context, queue = self._plan.context, worker.queue
        if self._plan.count is None:
            return False
        if context.rate_limiter is not None:
            context.rate_limiter.received(asyncio.get_running_loop().time(), COUNT_CREDITS)
        counts = worker.counts
        try:
            messages = await self._plan.count(queue)
            oldest_ms = await worker.oldest_ms() if messages else None
        except AccessError:
            return False
        except SbpairError as error:
            log.debug("%s was not counted: %s", queue, error)
            return True
        if worker.counts != counts:
            # The worker has counted since then, and may be done.
            return True
        self._counted[queue] = (messages, context.tally.count(queue, "received"))
        worker.report_progress()
        context.on_event(QueueDepths(queue, messages, oldest_ms))
        return True
