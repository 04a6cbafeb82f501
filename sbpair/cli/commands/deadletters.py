"""`sbpair deadletters list` and `show`: print the dead letters of the backlog queues."""

from collections.abc import Sequence

from sbpair.cli.command_loop import run
from sbpair.cli.commands.peek import peeked
from sbpair.cli.next_command import created_first, next_command, way_back
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, MAX_PEEK, PairSelection, option
from sbpair.cli.options.values import selected_pair
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.messages import cells, print_peeked, say_number, shown_line
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import limited
from sbpair.model.message_state import dead_letter_path, parent_path
from sbpair.move.message.dead_letters import cause_in

ROWS_SHOWN = 100


def group() -> None:
    """Show the dead letters of the backlog queues and their reasons.

    They stay where they are; sbpair redrive --backlog brings them back. Those of any other queue are shown by
    sbpair redrive QUEUE --by-reason and sbpair peek QUEUE --dead-letters.

    Examples:
      sbpair deadletters list
      sbpair deadletters show --queue 4 --reason DestinationNotFound
    """


def list_groups(
    *,
    queue: list[str] | None = moves.QUEUES,
    limit: int = option("--max N", "Peek N in each queue; -n is --count", default=MAX_PEEK, at_least=1),
    count: int | None = COUNT,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Count dead letters by backlog queue, reason and destination.

    A count with ~ is at least so many, since its queue has more than --max. Locks and removes nothing. Needs Listen on
    the secondary, and Manage to find queues beyond --count.

    Examples:
      sbpair deadletters list
      sbpair deadletters list --max 100000 -o json

    Exit codes: 0 listed, even if there are none; 5 no Listen claim

    See also: sbpair help runbook
    """
    pair = selected_pair(connection, screen, count=count)
    from sbpair.cli.results.messages import dead_letter_list
    from sbpair.message_io.peek import PeekSource, count_dead_letters

    sources = [PeekSource("secondary", dead_letter_path(each)) for each in moves.backlog_paths(pair, queue)]
    with PeekProgress(screen) as progress:
        groups = run(count_dead_letters(pair.ends, sources, limit=limit, on_event=progress), pair.secondary)
    rows = [
        (each.queue, dead, oldest, each.destination or "(unknown)", reason)
        for each, reason, dead, oldest in cells(groups)
    ]
    table = limited([("QUEUE", "DEAD", "OLDEST", "DESTINATION", "REASON"), *rows], ROWS_SHOWN) if rows else []
    screen.show(dead_letter_list(groups), table)
    way = _way_back(queue, sum(each.messages for each in groups), [each.reason for each in groups])
    say_number(screen, groups, way)
    return 0


def show_messages(
    *,
    queue: list[str] | None = moves.QUEUES,
    reason: str | None = option("--reason REASON", "Only dead letters with this reason"),
    limit: int = option("--max N", "Number of messages; -n is --count", default=10, at_least=1),
    count: int | None = COUNT,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show dead letters of the backlog queues with reason and destination.

    Locks and removes nothing. sbpair peek QUEUE --dead-letters --body also prints the bodies. Needs Listen on the
    secondary, and Manage to find queues beyond --count.

    Examples:
      sbpair deadletters show
      sbpair deadletters show --reason DestinationNotFound --max 100 -o jsonl

    Exit codes: 0 shown, even if there are none; 5 no Listen claim

    See also: sbpair help runbook
    """
    pair = selected_pair(connection, screen, count=count)
    from sbpair.cli.results.messages import DeadLetterMessage, PeekedTotal, ShownDeadLetters
    from sbpair.message_io.message_json import render_peeked
    from sbpair.message_io.peek import PeekSource, matching
    from sbpair.move.filter import MessageFilter

    sources = [PeekSource("secondary", dead_letter_path(each)) for each in moves.backlog_paths(pair, queue)]
    keep = None if reason is None else matching(MessageFilter("", reasons=(reason,)))
    result, total = peeked(pair.ends, screen, sources, limit=limit, keep=keep)
    shown = [
        DeadLetterMessage(parent_path(source.path), render_peeked(source.side, message, None))
        for source, message in result.messages
    ]
    print_peeked(screen, result, ShownDeadLetters(PeekedTotal(total, result.complete), shown))
    screen.say(shown_line(result, total))
    if result.messages:
        reasons = [cause_in(message.sections).reason for _, message in result.messages]
        screen.say(_way_back(queue, total or len(result.messages), reasons))
    return 0


SUBCOMMANDS = {"list": list_groups, "show": show_messages}


def _way_back(queues: list[str] | None, dead_letters: int, reasons: "Sequence[str | None]") -> str:
    """Return how to bring back the dead letters of the selected queues, or of all."""
    ways = [next_command("redrive", each, without=("count", "limit")) for each in queues or ()]
    ways = ways or [way_back(dead_letters)]
    return f"{created_first(reasons)}bring dead letters back with {', then with '.join(ways)}"
