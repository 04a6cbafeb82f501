"""The story of a drill on a user's own namespaces, with a failure that only this client believes in.

The law: whatever is written to was made for it, under a name that nothing else has, and is deleted whatever happens.
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

    from sbpair.drill.scenario import Tell
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.events import SyphonEvent

OWN_QUEUES = 2
PREFIX = "sbpair-drill-"
PASSING = QueueSpec("", auto_delete_on_idle="PT1H")
"""It goes by itself where a killed drill has left it."""


def new_drill_tag() -> str:
    """What makes the names of one drill its own."""
    return uuid.uuid4().hex[:12]


def drilled(pair: Pair, tag: str, queues: int) -> Pair:
    """The pair with backlog queues of the drill's own, in the same secondary: their paths begin with another name."""
    return replace(pair, primary=replace(pair.primary, name=f"{PREFIX}{tag}"), backlog_queues=queues)


def drill_queue_names(tag: str, queues: int) -> tuple[str, tuple[str, ...]]:
    """The queue that a drill makes in the primary, and those in the secondary."""
    return f"{PREFIX}{tag}", tuple(backlog.queue_path(f"{PREFIX}{tag}", index) for index in range(queues))


async def drill_on_pair(
    pair: Pair,
    tag: str,
    tell: Tell,
    *,
    queues: int = OWN_QUEUES,
    seed: int = 0,
    intervals: Intervals | None = None,
    on_event: Callable[[SyphonEvent], None] = lambda _event: None,
) -> SendTally:
    """Tell the story there. Needs Manage, Send and Listen on both sides. Raises SbpairError, with its queues gone."""
    entity, _ = drill_queue_names(tag, queues)
    own, stage = drilled(pair, tag, queues), SimulatedOutages()
    made: dict[Endpoint, list[str]] = {}
    try:
        there = f"{queues} backlog queues in {pair.secondary.name}"
        tell("provision", f"creating {entity} in {pair.primary.name}, and {there}")
        made[pair.primary] = await _create(pair.primary, entity)
        made[pair.secondary] = await _provision(own)
        tell("sending", f"an application sends to {entity}")
        async with scenario.application(own, entity, stage, intervals or Intervals(), tell, seed) as application:
            await scenario.tell_all(application, stage, pair, tell)
            tell("syphon", "bringing back what it sent to the backlog, while it sends on")
            moved, _ = await asyncio.gather(
                runner.run(own, once=True, on_event=on_event), application.until_more("primary")
            )
        tell("compare", "reading all of it back, and comparing each to the byte")
        async with token_getter_for(pair.primary.credential, pair.primary.name) as get_token:
            back = await received(pair.primary, entity, len(application.sent), get_token)
        return accounted(application, back, moved.receipt)
    finally:
        left = [path for endpoint, paths in made.items() for path in await _deleted(endpoint, paths)]
        tell("clean", f"left behind, to be deleted by hand: {', '.join(left)}" if left else "its queues are deleted")


async def _create(primary: Endpoint, entity: str) -> list[str]:
    async with open_atom(primary) as control:
        if not await control.create(replace(PASSING, path=entity)):
            raise NameTaken(f"{entity} is there already in {primary.name}", hint="run it again: names differ")
    return [entity]


async def _provision(own: Pair) -> list[str]:
    report = await provisioning.provision(own)
    for item in report.of(Outcome.FAILED, Outcome.NOT_TRIED):
        await _deleted(own.secondary, [each.name for each in report.of(Outcome.CREATED)])
        raise ServiceRefused(f"{item.name} could not be created: {item.reason}", hint="sbpair doctor may say why")
    return [item.name for item in report.of(Outcome.CREATED)]


async def _deleted(endpoint: Endpoint, paths: list[str]) -> list[str]:
    """Delete the queues; what could not be, is answered."""
    left: list[str] = []
    async with open_atom(endpoint) as namespace:
        for path in paths:
            try:
                with suppress(EntityMissing):
                    await namespace.delete(path)
            except SbpairError:
                left.append(f"{path} in {endpoint.name}")
    return left
