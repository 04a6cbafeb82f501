"""The lanes of a run, one a queue: started together, joined by those whose queue turns up later, stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

from sbpair.errors import ConnectionFaulted, EntityMissing, SbpairError
from sbpair.syphon.worker import RELEASE_SECONDS, QueueWorker

if TYPE_CHECKING:
    from sbpair.move.events import QueuesFound
    from sbpair.syphon.worker import RunPlan

log = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 60.0
"""How often a watch looks which backlog queues there are. It costs a sixth of a credit a second, of a thousand."""

Find = Callable[[], Awaitable["QueuesFound"]]


class WorkerPool:
    """`find` is how a watch learns of queues that were made after its start, and None where there is no need to."""

    def __init__(self, plan: RunPlan, find: Find | None = None) -> None:
        self._plan = plan
        self._find = find
        self._lanes: dict[str, QueueWorker] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._over = asyncio.Event()

    @property
    def all(self) -> list[QueueWorker]:
        return list(self._lanes.values())

    async def run(self, queues: Iterable[str], hurry: asyncio.Event) -> None:
        """Until all of them are done. After `hurry` that takes a few seconds at most, whoever does not answer."""
        async with asyncio.TaskGroup() as tasks:
            beside = (
                tasks.create_task(self._interrupt(), name="watch for the stop"),
                tasks.create_task(self._break_off(hurry), name="watch for the end of patience"),
            )
            async with asyncio.TaskGroup() as running:
                self._start(running, queues)
                if self._find is not None:
                    running.create_task(self._keep_looking(running, self._find), name="look for queues")
            for task in beside:
                task.cancel()

    def _start(self, tasks: asyncio.TaskGroup, queues: Iterable[str]) -> None:
        """Lanes for those that have none, or whose lane has found nothing to receive from."""
        for queue in queues:
            name = queue.lower()
            before = self._lanes.get(name)
            if before is None or (name not in self._running and isinstance(before.error, EntityMissing)):
                self._lanes[name] = QueueWorker(queue, self._plan)
                self._running[name] = tasks.create_task(self._run(name), name=f"lane {queue}")

    async def _run(self, name: str) -> None:
        try:
            await self._lanes[name].run()
        finally:
            del self._running[name]
            if not self._running and not any(isinstance(lane.error, EntityMissing) for lane in self.all):
                # Why they have ended is nothing that another queue would change.
                self._over.set()

    async def _keep_looking(self, tasks: asyncio.TaskGroup, find: Find) -> None:
        while not await self._over_within(LOOK_AGAIN_SECONDS):
            try:
                found = await find()
            except SbpairError as error:
                log.info("the backlog queues could not be listed: %s", error.message)
                continue
            if found.managed and not self._plan.stop.is_set():
                self._start(tasks, found.queues)

    def fail(self, error: SbpairError) -> None:
        """End all of them, those too that have nothing to send at this moment."""
        for lane in self.all:
            lane.fail(error)
        self._plan.stop.set()

    async def _interrupt(self) -> None:
        await self._plan.stop.wait()
        self._over.set()
        for lane in self.all:
            lane.interrupt()

    async def _break_off(self, hurry: asyncio.Event) -> None:
        await hurry.wait()
        self._plan.stop.set()
        error = ConnectionFaulted("no answer was waited for any more", hint="run it again")
        for lane in self.all:
            lane.abort(error)
        await asyncio.sleep(RELEASE_SECONDS)
        for lane in self.all:
            lane.abort(error, backlog=True)
        for task in tuple(self._running.values()):
            task.cancel()

    async def _over_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            return False
        return True
