"""The workers of a run, one per backlog queue: started together, joined by those of new queues, stopped together.

Samples of them for a progress display: how deep the queues are, and how far each destination is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING

from sbpair.errors import AccessError, ConnectionFaulted, EntityMissing, SbpairError
from sbpair.move.events import DestinationProgress, LimitChanged, QueueDepths, QueuesFound
from sbpair.move.failure_latch import set_within
from sbpair.syphon.worker import RELEASE_SECONDS, QueueWorker

if TYPE_CHECKING:
    from sbpair.runs.session_lease import SessionLease
    from sbpair.syphon.ramp import Ramp
    from sbpair.syphon.run_plan import RunPlan

log = logging.getLogger(__name__)

FIND_QUEUES_SECONDS = 60.0  # how often a watch lists the backlog queues: it costs a sixth of a credit a second
COUNT_CREDITS = 10  # a count costs as much as ten messages

Find = Callable[[], Awaitable["QueuesFound"]]


class WorkerPool:
    """`find` lists the backlog queues again; None if new ones need no worker."""

    def __init__(self, plan: RunPlan, find: Find | None = None, ramp: Ramp | None = None) -> None:
        self.plan = plan
        self.ramp = ramp
        self._find = find
        self._workers: dict[str, QueueWorker] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()

    @property
    def workers(self) -> list[QueueWorker]:
        return list(self._workers.values())

    @property
    def held(self) -> int:
        """Messages received and not settled."""
        return sum(worker.held for worker in self._workers.values())

    def stuck_queues(self) -> list[str]:
        """Return the queues whose workers take no more turns."""
        return [worker.queue for worker in self._workers.values() if worker.is_stuck]

    async def run(self, queues: Iterable[str], hurry: asyncio.Event, *beside: Coroutine[None, None, None]) -> None:
        """Run until all workers are done, and until then `beside`. Once `hurry` is set, end within seconds."""
        async with asyncio.TaskGroup() as tasks:
            background = [tasks.create_task(each) for each in (self._interrupt(), self._abort(hurry), *beside)]
            async with asyncio.TaskGroup() as running:
                self._start(running, queues)
                if self._find is not None:
                    running.create_task(self._find_queues(running, self._find), name="find queues")
            for task in background:
                task.cancel()

    def _start(self, tasks: asyncio.TaskGroup, queues: Iterable[str]) -> None:
        """Start workers for queues that have none, or whose worker ended because the queue was missing."""
        for queue in queues:
            name = queue.lower()
            before = self._workers.get(name)
            if before is None or (name not in self._running and isinstance(before.error, EntityMissing)):
                self._workers[name] = QueueWorker(queue, self.plan, self.ramp)
                self._running[name] = tasks.create_task(self._run(name), name=f"worker {queue}")

    async def _run(self, name: str) -> None:
        try:
            await self._workers[name].run()
        finally:
            del self._running[name]
            if not self._running and not any(isinstance(worker.error, EntityMissing) for worker in self.workers):
                # A new queue would not change why they ended.
                self._over.set()

    async def _find_queues(self, tasks: asyncio.TaskGroup, find: Find) -> None:
        while not await set_within(self._over, FIND_QUEUES_SECONDS):
            try:
                found = await find()
            except SbpairError as error:
                log.info("the backlog queues could not be listed: %s", error.message)
                continue
            if found.managed and not self.plan.stop.is_set():
                self._start(tasks, found.queues)

    async def fail_without(self, lease: SessionLease) -> None:
        """Wait until the lease is lost, then stop all workers, including those with nothing to send."""
        error = await lease.lost()
        for worker in self.workers:
            worker.fail(error)
        self.plan.stop.set()

    async def _interrupt(self) -> None:
        await self.plan.stop.wait()
        self._over.set()
        self.plan.gate.end()
        for worker in self.workers:
            worker.interrupt()

    async def _abort(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self.plan.stop.set()
        error = ConnectionFaulted("stopped without a wait for the outcome", hint="run it again")
        for worker in self.workers:
            worker.abort(error)
        await asyncio.sleep(RELEASE_SECONDS)
        for worker in self.workers:
            worker.abort(error, source=True)
        for task in tuple(self._running.values()):
            task.cancel()


class DepthSampler:
    """Emits DestinationProgress, LimitChanged and QueueDepths. Counts each queue every `seconds` at most."""

    def __init__(self, pool: WorkerPool, seconds: float) -> None:
        self._pool, self._plan, self._seconds = pool, pool.plan, seconds
        self._counted: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}  # a spelling of each destination, by its path in lower case
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
        sent, waiting = Counter[str](), Counter[str]()
        waits = ((worker.waiting(), waiting) for worker in self._pool.workers)
        for counts, sums in ((self._plan.context.tally.sent_to(), sent), *waits):
            for path, count in counts.items():
                self._names.setdefault(path.lower(), path)
                sums[path.lower()] += count
        for key, name in sorted(self._names.items()):
            now = DestinationProgress(name, sent[key], waiting[key])
            if self._emitted.get(key) != now:
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
                received = self._plan.context.tally.count(worker.queue, "received")
                # Unless it was empty, and has received nothing since.
                if self._counted.get(worker.queue) != (0, received) and not await self._count(worker):
                    return
            await asyncio.sleep(self._seconds)

    async def _count(self, worker: QueueWorker) -> bool:
        """Count one queue and emit the result. Return False if counts are not permitted."""
        context, queue = self._plan.context, worker.queue
        if self._plan.control is None:
            return False
        if context.rate_limiter is not None:
            context.rate_limiter.received(asyncio.get_running_loop().time(), COUNT_CREDITS)
        counts = worker.end.counts
        try:
            messages = await self._plan.count(queue) or 0
            oldest_ms = await worker.oldest_ms() if messages else None
        except AccessError:
            return False
        except SbpairError as error:
            log.debug("%s was not counted: %s", queue, error)
            return True
        if worker.end.counts != counts:
            # The worker has counted since then, and may be done.
            return True
        self._counted[queue] = (messages, context.tally.count(queue, "received"))
        worker.report_progress()
        context.on_event(QueueDepths(queue, messages, oldest_ms))
        return True
