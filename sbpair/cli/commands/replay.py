"""`sbpair replay …`: options into calls of `sbpair.replay`, and its receipt into output."""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.commands import replay_gc, replay_plan, replay_submit
from sbpair.cli.commands.replay_submit import PrintSubmit
from sbpair.cli.help import Command, CommandGroup
from sbpair.cli.options.common import (
    Count,
    Display,
    LeaseQueue,
    PairSelection,
    Rate,
    StateDirectory,
    TimeToLive,
    Ttl,
    options,
)
from sbpair.cli.options.pairs import profile
from sbpair.cli.options.replay import (
    AllowMissing,
    ArchiveUrl,
    DeadLetters,
    DedupOption,
    Destinations,
    OnlyQueues,
    RunId,
    WhatIsOnce,
    backlog,
    opened,
)
from sbpair.cli.progress.replay_progress import phases
from sbpair.cli.render.screen import Document, Screen, clean, columns
from sbpair.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.replay.job import ReplayRequest, ReplayResult
    from sbpair.replay.selection import Selection

SCHEMA = "sbpair/replay/1"
BUCKETS = ("acknowledged", "expired", "quarantined", "deduplicated")

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None)
app.command("plan", cls=Command)(replay_plan.command)


class ModeOption(StrEnum):
    ARCHIVE = "archive"
    DIRECT = "direct"


class SessionOrder(StrEnum):
    SESSION = "session"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Which Spark does it, and how."""

    master: Annotated[
        str | None,
        typer.Option(
            "--master",
            metavar="URL",
            help="The Spark that does it: local[N,4], spark://host:port, … (here, 2 tasks more than cores)",
        ),
    ] = None
    parallelism: Annotated[
        int | None,
        typer.Option(
            "--parallelism", metavar="N", help="How many tasks at once (as many as a local master has; else 2)"
        ),
    ] = None
    shared_archive: Annotated[
        bool,
        typer.Option("--shared-archive", help="The directory is there on every machine that works for a remote master"),
    ] = False
    conf: Annotated[
        list[str] | None,
        typer.Option("--conf", metavar="KEY=VALUE", help="A setting for Spark; may be repeated. Never a secret"),
    ] = None
    package: Annotated[
        str | None,
        typer.Option("--package", metavar="FILE", help="The zip of sbpair replay package, for workers without sbpair"),
    ] = None
    print_submit: PrintSubmit = False
    lease: LeaseQueue = None
    no_lease: Annotated[
        bool, typer.Option("--no-lease", help="Go on even if another process of this machine moves the same pair")
    ] = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages are sent."""

    destination: Destinations = None
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="SQL",
            help='Send only what this says of the envelope, such as "size < 65536 AND session_id IS NULL"',
        ),
    ] = None


@app.callback()
def replay() -> None:
    """Bring a large backlog back on Spark: archive it, send it from there, and prove it.

    The backlog queues are drained into an archive of Parquet files, and each message is completed there only once its
    file is durable. Then everything is sent from the archive, and written into a ledger once the primary has accepted
    it. Whatever is killed, resume goes on: nothing is lost, and what may have arrived twice is named.

    Needs Java and pip install 'sbpair[spark]'.
    """


@app.command("run", cls=Command)
@options
def run_command(
    *,
    archive: ArchiveUrl,
    mode: Annotated[
        ModeOption,
        typer.Option(
            "--mode",
            metavar="archive|direct",
            help="By way of an archive; or from the backlog to the primary at once, keeping no body (archive)",
        ),
    ] = ModeOption.ARCHIVE,
    queue: OnlyQueues = None,
    deadletters: DeadLetters = False,
    choice: Choice,
    dedup: WhatIsOnce = DedupOption.KEY,
    ttl: TimeToLive = Ttl.ORIGINAL,
    order: Annotated[
        SessionOrder,
        typer.Option(
            "--order",
            metavar="session|none",
            help="Keep the order of each session across queues, or of nothing (session)",
        ),
    ] = SessionOrder.SESSION,
    rate: Rate = None,
    allow_missing: AllowMissing = False,
    state: StateDirectory = None,
    count: Count = None,
    cluster: Cluster,
    connection: PairSelection,
    display: Display,
) -> int:
    """Archive what is in the backlog now, send it, and prove that all of it has arrived.

    Needs Listen on the secondary namespace and Send on the primary. Where the namespaces are reached with a key, tasks
    on other machines take it from the environment variable of the same name there; it is in no file and no setting.

    What the syphon's journal knows the primary to have is completed, and neither archived nor sent. What can go nowhere
    is quarantined, and what is past its time (--ttl remaining) is expired: both stay in the archive, bodies and all.

    --destination and --where choose what is sent. A queue can only be received as a whole, so that everything is
    archived all the same: what is not chosen is left in the archive, counted, and sent by sbpair replay resume RUN
    --all, or with another choice. What of a session is sent later comes later. --where is a condition in Spark's SQL
    over queue, sequence_number, enqueued_at_ms, message_id, destination, session_id, ttl_ticks, scheduled_at_ms,
    content_type, size, flaw, dead_letter_reason and dead_letter_description; what it is null for is not chosen. One
    that Spark does not take, or that does not go by these alone, is refused before anything is received.

    --deadletters also empties the dead-letter queues of the backlog queues. What the syphon put there, such as for a
    destination that was missing, is sent without its dead-letter reason, which is in the archive; what still can go
    nowhere is quarantined, and never dead-lettered again. What had expired lives anew, unless --ttl remaining.

    --mode direct is for where there is no room that lasts for bodies: each task receives, sends and completes, as the
    syphon does, and --archive has no more than its ledger. It keeps the order of each queue, and so runs no more tasks
    than there are queues, unless --order none; sessions that went over several queues may come out of order. What can
    go nowhere is dead-lettered in the backlog. Nothing can be chosen, deduplicated or verified: it counts by its
    ledger, and what a killed task had in hand is "in_doubt" until a resume has moved it. Resume it before you syphon:
    only a resume knows what the primary has already.

    The first SIGINT or SIGTERM finishes what is in hand, and the second ends at once. Either way, resume goes on.

    On a terminal, stderr shows the phases, and a bar for each queue while it is drained, and then for each destination.
    Elsewhere, and with --log-format json, it has lines of JSON: each phase as it begins and, every 5 s, how far it is,
    as a whole and for each queue or destination; "of" is known of queues where Manage is granted:

      {"schema": "sbpair/replay-event/1", "time": "", "level": "info", "event": "progress", "phase": "drain",
       "queue": null, "messages": 0, "of": null, "per_second": 0.0, "eta_seconds": null}

    JSON; "archived" is acknowledged + expired + quarantined + deduplicated, and what is "unsent" is still to be sent:

      {"schema": "sbpair/replay/1", "run": "", "mode": "archive", "archived": 0, "acknowledged": 0, "expired": 0,
       "quarantined": 0, "deduplicated": 0, "unsent": 0, "copies": 0, "balanced": true, "contradictions": 0,
       "unknown": 0, "segments": 0, "queues": {}, "destinations": {}, "reasons": {}, "doubtful": [],
       "doubtful_total": 0, "remaining_in_queues": {}, "unreadable": [], "seconds": 0.0, "stopped": false}

    Of a direct run "archived" and "unsent" are null; "received" is acknowledged + expired + quarantined + "in_doubt".

    Exit codes: 0 all of it has arrived; 2 there is no such queue, or the primary lacks a destination; 3 some expired,
    was quarantined, or is left; 4 refused: another process moves this pair, the archive is not on every machine, or
    speculation is on; 6 one side is gone; 7 there is no Java, no Spark, or no room; 130 stopped by a signal.
    """
    screen = Screen(display)
    _check_machine()
    found = profile(connection, screen, count=count, state=state)
    request = _request(found, archive, cluster, verbose=bool(display.verbose))
    from sbpair.move import rate_limit
    from sbpair.move.message import route
    from sbpair.replay import job, run
    from sbpair.replay.archive import in_memory

    wanted = run.ReplayOptions(
        dedup=run.DedupMode(dedup.value),
        ttl=route.TimeToLive(ttl.value),
        ordered=order is SessionOrder.SESSION,
        rate=None if rate is None else rate_limit.read_rate(rate),
        allow_missing=allow_missing,
        selection=_selection(choice),
        mode=run.ReplayMode(mode.value),
    )
    if wanted.mode is run.ReplayMode.ARCHIVE and in_memory(archive):
        screen.warn(f"{archive} is in memory: a restart of this machine loses what is only there by then. Name a disk")
    if cluster.print_submit:
        return replay_submit.show(screen, request)
    queues = backlog(found.pair, queue, deadletters=deadletters)
    return _told(screen, lambda tell: job.start(request, wanted, queues, None, tell))


@app.command("resume", cls=Command)
@options
def resume_command(
    *,
    run_id: RunId,
    archive: ArchiveUrl,
    everything: Annotated[
        bool, typer.Option("--all", help="Send what the run has left out by --destination and --where")
    ] = False,
    choice: Choice,
    state: StateDirectory = None,
    cluster: Cluster,
    connection: PairSelection,
    display: Display,
) -> int:
    """Go on with a run that was stopped, or killed, wherever it was; or send what it has left out.

    What the ledger has is not sent again. What a task had in hand when it was killed may be: at most three
    thousand messages a task, and the receipt names them. A run that is done sends nothing.

    Without --all, --destination and --where it sends what the run was to send, and leaves out what that left out. With
    one of them it goes by that alone.

    JSON and exit codes are those of sbpair replay run; 4 also for a run of another pair or version, and for a broken
    file of the archive.
    """
    screen = Screen(display)
    _check_machine()
    found = profile(connection, screen, state=state)
    request = _request(found, archive, cluster, verbose=bool(display.verbose))
    from sbpair.replay import job

    selection = _selection(choice)
    if everything and selection:
        raise UsageError("--all goes with neither --destination nor --where", hint="leave it out, or them")
    wanted = selection if everything or selection else None
    if cluster.print_submit:
        return replay_submit.show(screen, request)
    return _told(screen, lambda tell: job.resume(request, run_id, tell, wanted))


@app.command("verify", cls=Command)
@options
def verify_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Prove a run from its files alone: every archived message has come to exactly one end.

    Asks no namespace, and needs no Java. JSON is that of sbpair replay run, without "seconds" and "stopped".

    Exit codes: 0 all of it has arrived; 1 the files contradict each other; 2 there is no such run, or it was direct;
    3 some expired, was quarantined, or is left; 4 a file is broken, or of another run.
    """
    screen = Screen(display)
    place = opened(archive, run_id)
    from sbpair.replay import job

    run, proof = job.proved(place)
    told = {"schema": SCHEMA, "run": run_id, **job.document(proof, run)}
    screen.result(told, [told], table(told))
    return proof.exit_code


@app.command("status", cls=Command)
@options
def status_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Say how far a run is, by its files: nothing else is asked, and nothing is changed.

    JSON; the rows of segments count a message twice that was archived twice:

      {"schema": "sbpair/replay-status/1", "run": "", "pair": {}, "mode": "archive",
       "phase": "drain|drained|send|proved|swept|move|moved", "stopped": false, "archived_rows": 0, "segments": 0,
       "acknowledged_rows": 0, "queues": {}}

    Exit codes: 0 said; 2 there is no such run; 4 a file is broken.
    """
    screen = Screen(display)
    place = opened(archive, run_id)
    from sbpair.replay import job

    told = {"schema": "sbpair/replay-status/1", **job.status(place)}
    shown = [(name.replace("_", " "), str(told[name])) for name in told if name not in ("schema", "pair", "queues")]
    screen.result(told, [told], columns(shown))
    return 0


@app.command("stop", cls=Command)
@options
def stop_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Ask a run to stop, wherever it runs: its tasks finish what they have in hand.

    Exit codes: 0 asked; 2 there is no such run; 7 the archive cannot be written to.
    """
    screen = Screen(display)
    place = opened(archive, run_id)
    from sbpair.replay import job

    job.stop(place)
    screen.say(f"run {run_id} was asked to stop; sbpair replay resume {run_id} goes on with it")
    return 0


app.command("gc", cls=Command)(replay_gc.command)
app.command("package", cls=Command)(replay_submit.package_command)


def table(told: Document) -> Iterator[str]:
    """The proof for people: the equation first."""
    yield f"run {told['run']}"
    whole, rest = ("archived", "unsent") if told["mode"] == "archive" else ("received", "in_doubt")
    yield (
        f"{whole} {told[whole]} = "
        + " + ".join(f"{told[bucket]} {bucket}" for bucket in BUCKETS)
        + (f" + {told[rest]} {rest.replace('_', ' ')}" if told[rest] else "")
    )
    yield from _counted("QUEUE", told["queues"])
    yield from _counted(
        "DESTINATION", {name: {"acknowledged": n} for name, n in _mapping(told["destinations"]).items()}
    )
    for reason, number in _mapping(told["reasons"]).items():
        yield clean(f"{number} not sent: {reason}")
    named: Any = told["doubtful"]
    if named:
        some = ", ".join(str(each["message_id"] or each["sequence_number"]) for each in named[:3])
        count: Any = told["doubtful_total"]
        yield clean(f"may be there twice: {count} ({some}{', …' if count > 3 else ''})")
    for queue, number in _mapping(told["remaining_in_queues"]).items():
        yield clean(f"{number} remaining in {queue}: somebody else has them locked, or has deferred them")
    for path in _list(told["unreadable"]):
        yield f"{path} cannot be read: it would name some that may be there twice"
    if told["contradictions"] or told["unknown"]:
        yield "the files contradict each other: please report this"


def _counted(heading: str, rows: Any) -> Iterator[str]:
    shown = {name: counts for name, counts in rows.items() if any(counts.values())}
    if shown:
        names = [name for name in next(iter(shown.values())) if any(counts[name] for counts in shown.values())]
        yield ""
        head = (heading, *(name.upper().replace("_", " ") for name in names))
        yield from columns([head, *((key, *(counts[name] for name in names)) for key, counts in shown.items())])


def _list(value: Any) -> list[Any]:
    return list(value)


def _mapping(value: Any) -> dict[str, Any]:
    return dict(value)


# From options to a request.


def _check_machine() -> None:
    from sbpair.replay.java import check_machine

    check_machine(os.environ)


def _request(found: "config.Profile", archive: str, cluster: Cluster, *, verbose: bool) -> "ReplayRequest":
    from sbpair.replay import spark
    from sbpair.replay.job import ReplayRequest

    tasks = cluster.parallelism
    if tasks is not None and tasks < 1:
        raise UsageError(f"--parallelism is {tasks}, and must be at least 1", hint="leave it out for every core")
    if cluster.package is not None:
        from sbpair.replay import package

        package.check(cluster.package)
    if cluster.lease is not None and cluster.no_lease:
        raise UsageError("--lease and --no-lease exclude each other", hint="leave one of them out")
    return ReplayRequest(
        found.pair,
        archive,
        (_variable(found, "primary"), _variable(found, "secondary")),
        Path(found.state_directory),
        master=cluster.master or spark.local_master(),
        tasks=tasks,
        shared_archive=cluster.shared_archive,
        settings=dict(map(_setting, cluster.conf or [])),
        lease=not cluster.no_lease,
        lease_queue=cluster.lease,
        verbose=verbose,
        package=cluster.package,
    )


def _selection(choice: Choice) -> "Selection":
    from sbpair.replay import selection

    return selection.read(choice.destination or [], choice.where)


def _variable(found: "config.Profile", side: str) -> str | None:
    """The environment variable that has the connection string, where there is one."""
    from sbpair.config import Secret

    setting = found.settings[f"{side}.address"]
    return setting.source if isinstance(setting.value, Secret) else None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--conf {name!r} has no value", hint="write --conf spark.executor.memory=4g")
    return name, value


# What is told while it runs, and at its end.


def _told(screen: Screen, act: Any) -> int:
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with phases(screen) as tell:
        result: ReplayResult = act(tell)
    told = {"schema": SCHEMA, **result.document()}
    screen.result(told, [told], table(told))
    code = result.proof.exit_code
    if result.stopped and code in (ExitCode.DONE, ExitCode.PARTIAL_OR_FINDINGS):
        screen.say(f"stopped; sbpair replay resume {result.run.id} goes on")
        return ExitCode.INTERRUPTED
    if result.proof.unsent and not result.run.direct:
        others = "; --all sends what was not chosen" if result.run.options.selection else ""
        unsent = f"{result.proof.unsent} messages are unsent in the archive"
        screen.warn(f"{unsent}: sbpair replay resume {result.run.id} goes on{others}")
    if there := sum(result.proof.remaining_in_queues.values()):
        screen.warn(
            f"{there} messages remain in the backlog: sbpair replay resume {result.run.id}, once nobody has them"
        )
    return code
