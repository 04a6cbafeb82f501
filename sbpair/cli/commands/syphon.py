"""`sbpair syphon`: options into a move of the backlog queues."""

import math

from sbpair.cli.move_run import MoveTerms, move_messages, preview_move
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, PairSelection, flag, option
from sbpair.cli.options.values import check_at_least, check_goes_with, selected_profile
from sbpair.cli.render.screen import Screen
from sbpair.move.missing_destinations import MAX_MISSING

USAGE = "(--once | --watch | --dry-run) [OPTIONS]"


def command(
    *,
    terms: MoveTerms,
    count: int | None = COUNT,
    max_held: int = option("--max-held N", "Held per queue if destinations fail", default=1000),
    no_reconnect: bool = flag("--no-reconnect", "Exit 6 on a lost connection instead of reconnecting"),
    max_missing: int = option("--max-missing N", "Dead letters of each missing destination", default=MAX_MISSING),
    allow_missing: bool = flag("--allow-missing", "Dead-letter every message of missing destinations"),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Move stranded messages from the backlog queues back to the primary.

    A message is completed in the backlog only after the primary accepts it: it may arrive twice, but is never lost.
    Of a missing queue or topic the first --max-missing messages are dead-lettered; the others stay in the backlog.
    --once waits for messages that others have locked.
    Interrupt once to finish sends in flight, twice to stop at once.

    Examples:
      sbpair syphon --dry-run
      sbpair syphon --once --where "path = 'orders' AND age < '1h'"

    Exit codes: 3 some stayed; 4 another process moves this pair; 130 interrupted

    See also: sbpair help syphon
    """
    mode = terms.mode()
    check_at_least("--max-held", max_held, 1, "the default is 1000")
    check_at_least("--max-missing", max_missing, 0, f"the default is {MAX_MISSING}")
    check_goes_with("--where", terms.where is not None, {"--max-skipped": terms.max_skipped})
    terms.check_limits()
    terms.ramp_plan()
    terms.health_address()
    where = moves.filter_of(screen, terms.where)
    found = selected_profile(connection, screen, count=count, state=terms.state)
    if mode == "--dry-run":
        from sbpair.cli.render.forecast import SYPHON

        limit = math.inf if allow_missing else max_missing
        return preview_move(screen, found.pair, terms, SYPHON, where=where, max_missing=limit)
    return move_messages(
        screen,
        found.pair,
        found.state_directory,
        terms,
        mode,
        where=where,
        max_missing=max_missing,
        allow_missing=allow_missing,
        max_held=max_held,
        reconnect=not no_reconnect,
    )
