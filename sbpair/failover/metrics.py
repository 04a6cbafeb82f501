"""Metrics of a paired client, counted by OpenTelemetry's API if that is installed.

Invariant: without the API nothing is counted, and no metric holds content of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from sbpair.failover.entity_states import SENDS_TO_BACKLOG
from sbpair.failover.events import (
    EntityChanged,
    OutboxBegun,
    OutboxEmptied,
    QueueLeft,
    QueueReturned,
    SenderEvent,
    SendInDoubt,
    SyphonFaulted,
)

if TYPE_CHECKING:
    from sbpair.failover.entity_states import State

Listener = Callable[[SenderEvent], None]


@dataclass(frozen=True, slots=True)
class Instruments:
    """Counters `transitions`, `in_doubt` and `syphon_faults`, and current numbers."""

    transitions: Any
    failed_over: Any
    queues_out: Any
    in_doubt: Any
    in_outbox: Any
    syphon_faults: Any


def with_metrics(pair: str, on_event: Listener | None) -> Listener | None:
    """Return a listener that counts and then calls `on_event`, or `on_event` itself without the API."""
    instruments = _instruments()
    if instruments is None:
        return on_event

    def listener(event: SenderEvent) -> None:
        _count(instruments, event, {"sbpair.pair": pair})
        if on_event is not None:
            on_event(event)

    return listener


@cache
def _instruments() -> Instruments | None:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair")
    return Instruments(
        meter.create_counter("sbpair.entity.transitions", "{transition}", "Changes of an entity's state"),
        meter.create_up_down_counter(
            "sbpair.entity.failed_over", "{entity}", "Entities whose messages go to the backlog"
        ),
        meter.create_up_down_counter("sbpair.backlog.queues_out", "{queue}", "Backlog queues out of the rotation"),
        meter.create_counter(
            "sbpair.messages.in_doubt", "{message}", "Messages sent again after an unanswered attempt"
        ),
        meter.create_up_down_counter("sbpair.entity.in_outbox", "{entity}", "Entities with messages in the outbox"),
        meter.create_counter("sbpair.syphon.faults", "{fault}", "Failures of a client's syphon"),
    )


def _count(to: Instruments, event: SenderEvent, pair: dict[str, str]) -> None:
    match event:
        case EntityChanged(entity, before, after):
            to.transitions.add(1, pair | {"sbpair.entity": entity, "sbpair.state": after.value})
            if change := _failed_over(after) - _failed_over(before):
                to.failed_over.add(change, pair)
        case QueueLeft():
            to.queues_out.add(1, pair)
        case QueueReturned():
            to.queues_out.add(-1, pair)
        case SendInDoubt(entity, message_ids):
            to.in_doubt.add(len(message_ids), pair | {"sbpair.entity": entity})
        case OutboxBegun():
            to.in_outbox.add(1, pair)
        case OutboxEmptied():
            to.in_outbox.add(-1, pair)
        case SyphonFaulted():
            to.syphon_faults.add(1, pair)
        case _:
            pass


def _failed_over(state: State) -> int:
    return int(state in SENDS_TO_BACKLOG)
