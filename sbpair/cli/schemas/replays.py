"""Schemas of the output of the replay commands."""

from sbpair.cli.schemas.builders import (
    array,
    choice,
    count,
    flag,
    forms,
    mapping,
    nullable,
    number,
    optional,
    record,
    text,
)
from sbpair.cli.schemas.moves import NAMED, forecast

_MODE = choice("Mode of the run", "archive", "direct")
REPLAY = forms(
    "sbpair/replay/1",
    "The proof of a replay. In archive mode archived = acknowledged + expired + quarantined + deduplicated + unsent; in"
    " direct mode received = acknowledged + expired + quarantined + in_doubt.",
    record(
        "The document",
        {
            "run": text("Id of the run"),
            "mode": _MODE,
            "archived": nullable(count("Archived messages; null in direct mode")),
            "acknowledged": count("Messages accepted by the primary"),
            "expired": count("Messages past their time to live, kept in the archive"),
            "quarantined": count("Messages without a destination, kept in the archive"),
            "deduplicated": count("Messages not sent since another has the same id"),
            "unsent": nullable(count("Messages still to be sent; null in direct mode")),
            "received": optional(count("Received messages, in direct mode")),
            "in_doubt": optional(count("Messages without a known outcome, in direct mode")),
            "copies": count("Archived copies beyond the first of each message"),
            "balanced": flag("Whether the counts add up"),
            "contradictions": count("Messages with more than one outcome"),
            "unknown": count("Outcomes of messages that were not archived"),
            "segments": count("Files of messages"),
            "queues": mapping("Counts of each queue", mapping("Counts by outcome", count("Messages"))),
            "destinations": mapping("Accepted messages of each destination", count("Messages")),
            "reasons": mapping("Messages that were not sent, by reason", count("Messages")),
            "doubtful": array("Possible duplicates, the first ones", record("One message", NAMED)),
            "doubtful_total": count("Number of possible duplicates"),
            "remaining_in_queues": mapping("Messages left in each queue", count("Messages")),
            "unreadable": array("Files that cannot be read", text("Path")),
            "seconds": optional(number("Duration")),
            "stopped": optional(flag("Whether the run was stopped")),
        },
    ),
)
PLAN = forecast(
    "sbpair/replay-plan/1",
    "The preview of sbpair replay plan.",
    {
        "sent": "Messages that would be sent",
        "already_sent": "Messages that the syphon's journal records as accepted",
        "deduplicated": "Messages that repeat an id, with --dedup message-id",
        "expired": "Messages that would expire",
        "quarantined": "Messages that would be quarantined",
        "unsent": "Messages that --destination excludes",
        "deferred": "Deferred messages, which stay",
        "scheduled": "Scheduled messages, which stay",
        "duplicates": "Messages that repeat the id of another for the same destination; also counted above",
    },
    ("unroutable", "Messages that would be quarantined, by reason"),
)
STATUS = forms(
    "sbpair/replay-status/1",
    "The progress of a replay, from its files.",
    record(
        "The document",
        {
            "run": text("Id of the run"),
            "pair": mapping("Names of the namespaces", text("Name")),
            "mode": _MODE,
            "phase": choice("Current phase", "drain", "drained", "send", "proved", "removed", "move", "moved"),
            "stopped": flag("Whether it was stopped"),
            "archived_rows": count("Archived rows, copies included"),
            "segments": count("Files of messages"),
            "acknowledged_rows": count("Rows of accepted messages"),
            "queues": mapping("Rows of each queue", count("Rows")),
        },
    ),
)
GC = forms(
    "sbpair/replay-gc/1",
    "The messages that sbpair replay gc deletes.",
    record(
        "The document",
        {
            "run": text("Id of the run"),
            "removed": flag("Whether they were deleted"),
            "files": count("Files"),
            "bytes": count("Their bytes"),
            "kept": count("Unsent messages that stay"),
        },
    ),
)
PACKAGE = forms(
    "sbpair/replay-package/1",
    "The zip that sbpair replay package writes.",
    record(
        "The document",
        {
            "file": text("Path of the zip"),
            "bytes": count("Its size"),
            "packed": mapping("Versions of the packed packages", text("Version")),
            "native": mapping("Versions of the packages with native code, not packed", text("Version")),
        },
    ),
)
SUBMIT = forms(
    "sbpair/replay-submit/1",
    "The command that --print-submit prints.",
    record(
        "The document",
        {
            "command": array("Words of the command", text("Word")),
            "environment": array("Variables that it and the workers need", text("Name")),
        },
    ),
)

SCHEMAS = (GC, PACKAGE, PLAN, STATUS, SUBMIT, REPLAY)
