"""Schemas of the output of syphon, replay, runs and drill, and of event lines."""

from typing import get_args

from sbpair.cli.progress.boards import QUEUE_FIGURES, QueueRow
from sbpair.cli.render import forecast as forecasts
from sbpair.cli.render.forecast import ForecastWording
from sbpair.cli.schemas import (
    Schema,
    array,
    choice,
    count,
    document,
    event,
    event_of,
    fields,
    flag,
    forms,
    keys_of,
    nullable,
    number,
    optional,
    properties_of,
    record,
    records,
    some_of,
    text,
    typed,
)
from sbpair.model.cost import MoneyRange, Operations
from sbpair.move import events
from sbpair.move.receipt import Receipt
from sbpair.syphon.forecast import SUMS, DeadLetterGroup, FlowStats

OPERATIONS = keys_of(Operations)
MONEY = typed(MoneyRange)
PRICED = fields(currency=text("Currency"), dated=text("Date of the prices"))
_WHERE = properties_of(Receipt)["where"].schema
_RAMP_PREVIEW = optional(
    record(
        "The ramp, if one is wanted",
        totals=array("Totals of all steps", count("Messages sent since the start")),
        observe_seconds=number("How long dead letters would be observed after each step"),
        steps=array("After how many messages dead letters would be observed", count("Messages")),
        seconds=number("How long the observations would take together"),
    )
)
_TO = nullable(text("Namespace that the backlog goes to, or went to; null for its primary"))


def forecast(words: ForecastWording) -> Schema:
    """Return the schema of a forecast."""
    sums = {key: count(what) for key, what in words.meanings.items()} | fields(
        **some_of(FlowStats, *(name for name in SUMS if name != "duplicates" or words.again)),
        oldest_seconds=nullable(number("Age of the oldest message")),
        newest_seconds=nullable(number("Age of the newest message")),
    )
    found = record(
        "The destination in the primary; null if unknown or missing",
        topic=flag("Whether it is a topic"),
        filters=count("Filters a message meets there"),
    )
    flow = {"queue": text("Backlog queue"), "destination": nullable(text("Destination; null if none, * for others"))}
    return document(
        words.schema,
        words.summary,
        **sums,
        queues=records("By backlog queue", queue=text("Its path"), **sums),
        destinations=records("By destination", destination=text("Its path"), found=nullable(found), **sums),
        flows=records("By queue and destination", **flow, **sums),
        **{words.dead_letters: array("Messages that would not be delivered, by reason", typed(DeadLetterGroup))},
        **({} if words.again else {"where": _WHERE, "ramp": _RAMP_PREVIEW, "to": _TO}),
        ttl=choice("Rule of the time to live", "original", "remaining"),
        tiers=record(
            "Tiers of the namespaces; null if unknown", **{end: nullable(text(end.capitalize())) for end in words.ends}
        ),
        limits=record(
            "Limits of the run; null is no limit",
            rate=nullable(number("Messages a second")),
            **{f"{end}_credits": nullable(number(f"Credits a second of the {end}")) for end in words.ends},
        ),
        seconds=nullable(number("Lower bound of the duration; null if nothing limits it")),
        operations=record("Billable operations of the run", **OPERATIONS),
        cost=record(
            "Cost of the operations",
            by_sbpair=nullable(MONEY),
            delivered=nullable(MONEY),
            **PRICED,
        ),
        notes=array("Remarks", text("One remark")),
    )


PREVIEW, MOVE_PREVIEW, PLAN = map(forecast, (forecasts.SYPHON, forecasts.MOVE, forecasts.REPLAY))

_RUN_EVENTS = (events.RunPausing, events.RunPaused, events.RunResumed, events.RunCancelled)
_OWN_LINES = (events.QueueProgress, events.QueueDepths, events.DestinationProgress, events.DeadLettered)
_ETA = nullable(count("Seconds until it is done at this rate, locks included; null if unknown"))
_ROW = keys_of(QueueRow)
SYPHON_EVENT = forms(
    "sbpair/syphon-event/1",
    "One line of sbpair syphon --once or --watch with --log-format json.",
    event("connecting", primary=text("Primary namespace"), secondary=text("Secondary namespace")),
    event(
        "progress",
        **{name: _ROW[name] for name in (*QUEUE_FIGURES, "per_second")},
        counted=flag("Whether remaining was counted, not estimated"),
        eta_seconds=_ETA,
        oldest_seconds=nullable(count("Age of the oldest message; null if unknown")),
    ),
    event(
        "destination-progress",
        destination=typed(events.Destination),
        sent=count("Sent messages"),
        per_second=_ROW["per_second"],
        waiting=count("Messages that wait for it"),
        backing_off=nullable(text("Why it is unavailable; null if it is not")),
        dead_lettered=count("Messages for it that were dead-lettered"),
    ),
    event_of(events.DeadLettered, messages=count("Messages since the last such line, of which this is the first")),
    *(event_of(each) for each in get_args(events.SyphonEvent) if each not in _OWN_LINES),
    event("events-dropped", "warning", events=count("Lines that were not written")),
    event("health-served", url=text("Address of the readiness", example="http://127.0.0.1:8081/health/ready")),
    event("metrics-served", url=text("Address of the metrics", example="http://127.0.0.1:9464/metrics")),
    pair=text("Pair that it is about, with --all-pairs"),
)
_REPLAY_PROGRESS = fields(
    phase=text("Name of the phase", example="drain"),
    queue=optional(nullable(text("Queue; null for the total"))),
    destination=optional(nullable(text("Destination; null for the total"))),
    messages=count("Messages done"),
    of=nullable(count("All messages; null if unknown")),
    per_second=_ROW["per_second"],
    eta_seconds=_ETA,
)

REPLAY_EVENT = forms(
    "sbpair/replay-event/1",
    "One line of a replay with --log-format json.",
    event(
        "phase",
        phase=text("Name of the phase"),
        text=text("Its description"),
        run=nullable(text("Id of the run; null before it has one")),
    ),
    event("progress", **_REPLAY_PROGRESS),
    *map(event_of, (events.MessagesLocked, *_RUN_EVENTS)),
)
