"""The sending part of a drill on a user's own namespaces, with a simulated outage, visible to this client only.

Invariant: it writes only to queues created for it, under unique names, and deletes them whatever happens.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.azure.atom import open_atom
from sbpair.azure.credentials import token_getter_for
from sbpair.drill import scenario
from sbpair.drill.outages import SimulatedOutages
from sbpair.drill.scenario import Intervals, SendTally, accounted, received
from sbpair.errors import EntityMissing, NameTaken, SbpairError, ServiceRefused
from sbpair.management import provisioning
from sbpair.model.queues import QueueSpec
from sbpair.model.report import Outcome
from sbpair.syphon import runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from sbpair.drill.scenario import EmitPhase
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.events import SyphonEvent

OWN_QUEUES = 2
PREFIX = "sbpair-drill-"
TEMPORARY = QueueSpec("", auto_delete_on_idle="PT1H")
"""A queue that deletes itself if a killed drill has left it."""


def new_drill_tag() -> str:
    """Return a tag that makes the queue names of one drill unique."""
    return uuid.uuid4().hex[:12]


def drill_pair(pair: Pair, tag: str, queues: int) -> Pair:
    """Return the pair with the drill's own backlog queues, whose paths begin with another primary's name."""
    return replace(pair, primary=replace(pair.primary, name=f"{PREFIX}{tag}"), backlog_queues=queues)


def drill_queue_names(tag: str, queues: int) -> tuple[str, tuple[str, ...]]:
    """Return the queue that a drill creates in the primary, and those in the secondary."""
    return f"{PREFIX}{tag}", tuple(backlog.queue_path(f"{PREFIX}{tag}", index) for index in range(queues))


async def drill_on_pair(
    pair: Pair,
    tag: str,
    emit: EmitPhase,
    *,
    queues: int = OWN_QUEUES,
    seed: int = 0,
    intervals: Intervals | None = None,
    on_event: Callable[[SyphonEvent], None] = lambda _event: None,
) -> SendTally:
    """Run the scenario. Needs Manage, Send and Listen on both sides. Raises SbpairError after cleanup."""
    entity, _ = drill_queue_names(tag, queues)
    own, outages = drill_pair(pair, tag, queues), SimulatedOutages()
    created: dict[Endpoint, list[str]] = {}
    try:
        backlog_queues = f"{queues} backlog queues in {pair.secondary.name}"
        emit("provision", f"creating {entity} in {pair.primary.name}, and {backlog_queues}")
        created[pair.primary] = await _create(pair.primary, entity)
        created[pair.secondary] = await _provision(own)
        emit("sending", f"an application sends to {entity}")
        async with scenario.application(own, entity, outages, intervals or Intervals(), emit, seed) as application:
            await scenario.play(application, outages, pair, emit)
            emit("syphon", "moving back its messages from the backlog, while it continues to send")
            moved, _ = await asyncio.gather(
                runner.run(own, once=True, lease=False, on_event=on_event), application.until_more("primary")
            )
        emit("compare", "reading all messages back, and comparing each byte for byte")
        async with token_getter_for(pair.primary.credential, pair.primary.name) as get_token:
            back = await received(pair.primary, entity, len(application.sent), get_token)
        return accounted(application, back, moved.receipt)
    finally:
        remaining = [path for endpoint, paths in created.items() for path in await _delete(endpoint, paths)]
        emit("clean", f"not deleted, delete by hand: {', '.join(remaining)}" if remaining else "its queues are deleted")


async def _create(primary: Endpoint, entity: str) -> list[str]:
    async with open_atom(primary) as control:
        if not await control.create(replace(TEMPORARY, path=entity)):
            raise NameTaken(f"{entity} exists already in {primary.name}", hint="run it again: names differ")
    return [entity]


async def _provision(own: Pair) -> list[str]:
    report = await provisioning.provision(own)
    for item in report.of(Outcome.FAILED, Outcome.NOT_TRIED):
        await _delete(own.secondary, [each.name for each in report.of(Outcome.CREATED)])
        raise ServiceRefused(f"{item.name} could not be created: {item.reason}", hint="run sbpair doctor")
    return [item.name for item in report.of(Outcome.CREATED)]


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
