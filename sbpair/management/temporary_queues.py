"""Queues of a check or a drill, under names of its own: deleted whatever happens, a cancellation included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from sbpair.azure.atom import AtomNamespace, open_atom
from sbpair.azure.http_client import CALL_SECONDS
from sbpair.errors import EntityMissing, NameTaken, SbpairError
from sbpair.management.calls import Sleep, shielded
from sbpair.model.entities import Queue, Topic
from sbpair.model.pair import Endpoint
from sbpair.model.queues import QueueSpec
from sbpair.model.retries import attempt
from sbpair.model.tiers import BASIC

IDLE = "PT1H"
"""A queue that a killed run has left deletes itself after this time, but not in a Basic namespace."""


@dataclass
class TemporaryQueues:
    """The temporary queues of one namespace. Get one from `open_temporary_queues`."""

    namespace: AtomNamespace
    name: str
    created: list[str] = field(default_factory=list)
    tier: str | None = None
    """Its name, which may be one that sbpair does not know; None until it is needed."""

    async def create(self, spec: QueueSpec | Queue | Topic, *, exact: bool = False) -> str:
        """Create a queue, and return its path. Raises NameTaken and, if `exact`, PartitionsWanted."""
        # Recorded before the answer, and shielded: a queue in doubt is deleted, and not before its creation ends.
        if spec.path not in self.created:
            self.created.append(spec.path)
        await shielded(self._create(spec, exact=exact), always=True)
        return spec.path

    async def _create(self, spec: QueueSpec | Queue | Topic, *, exact: bool) -> None:
        if self.tier is None:
            self.tier = await self.namespace.tier_name()
        if self.tier == BASIC.name:
            # It refuses both, whatever their value; nothing but `delete_all` deletes the queue there.
            spec = replace(spec, auto_delete_on_idle="", default_message_time_to_live="")
        create = self.namespace.create_exact if exact else self.namespace.create
        if not await create(spec):
            self.created.remove(spec.path)
            raise NameTaken(f"{spec.path} exists already in {self.name}", hint="run it again: names differ")

    async def delete_all(self, sleep: Sleep, on_failure: Callable[[str, SbpairError], object]) -> None:
        """Delete every created queue; `on_failure` gets the path and error of one that remains."""
        for path in self.created:
            try:
                with suppress(EntityMissing):
                    delete = partial(self.namespace.delete, path)
                    await attempt(f"delete {path}", delete, sleep=sleep, on_event=lambda _event: None)
            except SbpairError as error:
                on_failure(path, error)


@asynccontextmanager
async def open_temporary_queues(
    endpoint: Endpoint,
    on_failure: Callable[[str, SbpairError], object],
    *,
    seconds: float = CALL_SECONDS,
    sleep: Sleep = asyncio.sleep,
) -> AsyncIterator[TemporaryQueues]:
    """Open a namespace for temporary queues, and delete them at the end. `seconds` limits each call."""
    async with open_atom(endpoint, call_seconds=seconds) as namespace:
        queues = TemporaryQueues(namespace, endpoint.name)
        try:
            yield queues
        finally:
            await shielded(queues.delete_all(sleep, on_failure), always=True)
