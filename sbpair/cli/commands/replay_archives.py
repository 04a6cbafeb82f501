"""`sbpair replay`, the commands that read and change a run's files alone: verify, status, list, stop and gc."""

from collections.abc import Sequence

from sbpair.cli.logs import utc
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options import moves
from sbpair.cli.options.common import flag
from sbpair.cli.render.receipt import proof_lines
from sbpair.cli.render.screen import Screen, plural, size
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, MachineLacks, StateRefused, Unsafe
from sbpair.model.document import encoded

SHOWN_OF_STATUS = ("run", "mode", "phase", "stopped", "archived_rows", "segments", "acknowledged_rows")


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
    screen.show(result, proof_lines(encoded(result)))
    _say_of_digests(screen, [proved.id], without=not proved.digests, not_adopted=proof.not_adopted)
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
    shown = {name.replace("_", " "): str(getattr(found, name)) for name in SHOWN_OF_STATUS}
    screen.show(found, columns(list((shown | {"stopped": "yes" if found.stopped else "no"}).items())))
    without = not found.digests and found.mode == "archive"
    _say_of_digests(screen, [place.run], without=without, not_adopted=found.not_adopted)
    if found.stopped and found.phase not in FINISHED:
        screen.say(f"continue with {next_command('replay resume', place.run)}")
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
        _say_of_digests(screen, without, without=True)
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

    The run is proved again first, all bytes are compared with the digests, and its receipt stays. Expired and
    quarantined messages were never sent: the archive keeps them unless --include-unsent. Duplicates by message id were
    never sent either, and a run with some is refused without it. A run with messages that resume can still send is
    refused always. Without --yes it prints the plan and, on a terminal, asks.

    Examples:
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive
      sbpair replay gc 261122-101500-3f2a --archive /mnt/archive --yes

    Exit codes: 0 deleted, or --dry-run; 4 not confirmed, or refused: the run is unfinished or not proved
    """
    place = moves.open_archive(archive, run_id)
    from sbpair.cli.results.replay import RemovedMessages
    from sbpair.replay import verify

    planned = verify.plan_gc(place, unsent=include_unsent)
    _say_of_digests(screen, [place.run], without=not (planned.run.digests or planned.run.direct))
    what = f"{plural(planned.files, 'file')} of run {place.run}, {size(planned.bytes)}"
    unsent = ", including messages that were never sent" if include_unsent else ""
    deletes = planned.files > 0 and not dry_run and (yes or screen.asks(f"Delete {what}{unsent}?"))
    if deletes:
        verify.remove_messages(place, planned)
    kept = f"; kept, since never sent: {plural(planned.kept, 'message')}" if planned.kept else ""
    text = f"{'deleted' if deletes else 'would delete'} {what}{kept}"
    screen.show(RemovedMessages(place.run, deletes, planned.files, planned.bytes, planned.kept), [text])
    if planned.files and not deletes:
        command = next_command("replay gc", place.run, "--yes", without=["dry_run"])
        if not dry_run:
            raise not_confirmed("deleted", command)
        screen.say(f"nothing was deleted; delete them with {command}")
    return 0


def _say_of_digests(screen: Screen, runs: list[str], *, without: bool, not_adopted: Sequence[str] = ()) -> None:
    """Print which runs have no digests, or which segments of one have none yet."""
    from sbpair.replay.digests import without_digests

    if without:
        screen.say(without_digests(*runs))
    for path in not_adopted:
        resume = next_command("replay resume", *runs)
        screen.say(f"{path} has no digest yet: its task runs, or died; adopt it with {resume}")
