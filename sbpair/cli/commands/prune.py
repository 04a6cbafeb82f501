"""`sbpair prune`: plans a deletion, asks for confirmation and deletes."""

import sys
from functools import partial

from sbpair.cli.command_loop import run
from sbpair.cli.next_command import next_command, not_confirmed
from sbpair.cli.options.common import COUNT, PairSelection, flag
from sbpair.cli.options.values import selected_pair
from sbpair.cli.render import queues
from sbpair.cli.render.screen import Screen, plural
from sbpair.management.calls import ControlEvent, QueueProvisioned
from sbpair.model.pair import Pair
from sbpair.model.report import Outcome

LISTS = (Outcome.WOULD_REMOVE, Outcome.REMOVED, Outcome.KEPT, Outcome.GONE, Outcome.FAILED)


def command(
    *,
    count: int | None = COUNT,
    dry_run: bool = flag("--dry-run", "Only print the queues that would be deleted", excludes="--yes"),
    yes: bool = flag("--yes -y", "Delete without asking"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Delete empty backlog queues beyond --count.

    A queue that holds any message is kept. Each queue is set SendDisabled and counted again before it is deleted. Make
    sure that no client of the pair uses a higher count. Needs Manage and Listen on the secondary namespace.

    Examples:
      sbpair prune --count 5 --dry-run
      sbpair prune --count 5 --yes

    Exit codes: 0 deleted, or --dry-run; 3 some were kept; 4 not confirmed, or all were kept, since they hold
    messages

    See also: sbpair help management
    """
    pair = selected_pair(connection, screen, count=count)
    from sbpair.management import pruning

    if yes:
        return _remove(pair, screen, None)
    report = run(pruning.prune(pair, on_event=partial(queues.progress, screen)))
    _show(screen, report, dry_run=True)
    planned = [item.name for item in report.of(Outcome.WOULD_REMOVE)]
    if not planned:
        return 0
    number = plural(len(planned), "queue")
    command = next_command("prune", "--yes", without=["dry_run"])
    if dry_run:
        screen.say(f"nothing was deleted; delete {number} with {command}")
        return 0
    can_ask = screen.can_ask and sys.stdout is not None and sys.stdout.isatty()
    if can_ask and screen.asks(f"Delete {number}?"):
        return _remove(pair, screen, planned)
    raise not_confirmed("deleted", command)


def _remove(pair: Pair, screen: Screen, only: list[str] | None) -> int:
    from sbpair.management import pruning

    done: list[QueueProvisioned] = []

    def on_event(event: ControlEvent) -> None:
        queues.progress(screen, event)
        if isinstance(event, QueueProvisioned):
            done.append(event)

    try:
        report = run(pruning.prune(pair, dry_run=False, only=only, on_event=on_event))
    except KeyboardInterrupt:
        for each in done:
            screen.warn(f"{each.path}: {each.outcome}, before the interruption")
        raise
    _show(screen, report, dry_run=False)
    if report.of(Outcome.KEPT):
        screen.say(f"kept queues hold messages: move all but dead letters with {next_command('syphon', '--once')}")
    return pruning.prune_exit_code(report)


def _show(screen: Screen, report: queues.QueueReport, *, dry_run: bool) -> None:
    document = queues.document(report, LISTS, queues.entry) | {"dry_run": dry_run}
    screen.result("sbpair/prune/1", document, queues.table(report, counted=True), queues.lines(report, queues.entry))
    if not report.items:
        screen.say("nothing to delete: no backlog queue beyond --count")
