"""`sbpair replay`: runs jobs of `sbpair.replay`, and prints their proofs and the state of archives."""

import importlib.metadata
import os
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, STATE, PairSelection, argument, flag, option
from sbpair.cli.options.moves import Choice, Cluster, ReplaySafeguards
from sbpair.cli.options.values import selected_profile
from sbpair.cli.progress.replay_progress import replay_progress
from sbpair.cli.render.receipt import proof_lines
from sbpair.cli.render.screen import Screen, plural, size
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, MachineLacks, StateRefused, Unsafe, UsageError
from sbpair.operating_system.signals import interrupt_when_signalled

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.replay.driver import ReplayResult
    from sbpair.replay.outcomes import PlanPreview
    from sbpair.replay.run_description import ReplayRequest, Selection
    from sbpair.runs.journal import Key
    from sbpair.syphon.forecast import Forecast
    from sbpair.syphon.move_spec import EffectiveLimits, MoveLimits, PairTiers


SCHEMA = "sbpair/replay/1"


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
    limits, most = moves.limits_of(rate, None, ttl), moves.discard_limit(max_discard, allow=allow_discard)
    found = selected_profile(connection, screen, count=count, state=state)
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.replay.outcomes import PlanPreview, normalize_destinations
    from sbpair.syphon import preview

    outlook = PlanPreview(
        found.pair.secondary.name,
        dedup=dedup == "message-id",
        destinations=normalize_destinations(destination or []),
        accepted=_accepted(found),
    )
    queues = moves.backlog_paths(found.pair, queue, dead_letters=dead_letters)

    with PeekProgress(screen) as progress:
        result = run(
            preview.make_forecast(
                found.pair,
                limits,
                only=queues,
                aside=outlook,
                effective_limits=_full_credits,
                in_turn=True,
                on_event=progress,
            )
        )
    notes = _plan_notes(result, outlook, allow_missing=allow_missing)
    code = forecast.print_forecast(screen, result, forecast.REPLAY, notes, most)
    return ExitCode.PARTIAL_OR_FINDINGS if any(flow.outcomes["unsent"] for flow in result.flows) else code


def run_command(
    *,
    archive: str = moves.ARCHIVE,
    queue: list[str] | None = moves.QUEUES,
    dead_letters: bool = moves.DEAD_LETTERS,
    count: int | None = COUNT,
    choice: Choice,
    mode: Literal["archive", "direct"] = option(
        "--mode MODE", "archive stores first; direct keeps no bodies", default="archive"
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
    cluster: Cluster,
    safeguards: ReplaySafeguards,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Archive the backlog, send it to the primary, and prove the result.

    Messages that --destination and --where exclude stay in the archive; sbpair replay resume RUN --all sends them.

    Examples:
      sbpair replay run --archive /mnt/archive --rate 500
      sbpair replay run --archive /mnt/archive --where "size < 65536"

    Exit codes: 3 some expired, were quarantined, are unsent or left locked; 4 refused as unsafe; 130 stopped

    See also: sbpair help replay
    """
    request = _request(screen, connection, archive, cluster, safeguards, count)
    from sbpair.replay import driver
    from sbpair.replay.archive import is_in_memory
    from sbpair.replay.run_description import DedupMode, ReplayMode, ReplayOptions

    limits = moves.limits_of(rate, None, ttl)
    wanted = ReplayOptions(
        dedup=DedupMode(dedup),
        ttl=limits.ttl,
        ordered=order == "session",
        rate=limits.rate,
        allow_missing=allow_missing,
        max_discard=moves.discard_limit(max_discard, allow=allow_discard),
        selection=_selection(choice),
        mode=ReplayMode(mode),
    )
    if wanted.mode is ReplayMode.ARCHIVE and is_in_memory(archive):
        screen.warn(f"{archive} is in memory and is lost when this machine restarts: use a disk")
    if cluster.print_submit:
        return _print_submit(screen, request)
    queues = moves.backlog_paths(request.pair, queue, dead_letters=dead_letters)
    return _run(screen, lambda report: driver.start_run(request, wanted, queues, report))


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
    max_discard: int | None = moves.MAX_DISCARD,
    allow_discard: bool = moves.ALLOW_DISCARD,
    safeguards: ReplaySafeguards,
    cluster: Cluster,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Continue a stopped or killed run, or send the messages it excluded.

    Messages in the ledger are not sent again. After a kill, up to three thousand messages a task may be sent twice; the
    proof names them. Without --all, --destination and --where the choice of the run stays.

    Examples:
      sbpair replay resume 261122-101500-3f2a --archive /mnt/archive
      sbpair replay resume 261122-101500-3f2a --archive /mnt/archive --all

    Exit codes: those of sbpair replay run; 4 also for another pair's run or a broken file
    """
    request = _request(screen, connection, archive, cluster, safeguards)
    from sbpair.replay import driver

    selection = _selection(choice)
    wanted = selection if everything or selection else None
    limit = moves.discard_limit(max_discard, allow=allow_discard)
    options = {"max_discard": limit} if allow_discard or max_discard is not None else {}
    if cluster.print_submit:
        return _print_submit(screen, request)
    found_id = moves.open_archive(archive, run_id).run
    return _run(screen, lambda report: driver.resume_run(request, found_id, report, wanted, **options))


def package_command(
    *,
    file: Path | None = argument("[PATH]", "Zip, or with --for directory [default: sbpair.zip]", default=None),
    platform: str | None = option(
        "--for PLATFORM", "Write a job for databricks, dataproc, emr-serverless, fabric or kubernetes"
    ),
    archive: str | None = option("--archive URL", "URL of the job's archive", needs="--for"),
    name: str | None = option("--name NAME", "Name of the job [default: sbpair-replay]", needs="--for"),
    vault: str | None = option("--vault NAME", "Azure Key Vault of the secrets", needs="--for fabric"),
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
    from sbpair.replay import package

    if platform is not None:
        directory = file or Path(f"sbpair-{platform}")
        pair, job = selected_profile(connection, screen).pair, package.JOB_NAME if name is None else name
        files, secrets = package.define_job(directory, platform, pair, archive, job, vault)
        made = {"platform": platform, "directory": str(directory), "files": files, "secrets": list(secrets)}
        screen.result("sbpair/replay-job/1", made, [str(directory / each) for each in files])
        stored = f"store {' and '.join(secrets)} and " if secrets else ""
        screen.say(f"{directory}/{package.COMMANDS} has the commands to {stored}submit the job")
        return 0
    file = file or Path("sbpair.zip")
    contents, written = package.build_package(file)
    document = {"file": str(file), "bytes": written, "packed": contents.packed, "native": contents.native}
    rows = [(name, version, "packed") for name, version in contents.packed.items()]
    rows += [(name, version, "native: not packed") for name, version in contents.native.items()]
    table = [f"{file}, {size(written)}", "", *columns([("PACKAGE", "VERSION", ""), *rows])]
    screen.result("sbpair/replay-package/1", document, table)
    return 0


def verify_command(*, run_id: str = moves.RUN, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """Prove from the files alone that each archived message has one outcome.

    Contacts no namespace and needs no Java.

    Examples:
      sbpair replay verify 261122-101500-3f2a --archive /mnt/archive
      sbpair replay verify 261122-101500-3f2a --archive s3://bucket/dir -o json

    Exit codes: 0 all were sent; 1 the files contradict each other; 3 some expired, were quarantined or are unsent; 4 a
    file is broken
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.replay import verify

    proved, proof = verify.prove_run(place)
    document = {"run": proved.id, **proof.document(proved.options.mode)}
    screen.result(SCHEMA, document, proof_lines(document))
    return proof.exit_code


def status_command(*, run_id: str = moves.RUN, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """Show how far a run is, from its files alone.

    Contacts no namespace and changes nothing.

    Examples:
      sbpair replay status 261122-101500-3f2a --archive /mnt/archive
      sbpair replay status 261122-101500-3f2a --archive /mnt/archive -o json
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.replay import progress

    found = progress.run_status(place)
    shown = {name: found[name] for name in found if name not in ("pair", "queues")}
    shown["stopped"] = "yes" if found["stopped"] else "no"
    table = columns([(name.replace("_", " "), str(shown[name])) for name in shown])
    screen.result("sbpair/replay-status/1", found, table)
    if found["stopped"] and found["phase"] not in progress.FINISHED:
        screen.say(f"continue with {next_command('replay resume', place.run)}")
    return 0


def list_command(*, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """List the runs of an archive, the latest first.

    Contacts no namespace. sbpair runs list has the runs of this machine, in any archive.

    Examples:
      sbpair replay list --archive /mnt/archive
      sbpair replay list --archive s3://bucket/dir -o json
    """
    from sbpair.replay.spark import check_packages

    check_packages("pyarrow")
    from sbpair.replay import progress
    from sbpair.replay.archive import Archive, run_ids

    runs = []
    for each in run_ids(archive):
        try:
            found = progress.run_summary(Archive(archive, each))
        except (StateRefused, MachineLacks) as error:
            screen.error(error.message, error.hint)
        else:
            runs.append({"started": utc(found.pop("started_ms") / 1000), **found})
    rows = [[run["run"], run["started"], run["mode"], run["phase"], "yes" if run["stopped"] else "no"] for run in runs]
    table = columns([("RUN", "STARTED", "MODE", "PHASE", "STOPPED"), *rows]) if rows else []
    screen.result("sbpair/replay-list/1", {"runs": runs}, table, runs)
    if not rows:
        screen.say(f"no runs in {archive}")
    return 0


def stop_command(*, run_id: str = moves.RUN, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """Ask a run on any machine to stop after the messages in flight.

    Examples:
      sbpair replay stop 261122-101500-3f2a --archive /mnt/archive
      sbpair replay stop 261122-101500-3f2a --archive s3://bucket/dir

    Exit codes: 0 it stops, or has stopped; 4 it has finished
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.replay import progress

    requested = progress.request_stop(place)
    screen.result("sbpair/replay-stop/1", {"run": place.run, "requested": requested}, [])
    if not requested:
        hint = f"see its result with {next_command('replay status', place.run)}"
        raise Unsafe(f"run {place.run} has finished: nothing was stopped", hint=hint)
    screen.say(f"run {place.run} will stop; continue it with {next_command('replay resume', place.run)}")
    return 0


def gc_command(
    *,
    run_id: str = moves.RUN,
    archive: str = moves.ARCHIVE,
    include_unsent: bool = flag(
        "--include-unsent", "Also delete messages never sent: expired, quarantined, deduplicated"
    ),
    dry_run: bool = flag("--dry-run", "Only print what would be deleted", excludes="--yes"),
    yes: bool = flag("--yes -y", "Delete without asking"),
    screen: Screen,
) -> int:
    """Delete the messages of a finished and proved run from the archive.

    The run is proved again first, and its receipt stays. Expired and quarantined messages were never sent: the archive
    keeps them unless --include-unsent. Duplicates by message id were never sent either, and a run with some is refused
    without it. A run with messages that resume can still send is refused always. Without --yes it prints the plan and,
    on a terminal, asks.

    Examples:
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive --yes

    Exit codes: 0 deleted, or --dry-run; 4 not confirmed, or refused: the run is unfinished or not proved
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.replay import verify

    planned = verify.plan_gc(place, unsent=include_unsent)
    what = f"{plural(planned.files, 'file')} of run {place.run}, {size(planned.bytes)}"
    unsent = ", including messages that were never sent" if include_unsent else ""
    deletes = planned.files > 0 and not dry_run and (yes or screen.asks(f"Delete {what}{unsent}?"))
    if deletes:
        verify.remove_messages(place, planned)
    counts = {"files": planned.files, "bytes": planned.bytes, "kept": planned.kept}
    kept = f"; kept, since never sent: {plural(planned.kept, 'message')}" if planned.kept else ""
    text = f"{'deleted' if deletes else 'would delete'} {what}{kept}"
    screen.result("sbpair/replay-gc/1", {"run": place.run, "removed": deletes, **counts}, [text])
    if planned.files and not deletes:
        command = next_command("replay gc", place.run, "--yes", without=["dry_run"])
        if not dry_run:
            raise not_confirmed("deleted", command)
        screen.say(f"nothing was deleted; delete them with {command}")
    return 0


SUBCOMMANDS = {
    "plan": plan_command,
    "run": run_command,
    "resume": resume_command,
    "list": list_command,
    "verify": verify_command,
    "status": status_command,
    "stop": stop_command,
    "gc": gc_command,
    "package": package_command,
}


def _plan_notes(found: "Forecast", outlook: "PlanPreview", *, allow_missing: bool) -> list[str]:
    from sbpair.move.message.dead_letters import NotSentReason

    notes = []
    missing = sum(each.messages for each in found.dead_letters if each.reason == NotSentReason.MISSING)
    if missing and not allow_missing:
        notes.append(
            f"a run would archive everything and send nothing: the primary lacks destinations of {missing} messages;"
            " create them, or pass --allow-missing to quarantine these messages"
        )
    if outlook.ids_overflowed:
        notes.append("too many message ids to remember: there may be more duplicates than counted")
    return notes


def _accepted(found: "config.Profile") -> "list[Key]":
    """Return the messages that the syphon's journal records as accepted, without creating a state directory."""
    from sbpair.runs.database import state_if_any
    from sbpair.runs.journal import accepted_keys

    with state_if_any(found.state_directory, found.pair) or nullcontext() as state:
        return accepted_keys(state) if state else []


def _full_credits(terms: "MoveLimits", tiers: "PairTiers") -> "EffectiveLimits":
    """Return the full credits of the namespaces, which a replay uses until the service throttles it."""
    from sbpair.move.rate_limit import NAMESPACE_CREDITS
    from sbpair.syphon.move_spec import EffectiveLimits

    primary, secondary = (
        None if (tier or "").lower() == "premium" else NAMESPACE_CREDITS for tier in (tiers.primary, tiers.secondary)
    )
    return EffectiveLimits(terms.rate, primary, secondary)


def _request(
    screen: Screen,
    connection: PairSelection,
    archive: str,
    cluster: Cluster,
    safeguards: ReplaySafeguards,
    count: int | None = None,
) -> "ReplayRequest":
    from sbpair.replay import spark
    from sbpair.replay.fetched_secrets import named_secrets

    remote = _remote(cluster)
    if remote is None:
        spark.check_machine(os.environ)
    os.environ.update(named_secrets(os.environ))
    found = selected_profile(connection, screen, count=count, state=safeguards.state)
    from sbpair.replay import package
    from sbpair.replay.run_description import ReplayRequest

    if cluster.package is not None:
        package.check_package(cluster.package)
    return ReplayRequest(
        found.pair,
        archive,
        Path(found.state_directory),
        master=cluster.master or spark.local_master(),
        tasks=cluster.parallelism,
        shared_archive=cluster.shared_archive,
        settings=dict(cluster.conf or []),
        lease=not safeguards.no_lease,
        lease_queue=safeguards.lease,
        verbose=screen.detailed,
        package=cluster.package,
        wait_for_locks=not safeguards.no_wait_for_locks,
        remote=remote,
    )


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


def _selection(choice: Choice) -> "Selection":
    from sbpair.replay.run_description import read_selection

    return read_selection(choice.destination or [], choice.where)


def _run(screen: Screen, act: Any) -> int:
    """Run a job with progress on stderr, then print its proof."""
    interrupt_when_signalled()
    progress = replay_progress(screen)
    try:
        with progress:
            result: ReplayResult = act(progress)
    except KeyboardInterrupt:
        if progress.run:
            screen.say(f"interrupted; continue with {next_command('replay resume', progress.run)}")
        raise
    proof = result.document()
    screen.result(SCHEMA, proof, proof_lines(proof))
    resume = next_command("replay resume", result.run.id)
    if result.exit_code == ExitCode.INTERRUPTED:
        screen.say(f"stopped; continue with {resume}")
        return result.exit_code
    if result.proof.unsent and not result.run.direct:
        others = "; add --all to send the excluded ones, too" if result.run.options.selection else ""
        screen.warn(f"{result.proof.unsent} messages in the archive are unsent{others}; continue with {resume}")
    if remaining := sum(result.proof.remaining_in_queues.values()):
        waiting = next_command("replay resume", result.run.id, without={"no_wait_for_locks"})
        screen.warn(f"{remaining} messages remain in the backlog; once they are unlocked, continue with {waiting}")
    return result.exit_code


def _print_submit(screen: Screen, request: "ReplayRequest") -> int:
    """Print the spark-submit command of this invocation, and the names of the environment variables it needs."""
    from sbpair.replay import spark

    if request.master == spark.PLATFORM:
        raise UsageError(
            "--print-submit needs the master of spark-submit, not platform", hint="name one such as --master yarn"
        )
    program = importlib.metadata.distribution("pyspark").locate_file("pyspark/bin/spark-submit")
    job = Path(__file__).parents[2] / "__main__.py"
    packages = ["--py-files", request.package] if request.package else []
    pythons = {"spark.pyspark.driver.python": sys.executable}
    if spark.is_local_master(request.master):
        pythons["spark.pyspark.python"] = sys.executable
    settings = {**spark.SETTINGS, **spark.local_settings(request.master), **pythons, **request.settings}
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    kept = [word for word in sys.argv[1:] if word != "--print-submit"]
    command = [str(program), "--master", request.master, *packages, *conf, str(job), *kept]
    variables = [variable for access in request.access() for variable in access.variables]
    screen.result("sbpair/replay-submit/1", {"command": command, "environment": variables}, [shlex.join(command)])
    if variables:
        screen.say(f"set {' and '.join(variables)} in its environment and in that of the workers")
    return 0
