"""Schemas of the output of the other commands."""

from typing import get_args

from sbpair.cli.schemas import (
    array,
    count,
    document,
    event,
    fields,
    forms,
    keys_of,
    nullable,
    number,
    optional,
    record,
    records,
    text,
    typed,
)
from sbpair.emulator.server import ReadyNamespace
from sbpair.failover.events import SenderEvent, name_and_level
from sbpair.gateway.peer_users import PeerUserUnknown
from sbpair.management.audit_findings import Unseen
from sbpair.model.queues import Difference

HEALTH = ("up", "down", "broken")
_REASON = optional(text("Why the outcome is what it is"))
_PARTITIONED = optional({"const": True, "description": "Present if the entity is partitioned"})
_DIFFERENCES = array("Properties that differ from the expected description", typed(Difference))
_SKIPPED = keys_of(Unseen)
_NOT_READ = "Queues and namespaces that could not be read, and runs whose messages are unknown"


_PROBLEM = fields(reason=text("What is wrong; may be empty"), hint=text("What to do about it; may be empty"))
_ANSWER = fields(seconds=number("Time to the answer"), **_PROBLEM)
EMULATOR = document(
    "sbpair/emulator/1",
    "How to connect to the emulator, on one line.",
    namespaces=records(
        "Namespaces",
        **keys_of(
            ReadyNamespace,
            *("tls_connection_string", "http_connection_string", "hybrid_connections"),
            *("tenant_id", "client_id", "client_secret"),
        ),
    ),
    ca_file=optional(text("File with the CA, with --tls")),
    identity=optional(record("Of --identity", endpoint=text("IDENTITY_ENDPOINT"), header=text("IDENTITY_HEADER"))),
    authority=optional(text("URL of the OAuth authority, with --identity and --tls")),
    background=optional(record("Of --detach", process=count("Id of its process"), log=text("File of its log"))),
)

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
