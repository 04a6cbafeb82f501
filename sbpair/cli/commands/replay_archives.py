"""`sbpair replay`, the commands without Java: drain, and those of a run's files: verify, status, list, stop and gc."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.commands.moving import checked_ends
from sbpair.cli.completion import backlog_queues
from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options import moves
from sbpair.cli.options.common import STATE, NamespaceSelection, argument, duration, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.render.receipt import proof_lines, stream_lines
from sbpair.cli.render.screen import Screen, plural, size
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, MachineLacks, StateRefused, Unsafe
from sbpair.model.document import encoded
from sbpair.model.message_state import MessageState

if TYPE_CHECKING:
    import asyncio

    from sbpair.replay.archive import Archive
    from sbpair.replay.outcomes import DrainedStream

SHOWN_OF_STATUS: tuple[str, ...] = ("run", "mode", "phase", "stopped", "archived_rows", "segments", "acknowledged_rows")
SHOWN_OF_STREAM = ("run", "mode", "stopped", "archived_rows", "segments")


def drain_command(
    *,
    entity: str = argument("ENTITY", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME", complete=backlog_queues),
    archive: str = moves.ARCHIVE,
    name: str = option(
        "--run NAME", "Name of the stream: the same command continues it", default=..., parse=moves.run_name
    ),
    watch: bool = flag("--watch", "Keep draining until interrupted"),
    in_state: Literal["active", "dead", "transfer-dead"] | None = option(
        "--messages STATE", "active, dead or transfer-dead", excludes="--dead-letters"
    ),
    dead_letters: bool = flag("--dead-letters", "The same as --messages dead"),
    seal: float = duration(
        "--seal TIME", "Store a file after this, or 0.4 of a lock", default="10s", at_least=0.1, at_most=120
    ),
    state: Path | None = STATE,
    lease: str | None = moves.LEASE,
    no_lease: bool = moves.NO_LEASE,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Drain a queue or subscription into Parquet files, for Spark streams.

    Each file of ARCHIVE/NAME/segments appears whole, with messages in order of arrival; a message is removed from the
    queue once its file is on the disk. After a kill some are in two files, and none is lost. Needs Listen, no Java.
    Without --watch it ends once the queue is empty. SIDE: primary, secondary, [namespaces.NAME].

    Examples:
      sbpair replay drain orders --archive /mnt/archive --run orders --watch
      sbpair replay drain orders --dead-letters --archive s3://bucket/x --run dead

    Exit codes: 3 some stayed: locked, or deferred; 4 another process moves this source, or NAME is of another one; 130
    interrupted without --watch

    See also: sbpair help spark
    """
    from sbpair.replay.spark import check_packages

    check_packages("pyarrow")
    from sbpair.cli.progress.replay_progress import replay_progress
    from sbpair.replay.archive import Archive, is_in_memory
    from sbpair.replay.queue_stream import drain_stream
    from sbpair.syphon.run_request import RunRequest

    chosen = MessageState.DEAD if dead_letters else in_state and MessageState(in_state)
    reach = reach_of(connection, screen, state=state)
    source = reach.address(entity, state=chosen or None, what="ENTITY")
    place, directory = Archive(archive, name), reach.owner(source).directory
    if is_in_memory(archive):
        screen.warn(f"{archive} is in memory and is lost when this machine restarts: use a disk")
    request = RunRequest(
        ends=source.alone,
        once=not watch,
        source=source.path,
        sessions=checked_ends(source).sessions,
        lease=not no_lease,
        lease_queue=lease,
    )
    progress = replay_progress(screen)

    async def drain(stop: "asyncio.Event", _hurry: "asyncio.Event") -> "DrainedStream":
        return await drain_stream(request, place, seal, directory, progress, stop)

    with progress:
        drained = run_gracefully(drain, source.endpoint)
    stored = f"{plural(drained.messages, 'message')} of {source} in {plural(drained.segments, 'file')}"
    screen.show(drained, [stored])
    if drained.remaining:
        screen.warn(f"{plural(drained.remaining, 'message')} stayed: locked by another receiver, or deferred")
    return drained.exit_code


def verify_command(
    *,
    run_id: str = moves.RUN,
    archive: str = moves.ARCHIVE,
    full: bool = flag("--full", "Compare all bytes of files with their digests, not only sizes and footers"),
    screen: Screen,
) -> int:
    """Prove from the files alone that each archived message has one outcome.

    Contacts no namespace and needs no Java.

    Examples:
      sbpair replay verify 261122-101500-3f2a --archive /mnt/archive
      sbpair replay verify 261122-101500-3f2a --archive s3://bucket/dir -o json

    Exit codes: 0 all were sent; 1 the files contradict each other; 3 some expired, were quarantined, are unsent or
    repeated; 4 a file is missing, broken, altered or foreign
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.cli.results.replay import ProvedReplay
    from sbpair.replay import verify
    from sbpair.replay.outcomes import replay_receipt

    proved, proof = verify.prove_run(place, full=full)
    result = ProvedReplay(replay_receipt(proved.id, proved.options.mode, proof))
    screen.show(result, (stream_lines if proved.is_stream else proof_lines)(encoded(result)))
    _say_of_digests(screen, place, without=not proved.digests, not_adopted=proof.not_adopted)
    return proof.exit_code


def status_command(*, run_id: str = moves.RUN, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """Show how far a run is, from its files alone.

    Contacts no namespace and changes nothing.

    Examples:
      sbpair replay status 261122-101500-3f2a --archive /mnt/archive
      sbpair replay status 261122-101500-3f2a --archive /mnt/archive -o json

    Exit codes: 4 a file is missing, broken, altered or foreign
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.replay import progress
    from sbpair.replay.outcomes import FINISHED

    found = progress.run_status(place)
    names, sources = SHOWN_OF_STATUS, {}
    if found.mode == "stream":
        names, sources = SHOWN_OF_STREAM, {"source": f"{', '.join(found.queues)} in {found.pair['secondary']}"}
    shown = {name.replace("_", " "): str(getattr(found, name)) for name in names}
    screen.show(found, columns(list((shown | {"stopped": "yes" if found.stopped else "no"} | sources).items())))
    without = not found.digests and found.mode == "archive"
    _say_of_digests(screen, place, without=without, not_adopted=found.not_adopted)
    if found.stopped and found.phase not in FINISHED:
        screen.say(f"continue with {_continuation(place)}")
    return 0


def list_command(*, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """List the runs of an archive, the latest first.

    Contacts no namespace. sbpair runs list has the runs of this machine, in any archive.

    Examples:
      sbpair replay list --archive /mnt/archive
      sbpair replay list --archive s3://bucket/dir -o json

    Exit codes: 4 a file of a run is missing, broken, altered or foreign; the other runs are listed
    """
    from sbpair.replay.spark import check_packages

    check_packages("pyarrow")
    from sbpair.cli.results.replay import ReplayList
    from sbpair.replay import progress
    from sbpair.replay.archive import Archive, run_ids
    from sbpair.replay.digests import without_digests

    runs, code = [], ExitCode.DONE
    for each in run_ids(archive):
        try:
            found = progress.run_summary(Archive(archive, each))
        except (StateRefused, MachineLacks) as error:
            screen.error(error.message, error.hint)
            code = error.exit_code
        else:
            runs.append(found)
    runs.sort(key=lambda run: run.started_ms, reverse=True)
    rows = [(run.run, utc(run.started_ms / 1000), run.mode, run.phase, "yes" if run.stopped else "no") for run in runs]
    table = columns([("RUN", "STARTED", "MODE", "PHASE", "STOPPED"), *rows]) if rows else []
    screen.show(ReplayList(runs), table)
    if without := [run.run for run in runs if not run.digests and run.mode == "archive"]:
        screen.say(without_digests(*without))
    if not rows and code == ExitCode.DONE:
        screen.say(f"no runs in {archive}")
    return code


def stop_command(*, run_id: str = moves.RUN, archive: str = moves.ARCHIVE, screen: Screen) -> int:
    """Ask a run on any machine to stop after the messages in flight.

    Examples:
      sbpair replay stop 261122-101500-3f2a --archive /mnt/archive
      sbpair replay stop 261122-101500-3f2a --archive s3://bucket/dir

    Exit codes: 0 it stops, or has stopped; 4 it has finished
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.cli.results.replay import ReplayStop
    from sbpair.replay import progress

    requested = progress.request_stop(place)
    screen.show(ReplayStop(place.run, requested))
    if not requested:
        hint = f"see its result with {next_command('replay status', place.run)}"
        raise Unsafe(f"run {place.run} has finished: nothing was stopped", hint=hint)
    screen.say(f"run {place.run} will stop; continue it with {_continuation(place)}")
    return 0


def gc_command(
    *,
    run_id: str = moves.RUN,
    archive: str = moves.ARCHIVE,
    include_unsent: bool = flag(
        "--include-unsent", "Also delete messages never sent: expired, quarantined, deduplicated"
    ),
    older_than: float | None = duration(
        "--older-than TIME", "Of a stream: delete files begun longer ago", unit=True, excludes="--include-unsent"
    ),
    dry_run: bool = flag("--dry-run", "Only print what would be deleted", excludes="--yes"),
    yes: bool = flag("--yes -y", "Delete without asking"),
    screen: Screen,
) -> int:
    """Delete the messages of a finished and proved run from the archive.

    The run is proved again first, all bytes are compared with the digests, and its receipt stays. Expired and
    quarantined messages were never sent: the archive keeps them unless --include-unsent. Duplicates by message id were
    never sent either, and a run with some is refused without it. A run with messages that resume can still send is
    refused always. Of a stream, --older-than deletes old files, whether its readers had them or not: sbpair cannot see
    their checkpoints. Without --yes it prints the plan and, on a terminal, asks.

    Examples:
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive --yes
      sbpair replay gc orders --archive /mnt/archive --older-than 7d --yes

    Exit codes: 0 deleted, or --dry-run; 4 not confirmed, or refused: the run is unfinished or not proved
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.cli.results.replay import RemovedMessages
    from sbpair.replay import verify

    remove = verify.remove_messages
    if older_than is None:
        planned = verify.plan_gc(place, unsent=include_unsent)
    else:
        from sbpair.replay.queue_stream import collect_segments as remove
        from sbpair.replay.queue_stream import plan_collection

        planned = plan_collection(place, older_than, time.time())
    _say_of_digests(screen, place, without=not (planned.run.digests or planned.run.direct))
    what = f"{plural(planned.files, 'file')} of run {place.run}, {size(planned.bytes)}"
    unsent = ", including messages that were never sent" if include_unsent else ""
    deletes = planned.files > 0 and not dry_run and (yes or screen.asks(f"Delete {what}{unsent}?"))
    if deletes:
        remove(place, planned)
    kept = f"; kept, since never sent: {plural(planned.kept, 'message')}" if planned.kept else ""
    text = f"{'deleted' if deletes else 'would delete'} {what}{kept}"
    screen.show(RemovedMessages(place.run, deletes, planned.files, planned.bytes, planned.kept), [text])
    if planned.files and not deletes:
        command = next_command("replay gc", place.run, "--yes", without=["dry_run"])
        if not dry_run:
            raise not_confirmed("deleted", command)
        screen.say(f"nothing was deleted; delete them with {command}")
    return 0


def _continuation(place: "Archive") -> str:
    """Return the command that continues a run. That of a stream needs its source, whose side is not recorded."""
    from sbpair.replay.run_description import load_run

    if load_run(place).is_stream:
        return "the command that drains it"
    return next_command("replay resume", place.run)


def _say_of_digests(screen: Screen, place: "Archive", *, without: bool, not_adopted: Sequence[str] = ()) -> None:
    """Print that a run has no digests, or which of its segments have none yet."""
    from sbpair.replay.digests import without_digests

    if without:
        screen.say(without_digests(place.run))
    for path in not_adopted:
        screen.say(f"{path} has no digest yet: its writer runs, or died; adopt it with {_continuation(place)}")
