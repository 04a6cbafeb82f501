"""Schemas of the output of the other commands."""

from typing import get_args

from sbpair.cli.schemas import (
    array,
    event,
    forms,
    nullable,
    text,
)
from sbpair.failover.events import SenderEvent, name_and_level
from sbpair.gateway.peer_users import PeerUserUnknown

_GATEWAY_EVENTS = (*get_args(SenderEvent), PeerUserUnknown)
GATEWAY_EVENT = forms(
    "sbpair/gateway-event/1",
    "One line of sbpair gateway with --log-format json.",
    *(
        event(
            *name_and_level(kind),
            text=text("The event, in words"),
            entity=nullable(text("Queue or topic that it is about; null for none")),
            message_ids=array("Messages that it names", text("Message id")),
        )
        for kind in _GATEWAY_EVENTS
    ),
    event("health-served", url=text("Address of the readiness", example="http://127.0.0.1:8081/health/ready")),
    event("metrics-served", url=text("Address of the metrics", example="http://127.0.0.1:9464/metrics")),
)
