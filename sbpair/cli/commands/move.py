"""`sbpair move`: the messages of any queue, subscription or dead-letter queue, to any queue or topic."""

from sbpair.cli.move_run import ALLOW_DUPLICATE_DETECTION, MoveTerms, run_move
from sbpair.cli.options import moves
from sbpair.cli.options.common import NAMESPACE, PairSelection, argument, flag, option
from sbpair.cli.options.reach import checked_ends, reach_of
from sbpair.cli.render.screen import Screen

USAGE = "[--once | --watch | --dry-run] [OPTIONS]"


def command(
    *,
    source: str = argument("SOURCE", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME"),
    destination: str = argument("DESTINATION", "[SIDE:]QUEUE or [SIDE:]TOPIC"),
    dead_letters: bool = flag("--dead-letters", "Move the dead letters of the source instead"),
    limit: int | None = option("--max -n N", "End after N messages were sent"),
    allow_duplicate_detection: bool = ALLOW_DUPLICATE_DETECTION,
    namespace: str | None = NAMESPACE,
    terms: MoveTerms,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Move messages from any queue or subscription to any queue or topic.

    No message is lost, some may arrive twice; refused ones stay. A dead letter's cause is removed. SIDE: primary,
    secondary, [namespaces.NAME]. Default: --once.

    Examples:
      sbpair move orders orders-repair --dead-letters --dry-run
      sbpair move events/subscriptions/audit archive:audit --max 100

    Exit codes: 3 some stayed; 4 another process moves this source; 130 interrupted

    See also: sbpair help move
    """
    terms.check_move(limit)
    where = moves.filter_of(screen, terms.where)
    reach = reach_of(connection, screen, namespace, state=terms.state)
    origin = reach.address(source, dead_letters=dead_letters, what="SOURCE")
    target = reach.address(destination, what="DESTINATION")
    spec, owner = checked_ends(
        reach,
        screen,
        "move",
        origin,
        target,
        allow_duplicate_detection=allow_duplicate_detection,
        allow_discard=terms.allow_discard,
    )
    return run_move(screen, owner, terms, ("move", source, destination), spec, where, limit)
