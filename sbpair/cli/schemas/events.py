"""Schemas of the event lines on stderr."""

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
    text,
    time,
)

_QUEUE = text("Path of the backlog queue")
_DESTINATION = text("Path of the destination")
_ETA = nullable(count("Seconds until it is done at this rate; null if unknown"))
_PER_SECOND = number("Messages a second, over the last 10 s")


def _event(name: str, keys: dict[str, Schema | Optional], *, level: str = "info") -> Schema:
    head: dict[str, Schema | Optional] = {
        "time": time("Time of the line"),
        "level": choice("Level", level),
        "event": choice("Kind of event", name),
    }
    return record(f"The event {name}", {**head, **keys})


SYPHON = forms(
    "sbpair/syphon-event/1",
    "One line of sbpair syphon --watch, off a terminal or with --log-format json.",
    _event(
        "progress",
        {
            "queue": _QUEUE,
            "remaining": nullable(count("Messages in the queue; null if unknown")),
            "counted": flag("Whether remaining was counted, not estimated"),
            "received": count("Received messages"),
            "sent": count("Sent messages"),
            "held": count("Messages held under lock"),
            "per_second": _PER_SECOND,
            "eta_seconds": _ETA,
            "oldest_seconds": nullable(count("Age of the oldest message; null if unknown")),
        },
    ),
    _event(
        "destination-progress",
        {
            "destination": _DESTINATION,
            "sent": count("Sent messages"),
            "per_second": _PER_SECOND,
            "waiting": count("Messages that wait for it"),
            "backing_off": nullable(text("Why it is unavailable; null if it is not")),
        },
    ),
    _event(
        "queues-found",
        {
            "queues": array("Backlog queues", _QUEUE),
            "stranded": array("Backlog queues beyond the count", _QUEUE),
            "managed": flag("Whether they were listed with the Manage claim"),
        },
    ),
    _event("queue-opened", {"queue": _QUEUE}),
    _event(
        "queue-blocked",
        {"queue": _QUEUE, "destinations": array("Unavailable destinations", _DESTINATION)},
        level="warning",
    ),
    _event("queue-done", {"queue": _QUEUE}),
    _event(
        "queue-failed",
        {
            "queue": _QUEUE,
            "reason": text("Why it failed"),
            "retry_seconds": nullable(number("Time until the next attempt; null for none")),
        },
        level="warning",
    ),
    _event(
        "destination-backing-off",
        {
            "queue": _QUEUE,
            "destination": _DESTINATION,
            "reason": text("Why it is unavailable"),
            "seconds": number("Time until the next attempt"),
            "waiting": count("Messages that wait for it"),
        },
        level="warning",
    ),
    _event("destination-recovered", {"queue": _QUEUE, "destination": _DESTINATION}),
    _event(
        "dead-lettered",
        {
            "queue": _QUEUE,
            "sequence_number": count("Sequence number of the first one"),
            "message_id": nullable(text("Message id of the first one")),
            "reason": text("Dead-letter reason"),
            "description": text("Description of the first one"),
            "messages": count("Messages since the last such line"),
        },
        level="warning",
    ),
    _event("events-dropped", {"events": count("Lines that were not written")}, level="warning"),
)

_REPLAY_PROGRESS: dict[str, Schema | Optional] = {
    "phase": text("Name of the phase", example="drain"),
    "queue": optional(nullable(text("Queue; null for the total"))),
    "destination": optional(nullable(text("Destination; null for the total"))),
    "messages": count("Messages done"),
    "of": nullable(count("All messages; null if unknown")),
    "per_second": _PER_SECOND,
    "eta_seconds": _ETA,
}
REPLAY = forms(
    "sbpair/replay-event/1",
    "One line of a replay, off a terminal or with --log-format json.",
    _event(
        "phase",
        {
            "phase": text("Name of the phase"),
            "text": text("Its description"),
            "run": nullable(text("Id of the run; null before it has one")),
        },
    ),
    _event("progress", _REPLAY_PROGRESS),
)

SCHEMAS = (REPLAY, SYPHON)
