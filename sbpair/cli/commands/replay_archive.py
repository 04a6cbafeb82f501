"""`sbpair replay verify`, `status`, `stop` and `gc`: a run by the files of its archive alone, and a proof as text."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options.common import Display, option, options
from sbpair.cli.options.moves import ArchiveUrl, RunId, open_archive
from sbpair.cli.render.screen import Screen, clean, plural, size, some
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError

SCHEMA, STATUS_SCHEMA, GC_SCHEMA = "sbpair/replay/1", "sbpair/replay-status/1", "sbpair/replay-gc/1"
BUCKETS = ("acknowledged", "expired", "quarantined", "deduplicated")


@options
def verify_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Prove from the files alone that each archived message has one outcome.

    Contacts no namespace and needs no Java.

    Examples:
      sbpair replay verify 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay verify 20261122-101500-3f2a --archive s3://bucket/dir -o json

    Exit codes: 0 all were sent; 1 the files contradict each other; 3 some expired, were quarantined or are unsent; 4 a
    file is broken
    """
    screen = Screen(display)
    place = open_archive(archive, run_id)
    from sbpair.replay import verify

    run, proof = verify.prove_run(place)
    document = {"run": run_id, **proof.document(run)}
    screen.result(SCHEMA, document, table(document))
    return proof.exit_code


@options
def status_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Show how far a run is, from its files alone.

    Contacts no namespace and changes nothing.

    Examples:
      sbpair replay status 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay status 20261122-101500-3f2a --archive /mnt/archive -o json
    """
    screen = Screen(display)
    place = open_archive(archive, run_id)
    from sbpair.replay import progress

    found = progress.run_status(place)
    shown = [(name.replace("_", " "), str(found[name])) for name in found if name not in ("pair", "queues")]
    screen.result(STATUS_SCHEMA, found, columns(shown))
    return 0


@options
def stop_command(*, run_id: RunId, archive: ArchiveUrl, display: Display) -> int:
    """Ask a run on any machine to stop after the messages in flight.

    Examples:
      sbpair replay stop 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay stop 20261122-101500-3f2a --archive s3://bucket/dir
    """
    screen = Screen(display)
    place = open_archive(archive, run_id)
    from sbpair.replay import progress

    progress.request_stop(place)
    screen.say(f"run {run_id} will stop; sbpair replay resume {run_id} continues it")
    return 0


@options
def gc_command(
    *,
    run_id: RunId,
    archive: ArchiveUrl,
    include_unsent: Annotated[
        bool, option("--include-unsent", "Also delete messages never sent: expired, quarantined, deduplicated")
    ] = False,
    dry_run: Annotated[bool, option("--dry-run", "Only print what would be deleted")] = False,
    yes: Annotated[bool, option("--yes -y", "Delete without asking")] = False,
    display: Display,
) -> int:
    """Delete the messages of a finished and proved run from the archive.

    The run is proved again first, and its receipt stays. Expired and quarantined messages were never sent: the archive
    keeps them unless --include-unsent. Duplicates by message id were never sent either, and a run with some is refused
    without it. A run with messages that resume can still send is refused always. Without --yes it prints the plan and,
    on a terminal, asks.

    Examples:
      sbpair replay gc 20261122-101500-3f2a --archive /mnt/archive
      sbpair replay gc 20261122-101500-3f2a --archive /mnt/archive --yes

    Exit codes: 0 deleted, or --dry-run; 4 not confirmed, or refused: the run is unfinished or not proved
    """
    screen = Screen(display)
    if dry_run and yes:
        raise UsageError("--dry-run and --yes exclude each other", hint="--yes deletes, --dry-run only prints")
    place = open_archive(archive, run_id)
    from sbpair.replay import gc

    planned = gc.plan_gc(place, unsent=include_unsent)
    what = f"{plural(planned.files, 'file')} of run {run_id}, {size(planned.bytes)}"
    unsent = ", including messages that were never sent" if include_unsent else ""
    deletes = planned.files > 0 and not dry_run and (yes or (screen.can_ask and screen.asks(f"Delete {what}{unsent}?")))
    if deletes:
        gc.remove_messages(place, planned)
    result = {"run": run_id, "removed": deletes, "files": planned.files, "bytes": planned.bytes, "kept": planned.kept}
    kept = f"; kept, since never sent: {plural(planned.kept, 'message')}" if planned.kept else ""
    screen.result(GC_SCHEMA, result, [f"{'deleted' if deletes else 'would delete'} {what}{kept}"])
    if planned.files and not deletes:
        command = next_command("replay gc", run_id, "--yes", without=["dry_run"])
        if not dry_run:
            raise not_confirmed("deleted", command)
        screen.say(f"nothing was deleted; delete them with {command}")
    return 0


COMMANDS = {"verify": verify_command, "status": status_command, "stop": stop_command, "gc": gc_command}


def table(proof: Mapping[str, Any]) -> Iterator[str]:
    """Yield the proof as text, the equation first."""
    yield f"run {proof['run']}"
    whole, rest = ("archived", "unsent") if proof["mode"] == "archive" else ("received", "in_doubt")
    yield (
        f"{whole} {proof[whole]} = "
        + " + ".join(f"{proof[bucket]} {bucket}" for bucket in BUCKETS)
        + (f" + {proof[rest]} {rest.replace('_', ' ')}" if proof[rest] else "")
    )
    yield from _counted("QUEUE", proof["queues"])
    yield from _counted("DESTINATION", {name: {"acknowledged": n} for name, n in proof["destinations"].items()})
    for reason, number in proof["reasons"].items():
        yield clean(f"{number} not sent: {reason}")
    if named := proof["doubtful"]:
        ids = [each["message_id"] or each["sequence_number"] for each in named]
        yield clean(f"possible duplicates: {proof['doubtful_total']} ({some(ids, more=proof['doubtful_total'] > 3)})")
    for queue, number in proof["remaining_in_queues"].items():
        yield clean(f"{number} remain in {queue}: locked by another receiver, or deferred")
    for path in proof["unreadable"]:
        yield f"{path} cannot be read: it would name possible duplicates"
    if proof["contradictions"] or proof["unknown"]:
        yield "the files contradict each other: please report this"


def _counted(heading: str, rows: Any) -> Iterator[str]:
    shown = {name: counts for name, counts in rows.items() if any(counts.values())}
    if shown:
        names = [name for name in next(iter(shown.values())) if any(counts[name] for counts in shown.values())]
        yield ""
        head = (heading, *(name.upper().replace("_", " ") for name in names))
        yield from columns([head, *((key, *(counts[name] for name in names)) for key, counts in shown.items())])
