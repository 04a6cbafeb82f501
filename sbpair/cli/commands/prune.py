"""`sbpair prune`: a plan, a question where somebody can answer it, and one call of `sbpair.management.pruning`."""

import sys
from typing import Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import Count, Display, Output, PairSelection, options
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render import queues
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError
from sbpair.model.pair import Pair
from sbpair.model.queues import ControlEvent, QueueProvisioned
from sbpair.model.report import Outcome

SCHEMA = "sbpair/prune/1"
LISTS = (Outcome.WOULD_REMOVE, Outcome.REMOVED, Outcome.KEPT, Outcome.GONE, Outcome.FAILED)


@options
def command(
    *,
    count: Count = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and do not ask")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove what may be removed, and do not ask")] = False,
    connection: PairSelection,
    display: Display,
) -> int:
    """Remove the backlog queues that nobody asked for, where they are empty.

    These are the queues under the primary's prefix with an index beyond the count, or with none. Without --yes this
    says what would be removed, and on a terminal asks; off a terminal it removes nothing. A queue that holds a message,
    be it active, dead-lettered, scheduled, deferred or on its way elsewhere, is always kept: bring back or receive its
    messages first. A queue is set SendDisabled, counted and looked into again before it is deleted, and gets its status
    back where a message has come meanwhile, or anything has failed.

    Needs the Manage and the Listen claim on the secondary namespace. Compare --count with what every client of the pair
    uses: one that still uses a queue would fail on it.

    There is no --via arm here: Azure Resource Manager changes a queue by a request that would make it anew where
    somebody has deleted it meanwhile.

    JSON, each entry with at least a name; "gone" are those that somebody else has removed meanwhile:

      {"schema": "sbpair/prune/1", "dry_run": true, "would_remove": [], "removed": [], "kept": [], "gone": [],
       "failed": []}

    Exit codes: 0 removed, or nothing to remove, or only planned; 3 some were kept or could not be removed; 4 none was
    removed, since every one of them holds messages.
    """
    if dry_run and yes:
        raise UsageError("--dry-run and --yes exclude each other", hint="--yes removes, --dry-run only says what")
    screen = Screen(display)
    pair = chosen(connection, screen, count=count)
    from sbpair.management import pruning

    if yes:
        return _remove(pair, screen, None)
    report = run(lambda _stop: pruning.prune(pair, on_event=lambda event: queues.progress(screen, event)))
    _show(screen, report, dry_run=True)
    planned = [item.name for item in report.of(Outcome.WOULD_REMOVE)]
    if not planned:
        return 0
    number = f"{len(planned)} queue{'s' if len(planned) != 1 else ''}"
    if not dry_run and _answers(screen) and screen.asks(f"Remove {number}?"):
        return _remove(pair, screen, planned)
    screen.say(f"nothing was removed: sbpair prune --yes removes {number}")
    return 0


def _remove(pair: Pair, screen: Screen, only: list[str] | None) -> int:
    from sbpair.management import pruning

    done: list[QueueProvisioned] = []

    def told(event: ControlEvent) -> None:
        queues.progress(screen, event)
        if isinstance(event, QueueProvisioned):
            done.append(event)

    try:
        report = run(lambda _stop: pruning.prune(pair, dry_run=False, only=only, on_event=told))
    except KeyboardInterrupt:
        for each in done:
            screen.warn(f"{each.path}: {each.outcome}, before this was interrupted")
        raise
    _show(screen, report, dry_run=False)
    if report.of(Outcome.KEPT):
        screen.say("what is kept holds messages: sbpair syphon --once brings them back, all but dead letters")
    return pruning.prune_exit_code(report)


def _show(screen: Screen, report: queues.QueueReport, *, dry_run: bool) -> None:
    document = queues.document(SCHEMA, report, LISTS) | {"dry_run": dry_run}
    screen.result(document, queues.lines(SCHEMA, report), queues.table(report, counted=True))
    if not report.items:
        screen.say("nothing to remove: there is no backlog queue that was not asked for")


def _answers(screen: Screen) -> bool:
    """Whether somebody is there who sees the plan and can answer."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return screen.output is Output.TABLE and all(stream is not None and stream.isatty() for stream in streams)
