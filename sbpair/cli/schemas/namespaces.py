"""Schemas of the output of commands on queues and namespaces."""

from sbpair.cli.schemas.builders import (
    Optional,
    Schema,
    array,
    choice,
    count,
    flag,
    forms,
    nullable,
    number,
    optional,
    record,
    scalar,
    text,
)

HEALTH = ("up", "down", "broken")

_REASON = optional(text("Why the outcome is what it is"))
_PARTITIONED = optional({"const": True, "description": "Present if the entity is partitioned"})
_DIFFERENCES = optional(
    array(
        "Properties that differ from the expected description",
        record(
            "One property",
            {
                "property": text("Service Bus's name of the property", example="LockDuration"),
                "expected": scalar("Expected value"),
                "actual": scalar("Actual value"),
            },
        ),
    )
)
_COUNTS = record(
    "Messages of a queue",
    {
        "active": count("Active messages"),
        "dead_letter": count("Dead-lettered messages"),
        "scheduled": count("Scheduled messages"),
        "total": count("All messages, including deferred ones"),
        "transfer": count("Messages to be forwarded"),
        "transfer_dead_letter": count("Messages that could not be forwarded"),
    },
)
_QUEUE: dict[str, Schema | Optional] = {
    "name": text("Path of the queue", example="contoso/x-servicebus-transfer/0"),
    "reason": _REASON,
    "index": optional(nullable(count("Index of the backlog queue; null if the name has none"))),
    "partitioned": _PARTITIONED,
    "counts": optional(_COUNTS),
    "differences": _DIFFERENCES,
}
_FILL = record(
    "Utilisation and age of a queue; null where not measured",
    {
        "size_bytes": nullable(count("Bytes in use")),
        "effective_max_size_mb": count("Size of all partitions, in MB"),
        "fill_ratio": nullable(number("Used share of the size, from 0 to 1")),
        "idle_seconds": nullable(number("Time since the queue was last used")),
        "idle": flag("Whether it was unused longer than --idle"),
        "peeked": nullable(count("Number of peeked messages")),
        "complete": flag("Whether all messages were peeked"),
        "oldest_seconds": nullable(number("Age of the oldest peeked message")),
        "bytes_per_second": nullable(number("Growth between two samples")),
        "full_in_seconds": nullable(number("Time until it is full at this rate; null if it does not grow")),
    },
)
_AUDITED = {**_QUEUE, "fill": optional(_FILL)}
_DESTINATION: dict[str, Schema | Optional] = {
    "name": text("Destination that peeked messages name; empty for none, * for others"),
    "messages": count("Peeked messages for it"),
    "found": nullable(flag("Whether it exists in the primary")),
    "topic": nullable(flag("Whether it is a topic")),
    "detects_duplicates": nullable(flag("Whether it detects duplicates")),
    "reason": text("Why it is unknown or missing"),
}
_SKIPPED: dict[str, Schema | Optional] = {"name": text("What was skipped"), "reason": text("Why")}
_AUDIT_LISTS = {
    "missing": "Expected queues that do not exist",
    "extra": "Queues beyond the count",
    "drifted": "Queues that differ from their description",
    "ok": "Queues as expected",
    "foreign": "Backlog queues of another primary",
}
AUDIT = forms(
    "sbpair/audit/1",
    "The audit of a pair's backlog queues. JSON Lines have one queue, destination or skipped item each.",
    record(
        "The document",
        {
            **{name: array(what, record("One queue", _AUDITED)) for name, what in _AUDIT_LISTS.items()},
            "destinations": array("Destinations of the peeked messages", record("One destination", _DESTINATION)),
            "skipped": array("Queues and namespaces that could not be read", record("One item", _SKIPPED)),
            "findings": array("Kinds of findings", text("Kind, as in --fail-on")),
        },
    ),
    record("The line of a queue", {"outcome": choice("Its list", *_AUDIT_LISTS), **_AUDITED}),
    record("The line of a destination", {"outcome": choice("Kind of line", "destination"), **_DESTINATION}),
    record("The line of a skipped item", {"outcome": choice("Kind of line", "skipped"), **_SKIPPED}),
)

_PRUNE_LISTS = {
    "would_remove": "Queues that a run with --yes would delete",
    "removed": "Deleted queues",
    "kept": "Queues that hold messages",
    "gone": "Queues that another process deleted meanwhile",
    "failed": "Queues that could not be deleted",
}
PRUNE = forms(
    "sbpair/prune/1",
    "Backlog queues beyond the count. JSON Lines have one queue each.",
    record(
        "The document",
        {
            "dry_run": flag("Whether nothing was deleted"),
            **{name: array(what, record("One queue", _QUEUE)) for name, what in _PRUNE_LISTS.items()},
        },
    ),
    record("The line of a queue", {"outcome": choice("Its list", *_PRUNE_LISTS), **_QUEUE}),
)

_PROVISION_LISTS = {
    "created": "Created entities",
    "existing": "Entities that exist as described",
    "drifted": "Entities that exist and differ",
    "failed": "Entities that could not be created",
    "not_tried": "Entities not tried after a failure or an interruption",
    "would_create": "Entities that a run without --dry-run would create",
}
_ENTITY: dict[str, Schema | Optional] = {
    "name": text("Path of the entity"),
    "reason": _REASON,
    "namespace": optional(text("Name of the namespace")),
    "kind": optional(text("Kind of entity: queue, topic, subscription or rule")),
    "index": optional(count("Index of a backlog queue")),
    "partitioned": _PARTITIONED,
    "differences": _DIFFERENCES,
}
PROVISION = forms(
    "sbpair/provision/1",
    "The entities that provision created or found. JSON Lines have one entity each.",
    record(
        "The document",
        {
            "dry_run": flag("Whether nothing was created"),
            **{name: array(what, record("One entity", _ENTITY)) for name, what in _PROVISION_LISTS.items()},
        },
    ),
    record("The line of an entity", {"outcome": choice("Its list", *_PROVISION_LISTS), **_ENTITY}),
)

_PLACED: dict[str, Schema | Optional] = {
    "name": text("Name of the entity"),
    "namespace": text("Name of the namespace"),
    "kind": choice("Kind of entity", "queue", "topic"),
    "tier": text("Tier of the namespace", example="Standard"),
    "partitions": nullable(count("Number of partitions; null if only the possible numbers are known")),
    "partitions_possible": optional(array("Possible numbers of partitions", count("A number"))),
    "max_size_mb": count("Chosen size, in MB"),
    "effective_max_size_mb": count("Size of all partitions, in MB"),
}
_CREATED: dict[str, Schema | Optional] = {
    **_PLACED,
    "outcome": choice("Outcome", "created", "existing", "would_create", "failed"),
    "created": flag("Whether it was created now"),
    "reason": _REASON,
}
PARTITION = forms(
    "sbpair/partition/1",
    "A created or existing partitioned entity. JSON Lines have one namespace each.",
    record(
        "The document: the first namespace without a failure, then all",
        {
            **_CREATED,
            "dry_run": flag("Whether nothing was created"),
            "namespaces": array("One entry for each namespace", record("The entity in one namespace", _CREATED)),
        },
    ),
    record("The line of a namespace", _CREATED),
)
_LISTED: dict[str, Schema | Optional] = {
    **_PLACED,
    "size_bytes": nullable(count("Bytes in use")),
    "fill_ratio": nullable(number("Used share of the size, from 0 to 1")),
}
_UNREAD: dict[str, Schema | Optional] = {"namespace": text("Name of the namespace"), "reason": text("Why")}
PARTITION_LIST = forms(
    "sbpair/partition-list/1",
    "Queues and topics with their partitions. JSON Lines have one entity or unread namespace each.",
    record(
        "The document",
        {
            "entities": array("Queues and topics", record("One entity", _LISTED)),
            "failed": array("Namespaces that could not be read", record("One namespace", _UNREAD)),
        },
    ),
    record("The line of an entity", _LISTED),
    record("The line of an unread namespace", _UNREAD),
)

ANSWER: dict[str, Schema | Optional] = {
    "seconds": number("Time to the answer"),
    "reason": text("Why it is not up; empty if it is"),
    "hint": text("What to do about it; may be empty"),
}
_SIDE = record(
    "One namespace", {"namespace": text("Its name"), "health": choice("Whether it answers", "up", "down"), **ANSWER}
)
_WAITING: dict[str, Schema | Optional] = {
    "messages": nullable(count("Messages, or the number of peeked ones if exact is false; null if unknown")),
    "exact": flag("Whether messages is exact"),
    "dead_letters": nullable(count("Dead-lettered messages; null if unknown")),
    "oldest_seconds": nullable(number("Age of the oldest message; null if unknown or none")),
}
STATUS = forms(
    "sbpair/status/1",
    "The health of a pair and the size of its backlog.",
    record(
        "The document",
        {
            "primary": _SIDE,
            "secondary": _SIDE,
            "backlog": record("All backlog queues together", _WAITING),
            "queues": array(
                "Backlog queues",
                record("One queue", {"name": text("Its path"), **_WAITING, "note": text("Remark; may be empty")}),
            ),
            "entities": array(
                "Checked queues and topics of the primary",
                record(
                    "One entity",
                    {
                        "name": text("Its path"),
                        "health": choice("Whether a link could be opened", *HEALTH),
                        "waiting": count("Messages for it in the backlog"),
                        **ANSWER,
                    },
                ),
            ),
            "outbox": nullable(
                record(
                    "The file of --outbox; null without it",
                    {
                        "path": text("Its path"),
                        "messages": count("Messages in it"),
                        "entities": array(
                            "Its destinations",
                            record(
                                "One destination",
                                {
                                    "name": text("Its path"),
                                    "messages": count("Messages for it"),
                                    "oldest_seconds": number("Age of the oldest"),
                                },
                            ),
                        ),
                    },
                )
            ),
            "skipped": array("Queues and namespaces that could not be read", record("One item", _SKIPPED)),
        },
    ),
)
_PINGED: dict[str, Schema | Optional] = {
    "name": text("Path of the entity"),
    "health": choice("Whether it accepted the ping", *HEALTH),
    **ANSWER,
}
PING = forms(
    "sbpair/ping/1",
    "Answers to pings. JSON Lines have one entity each.",
    record(
        "The document",
        {
            "namespace": text("Name of the primary namespace"),
            "entities": array("Pinged entities", record("One entity", _PINGED)),
        },
    ),
    record("The line of an entity", _PINGED),
)

SCHEMAS = (AUDIT, PARTITION, PARTITION_LIST, PING, PROVISION, PRUNE, STATUS)
