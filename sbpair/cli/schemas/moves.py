"""Schemas of the output of syphon, drill and runs."""

from sbpair.cli.schemas.builders import (
    Optional,
    Schema,
    array,
    choice,
    count,
    flag,
    forms,
    mapping,
    nullable,
    number,
    optional,
    pair_of,
    record,
    text,
    time,
)

NAMED: dict[str, Schema | Optional] = {
    "queue": text("Backlog queue it came from"),
    "sequence_number": {"type": "integer", "description": "Its sequence number in that queue"},
    "message_id": nullable(text("Its message id")),
    "destination": nullable(text("Queue or topic it is for")),
}
_NAMED_WITH_REASON = record("One message", {**NAMED, "reason": text("Why it is named")})
_BUCKETS = {
    "received": "Deliveries from the backlog; equals the sum of the next six",
    "sent": "Accepted by the primary and completed in the backlog",
    "already_sent": "Accepted by an earlier run, completed without sending",
    "expired": "Dead-lettered, since past the time to live",
    "dead_lettered": "Dead-lettered, since no destination exists",
    "released": "Returned to the backlog",
    "in_doubt": "Sent, without an answer",
}
_COUNTED: dict[str, Schema | Optional] = {name: count(what) for name, what in _BUCKETS.items()}
OPERATIONS: dict[str, Schema | Optional] = {
    "received": count("Operations to receive and settle"),
    "sent": count("Operations to send"),
    "renewals": count("Lock renewals"),
    "empty_receives": count("Receives without a message"),
    "management_calls": count("Counts and peeks"),
    "by_sbpair": count("All operations of sbpair"),
}
_RECEIPT: dict[str, Schema | Optional] = {
    **_COUNTED,
    "distinct": count("Different messages among the deliveries"),
    "bytes_sent": count("Bytes of the sent messages"),
    "balanced": flag("Whether the counts add up"),
    "queues": mapping("Counts of each backlog queue", record("Counts of one queue", _COUNTED)),
    "destinations": mapping("Sent messages of each destination", count("Sent messages")),
    "dead_letters": array("Dead-lettered messages, at most 1000", _NAMED_WITH_REASON),
    "doubtful": array("Possible duplicates, at most 1000", _NAMED_WITH_REASON),
    "operations": record("Billable operations of the run", OPERATIONS),
}
RECEIPT = record("The receipt of a move", _RECEIPT)
SYPHON = forms(
    "sbpair/syphon/1",
    "The receipt of sbpair syphon.",
    record(
        "The document",
        {
            "run": text("Id of the run"),
            **_RECEIPT,
            "failures": array(
                "Queues that failed", record("One queue", {"queue": text("Its path"), "reason": text("Why it failed")})
            ),
            "seconds": number("Duration of the run"),
            "stopped": flag("Whether a signal ended the run"),
        },
    ),
)

_SECONDS_OF_AGE: dict[str, Schema | Optional] = {
    "overdue": count("Messages past their time to live if the time in the backlog counts"),
    "scheduled_in_future": count("Messages scheduled for a time in the future"),
    "oldest_seconds": nullable(number("Age of the oldest message")),
    "newest_seconds": nullable(number("Age of the newest message")),
}


def forecast(name: str, description: str, outcomes: dict[str, str], doomed: tuple[str, str]) -> Schema:
    """Return the schema of a forecast: `outcomes` by key, and the key and description of its undeliverable groups."""
    sums: dict[str, Schema | Optional] = {
        "messages": count("All peeked messages; equals the sum of the outcomes"),
        "bytes": count("Their bytes"),
        **{key: count(what) for key, what in outcomes.items()},
        **_SECONDS_OF_AGE,
    }
    found = record(
        "The destination in the primary; null if unknown or missing",
        {"topic": flag("Whether it is a topic"), "filters": count("Filters a message meets there")},
    )
    money = record("Bounds of a cost", {"minimum": number("Lower bound"), "maximum": number("Upper bound")})
    group = record(
        "Messages with one reason",
        {
            "reason": text("The reason"),
            "description": text("Its description"),
            "messages": count("Number of messages"),
            "examples": array("The first messages", _NAMED_WITH_REASON),
        },
    )
    flow = {"queue": text("Backlog queue"), "destination": nullable(text("Destination; null if none, * for others"))}
    return forms(
        name,
        description,
        record(
            "The document",
            {
                **sums,
                "queues": array("By backlog queue", record("One queue", {"queue": text("Its path"), **sums})),
                "destinations": array(
                    "By destination",
                    record("One destination", {"destination": text("Its path"), "found": nullable(found), **sums}),
                ),
                "flows": array("By queue and destination", record("One flow", {**flow, **sums})),
                doomed[0]: array(doomed[1], group),
                "ttl": choice("Rule of the time to live", "original", "remaining"),
                "tiers": record(
                    "Tiers of the namespaces; null if unknown",
                    {"primary": nullable(text("Primary")), "secondary": nullable(text("Secondary"))},
                ),
                "limits": record(
                    "Limits of the run; null is no limit",
                    {
                        "rate": nullable(number("Messages a second")),
                        "primary_credits": nullable(number("Credits a second of the primary")),
                        "secondary_credits": nullable(number("Credits a second of the secondary")),
                    },
                ),
                "seconds": nullable(number("Lower bound of the duration; null if nothing limits it")),
                "operations": record(
                    "Billable operations of the run",
                    {
                        "stranded": count("Operations already spent to strand the messages"),
                        "delivered": count("Operations of the receivers in the primary"),
                        **OPERATIONS,
                    },
                ),
                "cost": record(
                    "Cost of the operations",
                    {
                        "by_sbpair": nullable(money),
                        "delivered": nullable(money),
                        "currency": text("Currency"),
                        "dated": text("Date of the prices"),
                    },
                ),
                "notes": array("Remarks", text("One remark")),
            },
        ),
    )


PREVIEW = forecast(
    "sbpair/syphon-preview/1",
    "The preview of sbpair syphon --dry-run.",
    {
        "sent": "Messages that would be sent",
        "dead_lettered": "Messages that would be dead-lettered",
        "expired": "Messages that would expire",
        "deferred": "Deferred messages, which stay",
        "scheduled": "Scheduled messages, which stay",
    },
    ("dead_letters", "Messages that would be dead-lettered, by reason"),
)

_RUN: dict[str, Schema | Optional] = {
    "id": text("Id of the run"),
    "command": text("Command that ran"),
    "started": time("Start"),
    "ended": nullable(time("End; null for a running or crashed run")),
    "outcome": choice("How it ended", "running", "done", "stopped", "failed", "crashed"),
    "exit_code": nullable(count("Exit code; null for a running or crashed run")),
    "error": text("Error; empty for none"),
    "in_doubt": count("Messages sent without an answer"),
    "receipt": optional(nullable(RECEIPT)),
    "doubtful": optional(array("Messages in doubt", record("One message", NAMED))),
}
RUNS = forms(
    "sbpair/runs/1",
    "Earlier runs; receipt and doubtful are present with sbpair runs show. JSON Lines have one run each.",
    record("The document", {"runs": array("Runs, the latest first", record("One run", _RUN))}),
    record("The line of a run", _RUN),
)

_COMPARED: dict[str, Schema | Optional] = {
    "sent": count("Sent messages"),
    "received": count("Received messages"),
    "lost": count("Messages that did not arrive"),
    "duplicated": count("Messages that arrived more than once"),
    "altered": count("Messages that changed"),
    "receipt": RECEIPT,
    "alterations": array("Changes", pair_of("One change", text("Message id"), text("Difference"))),
    "lost_ids": array("Ids of lost messages", text("Message id")),
}
DRILL = forms(
    "sbpair/drill/1",
    "The verdict of sbpair drill; its counts are those of the stranded messages.",
    record(
        "The document",
        {
            **_COMPARED,
            "seconds": number("Duration"),
            "sending": record(
                "Messages of the application that sends during the outage",
                {
                    "entity": text("Queue they were sent to"),
                    **_COMPARED,
                    "primary": count("Sent to the primary"),
                    "backlog": count("Sent to the backlog"),
                    "refused": count("Sends that raised an error"),
                    "doubtful": count("Messages that the client named as in doubt"),
                    "unexplained": count("Duplicates that the client did not name"),
                },
            ),
            "timeline": array(
                "Steps",
                record(
                    "One step",
                    {
                        "name": text("Its name"),
                        "text": text("Its description"),
                        "seconds": number("Time since the start"),
                    },
                ),
            ),
            "against": nullable(text("Pair of --against; null on the emulator")),
        },
    ),
)

SCHEMAS = (DRILL, RUNS, SYPHON, PREVIEW)
