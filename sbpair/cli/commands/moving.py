"""`sbpair syphon`, `move` and `redrive`: their options into what is moved, and between which ends."""

from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.cli.command_loop import run
from sbpair.cli.completion import backlog_queues
from sbpair.cli.move_run import run_move
from sbpair.cli.next_command import next_command
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, NamespaceSelection, PairSelection, argument, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import MoveTerms
from sbpair.cli.options.values import selected_profile
from sbpair.cli.render.receipt import warn_of_failures
from sbpair.cli.render.screen import Screen, spoken
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError
from sbpair.model.entities import subscription_of
from sbpair.model.pair import Ends
from sbpair.move.context import MAX_MISSING
from sbpair.runs.database import StateOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.move.filter import MessageFilter
    from sbpair.syphon.move_spec import EntityAddress, MoveSpec

_ONE_MODE = "[--once | --watch | --dry-run] [OPTIONS]"
USAGE = {"syphon": "(--once | --watch | --dry-run) [OPTIONS]", "move": _ONE_MODE, "redrive": _ONE_MODE}
MAX_PEEK = 1_000


def syphon_command(
    *,
    terms: MoveTerms,
    count: int | None = COUNT,
    max_held: int = option("--max-held N", "Held per queue if destinations fail", default=1000, at_least=1),
    no_reconnect: bool = flag("--no-reconnect", "Exit 6 on a lost connection instead of reconnecting"),
    max_missing: int = option(
        "--max-missing N", "Dead letters of each missing destination", default=MAX_MISSING, at_least=0
    ),
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
    mode = terms.checked_mode()
    where = moves.filter_of(screen, terms.where)
    profile = selected_profile(connection, screen, count=count, state=terms.state)
    owner = StateOwner(profile.pair, profile.state_directory)
    options = terms.move_options(
        where=where,
        max_missing=max_missing,
        allow_missing=allow_missing,
        max_held=max_held,
        reconnect=not no_reconnect,
    )
    return run_move(screen, None, owner, terms, mode, options)


def move_command(
    *,
    source: str = argument("SOURCE", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME"),
    destination: str = argument("DESTINATION", "[SIDE:]QUEUE or [SIDE:]TOPIC"),
    dead_letters: bool = flag("--dead-letters", "Move the dead letters of the source instead"),
    limit: int | None = option("--max -n N", "End after N messages were sent", at_least=1),
    allow_duplicate_detection: bool = moves.ALLOW_DUPLICATE_DETECTION,
    terms: MoveTerms,
    connection: NamespaceSelection,
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
    mode = terms.checked_mode("--once", limit)
    where = moves.filter_of(screen, terms.where)
    reach = reach_of(connection, screen, state=terms.state)
    origin = reach.address(source, dead_letters=dead_letters, what="SOURCE")
    target = reach.address(destination, what="DESTINATION")
    command = ("move", source, destination)
    ends = _checked_ends(reach, screen, command[0], origin, target, allow_duplicate_detection, terms.allow_discard)
    return run_move(screen, *ends, terms, mode, terms.move_options(where=where, max_missing=0), command, limit)


def redrive_command(
    *,
    entity: str | None = argument(
        "[ENTITY]",
        "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME; or --backlog",
        default=None,
        complete=backlog_queues,
    ),
    all_backlog: bool = flag(
        "--backlog",
        "Move those of all backlog queues",
        excludes=("ENTITY", "--namespace", "--by-reason", "--all-subscriptions"),
        why="leave one of them out; sbpair deadletters list counts those of all backlog queues",
    ),
    count: int | None = option("--count N", "Number of those queues, without Manage", needs="--backlog"),
    by_reason: bool = flag(
        "--by-reason",
        "Move nothing; count the dead letters by reason",
        excludes=("--once", "--watch", "--dry-run", "--ramp", "--canary"),
    ),
    reason: list[str] | None = option("--reason TEXT", "Only dead letters with this reason; repeatable"),
    all_subscriptions: bool = flag("--all-subscriptions", "Send a subscription's to its topic: all get them"),
    allow_duplicate_detection: bool = moves.ALLOW_DUPLICATE_DETECTION,
    limit: int | None = option("--max -n N", "Send N at most; with --by-reason, peek N at most", at_least=1),
    terms: MoveTerms,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Move the dead letters of an entity back to where they came from.

    Those of backlog queues go to the primary, where their aliases say; refused ones stay. SIDE: primary, secondary,
    [namespaces.NAME]. Default: --once.

    Examples:
      sbpair redrive orders --by-reason
      sbpair redrive --backlog --reason DestinationNotFound

    Exit codes: 3 some stayed; 4 another process moves this source; 130 interrupted

    See also: sbpair help move
    """
    mode = terms.checked_mode("--once", limit)
    if not all_backlog and entity is None:
        raise UsageError("expected ENTITY or --backlog", hint="--backlog moves the dead letters of all backlog queues")
    if all_backlog and terms.watch and limit is not None:
        why = "--max takes one queue after the other: use --once, or redrive one queue"
        raise UsageError("--max and --watch exclude each other with --backlog", hint=why)
    where = moves.filter_of(screen, terms.where, frozenset(map(_reason, reason or ())))
    reach = reach_of(connection, screen, count=count, state=terms.state)
    options = terms.move_options(where=where, max_missing=0)
    if entity is None:
        return run_move(screen, *_backlog_dead_letters(reach), terms, mode, options, ("redrive",), limit)
    source = reach.address(entity, dead_letters=True, what="ENTITY")
    if by_reason:
        return _print_reasons(screen, entity, source, limit or MAX_PEEK, where)
    target = _origin(reach, source, terms.where, reason or (), all_subscriptions=all_subscriptions)
    ends = _checked_ends(reach, screen, "redrive", source, target, allow_duplicate_detection, terms.allow_discard)
    return run_move(screen, *ends, terms, mode, options, ("redrive", entity), limit)


def _reason(text: str) -> str:
    """Return a reason that --by-reason shows; "" for dead letters without one."""
    from sbpair.cli.render.messages import NO_REASON

    if not text.strip():
        raise UsageError("--reason is empty", hint=f"--by-reason shows the reasons; {NO_REASON} is one, too")
    return "" if text.lower() == NO_REASON else text


def _filter_text(where: str | None, reasons: "Sequence[str]") -> str:
    """Return --where and --reason as one filter for `sbpair move`, which has no --reason; "" without them."""
    names = dict.fromkeys(map(_reason, reasons))
    quoted = ["'{}'".format(each.replace("'", "''")) for each in names if each]
    conditions = [f"reason = {quoted[0]}" if len(quoted) == 1 else f"reason IN ({', '.join(quoted)})"] if quoted else []
    if "" in names:
        conditions += ["reason IS NULL", "reason = ''"]
    chosen = " OR ".join(conditions)
    if where is None or not chosen:
        return where or chosen
    return f"({where}) AND ({chosen})"


def _origin(
    reach: "Reach", source: "EntityAddress", where: str | None, reasons: "Sequence[str]", *, all_subscriptions: bool
) -> "EntityAddress | None":
    """Return where dead letters came from; None for those of a backlog queue, whose aliases name it.

    `where` and `reasons` choose dead letters: a refusal proposes a command that moves the same ones.
    """
    subscription = subscription_of(source.parent)
    if all_subscriptions and subscription is None:
        raise UsageError("--all-subscriptions is for a subscription", hint=f"leave it out: {source.parent} is none")
    if subscription is None:
        is_backlog = source.side == "secondary" and backlog.under_prefix(reach.pair.primary.name, source.parent)
        return None if is_backlog else source._replace(path=source.parent)
    if not all_subscriptions:
        chosen, case = _filter_text(where, reasons), " (its filter compares reasons by case)" if reasons else ""
        move = next_command("move", source, "QUEUE", *(("--where", chosen) if chosen else ()))
        raise UsageError(
            f"{source.parent} takes no messages: its topic gives them to every subscription",
            hint=f"add --all-subscriptions to send them to the topic; or move them to a queue{case}: {move}",
        )
    return source._replace(path=subscription.topic)


def _print_reasons(
    screen: Screen, entity: str, source: "EntityAddress", limit: int, where: "MessageFilter | None"
) -> int:
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render.messages import cells, print_groups, say_number
    from sbpair.message_io.peek import PeekSource, count_dead_letters, matching

    sources, keep = [PeekSource(source.side, source.path)], None if where is None else matching(where)
    with PeekProgress(screen) as progress:
        groups = run(count_dead_letters(source.alone, sources, limit=limit, keep=keep, on_event=progress))
    groups.sort(key=lambda group: -group.messages)
    rows = [(*shown, each.destination or "") for each, *shown in cells(groups)]
    table = columns([("REASON", "DEAD", "OLDEST", "DESTINATION"), *rows], optional=("DESTINATION",)) if rows else []
    print_groups(screen, "sbpair/redrive-reasons/1", {"entity": source.path}, groups, table, without="queue")
    warn_of_failures(screen, where)
    way = next_command("redrive", entity, without={"by_reason", "limit"})
    say_number(screen, groups, f"send them back with {way}", chosen=where is not None)
    return 0


def _checked_ends(
    reach: "Reach",
    screen: Screen,
    command: str,
    source: "EntityAddress",
    destination: "EntityAddress | None",
    allow_duplicate_detection: bool,
    allow_discard: bool,
) -> "tuple[MoveSpec, StateOwner]":
    """Check both ends of a move before anything is received. Return what it moves, and whose run it is.

    Without a destination, the source has dead letters of a backlog queue, whose aliases name their destinations.
    """
    from sbpair.azure.credentials import token_getter
    from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, kept_for
    from sbpair.syphon.move_spec import CheckedEnds, MoveSpec, check_ends, check_names

    if destination is not None:
        check_names(source, destination)
        _warn_without_aliases(screen, source, destination)
    owner = reach.owner(source, *([destination] if destination else []))
    primary = owner.ends.primary if destination is None else destination.endpoint
    ends = Ends(owner.ends.name, primary, source.endpoint)

    async def check() -> CheckedEnds:
        async with token_getter(ends) as get_token:
            return await check_ends(source, destination, get_token, allow_discard=allow_discard)

    found, window_ms = run(check()), 0
    if destination is not None and found.duplicate_window_ms != 0 and not allow_duplicate_detection:
        window_ms = _duplicate_window(screen, source, destination, found.duplicate_window_ms)
    returns = command == "redrive" or destination is None
    line = f"{command} {source._replace(path=source.parent)}" if returns else f"{command} {source} {destination}"
    return MoveSpec(
        ends,
        line,
        BACKLOG_DEAD_LETTERS if destination is None else kept_for(destination.path),
        source.path,
        sessions=found.sessions,
        keeps_refused=True,
        duplicate_window_ms=window_ms,
        names=(str(source), str(destination or primary.name)),
    ), owner


def _backlog_dead_letters(reach: "Reach") -> "tuple[MoveSpec, StateOwner]":
    """Return a move of the dead letters of all backlog queues to where their aliases say, and whose run it is."""
    from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
    from sbpair.syphon.move_spec import MoveSpec

    return MoveSpec(reach.pair, "redrive --backlog", BACKLOG_DEAD_LETTERS, keeps_refused=True), reach.owner()


def _warn_without_aliases(screen: Screen, source: "EntityAddress", destination: "EntityAddress") -> None:
    """Warn of a backlog queue as destination of other messages than stranded ones."""
    from_backlog, to_backlog = (
        backlog.TRANSFER_SEGMENT in each.path.lower().split("/") for each in (source, destination)
    )
    if to_backlog and not from_backlog:
        screen.warn(f"{destination.path} is a backlog queue: the syphon dead-letters messages without aliases there")


def _duplicate_window(
    screen: Screen, source: "EntityAddress", destination: "EntityAddress", window_ms: int | None
) -> int:
    """Warn of a destination that detects duplicates. Return how long messages wait that it has accepted before."""
    subscription = subscription_of(source.parent)
    before = source._replace(path=subscription.topic if subscription else source.parent)
    returns = source.is_dead_letters and destination.equals(before)
    name = destination.path
    if window_ms is None:
        if returns:
            screen.warn(f"{name} drops these messages if it detects duplicates, which only the Manage claim shows")
        return 0
    seconds = spoken(window_ms / 1000)
    if returns:
        screen.warn(
            f"{name} detects duplicates: messages enqueued within {seconds} stay, since it would drop them;"
            " --allow-duplicate-detection moves them all the same"
        )
        return window_ms
    screen.warn(f"{name} detects duplicates: it drops a message whose id it has accepted within {seconds}")
    return 0
