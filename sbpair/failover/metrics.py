"""Metrics of a paired client, counted by OpenTelemetry's API if that is installed.

Invariant: without the API nothing is counted, and no metric holds content of a message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from sbpair.failover import events
from sbpair.failover.entity_states import SENDS_TO_BACKLOG
from sbpair.failover.events import SenderEvent

Listener = Callable[[SenderEvent], None]


_AMOUNTS: Final[dict[type, tuple[str, int]]] = {
    events.QueueLeft: ("queues_out", 1),
    events.QueueReturned: ("queues_out", -1),
    events.OutboxBegun: ("in_outbox", 1),
    events.OutboxEmptied: ("in_outbox", -1),
    events.SyphonFaulted: ("syphon_faults", 1),
}


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
def _instruments() -> dict[str, Any] | None:
    try:
        from opentelemetry import metrics
    except ImportError:
        return None
    meter = metrics.get_meter("sbpair")
    count, current = meter.create_counter, meter.create_up_down_counter
    return {
        "transitions": count("sbpair.entity.transitions", "{transition}", "Changes of an entity's state"),
        "failed_over": current("sbpair.entity.failed_over", "{entity}", "Entities whose messages go to the backlog"),
        "queues_out": current("sbpair.backlog.queues_out", "{queue}", "Backlog queues out of the rotation"),
        "in_doubt": count("sbpair.messages.in_doubt", "{message}", "Messages sent again after an unanswered attempt"),
        "in_outbox": current("sbpair.entity.in_outbox", "{entity}", "Entities with messages in the outbox"),
        "syphon_faults": count("sbpair.syphon.faults", "{fault}", "Failures of a client's syphon"),
    }


def _count(to: dict[str, Any], event: SenderEvent, pair: dict[str, str]) -> None:
    if isinstance(event, events.EntityChanged):
        to["transitions"].add(1, pair | {"sbpair.entity": event.entity, "sbpair.state": event.after.value})
        if change := (event.after in SENDS_TO_BACKLOG) - (event.before in SENDS_TO_BACKLOG):
            to["failed_over"].add(change, pair)
    elif isinstance(event, events.SendInDoubt):
        to["in_doubt"].add(len(event.message_ids), pair | {"sbpair.entity": event.entity})
    elif type(event) in _AMOUNTS:
        name, amount = _AMOUNTS[type(event)]
        to[name].add(amount, pair)
