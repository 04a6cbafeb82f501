"""Schemas of event lines."""

from collections.abc import Iterable
from typing import Any, Literal, get_args

from sbpair.cli.commands.gateway import EVENT_SCHEMA, GatewayEvent
from sbpair.cli.progress import move_progress, replay_progress
from sbpair.cli.progress.boards import DestinationRow, QueueRow
from sbpair.cli.progress.move_progress import Connecting, CountedDeadLetter, DroppedEvents
from sbpair.cli.progress.replay_progress import BegunPhase, PhaseFigures
from sbpair.cli.progress.reporting import EventLine
from sbpair.cli.schemas import Schema, forms, object_of
from sbpair.cli.served_ports import ServedPort
from sbpair.failover.events import SenderEvent, name_and_level
from sbpair.gateway.peer_users import PeerUserUnknown
from sbpair.move import events

_SERVED = [("health-served", "info", ServedPort), ("metrics-served", "info", ServedPort)]
_SUMMED = (events.QueueProgress, events.QueueDepths, events.DestinationProgress, events.DeadLettered)
"""Events whose lines have other items."""


def lines(schema: str, summary: str, items: Iterable[tuple[str, str, type]], **more: Schema) -> Schema:
    """Return the schema of lines, each with its name, its level and the class of its item."""
    line: Any = EventLine
    one_of: Any = Literal
    kinds = {name: line[one_of[level], one_of[name], item] for name, level, item in items}
    found = (object_of(kind) | {"description": f"The event {name}"} for name, kind in kinds.items())
    return forms(schema, summary, *found, **more)


def own_lines(kinds: Iterable[type]) -> list[tuple[str, str, type]]:
    return [(*events.name_and_level(each), each) for each in kinds]


SYPHON_EVENT = lines(
    move_progress.SCHEMA,
    "One line of sbpair syphon --once or --watch with --log-format json.",
    [
        ("connecting", "info", Connecting),
        ("progress", "info", QueueRow),
        ("destination-progress", "info", DestinationRow),
        ("dead-lettered", "warning", CountedDeadLetter),
        *own_lines(each for each in get_args(events.SyphonEvent) if each not in _SUMMED),
        ("events-dropped", "warning", DroppedEvents),
        *_SERVED,
    ],
    pair={"type": "string", "description": "Pair that it is about, with --all-pairs"},
)
REPLAY_EVENT = lines(
    replay_progress.SCHEMA,
    "One line of a replay with --log-format json.",
    [
        ("phase", "info", BegunPhase),
        ("progress", "info", PhaseFigures),
        *own_lines((events.MessagesLocked, *events.RunEvent.__subclasses__())),
    ],
)
GATEWAY_EVENT = lines(
    EVENT_SCHEMA,
    "One line of sbpair gateway with --log-format json.",
    [*((*name_and_level(each), GatewayEvent) for each in (*get_args(SenderEvent), PeerUserUnknown)), *_SERVED],
)
