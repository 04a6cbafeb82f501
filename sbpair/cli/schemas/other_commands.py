"""Schemas of the output of the other commands."""

from typing import get_args

from sbpair.cli.schemas import (
    array,
    choice,
    count,
    document,
    event,
    fields,
    flag,
    forms,
    keys_of,
    nullable,
    number,
    optional,
    record,
    records,
    some_of,
    text,
    typed,
)
from sbpair.emulator.server import ReadyNamespace
from sbpair.failover.events import SenderEvent, name_and_level
from sbpair.gateway.peer_users import PeerUserUnknown
from sbpair.management.audit_findings import Unseen
from sbpair.message_io.peek import DeadLetterCount
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

_MESSAGE = fields(
    **{"from": text("Namespace it came from: primary, secondary, or its own name")},
    message_id=nullable(text("Message id")),
    sequence_number=nullable(count("Sequence number")),
    enqueued_at=nullable(text("Enqueued time, with its UTC offset")),
    delivery_count=nullable(count("Delivery count")),
    session_id=nullable(text("Session id")),
    subject=nullable(text("Subject")),
    content_type=nullable(text("Content type")),
    correlation_id=nullable(text("Correlation id")),
    properties={"type": "object", "description": "Application properties"},
    body={"description": "Body: text, or an AMQP value; null if body_base64 is present or it cannot be read"},
    body_base64=optional(text("Body that is not UTF-8, in base64")),
)
_ORIGIN = fields(
    state=choice("State", "active", "deferred", "scheduled"),
    scheduled_at=nullable(text("Time for which it is, or was, scheduled; of a backlog message, at its destination")),
    expires_at=nullable(text("Time at which it expires; null for never, or if unknown")),
    size=count("Encoded size, in bytes"),
    destination=nullable(text("Destination of a backlog message")),
    dead_letter_reason=nullable(text("Reason of a dead letter")),
    dead_letter_description=nullable(text("Description of a dead letter")),
)
_TOTAL = nullable(count("About how many messages there are; null if unknown"))
_COMPLETE = flag("Whether no more messages follow")
RECEIVE = document(
    "sbpair/receive/1",
    "Received or peeked messages. JSON Lines have one message each.",
    "messages",
    entity=text("Queue, or topic with subscription"),
    messages=records("Messages", **_MESSAGE, **{name: optional(each) for name, each in _ORIGIN.items()}),
    received=count("Received or peeked messages"),
    not_removed=count("Messages that were printed but not removed"),
    duplicates=count("Copies that were not printed"),
    locked=optional(count("Messages that another receiver has locked, or just sent ones, with --remove")),
    removed=flag("Whether messages are removed, so with --remove"),
    total=optional(_TOTAL),
    complete=optional(_COMPLETE),
)
_PEEKED = fields(**{**_MESSAGE, "body": optional(_MESSAGE["body"])}, **_ORIGIN)
PEEK = document(
    "sbpair/peek/1",
    "Peeked messages, with bodies if --body was given. JSON Lines have one message each.",
    "messages",
    namespace=text("Name of the namespace"),
    side=text("The namespace's side: primary, secondary, or its own name"),
    entity=text("Queue, subscription or dead-letter queue"),
    total=_TOTAL,
    complete=_COMPLETE,
    messages=records("Messages", **_PEEKED),
)
DEAD_LETTERS_SHOW = document(
    "sbpair/deadletters-show/1",
    "Dead letters of the backlog queues. JSON Lines have one message each.",
    "messages",
    total=_TOTAL,
    complete=_COMPLETE,
    messages=records(
        "Messages",
        **some_of(DeadLetterCount, "queue"),
        **{name: each for name, each in _PEEKED.items() if not name.startswith("body")},
    ),
)
_GROUP = some_of(DeadLetterCount, "reason", "destination", "messages", "exact") | fields(
    oldest_seconds=nullable(number("Age of the oldest; null if unknown")),
)
DEAD_LETTERS_LIST = document(
    "sbpair/deadletters-list/1",
    "Dead letters by backlog queue, reason and destination. JSON Lines have one group each.",
    "groups",
    messages=count("All dead letters, at least so many if exact is false"),
    exact=flag("Whether messages is exact"),
    groups=records("Groups", **some_of(DeadLetterCount, "queue"), **_GROUP),
)

REDRIVE_REASONS = document(
    "sbpair/redrive-reasons/1",
    "The dead letters of one entity by reason, and destination if aliases name one. JSON Lines have one group each.",
    "groups",
    entity=text("Path of the dead-letter queue"),
    messages=count("All dead letters, at least so many if exact is false"),
    exact=flag("Whether messages is exact"),
    groups=records("Groups", **_GROUP),
)
