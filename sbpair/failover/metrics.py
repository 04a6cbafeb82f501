"""What a paired client tells, counted by OpenTelemetry's API where that is installed; elsewhere nothing.

The law: an application that measures nothing pays nothing, and nothing here is a message's content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

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
from sbpair.failover.states import TO_THE_BACKLOG

if TYPE_CHECKING:
    from sbpair.failover.states import State

Listener = Callable[[SenderEvent], None]


@dataclass(frozen=True, slots=True)
class Instruments:
    """`transitions`, `in_doubt` and `syphon_faults` only grow; the others tell how many there are."""

    transitions: Any
    failed_over: Any
    queues_out: Any
    in_doubt: Any
    in_outbox: Any
    syphon_faults: Any


def counted(pair: str, on_event: Listener | None) -> Listener | None:
    """A listener that counts, and tells `on_event`. `on_event` alone where nothing can count."""
    instruments = _instruments()
    if instruments is None:
        return on_event

    def heard(event: SenderEvent) -> None:
        _count(instruments, event, {"sbpair.pair": pair})
        if on_event is not None:
            on_event(event)

    return heard


@cache
def _instruments() -> Instruments | None:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair")
    return Instruments(
        meter.create_counter("sbpair.entity.transitions", "{transition}", "Changes of where an entity stands"),
        meter.create_up_down_counter("sbpair.entity.failed_over", "{entity}", "Entities whose messages go elsewhere"),
        meter.create_up_down_counter("sbpair.backlog.queues_out", "{queue}", "Backlog queues out of the rotation"),
        meter.create_counter("sbpair.messages.in_doubt", "{message}", "Messages sent again without an answer"),
        meter.create_up_down_counter("sbpair.entity.in_outbox", "{entity}", "Entities with messages in the outbox"),
        meter.create_counter("sbpair.syphon.faults", "{fault}", "Ends of the syphon beside a client"),
    )


def _count(to: Instruments, event: SenderEvent, pair: dict[str, str]) -> None:
    match event:
        case EntityChanged(entity, before, after):
            to.transitions.add(1, pair | {"sbpair.entity": entity, "sbpair.state": after.value})
            if change := _elsewhere(after) - _elsewhere(before):
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


def _elsewhere(state: State) -> int:
    return int(state in TO_THE_BACKLOG)
