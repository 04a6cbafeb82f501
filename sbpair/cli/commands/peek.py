"""`sbpair peek`: runs `sbpair.message_io.peek` and prints the messages."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.options.common import NamespaceSelection, argument, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.selection import Selection
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.messages import print_peeked, shown_line
from sbpair.cli.render.receipt import warn_of_failures
from sbpair.cli.render.screen import Screen
from sbpair.model.pair import Side
from sbpair.model.sequence_ranges import MAX_SEQUENCE

if TYPE_CHECKING:
    from sbpair.message_io.peek import Keep, PeekResult, PeekSource
    from sbpair.model.pair import Ends
    from sbpair.model.sequence_ranges import SequenceRanges


def command(
    *,
    entity: str = argument(
        "QUEUE", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME; a number is a backlog queue", complete=backlog_queues
    ),
    side: Side | None = option(
        "--side SIDE", "primary or secondary [default: primary; backlog queues: secondary]", excludes="--namespace"
    ),
    chosen: Selection,
    start: int = option(
        "--from SEQUENCE", "First sequence number to show", default=0, at_least=0, at_most=MAX_SEQUENCE
    ),
    limit: int = option("--max -n N", "Number of messages at most", default=10, at_least=1),
    body: bool = flag("--body", "Also print the bodies"),
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Show messages of any queue or subscription, and leave them there.

    Shows the next messages in order, scheduled and deferred ones included. Locks and removes nothing, and raises no
    delivery count. SIDE is primary, secondary or a name of [namespaces.NAME]. Needs Listen.

    Examples:
      sbpair peek orders --max 3 --body
      sbpair peek 4 --dead-letters
      sbpair peek events/subscriptions/audit --where "sys.Subject = 'paid'" -o jsonl

    Exit codes: 0 shown, even if there are none; 2 no such queue; 5 no Listen claim

    See also: sbpair deadletters --help
    """
    where = chosen.filter(screen, peeks=True)
    source = reach_of(connection, screen).address(entity, side=side, state=chosen.state)
    from sbpair.cli.results.messages import PeekedMessages, PeekedTotal
    from sbpair.message_io.message_fields import body_of
    from sbpair.message_io.message_json import render_peeked
    from sbpair.message_io.peek import PeekSource, matching

    sources, keep = [PeekSource(source.side, source.path)], None if where is None else matching(where)
    numbers = chosen.sequence
    result, total = peeked(source.alone, screen, sources, limit=limit, start=start, numbers=numbers, keep=keep)
    shown = [render_peeked(source.side, each, body_of(each.sections) if body else None) for _, each in result.messages]
    place = (source.endpoint.name, source.side, source.path)
    print_peeked(screen, result, PeekedMessages(*place, PeekedTotal(total, result.complete), shown))
    warn_of_failures(screen, where)
    screen.say(shown_line(result, total, start=start, where=where is not None))
    return 0


def peeked(
    ends: "Ends",
    screen: Screen,
    sources: "Sequence[PeekSource]",
    *,
    limit: int,
    start: int = 0,
    numbers: "SequenceRanges | None" = None,
    keep: "Keep | None" = None,
) -> "tuple[PeekResult, int | None]":
    """Return peeked messages, and how many a single source has where that is known and not all were peeked."""
    from sbpair.message_io.peek import count_messages, endpoint_of, peek_messages

    async def main() -> "tuple[PeekResult, int | None]":
        first, last = (max(start, numbers.firsts[0]), numbers.lasts[-1]) if numbers else (start, MAX_SEQUENCE)
        result = await peek_messages(ends, sources, limit=limit, start=first, end=last, keep=keep, on_event=progress)
        if result.complete:
            return result, None if start or keep else len(result.messages)
        return result, await count_messages(ends, sources[0]) if len(sources) == 1 and keep is None else None

    with PeekProgress(screen) as progress:
        return run(main(), *{each.side: endpoint_of(ends, each) for each in sources}.values())
