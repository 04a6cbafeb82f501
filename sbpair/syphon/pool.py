"""The workers of a run, one per backlog queue: started together, joined by those of new queues, stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from sbpair.errors import ConnectionFaulted, EntityMissing, SbpairError
from sbpair.move.failure_latch import set_within
from sbpair.syphon.worker import RELEASE_SECONDS, QueueWorker

if TYPE_CHECKING:
    from sbpair.move.events import QueuesFound
    from sbpair.syphon.worker import RunPlan

log = logging.getLogger(__name__)

FIND_QUEUES_SECONDS = 60.0
"""How often a watch lists the backlog queues. It costs a sixth of a credit a second, of a thousand."""

Find = Callable[[], Awaitable["QueuesFound"]]


class WorkerPool:
    """`find` lists the backlog queues again; None if new ones need no worker."""

    def __init__(self, plan: RunPlan, find: Find | None = None) -> None:
        self._plan = plan
        self._find = find
        self._workers: dict[str, QueueWorker] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()

    @property
    def workers(self) -> list[QueueWorker]:
        return list(self._workers.values())

    async def run(self, queues: Iterable[str], hurry: asyncio.Event) -> None:
        """Run until all workers are done. Once `hurry` is set, that takes a few seconds at most."""
        async with asyncio.TaskGroup() as tasks:
            background = (
                tasks.create_task(self._interrupt(), name="watch for the stop"),
                tasks.create_task(self._abort(hurry), name="watch for the hurry"),
            )
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
                self._workers[name] = QueueWorker(queue, self._plan)
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
            if found.managed and not self._plan.stop.is_set():
                self._start(tasks, found.queues)

    def fail(self, error: SbpairError) -> None:
        """Stop all workers, including those with nothing to send."""
        for worker in self.workers:
            worker.fail(error)
        self._plan.stop.set()

    async def _interrupt(self) -> None:
        await self._plan.stop.wait()
        self._over.set()
        for worker in self.workers:
            worker.interrupt()

    async def _abort(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self._plan.stop.set()
        error = ConnectionFaulted("stopped without a wait for the outcome", hint="run it again")
        for worker in self.workers:
            worker.abort(error)
        await asyncio.sleep(RELEASE_SECONDS)
        for worker in self.workers:
            worker.abort(error, backlog=True)
        for task in tuple(self._running.values()):
            task.cancel()
