"""Schemas of the output of syphon, replay, runs and drill, and of event lines."""

from typing import get_args

from sbpair.cli.progress.boards import QUEUE_FIGURES, QueueRow
from sbpair.cli.render import forecast as forecasts
from sbpair.cli.render.forecast import ForecastWording
from sbpair.cli.render.waiting import WaitingEntry
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
    mapping,
    nullable,
    number,
    object_of,
    optional,
    properties_of,
    record,
    records,
    some_of,
    text,
    time,
    typed,
)
from sbpair.model.cost import MoneyRange, Operations
from sbpair.move import events
from sbpair.move.receipt import NamedMessage, Receipt
from sbpair.replay.outcomes import Proof
from sbpair.runs.run_record import DoubtfulMessage, RunCounts, RunRecord
from sbpair.syphon.forecast import SUMS, DeadLetterGroup, FlowStats
from sbpair.syphon.run_result import SyphonResult

NAMED = {name: each for name, each in keys_of(NamedMessage).items() if name != "reason"}
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
RECEIPT = object_of(Receipt)
_RECORDED = record(
    "The receipt of a move, of one that has not ended without its end",
    **{name: optional(each) for name, each in properties_of(SyphonResult).items()} | properties_of(Receipt),
)


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

_MODE = choice("Mode of the run", "archive", "direct")
EQUATIONS = (
    "In archive mode archived = acknowledged + expired + quarantined + deduplicated + unsent; in direct mode received ="
    " acknowledged + expired + quarantined + in_doubt."
)
_PROVED = keys_of(Proof)
_PROOF = _PROVED | fields(
    run=text("Id of the run"),
    mode=_MODE,
    archived=nullable(_PROVED["archived"]),
    unsent=nullable(_PROVED["unsent"]),
    received=optional(count("Received messages, in direct mode")),
    in_doubt=optional(count("Messages without a known outcome, in direct mode")),
    balanced=flag("Whether the counts add up"),
    doubtful=records(
        "Possible duplicates, the first ones", **NAMED, reason=optional(text("Which namespace accepted it, too"))
    ),
    released=optional(count("Messages that tasks received and gave back to the backlog")),
    excluded=optional(count("Unsent messages that --destination and --where left out")),
    seconds=optional(number("Duration")),
    stopped=optional(flag("Whether the run was stopped")),
    notes=optional(array("Why destinations took no more, what topics discard, unfinished runs", text("One note"))),
)
WAITING = properties_of(WaitingEntry)
_RECORD = some_of(RunRecord, "id", "command", "outcome", "error")
_OUTCOME = _RECORD["outcome"]
_RUN = fields(
    **_RECORD,
    kind=choice("Command", "syphon", "move", "redrive", "replay"),
    archive=nullable(text("Archive of a replay")),
    started=time("Start"),
    ended=nullable(time("End; null for a running or crashed run")),
    exit_code=nullable(count("Exit code; null for a running or crashed run")),
    **keys_of(RunCounts),
    waiting=nullable(record("The work that is left of a replay or a paused run; null for none", **WAITING)),
    receipt=optional(nullable({"anyOf": [_RECORDED, record("The proof of a replay. " + EQUATIONS, **_PROOF)]})),
    doubtful=optional(array("Messages that may be there twice", typed(DoubtfulMessage))),
)
RUNS = document(
    "sbpair/runs/1",
    "Earlier runs; receipt and doubtful are present with sbpair runs show. JSON Lines have one run each.",
    "runs",
    runs=records("Runs, the latest first", **_RUN),
)

RUNS_REPORT = document(
    "sbpair/runs-report/1",
    "The files that sbpair runs report has written.",
    run=text("Id of the run"),
    outcome=_OUTCOME,
    files=records(
        "Files",
        format=choice("Its format", "html", "markdown"),
        path=text("Its path, as given"),
        bytes=count("Its size"),
    ),
)

RUNS_CONTROL = document(
    "sbpair/runs-control/1",
    "The answer of a run to sbpair runs pause, resume or cancel.",
    run=text("Id of the run"),
    request=choice("The request", "pause", "resume", "cancel"),
    outcome=_OUTCOME,
    confirmed=flag("Whether the run is as requested now"),
    seconds=number("Time until the answer"),
)

REPLAY = document("sbpair/replay/1", "The proof of a replay. " + EQUATIONS, **_PROOF)

_STATE = fields(
    mode=_MODE,
    phase=choice("Current phase", "drain", "drained", "send", "proved", "removed", "move", "moved"),
    stopped=flag("Whether it was stopped"),
)
REPLAY_STATUS = document(
    "sbpair/replay-status/1",
    "The progress of a replay, from its files.",
    run=text("Id of the run"),
    pair=mapping("Names of the namespaces", text("Name")),
    **_STATE,
    archived_rows=count("Archived rows, copies included"),
    segments=count("Files of messages"),
    acknowledged_rows=count("Rows of accepted messages"),
    queues=mapping("Rows of each queue", count("Rows")),
    digests=flag("Whether its files have digests"),
    not_adopted=array("Segments without a digest, which a resume adopts", text("Path")),
)

REPLAY_LIST = document(
    "sbpair/replay-list/1",
    "The replays of an archive, the latest first. JSON Lines have one run each.",
    "runs",
    runs=records(
        "Runs",
        run=text("Id of the run"),
        started=time("Start"),
        **_STATE,
        digests=flag("Whether its files have digests"),
    ),
)

REPLAY_STOP = document(
    "sbpair/replay-stop/1",
    "The answer of sbpair replay stop.",
    run=text("Id of the run"),
    requested=flag("Whether it was asked to stop; false for a run that has finished"),
)

GC = document(
    "sbpair/replay-gc/1",
    "The messages that sbpair replay gc deletes.",
    run=text("Id of the run"),
    removed=flag("Whether they were deleted"),
    files=count("Files"),
    bytes=count("Their bytes"),
    kept=count("Expired and quarantined messages that stay"),
)

PACKAGE = document(
    "sbpair/replay-package/1",
    "The zip that sbpair replay package writes.",
    file=text("Path of the zip"),
    bytes=count("Its size"),
    packed=mapping("Versions of the packed packages", text("Version")),
    native=mapping("Versions of the packages with native code, not packed", text("Version")),
)

JOB = document(
    "sbpair/replay-job/1",
    "The job that sbpair replay package --for writes.",
    platform=text("Platform"),
    directory=text("Directory"),
    files=array("Files in it", text("Name")),
    secrets=array("Variables whose values the platform has to keep", text("Name")),
)

SUBMIT = document(
    "sbpair/replay-submit/1",
    "The command that --print-submit prints.",
    command=array("Words of the command", text("Word")),
    environment=array("Variables that it and the workers need", text("Name")),
)

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
