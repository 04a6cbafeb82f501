"""The queues of a drill on a user's own namespaces, and its simulated outages, visible to this client only.

Invariant: it writes only to queues created for it, under unique names, and deletes them whatever happens.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.azure.atom import open_atom
from sbpair.errors import EntityMissing, NameTaken, SbpairError, ServiceRefused
from sbpair.failover.simulated_outage import SimulatedOutage
from sbpair.management import provisioning
from sbpair.model.queues import QueueSpec
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbpair.drill.drill_phases import EmitPhase
    from sbpair.model.pair import Endpoint, Pair

OWN_QUEUES = 2
PREFIX = "sbpair-drill-"
TEMPORARY = QueueSpec("", auto_delete_on_idle="PT1H")
"""A queue that deletes itself if a killed drill has left it."""


class SimulatedOutages:
    """Outages that are simulated in this client; no other client is affected."""

    def __init__(self) -> None:
        self.outage = SimulatedOutage()

    async def stop_primary(self) -> None:
        self.outage.begin("primary")

    async def stop_queue(self, path: str) -> None:
        self.outage.begin("backlog", path)

    async def restore(self) -> None:
        self.outage.end()


def drill_queue_names(tag: str, queues: int) -> tuple[str, tuple[str, ...]]:
    """Return the queue that a drill creates in the primary, and those in the secondary."""
    return f"{PREFIX}{tag}", tuple(backlog.queue_path(f"{PREFIX}{tag}", index) for index in range(queues))


@asynccontextmanager
async def drill_queues(pair: Pair, tag: str, queues: int, emit: EmitPhase) -> AsyncIterator[tuple[Pair, str]]:
    """Create the drill's queues, and delete them at the end.

    Yields the pair with the drill's own backlog queues, whose paths begin with another primary's name, and the queue
    in the primary. Needs Manage on both sides.
    """
    entity, _ = drill_queue_names(tag, queues)
    own = replace(pair, primary=replace(pair.primary, name=entity), backlog_queues=queues)
    created: dict[Endpoint, list[str]] = {}
    try:
        backlog_queues = f"{queues} backlog queues in {pair.secondary.name}"
        emit("provision", f"creating {entity} in {pair.primary.name}, and {backlog_queues}")
        async with open_atom(pair.primary) as control:
            if not await control.create(replace(TEMPORARY, path=entity)):
                raise NameTaken(f"{entity} exists already in {pair.primary.name}", hint="run it again: names differ")
        created[pair.primary] = [entity]
        report = await provisioning.provision(own)
        created[pair.secondary] = [item.name for item in report.of(Outcome.CREATED)]
        for item in report.of(Outcome.FAILED, Outcome.NOT_TRIED):
            raise ServiceRefused(f"{item.name} could not be created: {item.reason}", hint="run sbpair doctor")
        yield own, entity
    finally:
        remaining = [path for endpoint, paths in created.items() for path in await _delete(endpoint, paths)]
        emit("clean", f"not deleted, delete by hand: {', '.join(remaining)}" if remaining else "its queues are deleted")


async def _delete(endpoint: Endpoint, paths: list[str]) -> list[str]:
    """Delete the queues. Returns those that remain."""
    remaining: list[str] = []
    async with open_atom(endpoint) as namespace:
        for path in paths:
            try:
                with suppress(EntityMissing):
                    await namespace.delete(path)
            except SbpairError:
                remaining.append(f"{path} in {endpoint.name}")
    return remaining
