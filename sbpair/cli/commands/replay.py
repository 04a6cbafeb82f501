"""`sbpair replay`: runs jobs of `sbpair.replay` and prints their proofs."""

import os
import signal
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sbpair.cli.command_loop import SIGNALS
from sbpair.cli.commands import replay_archive, replay_plan, replay_submit
from sbpair.cli.commands.replay_submit import PrintSubmit
from sbpair.cli.help import Command, CommandGroup
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import Count, Display, PairSelection, StateDirectory, option, options
from sbpair.cli.options.moves import (
    AllowMissing,
    ArchiveUrl,
    DeadLetters,
    Dedup,
    DedupOption,
    Destinations,
    LeaseQueue,
    NoLease,
    OnlyQueues,
    Rate,
    RunId,
    TimeToLive,
    Ttl,
    backlog_paths,
    check_lease,
    open_archive,
)
from sbpair.cli.options.values import selected_profile
from sbpair.cli.progress.replay_progress import replay_progress
from sbpair.cli.render.proof import proof_lines
from sbpair.cli.render.screen import Screen
from sbpair.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from sbpair import config
    from sbpair.replay.driver import ReplayResult
    from sbpair.replay.run import ReplayRequest
    from sbpair.replay.selection import Selection

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
    """The Spark that runs a replay."""

    master: Annotated[str | None, option("--master URL", "Spark master [default: local, cores + 2 tasks]")] = None
    parallelism: Annotated[
        int | None, option("--parallelism N", "Tasks at once [default: those of a local master, or 2]")
    ] = None
    shared_archive: Annotated[bool, option("--shared-archive", "The archive directory is mounted on every worker")] = (
        False
    )
    conf: Annotated[list[str] | None, option("--conf KEY=VALUE", "Spark setting, never a secret; repeatable")] = None
    package: Annotated[str | None, option("--package FILE", "Zip from sbpair replay package, for bare workers")] = None
    print_submit: PrintSubmit = False


@dataclass(frozen=True, slots=True)
class ReplaySafeguards:
    """Protection against concurrent runs, and the state directory."""

    state: StateDirectory = None
    lease: LeaseQueue = None
    no_lease: NoLease = False


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages are sent."""

    destination: Destinations = None
    where: Annotated[str | None, option("--where SQL", "Send only messages matching this SQL condition")] = None


@app.callback()
def replay() -> None:
    """Move a large backlog with Spark: archive, send and prove it.

    A run drains the backlog queues into an archive of Parquet files, sends from there, and proves that each message
    has exactly one outcome. Any interrupted run can be resumed. run and resume need Java and pip install
    'sbpair[spark]'; the others need no Java.

    Examples:
      sbpair replay plan
      sbpair replay run --archive /mnt/archive

    See also: sbpair help replay
    """


@app.command("run", cls=Command)
@options
def run_command(
    *,
    archive: ArchiveUrl,
    queue: OnlyQueues = None,
    dead_letters: DeadLetters = False,
    count: Count = None,
    choice: Choice,
    mode: Annotated[ModeOption, option("--mode MODE", "archive stores first; direct keeps no bodies")] = (
        ModeOption.ARCHIVE
    ),
    dedup: Dedup = DedupOption.KEY,
    ttl: TimeToLive = Ttl.ORIGINAL,
    order: Annotated[
        SessionOrder, option("--order ORDER", "session keeps the order of each session; none is faster")
    ] = SessionOrder.SESSION,
    rate: Rate = None,
    allow_missing: AllowMissing = False,
    cluster: Cluster,
    safeguards: ReplaySafeguards,
    connection: PairSelection,
    display: Display,
) -> int:
    """Archive the backlog, send it to the primary, and prove the result.

    Messages that --destination and --where exclude stay in the archive; sbpair replay resume RUN --all sends them.

    Examples:
      sbpair replay run --archive /mnt/archive --rate 500
      sbpair replay run --archive /mnt/archive --where "size < 65536"

    Exit codes: 3 some expired, were quarantined or are unsent; 4 refused as unsafe; 130 stopped

    See also: sbpair help replay
    """
    screen = Screen(display)
    _check_machine()
    found = selected_profile(connection, screen, count=count, state=safeguards.state)
    request = _request(found, archive, cluster, safeguards, verbose=bool(display.verbose))
    from sbpair.move import rate_limit
    from sbpair.move.message import route
    from sbpair.replay import driver, run
    from sbpair.replay.local_files import is_in_memory

    wanted = run.ReplayOptions(
        dedup=run.DedupMode(dedup.value),
        ttl=route.TimeToLive(ttl.value),
        ordered=order is SessionOrder.SESSION,
        rate=None if rate is None else rate_limit.parse_rate(rate),
        allow_missing=allow_missing,
        selection=_selection(choice),
        mode=run.ReplayMode(mode.value),
    )
    if wanted.mode is run.ReplayMode.ARCHIVE and is_in_memory(archive):
        screen.warn(f"{archive} is in memory and is lost when this machine restarts: use a disk")
    if cluster.print_submit:
        return replay_submit.show(screen, request)
    queues = backlog_paths(found.pair, queue, dead_letters=dead_letters)
    return _run(screen, lambda report: driver.start_run(request, wanted, queues, None, report))


@app.command("resume", cls=Command)
@options
def resume_command(
    *,
    run_id: RunId,
    archive: ArchiveUrl,
    everything: Annotated[bool, option("--all", "Send the messages that --destination and --where excluded")] = False,
    choice: Choice,
    safeguards: ReplaySafeguards,
    cluster: Cluster,
    connection: PairSelection,
    display: Display,
) -> int:
    """Continue a stopped or killed run, or send the messages it excluded.

    Messages in the ledger are not sent again. After a kill, up to three thousand messages a task may be sent twice; the
    proof names them. Without --all, --destination and --where the choice of the run stays.

    Examples:
      sbpair replay resume 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay resume 20261122-101500-3f2a --archive /mnt/archive --all

    Exit codes: those of sbpair replay run; 4 also for another pair's run or a broken file
    """
    screen = Screen(display)
    _check_machine()
    found = selected_profile(connection, screen, state=safeguards.state)
    request = _request(found, archive, cluster, safeguards, verbose=bool(display.verbose))
    from sbpair.replay import driver

    selection = _selection(choice)
    if everything and selection:
        raise UsageError("--all goes with neither --destination nor --where", hint="leave it out, or them")
    wanted = selection if everything or selection else None
    if cluster.print_submit:
        return replay_submit.show(screen, request)
    found_id = open_archive(archive, run_id).run
    return _run(screen, lambda report: driver.resume_run(request, found_id, report, wanted))


for _name, _command in replay_archive.COMMANDS.items():
    app.command(_name, cls=Command)(_command)
app.command("package", cls=Command)(replay_submit.package_command)


def _check_machine() -> None:
    from sbpair.replay.java import check_machine

    check_machine(os.environ)


def _request(
    found: "config.Profile", archive: str, cluster: Cluster, safeguards: ReplaySafeguards, *, verbose: bool
) -> "ReplayRequest":
    from sbpair.replay import spark
    from sbpair.replay.run import ReplayRequest

    tasks = cluster.parallelism
    if tasks is not None and tasks < 1:
        raise UsageError(f"--parallelism is {tasks}, and must be at least 1", hint="leave it out for every core")
    if cluster.package is not None:
        from sbpair.replay import package

        package.check_package(cluster.package)
    check_lease(safeguards.lease, no_lease=safeguards.no_lease)
    return ReplayRequest(
        found.pair,
        archive,
        (_variable(found, "primary"), _variable(found, "secondary")),
        Path(found.state_directory),
        master=cluster.master or spark.local_master(),
        tasks=tasks,
        shared_archive=cluster.shared_archive,
        settings=dict(map(_setting, cluster.conf or [])),
        lease=not safeguards.no_lease,
        lease_queue=safeguards.lease,
        verbose=verbose,
        package=cluster.package,
    )


def _selection(choice: Choice) -> "Selection":
    from sbpair.replay import selection

    return selection.read_selection(choice.destination or [], choice.where)


def _variable(found: "config.Profile", side: str) -> str | None:
    """Return the environment variable that has the connection string, if any."""
    from sbpair.config import Secret

    setting = found.settings[f"{side}.address"]
    return setting.source if isinstance(setting.value, Secret) else None


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"--conf {name!r} has no value", hint="write --conf spark.executor.memory=4g")
    return name, value


def _run(screen: Screen, act: Any) -> int:
    """Run a job with progress on stderr, then print its proof."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    progress = replay_progress(screen)
    try:
        with progress:
            result: ReplayResult = act(progress)
    except KeyboardInterrupt:
        if progress.run:
            screen.say(f"interrupted; continue with {next_command('replay resume', progress.run)}")
        raise
    proof = result.document()
    screen.result(replay_archive.SCHEMA, proof, proof_lines(proof))
    resume = next_command("replay resume", result.run.id)
    if result.exit_code == ExitCode.INTERRUPTED:
        screen.say(f"stopped; continue with {resume}")
        return result.exit_code
    if result.proof.unsent and not result.run.direct:
        others = "; add --all to send the excluded ones, too" if result.run.options.selection else ""
        screen.warn(f"{result.proof.unsent} messages in the archive are unsent{others}; continue with {resume}")
    if remaining := sum(result.proof.remaining_in_queues.values()):
        screen.warn(f"{remaining} messages remain in the backlog; once they are unlocked, continue with {resume}")
    return result.exit_code
