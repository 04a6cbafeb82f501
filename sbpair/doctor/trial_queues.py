"""Queues that a live check creates, under names of its own, and deletes whatever happens, a cancellation included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from sbpair.azure.atom import open_atom
from sbpair.azure.retry import attempt
from sbpair.errors import EntityMissing, NameTaken, SbpairError
from sbpair.model.entities import with_partitions
from sbpair.model.queues import QueueSpec

if TYPE_CHECKING:
    from sbpair.azure.atom import AtomNamespace
    from sbpair.model.pair import Endpoint

Result = TypeVar("Result")

QUEUES = ("description", "partitioned", "messages")
TRIAL = QueueSpec("", default_message_time_to_live="P1D", auto_delete_on_idle="PT1H")
"""A queue that every tier accepts, and that deletes itself if a killed run has left it."""


def queue_names(tag: str) -> tuple[str, ...]:
    """Return the queues that a run creates in each namespace, and deletes. A unique tag makes their names unique."""
    return tuple(f"sbpair-doctor-{tag}-{purpose}" for purpose in QUEUES)


@dataclass
class TrialQueues:
    """The trial queues of one namespace. Get one from `open_trial_queues`."""

    namespace: AtomNamespace
    name: str
    tag: str
    created: list[str] = field(default_factory=list)
    partitioned_namespace: bool = False
    """Whether the whole namespace is partitioned, as far as its answers have shown."""

    async def create(self, purpose: str, spec: QueueSpec, *, partitioned: bool = False) -> str:
        """Create the queue of that purpose, and return its path. Raises PartitionsWanted, NameTaken."""
        path = dict(zip(QUEUES, queue_names(self.tag), strict=True))[purpose]
        # Recorded before the answer, and shielded: a queue in doubt is deleted, and not before its creation ends.
        if path not in self.created:
            self.created.append(path)
        await shielded(self._create(replace(spec, path=path), partitioned=partitioned or self.partitioned_namespace))
        return path

    async def _create(self, spec: QueueSpec, *, partitioned: bool) -> None:
        if not await self.namespace.create_exact(with_partitions(spec) if partitioned else spec):
            self.created.remove(spec.path)
            raise NameTaken(f"{spec.path} exists already in {self.name}", hint="run it again: names differ")

    async def delete_all(
        self, sleep: Callable[[float], Awaitable[object]], on_failure: Callable[[str, SbpairError], object]
    ) -> None:
        """Delete every created queue; `on_failure` gets the path and error of one that remains."""
        for path in self.created:
            try:
                with suppress(EntityMissing):
                    delete = partial(self.namespace.delete, path)
                    await attempt(f"delete {path}", delete, sleep=sleep, on_event=lambda _event: None)
            except SbpairError as error:
                on_failure(path, error)


@asynccontextmanager
async def open_trial_queues(
    endpoint: Endpoint,
    tag: str,
    *,
    seconds: float,
    sleep: Callable[[float], Awaitable[object]],
    on_failure: Callable[[str, SbpairError], object],
) -> AsyncIterator[TrialQueues]:
    """Open a namespace for trial queues, and delete them at the end. `seconds` limits each call."""
    async with open_atom(endpoint, call_seconds=seconds) as namespace:
        queues = TrialQueues(namespace, endpoint.name, tag)
        try:
            yield queues
        finally:
            await shielded(queues.delete_all(sleep, on_failure))


async def shielded(action: Coroutine[object, object, Result]) -> Result:
    """Run `action` to its end through any cancellation, which is raised afterwards."""
    task = asyncio.ensure_future(action)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
        except SbpairError:
            break
    if cancelled is not None:
        raise cancelled
    return task.result()
