"""The names, units and labels of the metrics of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_type_hints

from sbpair.move.receipt import BUCKETS, Receipt

_SUFFIXES: Final = {"s": "seconds", "By": "bytes"}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, named as OpenTelemetry does. `label` distinguishes its series; "" for one without any.

    `unit` is a symbol of UCUM, as in OpenTelemetry. `is_counter`: it only grows during a run.
    """

    name: str
    unit: str
    label: str
    text: str
    is_counter: bool = True

    @property
    def base_unit(self) -> str:
        """Prometheus' name of the unit; "" for a number of things."""
        return _SUFFIXES.get(self.unit, "")

    @property
    def prometheus_name(self) -> str:
        """The name for Prometheus, in which a counter ends with `_total`."""
        parts = (self.name.replace(".", "_"), self.base_unit, "total" if self.is_counter else "")
        return "_".join(filter(None, parts))


def _gauge(name: str, unit: str, label: str, text: str) -> Metric:
    return Metric(name, unit, label, text, is_counter=False)


RUN_INFO: Final = "sbpair_run"

_COUNTS = get_type_hints(Receipt, include_extras=True)
MESSAGES: Final = {
    bucket: Metric(f"sbpair.messages.{bucket}", "{message}", "queue", _COUNTS[bucket].__metadata__[0])
    for bucket in ("received", *BUCKETS)
}

START_TIME = _gauge("sbpair.run.start_time", "s", "", "When the run began, since 1970")
PAUSED = _gauge("sbpair.run.paused", "{run}", "", "1 while the run is paused, and holds no message")
BYTES_SENT = Metric("sbpair.sent", "By", "", "Bytes of accepted messages")
DEAD_LETTERS = Metric("sbpair.dead_letters", "{message}", "reason", "Dead-lettered and expired messages")
OPERATIONS = Metric("sbpair.operations", "{operation}", "operation", "Billable operations")
CREDITS = Metric("sbpair.credits_spent", "{credit}", "side", "Credits spent, where --credits limits them")

DEPTH = _gauge("sbpair.queue.messages", "{message}", "queue", "Messages in a source, counted or estimated")
OLDEST = _gauge("sbpair.queue.oldest_message_age", "s", "queue", "Age of the oldest message; 0 for an empty source")
HELD = _gauge("sbpair.queue.messages_held", "{message}", "queue", "Messages held under lock")
LOCKED = _gauge("sbpair.queue.messages_locked", "{message}", "queue", "Messages that others have locked")
FAILURES = Metric("sbpair.queue.failures", "{failure}", "queue", "Times that a worker could not go on")

SENT_TO = Metric("sbpair.destination.messages_sent", "{message}", "destination", "Messages that it accepted")
WAITING = _gauge("sbpair.destination.messages_waiting", "{message}", "destination", "Messages that wait for it")
BACKING_OFF = _gauge("sbpair.destination.backing_off", "{destination}", "destination", "1 while it takes nothing")
BACKOFFS = Metric("sbpair.destination.backoffs", "{backoff}", "destination", "Times that it took nothing")

SIDE_AWAY = _gauge("sbpair.side.away", "{side}", "side", "1 while the namespace cannot be reached")

CONNECTIONS = _gauge("sbpair.gateway.connections", "{connection}", "", "Open connections of applications")
ENTITIES = _gauge("sbpair.gateway.entities", "{entity}", "state", "Queues and topics that applications send to")
GATEWAY_SENT = Metric("sbpair.gateway.messages_sent", "{message}", "", "Messages accepted from applications")
GATEWAY_RECEIVED = Metric("sbpair.gateway.messages_received", "{message}", "", "Messages passed to applications")
RETRIED = Metric("sbpair.gateway.retries", "{delivery}", "", "Deliveries sent again on behalf of applications")
