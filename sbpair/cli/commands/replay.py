"""`sbpair replay`: runs jobs of `sbpair.replay`, and prints their proofs and the state of archives."""

import importlib.metadata
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.commands.replay_archives import (
    drain_command,
    gc_command,
    list_command,
    status_command,
    stop_command,
    verify_command,
)
from sbpair.cli.next_command import next_command
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, STATE, PairSelection, argument, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import Choice, Cluster, NewDestinations, ReplaySafeguards
from sbpair.cli.options.values import selected_profile
from sbpair.cli.progress.replay_progress import replay_progress
from sbpair.cli.render.receipt import proof_lines
from sbpair.cli.render.screen import Screen, plural, size, some
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, Unsafe, UsageError
from sbpair.operating_system.signals import interrupt_when_signalled

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.model.pair import Endpoint
    from sbpair.replay.delivery import ReplayDelivery
    from sbpair.replay.outcomes import PlanPreview
    from sbpair.replay.run_description import ReplayRequest, ReplayResult, ReplaySelection
    from sbpair.runs.journal import Key
    from sbpair.syphon.forecast import Forecast
    from sbpair.syphon.run_limits import EffectiveLimits, EndTiers
    from sbpair.syphon.run_request import RunRequest


def group() -> None:
    """Move a large backlog with Spark: archive, send and prove it.

    A run drains the backlog queues into an archive of Parquet files, sends from there, and proves that each message
    has exactly one outcome. Any interrupted run can be resumed. run and resume need Java, except with --remote, and pip
    install 'sbpair[spark]'; the others need no Java.

    Examples:
      sbpair replay plan
      sbpair replay run --archive /mnt/archive

    See also: sbpair help replay
    """


def plan_command(
    *,
    queue: list[str] | None = moves.QUEUES,
    dead_letters: bool = moves.DEAD_LETTERS,
    destination: list[str] | None = moves.DESTINATIONS,
    count: int | None = COUNT,
    dedup: moves.Dedup = moves.DEDUP,
    ttl: moves.Ttl = moves.TTL,
    rate: float | None = moves.RATE,
    allow_missing: bool = moves.ALLOW_MISSING,
    max_discard: int | None = moves.MAX_DISCARD,
    allow_discard: bool = moves.ALLOW_DISCARD,
    state: Path | None = STATE,
    delivery: NewDestinations,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Preview a replay: outcomes, age, duplicates, duration and cost.

    Peeks each message: nothing is locked, received or written. Needs no Java. The duration is a lower bound from --rate
    and the 1000 credits a second of each Standard namespace.

    Examples:
      sbpair replay plan
      sbpair replay plan --destination orders --dedup message-id

    Exit codes: 3 some would expire, be quarantined or stay unsent; 4 the state is another pair's

    See also: sbpair help replay
    """
    most = moves.discard_limit(max_discard, allow=allow_discard)
    reach = reach_of(connection, screen, count=count, state=state)
    found, wanted = reach.profile, delivery.settings(reach)
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.cli.render.waiting import waiting_line
    from sbpair.move.message.route import TimeToLive
    from sbpair.replay.outcomes import UNSENT, PlanPreview, normalize_destinations
    from sbpair.runs.database import StateOwner
    from sbpair.runs.waiting import read_waiting
    from sbpair.syphon import preview
    from sbpair.syphon.run_request import syphon_request

    outlook = PlanPreview(
        found.pair.secondary.name,
        dedup=dedup == "message-id",
        destinations=normalize_destinations(destination or []),
        accepted=_accepted(found, wanted["to"] or found.pair.primary),
    )
    queues = moves.backlog_paths(found.pair, queue, dead_letters=dead_letters)
    wanted |= {"ttl": TimeToLive(ttl), "allow_missing": allow_missing, "max_missing": 0}

    with PeekProgress(screen) as progress:
        result = run(
            preview.make_forecast(
                syphon_request(found.pair, once=True, preview=True, rate=rate, credits=None, **wanted),
                only=queues,
                aside=outlook,
                effective_limits=_full_credits,
                in_turn=True,
                left=UNSENT,
                on_event=progress,
            )
        )
    moves.warn_of_unused(screen, wanted["renames"])
    notes = _plan_notes(result, outlook, delivery.to or "primary")
    waiting, problem = read_waiting(StateOwner(found.pair.ends, found.state_directory))
    notes += [*map(waiting_line, waiting), *filter(None, [problem])]
    code = forecast.print_forecast(screen, result, forecast.REPLAY, notes, most)
    return ExitCode.PARTIAL_OR_FINDINGS if any(flow.outcomes["unsent"] for flow in result.flows) else code


def run_command(
    *,
    archive: str = moves.ARCHIVE,
    name: str | None = moves.RUN_NAME,
    queue: list[str] | None = moves.QUEUES,
    dead_letters: bool = moves.DEAD_LETTERS,
    count: int | None = COUNT,
    choice: Choice,
    mode: Literal["archive", "direct"] = option(
        "--mode MODE", "archive first; direct keeps no bodies", default="archive"
    ),
    dedup: moves.Dedup = moves.DEDUP,
    ttl: moves.Ttl = moves.TTL,
    order: Literal["session", "none"] = option(
        "--order ORDER", "session keeps the order of each session; none is faster", default="session"
    ),
    rate: float | None = moves.RATE,
    allow_missing: bool = moves.ALLOW_MISSING,
    max_discard: int | None = moves.MAX_DISCARD,
    allow_discard: bool = moves.ALLOW_DISCARD,
    beside: bool = flag("--new", "Start beside an unfinished run of the pair"),
    delivery: NewDestinations,
    cluster: Cluster,
    safeguards: ReplaySafeguards,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Archive the backlog, send it and prove the result.

    Messages that --destination and --where exclude stay in the archive; sbpair replay resume RUN --all sends them.
    Beside an unfinished run it needs --new. With --run NAME, the same command continues that run, or prints its
    receipt.

    Examples:
      sbpair replay run --archive /mnt/archive --run nightly-2026-12-01
      sbpair replay run --archive /mnt/archive --where "size < 65536"

    Exit codes: 3 some expired, were quarantined, are unsent or left locked; 4 unsafe, beside an unfinished run, or
    messages came after run NAME; 130 stopped

    See also: sbpair help replay
    """
    remote = _checked_machine(cluster)
    request, to = _request(screen, connection, archive, cluster, safeguards, delivery, remote, count)
    from sbpair.move.message.route import TimeToLive
    from sbpair.replay import driver
    from sbpair.replay.archive import is_in_memory
    from sbpair.replay.run_description import DedupMode, ReplayMode, ReplayOptions

    wanted = ReplayOptions(
        dedup=DedupMode(dedup),
        ttl=TimeToLive(ttl),
        ordered=order == "session",
        rate=rate,
        allow_missing=allow_missing,
        max_discard=moves.discard_limit(max_discard, allow=allow_discard),
        selection=_selection(choice),
        mode=ReplayMode(mode),
        delivery=to,
    )
    if wanted.mode is ReplayMode.ARCHIVE and is_in_memory(archive):
        screen.warn(f"{archive} is in memory and is lost when this machine restarts: use a disk")
    if cluster.print_submit:
        return _print_submit(screen, request)
    queues = moves.backlog_paths(request.pair, queue, dead_letters=dead_letters)
    return _run(screen, lambda report: driver.start_run(request, wanted, queues, report, name=name, beside=beside))


def resume_command(
    *,
    run_id: str = moves.RUN,
    archive: str = moves.ARCHIVE,
    everything: bool = flag(
        "--all",
        "Send the messages that --destination and --where excluded",
        excludes=("--destination", "--where"),
    ),
    choice: Choice,
    include_acknowledged: bool = flag(
        "--include-acknowledged", "Also send what another namespace has accepted", needs="--to"
    ),
    delivery: NewDestinations,
    allow_missing: bool = moves.ALLOW_MISSING,
    skip_missing: bool = moves.SKIP_MISSING,
    max_discard: int | None = moves.MAX_DISCARD,
    allow_discard: bool = moves.ALLOW_DISCARD,
    safeguards: ReplaySafeguards,
    cluster: Cluster,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Continue a stopped or killed run, or send the messages it excluded.

    Messages in the ledger are not sent again. After a kill, up to three thousand messages a task may be sent twice; the
    proof names them. Without --all, --destination and --where the choice of the run stays, and so do its namespace and
    its names without --to and --map. If the primary is lost, --to secondary sends what is unsent; what the primary had
    accepted left the backlog, and the archive has the only copies: --include-acknowledged sends them, too.

    Examples:
      sbpair replay resume 261122-101500-3f2a --archive /mnt/archive
      sbpair replay resume 261122-101500-3f2a --archive /mnt/archive --all
      sbpair replay resume 261122-101500-3f2a --archive /mnt/archive --to secondary

    Exit codes: those of sbpair replay run; 4 also for another pair's run or a broken file
    """
    remote, selection = _checked_machine(cluster), _selection(choice)
    place = None if cluster.print_submit else moves.open_archive(archive, run_id)
    from sbpair.replay.delivery import PRIMARY
    from sbpair.replay.run_description import load_run

    stored = PRIMARY if place is None else load_run(place).delivery
    name = None if delivery.to == "primary" else delivery.to or stored.to or None
    asked = replace(delivery, to=name, renamed=delivery.renamed or [*stored.map])
    request, to = _request(screen, connection, archive, cluster, safeguards, asked, remote)
    from sbpair.replay import driver

    wanted = selection if everything or selection else None
    limit = moves.discard_limit(max_discard, allow=allow_discard)
    options: dict[str, Any] = {"max_discard": limit} if allow_discard or max_discard is not None else {}
    if allow_missing or skip_missing:
        options |= {"allow_missing": allow_missing, "skip_missing": skip_missing}
    again = include_acknowledged or (delivery.to is None and stored.include_acknowledged)
    options["delivery"] = replace(to, include_acknowledged=again)
    if place is None:
        return _print_submit(screen, request)
    return _run(screen, lambda report: driver.resume_run(request, place.run, report, wanted, **options))


def package_command(
    *,
    file: Path | None = argument("[PATH]", "Zip, or with --for directory [default: sbpair.zip]", default=None),
    platform: str | None = option(
        "--for PLATFORM",
        "Write a job for airflow, databricks, dataproc, emr-serverless, fabric, kubernetes or spark-operator",
    ),
    archive: str | None = option("--archive URL", "URL of the job's archive", needs="--for"),
    name: str | None = option("--name NAME", "Name of the job [default: sbpair-replay]", needs="--for"),
    vault: str | None = option("--vault NAME", "Azure Key Vault of the secrets", needs="--for fabric"),
    to: Literal["secondary"] | None = option("--to secondary", "Deliver there, not to the primary", needs="--for"),
    renamed: list[str] | None = option("--map OLD=NEW|FILE", "New names of destinations; repeatable", needs="--for"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Write a zip of sbpair and its dependencies for bare Spark workers, or a job of a managed platform.

    Pass the zip to sbpair replay run --package. Packages with native code are listed, not packed: workers need them
    only to sign in with an identity. Workers always need pyspark, pyarrow, pandas and this machine's minor version of
    Python. With --for, a directory gets the zip, the job's definition and a README with the commands to store its
    secrets, to submit, watch and stop it. The definition names secrets, and has none.

    Examples:
      sbpair replay package /tmp/sbpair.zip
      sbpair replay package job --for kubernetes --archive s3://bucket/backlog
    """
    from sbpair.move.message.renames import read_renames
    from sbpair.replay import package

    if platform is not None:
        directory = file or Path(f"sbpair-{platform}")
        pair, job = selected_profile(connection, screen).pair, package.JOB_NAME if name is None else name
        given = read_renames(renamed or ()).lines()
        made = package.define_job(directory, platform, pair, archive, job, vault, to=to or "", renamed=given)
        screen.show(made, [str(directory / each) for each in made.files])
        stored = f"store {' and '.join(made.secrets)} and " if made.secrets else ""
        screen.say(f"{directory}/{package.COMMANDS} has the commands to {stored}submit the job")
        return 0
    built = package.build_package(file or Path("sbpair.zip"))
    rows = [(name, version, "packed") for name, version in built.contents.packed.items()]
    rows += [(name, version, "native: not packed") for name, version in built.contents.native.items()]
    screen.show(built, [f"{built.file}, {size(built.bytes)}", "", *columns([("PACKAGE", "VERSION", ""), *rows])])
    return 0


SUBCOMMANDS = {
    "plan": plan_command,
    "run": run_command,
    "resume": resume_command,
    "drain": drain_command,
    "list": list_command,
    "verify": verify_command,
    "status": status_command,
    "stop": stop_command,
    "gc": gc_command,
    "package": package_command,
}


def _plan_notes(found: "Forecast", outlook: "PlanPreview", namespace: str) -> list[str]:
    notes = []
    if found.held:
        notes.append(
            f"a run would archive everything and send nothing: the {namespace} lacks"
            f" {some([each.destination for each in found.missing])} ({plural(found.held, 'message')});"
            " create them, rename them with --map, or pass --allow-missing to quarantine these messages for good"
        )
    if outlook.ids_overflowed:
        notes.append("too many message ids to remember: there may be more duplicates than counted")
    return notes


def _accepted(found: "config.Profile", destination: "Endpoint") -> "list[Key]":
    """Return the messages that the syphon's journal records as accepted there, without creating a state directory."""
    from sbpair.runs.database import namespace_id, state_if_any
    from sbpair.runs.journal import accepted_keys

    with state_if_any(found.state_directory, found.pair.ends) or nullcontext() as state:
        batches = accepted_keys(state) if state else ()
        return [key for name, _, keys in batches if name == namespace_id(destination) for key in keys]


def _full_credits(request: "RunRequest", tiers: "EndTiers") -> "EffectiveLimits":
    """Return the full credits of the namespaces, which a replay uses until the service throttles it."""
    from sbpair.move.rate_limit import NAMESPACE_CREDITS
    from sbpair.syphon.run_limits import EffectiveLimits

    source, destination = (
        None if (tier or "").lower() == "premium" else NAMESPACE_CREDITS for tier in (tiers.source, tiers.destination)
    )
    return EffectiveLimits(request.rate, source, destination)


def _checked_machine(cluster: Cluster) -> str | None:
    """Check what a run needs here, and fetch secrets. Return the URL of a Spark Connect server, if one is given."""
    from sbpair.azure.fetched_secrets import named_secrets
    from sbpair.replay import spark

    remote = _remote(cluster)
    if remote is None:
        spark.check_machine(os.environ)
    os.environ.update(named_secrets(os.environ))
    return remote


def _request(
    screen: Screen,
    connection: PairSelection,
    archive: str,
    cluster: Cluster,
    safeguards: ReplaySafeguards,
    delivery: NewDestinations,
    remote: str | None,
    count: int | None = None,
) -> "tuple[ReplayRequest, ReplayDelivery]":
    reach = reach_of(connection, screen, count=count, state=safeguards.state)
    found, wanted = reach.profile, delivery.settings(reach)
    from sbpair.replay import package
    from sbpair.replay.delivery import ReplayDelivery
    from sbpair.replay.run_description import ReplayRequest
    from sbpair.replay.spark_settings import local_master

    if cluster.package is not None:
        package.check_package(cluster.package)
    request = ReplayRequest(
        found.pair,
        archive,
        Path(found.state_directory),
        master=cluster.master or local_master(),
        tasks=cluster.parallelism,
        shared_archive=cluster.shared_archive,
        settings=dict(cluster.conf or []),
        lease=not safeguards.no_lease,
        lease_queue=safeguards.lease,
        verbose=screen.detailed,
        package=cluster.package,
        wait_for_locks=not safeguards.no_wait_for_locks,
        remote=remote,
        to=wanted["to"],
        primary_is_back=safeguards.primary_is_back,
    )
    return request, ReplayDelivery(delivery.to or "", map=tuple(wanted["renames"].lines()))


def _remote(cluster: Cluster) -> str | None:
    """Return the URL of a Spark Connect server, if one is given. Raises UsageError, MachineLacks without its client."""
    remote = cluster.remote or os.environ.get("SPARK_REMOTE") or None
    if remote is None:
        return None
    from sbpair.replay import spark

    spark.check_packages("pyarrow", "pandas")  # modules of a replay import pyarrow
    source = "--remote" if cluster.remote else "SPARK_REMOTE"
    if cluster.master is not None:
        raise UsageError(f"--master and {source} exclude each other", hint=f"leave out --master, or {source}")
    if cluster.print_submit:
        raise UsageError(
            f"--print-submit and {source} exclude each other", hint="a server runs already: name a --master"
        )
    spark.check_remote(remote, shown=cluster.remote is not None)
    spark.check_client()
    return remote


def _selection(choice: Choice) -> "ReplaySelection":
    from sbpair.replay.run_description import read_selection

    return read_selection(choice.destination or [], choice.where)


def _run(screen: Screen, act: Any) -> int:
    """Run a job with progress on stderr, then print its proof."""
    from sbpair.cli.results.replay import ProvedReplay

    interrupt_when_signalled()
    progress = replay_progress(screen)
    try:
        with progress:
            result: ReplayResult = act(progress)
    except KeyboardInterrupt:
        if progress.run:
            screen.say(f"interrupted; continue with {next_command('replay resume', progress.run)}")
        raise
    screen.show(ProvedReplay(result.receipt), proof_lines(result.document()))
    resume = next_command("replay resume", result.run.id, without={"skip_missing"})
    if result.exit_code == ExitCode.INTERRUPTED:
        screen.say(f"stopped; continue with {resume}")
        return result.exit_code
    if result.proof.unsent and not result.run.direct:
        others = "; add --all to send the excluded ones, too" if result.run.options.selection else ""
        screen.warn(f"{result.proof.unsent} messages in the archive are unsent{others}; continue with {resume}")
    if remaining := sum(result.proof.remaining_in_queues.values()):
        waiting = next_command("replay resume", result.run.id, without={"no_wait_for_locks"})
        screen.warn(f"{remaining} messages remain in the backlog; once they are unlocked, continue with {waiting}")
    if result.later:
        raise Unsafe(
            f"run {result.run.id} has finished, and {some(result.later)} got messages later: nothing was moved",
            hint="move them with another --run",
        )
    return result.exit_code


def _print_submit(screen: Screen, request: "ReplayRequest") -> int:
    """Print the spark-submit command of this invocation, and the names of the environment variables it needs."""
    from sbpair.cli.results.replay import SubmitCommand
    from sbpair.replay import spark_settings

    if request.master == spark_settings.PLATFORM:
        raise UsageError(
            "--print-submit needs the master of spark-submit, not platform", hint="name one such as --master yarn"
        )
    program = importlib.metadata.distribution("pyspark").locate_file("pyspark/bin/spark-submit")
    job = Path(__file__).parents[2] / "__main__.py"
    packages = ["--py-files", request.package] if request.package else []
    pythons = {"spark.pyspark.driver.python": sys.executable}
    if spark_settings.is_local_master(request.master):
        pythons["spark.pyspark.python"] = sys.executable
    settings = {
        **spark_settings.SETTINGS,
        **spark_settings.local_settings(request.master),
        **pythons,
        **request.settings,
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    kept = [word for word in sys.argv[1:] if word != "--print-submit"]
    command = [str(program), "--master", request.master, *packages, *conf, str(job), *kept]
    variables = [*dict.fromkeys(variable for access in request.access() for variable in access.variables)]
    screen.show(SubmitCommand(command, variables), [shlex.join(command)])
    if variables:
        screen.say(f"set {' and '.join(variables)} in its environment and in that of the workers")
    return 0
