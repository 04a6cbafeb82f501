"""`sbpair peek`: runs `sbpair.message_io.peek` and prints the messages."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.options.common import PEEK_ALL, NamespaceSelection, Output, argument, flag, max_messages, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.selection import Selection
from sbpair.cli.progress.reporting import PeekProgress
from sbpair.cli.render.messages import print_peeked, shown_line, warn_of_hidden
from sbpair.cli.render.receipt import warn_of_failures
from sbpair.cli.render.screen import Screen
from sbpair.errors import ExitCode
from sbpair.model.document import DOCUMENTS, encoded
from sbpair.model.pair import Side
from sbpair.model.sequence_ranges import MAX_SEQUENCE

if TYPE_CHECKING:
    from sbpair.message_io.peek import Keep, PeekResult, PeekSource, Show
    from sbpair.model.pair import Ends
    from sbpair.model.sequence_ranges import SequenceRanges
    from sbpair.move.peek.peeker import PeekedMessage


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
    limit: int = option("--max -n N", "Number of messages at most, or all", default="10", parse=max_messages),
    body: bool = flag("--body", "Also print the bodies"),
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Show messages of any queue or subscription, and leave them there.

    Shows the next messages in order, scheduled and deferred ones included. Locks and removes nothing, and raises no
    delivery count. SIDE is primary, secondary or a name of [namespaces.NAME]. With --max all, -o jsonl prints bodies
    too, and a last line from which sbpair send sees that none is missing. Needs Listen.

    Examples:
      sbpair peek orders --max 3 --body
      sbpair peek 4 --dead-letters
      sbpair peek orders --max all -o jsonl > orders.jsonl

    Exit codes: 0 shown, even if there are none; 2 no such queue; 3 with --max all, not all; 5 no Listen claim

    See also: sbpair help message_io
    """
    where = chosen.filter(screen, peeks=True)
    source = reach_of(connection, screen).address(entity, side=side, state=chosen.state)
    from sbpair.cli.results.messages import PeekedMessages, PeekedTotal
    from sbpair.message_io.message_fields import body_of
    from sbpair.message_io.message_json import render_peeked
    from sbpair.message_io.peek import PeekSource, matching

    sources, keep = [PeekSource(source.side, source.path)], None if where is None else matching(where)
    numbers = chosen.sequence
    is_copy = limit == PEEK_ALL and screen.output is Output.JSONL
    copy = LineCopy(screen) if is_copy else None
    show = None if copy is None else copy.show
    result, total = peeked(
        source.alone, screen, sources, limit=limit, start=start, numbers=numbers, keep=keep, show=show
    )
    if copy is not None:
        copy.end(result)
    else:
        found = [each for _, each in result.messages]
        shown = [render_peeked(source.side, each, body_of(each.sections) if body else None) for each in found]
        place = (source.endpoint.name, source.side, source.path)
        print_peeked(screen, result, PeekedMessages(*place, PeekedTotal(total, result.complete), shown))
    warn_of_failures(screen, where)
    screen.say(shown_line(result, total, start=start, where=where is not None))
    return ExitCode.PARTIAL_OR_FINDINGS if limit == PEEK_ALL and not result.complete else 0


class LineCopy:
    """Prints messages as JSON Lines that `sbpair send` takes, as they come, and then their count and SHA-256."""

    def __init__(self, screen: Screen) -> None:
        self._screen, self._hash = screen, sha256()

    def show(self, source: "PeekSource", message: "PeekedMessage") -> None:
        from sbpair.cli.results.messages import PeekedMessages
        from sbpair.message_io.message_fields import body_of
        from sbpair.message_io.message_json import render_peeked

        line = encoded(render_peeked(source.side, message, body_of(message.sections)))
        text = json.dumps({"schema": DOCUMENTS[PeekedMessages].name, **line})
        if self._screen.query is not None:
            self._screen.write_value(json.loads(text))
            return
        self._hash.update(f"{text}\n".encode())
        self._screen.write(text)

    def end(self, result: "PeekResult") -> None:
        """Print the last line, unless a message hides others, or lines were changed by a query."""
        from sbpair.cli.results.messages import PeekEnd

        warn_of_hidden(self._screen, result)
        if result.complete and self._screen.query is None:
            self._screen.show_line(PeekEnd(result.count, self._hash.hexdigest()))


def peeked(
    ends: "Ends",
    screen: Screen,
    sources: "Sequence[PeekSource]",
    *,
    limit: int,
    start: int = 0,
    numbers: "SequenceRanges | None" = None,
    keep: "Keep | None" = None,
    show: "Show | None" = None,
) -> "tuple[PeekResult, int | None]":
    """Return peeked messages, and how many a single source has where that is known and not all were peeked."""
    from sbpair.message_io.peek import count_messages, endpoint_of, peek_messages

    async def main() -> "tuple[PeekResult, int | None]":
        first, last = (max(start, numbers.firsts[0]), numbers.lasts[-1]) if numbers else (start, MAX_SEQUENCE)
        result = await peek_messages(
            ends, sources, limit=limit, start=first, end=last, keep=keep, show=show, on_event=progress
        )
        if result.complete:
            return result, None if start or keep else result.count
        return result, await count_messages(ends, sources[0]) if len(sources) == 1 and keep is None else None

    with PeekProgress(screen) as progress:
        return run(main(), *{each.side: endpoint_of(ends, each) for each in sources}.values())
