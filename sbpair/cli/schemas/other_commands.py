"""Schemas of the output of the other commands."""

from typing import get_args

from sbpair.cli.commands.doctor import AssumptionFinding
from sbpair.cli.commands.gateway import ReadyGateway
from sbpair.cli.commands.management import AUDIT_LISTS, PROVISION_LISTS, PRUNE_LISTS
from sbpair.cli.commands.relay import LISTENERS, ProvisionedSide
from sbpair.cli.schemas import (
    Optional,
    Schema,
    array,
    by_pair,
    choice,
    count,
    document,
    event,
    fields,
    flag,
    forms,
    keys_of,
    mapping,
    nullable,
    number,
    optional,
    record,
    records,
    scalar,
    some_of,
    text,
    time,
    typed,
)
from sbpair.cli.schemas.moves import OPERATIONS, PRICED, RECEIPT, WAITING
from sbpair.drill import DrillResult, SendTally
from sbpair.drill.gateway_drill import GatewayDrillResult
from sbpair.drill.relay_drill import RelayDrillResult, RelayTally
from sbpair.emulator.server import ReadyNamespace
from sbpair.failover.events import SenderEvent, name_and_level
from sbpair.failover.failover_send import Delivered
from sbpair.gateway.peer_users import PeerUserUnknown
from sbpair.gateway.running_gateways import RunningGateway
from sbpair.management.audit_findings import BacklogTotal, DestinationSummary, Unseen
from sbpair.management.discovery import OldPair
from sbpair.management.partitioning import PartitionedEntityState
from sbpair.message_io.peek import DeadLetterCount
from sbpair.message_io.send_lines import SendResult
from sbpair.model.queues import Counts, Difference, Utilisation
from sbpair.planning.outage_cost import BacklogRoom, ExtraCost, Outage, OutageCost, TierCost
from sbpair.relay.listener_counts import SideListeners
from sbpair.runs.active_mover import ActiveMover
from sbpair.status import LostPrimary

HEALTH = ("up", "down", "broken")
_REASON = optional(text("Why the outcome is what it is"))
_PARTITIONED = optional({"const": True, "description": "Present if the entity is partitioned"})
_DIFFERENCES = array("Properties that differ from the expected description", typed(Difference))
_QUEUE = fields(
    name=text("Path of the queue", example="contoso/x-servicebus-transfer/0"),
    reason=_REASON,
    index=optional(nullable(count("Index of the backlog queue; null if the name has none"))),
    partitioned=_PARTITIONED,
    counts=optional(typed(Counts)),
    differences=optional(_DIFFERENCES),
    availability=optional(text("Availability, such as Limited while a partition is down; absent if Available")),
)
_MEASURED = {name: each for name, each in keys_of(Utilisation).items() if name != "max_bytes"}
_FILL = record(
    "Utilisation and age of a queue; null where not measured",
    **_MEASURED,
    effective_max_size_mb=count("Size of all partitions, in MB"),
    **some_of(Utilisation, "fill_ratio", "full_in_seconds"),
)
_AUDITED = fields(**_QUEUE, fill=optional(_FILL))
_EXACT = flag("Whether messages is exact: false if not all messages were peeked")
_DESTINATION = fields(**keys_of(DestinationSummary, "discarded"), exact=_EXACT)
_SKIPPED = keys_of(Unseen)
_NOT_READ = "Queues and namespaces that could not be read, and runs whose messages are unknown"


_ENTITY = fields(
    name=text("Path of the entity"),
    reason=_REASON,
    namespace=optional(text("Name of the namespace")),
    kind=optional(text("Kind of entity: queue, topic, subscription or rule")),
    index=optional(count("Index of a backlog queue")),
    partitioned=_PARTITIONED,
    differences=optional(_DIFFERENCES),
)
_MIRRORED = fields(
    outcome=choice("Outcome", "missing", "failed", "drifted", "ok", "extra"),
    entity=text("Kind of entity"),
    **{name: each for name, each in _ENTITY.items() if name != "kind"},
)


def _kind(kind: str, description: str, *outcomes: str) -> dict[str, Schema | Optional]:
    return fields(kind=choice("Kind of line", kind), outcome=choice(description, *outcomes))


AUDIT = document(
    "sbpair/audit/1",
    "The audit of a pair's backlog queues. JSON Lines have one queue, destination, skipped item or run each.",
    record("The line of a queue", **_kind("queue", "Its list", *AUDIT_LISTS), **_AUDITED),
    record("The line of a destination", **_kind("destination", "As kind", "destination"), **_DESTINATION),
    record("The line of a skipped item", **_kind("skipped", "As kind", "skipped"), **_SKIPPED),
    record("The line of a run with work left", **_kind("run", "As kind", "waiting"), **WAITING),
    record("The line of an entity, with --mirror", kind=choice("Kind of line", "mirror"), **_MIRRORED),
    to=nullable(text("Namespace of --to; null without it")),
    lost_primary=nullable(typed(LostPrimary)),
    backlog=typed(BacklogTotal),
    **{str(name): records(what, **_AUDITED) for name, what in AUDIT_LISTS.items()},
    destinations=records("Destinations of the peeked messages", **_DESTINATION),
    skipped=records(_NOT_READ, **_SKIPPED),
    waiting=records("Runs with work left, of this state directory", **WAITING),
    mirror=records("The application's entities, with --mirror; what refuses or alters messages first", **_MIRRORED),
    mover=typed(ActiveMover),
    findings=array("Kinds of findings", text("Kind, as in --fail-on")),
)

AUDIT_PAIRS = by_pair("sbpair/audit-pairs/1", "The audits of sbpair audit --all-pairs.", AUDIT)

PRUNE = document(
    "sbpair/prune/1",
    "Backlog queues beyond the count. JSON Lines have one queue each.",
    record("The line of a queue", outcome=choice("Its list", *PRUNE_LISTS), **_QUEUE),
    dry_run=flag("Whether nothing was deleted"),
    **{str(name): records(what, **_QUEUE) for name, what in PRUNE_LISTS.items()},
)

PROVISION = document(
    "sbpair/provision/1",
    "The entities that provision created or found. JSON Lines have one entity each.",
    record("The line of an entity", outcome=choice("Its list", *PROVISION_LISTS), **_ENTITY),
    dry_run=flag("Whether nothing was created"),
    **{str(name): records(what, **_ENTITY) for name, what in PROVISION_LISTS.items()},
)

_PLACED = fields(
    name=text("Name of the entity"),
    **some_of(PartitionedEntityState, "namespace", "tier", "max_size_mb", "effective_max_size_mb"),
    kind=choice("Kind of entity", "queue", "topic"),
    partitions=nullable(count("Number of partitions; null if only the possible numbers are known")),
    partitions_possible=optional(array("Possible numbers of partitions", count("A number"))),
)
_CREATED = fields(
    **_PLACED,
    outcome=choice("Outcome", "created", "existing", "would_create", "failed"),
    created=flag("Whether it was created now"),
    reason=_REASON,
)
PARTITION = forms(
    "sbpair/partition/1",
    "A created or existing partitioned entity. JSON Lines have one namespace each.",
    record(
        "The document: the first namespace without a failure, then all",
        **_CREATED,
        dry_run=flag("Whether nothing was created"),
        namespaces=records("One entry for each namespace", **_CREATED),
    ),
    record("The line of a namespace", **_CREATED),
)

PARTITION_LIST = document(
    "sbpair/partition-list/1",
    "Queues and topics with their partitions. JSON Lines have one entity or unread namespace each.",
    "entities",
    "failed",
    entities=records(
        "Queues and topics",
        **_PLACED,
        **some_of(PartitionedEntityState, "size_bytes", "fill_ratio"),
    ),
    failed=records("Namespaces that could not be read", namespace=text("Name of the namespace"), reason=text("Why")),
)

_PROBLEM = fields(reason=text("What is wrong; may be empty"), hint=text("What to do about it; may be empty"))
_ANSWER = fields(seconds=number("Time to the answer"), **_PROBLEM)
_SIDE = record(
    "One namespace",
    namespace=text("Its name"),
    health=choice("Whether it answers, and accepts the credential", "up", "refused", "down"),
    **_ANSWER,
)
_COUNTED = some_of(BacklogTotal, "messages", "exact", "dead_letters", "oldest_seconds", "scheduled")
_BACKLOG_QUEUES = records("Backlog queues", name=text("Its path"), **_COUNTED, note=text("Remark; may be empty"))
STATUS = document(
    "sbpair/status/1",
    "The health of a pair and the size of its backlog. --watch prints one line for each reading.",
    time=time("Time of the reading"),
    primary=nullable(_SIDE | {"description": "The primary; null with --to, which does not contact it"}),
    secondary=_SIDE,
    to=nullable(text("Namespace of --to; null without it")),
    destination=nullable(_SIDE | {"description": "That namespace; null without --to"}),
    backlog=typed(BacklogTotal),
    queues=_BACKLOG_QUEUES,
    entities=records(
        "Checked queues and topics of the primary, or of the namespace of --to",
        name=text("Its path"),
        health=choice("Whether a link could be opened", *HEALTH),
        waiting=count("Messages for it in the backlog, at least so many if exact is false"),
        exact=flag("Whether waiting is exact"),
        **_ANSWER,
        note=optional(text("Why it would not keep all of them; empty if it would")),
    ),
    outbox=nullable(
        record(
            "The file of --outbox; null without it",
            path=text("Its path"),
            messages=count("Messages in it"),
            entities=records(
                "Its destinations",
                name=text("Its path"),
                messages=count("Messages for it"),
                oldest_seconds=number("Age of the oldest"),
            ),
        )
    ),
    waiting=records("Runs with work left, of this state directory", **WAITING),
    lost=flag("Whether the primary is declared lost"),
    lost_primary=nullable(typed(LostPrimary)),
    mover=typed(ActiveMover),
    gateways=array("Gateways of this user on this machine", typed(RunningGateway)),
    skipped=records(_NOT_READ, **_SKIPPED),
)

DISCOVER = document(
    "sbpair/discover/1",
    "Old pairs in all readable namespaces. JSON Lines have one pair, or skipped subscription or namespace each.",
    "pairs",
    "skipped",
    namespaces=count("Namespaces whose queues were read"),
    pairs=records("Pairs", **keys_of(OldPair) | {"queues": _BACKLOG_QUEUES, "backlog": typed(BacklogTotal)}),
    skipped=records("Subscriptions and namespaces that could not be read", **_SKIPPED),
    file=nullable(text("The written configuration file; null for none")),
)

STATUS_PAIRS = by_pair("sbpair/status-pairs/1", "The status of all pairs; with --watch, a line each time.", STATUS)

PING = document(
    "sbpair/ping/1",
    "Answers to pings. JSON Lines have one entity each.",
    "entities",
    namespace=text("Name of the primary namespace"),
    entities=records(
        "Pinged entities", name=text("Its path"), health=choice("Whether it accepted the ping", *HEALTH), **_ANSWER
    ),
)

_RELAY_SIDE = choice("Side of the relay", "primary", "secondary")
RELAY_STATUS = document(
    "sbpair/relay-status/1",
    "The listeners of a relay. --watch prints one line for each reading.",
    time=time("Time of the reading"),
    relay=text("Name of the relay"),
    sides=records(
        "Both sides",
        **some_of(SideListeners, *LISTENERS),
        **_ANSWER,
    ),
)
RELAY_REQUEST = document(
    "sbpair/relay-request/1",
    "A request or WebSocket that sbpair relay listen has served, one on each line.",
    time=time("Time of its end"),
    side=_RELAY_SIDE,
    method=text("Method; WEBSOCKET for a WebSocket"),
    path=text("Path of the sender, without the endpoint's and without the query"),
    status=count("Status of the answer; 101 for a WebSocket, 0 for none"),
    seconds=number("Duration"),
    problem=text("Why there is no answer of the server, or not all of it; may be empty"),
)
RELAY_PROVISION = document(
    "sbpair/relay-provision/1",
    "The hybrid connections of a relay, created or compared.",
    relay=text("Name of the relay"),
    dry_run=flag("Whether nothing was created"),
    sides=records(
        "Both sides",
        **some_of(ProvisionedSide, "side", "namespace", "path", "outcome", "differences"),
        **_PROBLEM,
    ),
)
_SENDING = record(
    "Messages of the application that sends during the outage", **keys_of(SendTally) | {"receipt": RECEIPT}
)
DRILL = document(
    "sbpair/drill/1",
    "The verdict of sbpair drill; its counts are those of the stranded messages.",
    **keys_of(DrillResult) | {"receipt": RECEIPT, "sending": _SENDING},
    against=nullable(text("Pair of --against; null on the emulator")),
)

RELAY_DRILL = document(
    "sbpair/relay-drill/1",
    "The verdict of sbpair drill --relay: sent = answered + in_doubt + failed, if nothing is wrong.",
    **keys_of(RelayTally),
    **some_of(RelayDrillResult, "seconds", "timeline"),
)
GATEWAY_DRILL = document(
    "sbpair/gateway-drill/1", "The verdict of sbpair drill --gateway.", **keys_of(GatewayDrillResult)
)
RELAY_SEND = document(
    "sbpair/relay-send/1",
    "The answer to a request over a relay.",
    status=count("Status"),
    reason=text("Reason phrase"),
    side=_RELAY_SIDE,
    headers=records("Headers", name=text("Name"), value=text("Value")),
    body=optional(text("Body, if it is UTF-8")),
    body_base64=optional(text("Body that is not UTF-8, in base64")),
)

CONFIG = document(
    "sbpair/config/1",
    "The effective configuration. JSON Lines have one setting each.",
    "settings",
    record(
        "With --path or --init", path=text("Path of the configuration file"), exists=flag("Whether the file exists")
    ),
    record("With --example", example=text("An example configuration file")),
    settings=records(
        "Settings",
        key=text("Name of the setting", example="primary.namespace"),
        value=scalar("Its value; intervals are in seconds, secrets are masked"),
        source=text("Option, variable, file or setting it comes from; empty for a default"),
        origin=choice("Kind of source", "flag", "environment", "file", "default", "derived"),
    ),
)

_CHECK = fields(
    name=text("Name of the check", example="primary.sign_in"),
    outcome=choice("Outcome", "ok", "failed", "note", "unknown"),
    assumed=optional(text("Assumed behaviour, of a live test")),
    observed=optional(text("Observed behaviour, of a live test")),
    reason=text("What was found"),
    hint=_PROBLEM["hint"],
    exit_code=count("Exit code of the problem; 0 for none"),
)
DOCTOR = document(
    "sbpair/doctor/1",
    "The checks of sbpair doctor. JSON Lines have one check each.",
    "checks",
    checks=records("Checks", **_CHECK),
    live=records("Live tests; empty without --live", **_CHECK),
)

ASSUMPTIONS = document(
    "sbpair/assumptions/1",
    "The result of sbpair doctor --assumptions. JSON Lines have one assumption each.",
    "assumptions",
    version=text("Version of sbpair"),
    tiers=mapping("Tier of each namespace, by side", text("Its tier", example="Standard")),
    assumptions=records("The assumptions that one namespace can answer", **keys_of(AssumptionFinding)),
)

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

GATEWAY = document("sbpair/gateway/1", "How applications reach a gateway, on one line.", **keys_of(ReadyGateway))
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

PAGE = document("sbpair/page/1", "Where a browser finds the page.", url=text("Its URL, with the port"))

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

SEND = document(
    "sbpair/send/1",
    "The receipt of sbpair send: messages = primary + backlog + outbox + in_doubt + failed.",
    entity=text("Queue or topic"),
    **some_of(SendResult, "messages"),
    **some_of(Delivered, "primary", "backlog", "outbox"),
    **some_of(SendResult, "in_doubt", "failed", "next_line"),
    doubtful=array("Ids of possible duplicates", text("Message id")),
    failure=nullable(
        record("Why it ended early; null if it did not", line=nullable(count("Line of the message")), **_PROBLEM)
    ),
    **some_of(SendResult, "seconds", "stopped"),
)

_TIERS = record(
    "One namespace",
    tier=choice("Its tier", "Basic", "Standard", "Premium"),
    units=nullable(count("Messaging units of a Premium namespace")),
)
COST = document(
    "sbpair/cost/1",
    "The cost of an outage. JSON Lines have the document.",
    outage=record(
        "The outage",
        **keys_of(Outage),
        **some_of(Outage, "messages"),
        **some_of(OutageCost, "units"),
    ),
    backlog=record(
        "The backlog queues",
        **keys_of(BacklogRoom),
        **some_of(OutageCost, "full_in_seconds", "full_in_seconds_partitioned", "stored", "not_stored"),
    ),
    charges=records(
        "The four charges of the stored messages",
        stage=text("Stage", example="sent to the backlog"),
        article=count("Operations by the documentation of the feature: one for each stage"),
        billed=count("Operations billed today: a receive and its completion are two"),
    ),
    operations=record("Billable operations", **OPERATIONS),
    polling=record(
        "Receives of a mover that watches empty queues", an_hour=count("In an hour"), in_30_days=count("In 30 days")
    ),
    tiers=records(
        "The cost by tier",
        secondary=_TIERS,
        primary=_TIERS,
        **some_of(TierCost, "operations", "by_sbpair", "idle", "base", "move_back_seconds"),
    ),
    extras=records("The costs beside those of the move", **keys_of(ExtraCost)),
    live=flag("Whether tiers and queues were read from the pair"),
    **PRICED,
    notes=array("Remarks and assumptions", text("One remark")),
)
SERVICE = document(
    "sbpair/service/1",
    "The definition of a service that starts a syphon, or of alerts. JSON Lines have the document.",
    kind=choice(
        "Kind of service, or language", "systemd", "kubernetes", "containerapp", "compose", "bicep", "terraform"
    ),
    name=text("Name of the service, or the start of those of alerts"),
    secrets=array("Secrets that it needs", text("Name of a variable", example="SBPAIR_PRIMARY_CONNECTION_STRING")),
    text=text("The file"),
)
EXPORT = document(
    "sbpair/export/1",
    "Entities of one namespace as infrastructure code. JSON Lines have the document.",
    language=choice("Language of the code", "bicep", "terraform"),
    side=choice("Side of the pair", "primary", "secondary"),
    namespace=text("Name of the namespace"),
    backlog_queues=count("Number of backlog queues"),
    entities=records(
        "The other entities, in the order of their file",
        kind=choice("Its kind", "queue", "topic", "subscription", "rule"),
        name=text("Its path", example="events/Subscriptions/audit"),
        symbol=text("Its name in the code", example="subscription_events_audit"),
    ),
    needs=array("Forwarding targets that must exist, and are not described", text("Path of a queue or topic")),
    file=nullable(text("The written file; null without one")),
    code=nullable(text("The code; null if a file was written")),
)
