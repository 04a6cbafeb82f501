"""`sbpair syphon`, `move` and `redrive`: the ends of a move, its options, and its forecast."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sbpair import backlog
from sbpair.cli.command_loop import run, suggest_entities
from sbpair.cli.commands.supervised_moves import PairMove, run_all, run_move
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import next_command
from sbpair.cli.options import moves
from sbpair.cli.options.common import (
    COUNT,
    MAX_PEEK,
    NamespaceSelection,
    PairSelection,
    argument,
    flag,
    max_messages,
    option,
    run_limit,
)
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import MoveTerms, NewDestinations
from sbpair.cli.options.rules import exclude
from sbpair.cli.options.selection import WHERE, ChosenMessages, Selection
from sbpair.cli.options.values import ALL_PAIRS, all_profiles
from sbpair.cli.render.receipt import SYPHON, MoveWording, warn_of_failures
from sbpair.cli.render.screen import Screen, spoken
from sbpair.cli.render.table import columns
from sbpair.errors import AccessError, EntityMissing, ExitCode, SbpairError, Unsafe, UsageError
from sbpair.model.entities import subscription_of
from sbpair.model.message_state import ASIDE, MessageState
from sbpair.model.pair import Ends
from sbpair.move.context import MAX_MISSING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from sbpair.amqp_client.client import GetToken
    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.config import Profile
    from sbpair.model.pair import Endpoint, Pair
    from sbpair.move.filter import MessageFilter
    from sbpair.syphon.move_ends import CheckedEnds, EntityAddress
    from sbpair.syphon.run_request import RunRequest

Checked = TypeVar("Checked")

REFUSED_STAY: "dict[str, Any]" = {"keeps_refused": True, "max_missing": 0}
"""The settings of moves that dead-letter nothing."""

AFTER_WINDOW_MS = 3_600_000
"""How long a destination may know an id after its window, at most: `duplicate_window_end` in ASSUMPTIONS.md."""

BY_SOURCE = "redrive --to-source"
DROP_DEFAULT = "drop-default"
_ONE_MODE = "[--once | --watch | --dry-run] [OPTIONS]"
USAGE = {"syphon": "(--once | --watch | --dry-run) [OPTIONS]", "move": _ONE_MODE, "redrive": _ONE_MODE}


def syphon_command(
    *,
    terms: MoveTerms,
    delivery: NewDestinations,
    count: int | None = COUNT,
    max_held: int = option("--max-held N", "Held per queue if destinations fail", default=1000, at_least=1),
    no_reconnect: bool = flag("--no-reconnect", "Exit 6 on a lost connection instead of reconnecting"),
    max_missing: int = option(
        "--max-missing N",
        "Dead letters of each missing destination",
        default=MAX_MISSING,
        at_least=0,
        excludes="--allow-missing",
    ),
    allow_missing: bool = flag("--allow-missing", "Dead-letter every message of missing destinations"),
    where: str | None = WHERE,
    all_pairs: bool = ALL_PAIRS,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Move stranded messages from the backlog queues back to the primary.

    A message is completed in the backlog only after the primary accepts it: it may arrive twice, but is never lost.
    If the primary is lost, --to secondary delivers there.
    Of a missing queue or topic a run dead-letters --max-missing messages, its printed continuation none.
    Ctrl-C once finishes sends, twice stops at once.

    Examples:
      sbpair syphon --dry-run
      sbpair syphon --once --where "path = 'orders' AND age < '1h'"
      sbpair syphon --once --to secondary --map orders=orders-v2

    Exit codes: 3 some stayed; 4 another process moves this pair; 130 interrupted

    See also: sbpair help syphon
    """
    from sbpair.syphon.run_request import syphon_request

    mode = terms.checked_mode()
    _refuse_default_ttl(terms)
    settings = terms.settings(ChosenMessages(where=where).filter(screen))

    def request_of(pair: "Pair", **routes: Any) -> "RunRequest":
        return syphon_request(
            pair,
            preview=mode == "--dry-run",
            max_missing=max_missing,
            allow_missing=allow_missing,
            max_held=max_held,
            reconnect=not no_reconnect,
            **routes,
            **settings,
        )

    def begin(profile: "Profile | SbpairError") -> "tuple[RunRequest, Path]":
        if isinstance(profile, SbpairError):
            raise profile
        return request_of(profile.pair), profile.state_directory

    if all_pairs:
        profiles = all_profiles(connection, screen)
        return run_all(screen, [PairMove(name, partial(begin, each)) for name, each in profiles.items()], terms, mode)
    reach = reach_of(connection, screen, count=count, state=terms.state)
    request = request_of(reach.pair, **delivery.settings(reach))
    code = _run_move(screen, request, terms, mode, reach.owner().directory, SYPHON)
    if request.to and request.once and reach.pair.when_lost == "hold" and not terms.dry_run:
        screen.say("next: each application sends there again once it calls release(entity) of its client")
    return code


def move_command(
    *,
    source: str = argument("SOURCE", "[SIDE:]QUEUE or [SIDE:]TOPIC/subscriptions/NAME"),
    destination: str = argument("DESTINATION", "[SIDE:]QUEUE or [SIDE:]TOPIC"),
    chosen: Selection,
    limit: int | None = option("--max -n N", "End after N were sent [default: all]", parse=max_messages),
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
    if chosen.state in ASIDE and (terms.watch or terms.ramp_plan()):
        other = "--watch" if terms.watch else "--ramp"
        raise exclude(f"--messages {chosen.state}", other, f"leave {other} out: a run takes those that are there now")
    settings = terms.settings(chosen.filter(screen), limit)
    reach = reach_of(connection, screen, state=terms.state)
    origin = reach.address(source, state=chosen.state, what="SOURCE")
    target = reach.address(destination, what="DESTINATION")
    command = ("move", source, destination)
    request, state = _checked_request(
        reach, screen, command[0], origin, target, allow_duplicate_detection, settings, preview=terms.dry_run
    )
    return _run_move(screen, request, terms, mode, state, _wording(request, command))


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
        "Of all backlog queues (--count N), where aliases say",
        excludes=(
            "ENTITY",
            "--namespace",
            "--by-reason",
            "--all-subscriptions",
            "--messages",
            "--sequence",
            "--to-source",
        ),
        why="leave one of them out; count those of all backlog queues with sbpair deadletters list",
    ),
    count: int | None = option("--count N", "Number of those queues, without Manage", needs="--backlog", hidden=True),
    to_source: bool = flag(
        "--to-source",
        "Of a collector of dead letters: back to where each died",
        excludes=("--watch", "--to", "--map"),
        why="it looks up where the messages go that are there when it begins",
    ),
    by_reason: bool = flag(
        "--by-reason",
        "Move nothing; count the dead letters by reason",
        excludes=("--once", "--watch", "--dry-run", "--ramp", "--canary"),
    ),
    chosen: ChosenMessages,
    reason: list[str] | None = option("--reason TEXT", "Only dead letters with this reason; repeatable"),
    all_subscriptions: bool = flag("--all-subscriptions", "Send a subscription's to its topic: all get them"),
    allow_duplicate_detection: bool = moves.ALLOW_DUPLICATE_DETECTION,
    limit: int | None = option("--max -n N", "Send, or with --by-reason peek, N at most, or all", parse=max_messages),
    terms: MoveTerms,
    delivery: NewDestinations,
    connection: NamespaceSelection,
    screen: Screen,
) -> int:
    """Move the dead letters of an entity back to where they came from.

    Examples:
      sbpair redrive orders --reason Timeout --dry-run
      sbpair redrive errors --to-source

    Exit codes: 3 some stayed; 4 order not kept, or another mover; 130 interrupted

    See also: sbpair help move
    """
    from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
    from sbpair.syphon.run_request import syphon_request

    mode = terms.checked_mode("--once", limit)
    if not all_backlog and entity is None:
        raise UsageError("expected ENTITY or --backlog", hint="--backlog moves the dead letters of all backlog queues")
    if all_backlog and terms.watch and run_limit(limit) is not None:
        why = "--max takes one queue after the other: use --once, or redrive one queue"
        raise UsageError("--max and --watch exclude each other with --backlog", hint=why)
    settings = terms.settings(chosen.filter(screen, frozenset(map(_reason, reason or ()))), limit)
    reach = reach_of(connection, screen, count=count, state=terms.state)
    if entity is None:
        _refuse_default_ttl(terms)
        to_aliases = {"command": "redrive --backlog", "form": BACKLOG_DEAD_LETTERS, **REFUSED_STAY}
        routes = delivery.settings(reach)
        request = syphon_request(reach.pair, preview=terms.dry_run, **to_aliases, **routes, **settings)
        request = _in_order(screen, request, preview=terms.dry_run)
        return _run_move(screen, request, terms, mode, reach.owner().directory, _wording(request, ("redrive",)))
    source = reach.address(entity, state=chosen.state, what="ENTITY")
    if source.state == MessageState.ACTIVE and chosen.state is None and not to_source:
        source = source.in_state(MessageState.DEAD)
    if not source.is_dead_letters and not (to_source and source.state == MessageState.ACTIVE):
        other = next_command("move", entity, "QUEUE")
        raise UsageError(
            f"redrive sends dead letters back, not {source.state} messages",
            hint=f"move them with {other}; --to-source sends those back that {source.parent} collects",
        )
    if by_reason:
        return _print_reasons(screen, entity, source, limit or MAX_PEEK, settings["where"])
    target = (
        None if to_source else _origin(reach, source, chosen.where, reason or (), all_subscriptions=all_subscriptions)
    )
    routes = delivery.settings(reach)
    if target is not None and (delivery.to or delivery.renamed):
        hint = f"leave them out, or name the destination: {next_command('move', entity, 'QUEUE', '--dead-letters')}"
        raise UsageError("--to and --map are for dead letters of backlog queues", hint=hint)
    settings |= {"renames": routes["renames"]}
    request, state = _checked_request(
        reach,
        screen,
        BY_SOURCE if to_source else "redrive",
        source,
        target,
        allow_duplicate_detection,
        settings,
        routes["to"],
        preview=terms.dry_run,
        all_subscriptions=all_subscriptions,
    )
    return _run_move(screen, request, terms, mode, state, _wording(request, ("redrive", entity)))


def _reason(text: str) -> str:
    """Return a reason that --by-reason shows; "" for dead letters without one."""
    from sbpair.move.message.dead_letters import NO_REASON

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
    from sbpair.cli.commands.deadletters import count_reasons
    from sbpair.cli.render.messages import cells, say_number
    from sbpair.cli.results.messages import DeadLetterTotal, RedriveReasons
    from sbpair.message_io.peek import PeekSource, matching

    keep = None if where is None else matching(where)
    groups = count_reasons(screen, source.alone, [PeekSource(source.side, source.path)], limit=limit, keep=keep)
    groups.sort(key=lambda group: -group.messages)
    rows = [(*shown, each.destination or "") for each, *shown in cells(groups)]
    table = columns([("REASON", "DEAD", "OLDEST", "DESTINATION"), *rows], optional=("DESTINATION",)) if rows else []
    screen.show(RedriveReasons(source.path, DeadLetterTotal.of(groups), groups), table)
    warn_of_failures(screen, where)
    way = next_command("redrive", entity, without={"by_reason", "limit"})
    say_number(screen, groups, f"send them back with {way}", chosen=where is not None)
    return 0


def _checked_request(
    reach: "Reach",
    screen: Screen,
    command: str,
    source: "EntityAddress",
    destination: "EntityAddress | None",
    allow_duplicate_detection: bool,
    settings: "dict[str, Any]",
    to: "Endpoint | None" = None,
    *,
    preview: bool,
    all_subscriptions: bool = False,
) -> "tuple[RunRequest, Path]":
    """Check the ends of a move before anything is received. Return its request, and the directory of its state.

    Without a destination, each message names its own: with --to-source an entity of the source's namespace; else an
    alias has one of the primary, or of `to`.
    """
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.move.message.route import BACKLOG_DEAD_LETTERS, kept_for
    from sbpair.syphon.move_ends import CheckedReturn, check_names, check_return
    from sbpair.syphon.run_request import RunRequest

    by_source = command == BY_SOURCE
    by_alias = destination is None and not by_source
    if not preview and to is None and (by_alias or (destination or source).side == "primary"):
        reach.pair.require_primary()
    if destination is not None:
        check_names(source, destination)
        _warn_without_aliases(screen, source, destination)
    owner = reach.owner(source, *([destination] if destination else []))
    target = to or (owner.ends.destination if by_alias else (destination or source).endpoint)
    backlog_of = backlog.primary_of(source.parent) or ""
    ends = Ends(name=owner.ends.name, source=source.endpoint, destination=target, backlog_of=backlog_of)

    allow_discard = settings["max_discard"] is None
    if command == "move" or by_alias:
        checked = checked_ends(source, destination, allow_discard=allow_discard)
        found = CheckedReturn(checked, {destination: checked} if destination else {})
    else:
        terms = {"all_subscriptions": all_subscriptions, "allow_discard": allow_discard, "watch": not settings["once"]}
        with PeekProgress(screen) as progress:
            found = _with_nearest_names(
                lambda get_token: check_return(source, destination, get_token, settings["where"], progress, **terms),
                source,
                destination,
            )
    windows = {
        each.path.lower(): _duplicate_window(screen, each, known_ms, returns=by_source or source.comes_from(each))
        for each, ends_found in found.destinations.items()
        if (known_ms := ends_found.duplicate_window_ms) != 0 and not allow_duplicate_detection
    }
    returns = command != "move" or destination is None
    line = f"{command} {source._replace(path=source.parent)}" if returns else f"{command} {source} {destination}"
    form = BACKLOG_DEAD_LETTERS if by_alias else kept_for("" if destination is None else destination.path)
    request = RunRequest(
        ends=ends,
        owner=owner.ends,
        to="" if to is None else to.name,
        command=line,
        form=replace(form, origins=found.origins),
        source=source.path,
        messages=source.state,
        sessions=found.ends.sessions,
        duplicate_windows={path: window_ms for path, window_ms in windows.items() if window_ms},
        disorder=found.disorder,
        default_ttl_ms=_default_ttl(source, found.ends.default_ttl_ms, settings["ttl"]),
        names=(str(source), str(destination or target.name)),
        **REFUSED_STAY,
        **settings,
    )
    return _in_order(screen, request, preview=preview), owner.directory


def _in_order(screen: Screen, request: "RunRequest", *, preview: bool) -> "RunRequest":
    """Return a request with what it would put out of order. Raises Unsafe for a run that must keep the order."""
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.move.message.route import BACKLOG_DEAD_LETTERS
    from sbpair.syphon.move_ends import alias_disorder

    if not request.ordered:
        return replace(request, disorder="")
    found = request.disorder
    if request.form == BACKLOG_DEAD_LETTERS:
        with PeekProgress(screen) as progress:
            found = _with_nearest_names(lambda get_token: alias_disorder(request, get_token, progress))
    found = found and f"the order within a session cannot be kept: {found}"
    if found and not preview:
        raise Unsafe(found, hint="--order none sends the dead letters behind them; or wait for their receiver")
    return replace(request, disorder=found)


def checked_ends(
    source: "EntityAddress", destination: "EntityAddress | None" = None, *, allow_discard: bool = False
) -> "CheckedEnds":
    """Return the facts of both ends, as `check_ends` does. A missing entity gets the nearest name in its hint."""
    from sbpair.syphon.move_ends import check_ends

    return _with_nearest_names(
        lambda get_token: check_ends(source, destination, get_token, allow_discard=allow_discard), source, destination
    )


def _with_nearest_names(
    check: "Callable[[GetToken | None], Awaitable[Checked]]", *ends: "EntityAddress | None"
) -> Checked:
    """Run a check of ends. A missing entity gets the nearest name in its hint."""
    from sbpair.azure.credentials import open_tokens

    async def main() -> Checked:
        async with open_tokens() as get_token:
            try:
                return await check(get_token)
            except EntityMissing as error:
                await suggest_entities([error], [each.endpoint for each in ends if each is not None])
                raise

    return run(main())


def _refuse_default_ttl(terms: MoveTerms) -> None:
    if terms.ttl == DROP_DEFAULT:
        hint = "leave it out: backlog queues have no default time to live, and messages have their sender's as an alias"
        raise UsageError(f"--ttl {DROP_DEFAULT} is for other sources than the backlog", hint=hint)


def _default_ttl(source: "EntityAddress", default_ms: int | None, ttl: str) -> int | None:
    """Return the source's default time to live; None for none. Raises AccessError if it must be known, and is not."""
    if default_ms is None and ttl == DROP_DEFAULT:
        raise AccessError(
            f"--ttl {DROP_DEFAULT}: the default time to live of {source.parent} is not known",
            hint=f"use a key of {source.endpoint.name} with Manage; or leave --ttl {DROP_DEFAULT} out",
        )
    return default_ms or None


def _warn_without_aliases(screen: Screen, source: "EntityAddress", destination: "EntityAddress") -> None:
    """Warn of a backlog queue as destination of other messages than stranded ones."""
    from_backlog, to_backlog = (
        backlog.TRANSFER_SEGMENT in each.path.lower().split("/") for each in (source, destination)
    )
    if to_backlog and not from_backlog:
        screen.warn(f"{destination.path} is a backlog queue: the syphon dead-letters messages without aliases there")


def _duplicate_window(screen: Screen, destination: "EntityAddress", window_ms: int | None, *, returns: bool) -> int:
    """Warn of a destination that detects duplicates. Return how long messages wait that it has accepted before."""
    name = destination.path
    if window_ms is None:
        if returns:
            screen.warn(f"{name} drops these messages if it detects duplicates, which only the Manage claim shows")
        return 0
    if returns:
        kept_ms = window_ms + min(window_ms, AFTER_WINDOW_MS)
        screen.warn(
            f"{name} detects duplicates: messages enqueued within {spoken(kept_ms / 1000)} stay,"
            " since it may drop them; --allow-duplicate-detection moves them all the same"
        )
        return kept_ms
    seconds = spoken(window_ms / 1000)
    screen.warn(f"{name} detects duplicates: it drops a message whose id it has accepted within {seconds}")
    return 0


def _wording(request: "RunRequest", command: tuple[str, ...]) -> MoveWording:
    """Return the words of a move. `command` has its arguments."""
    source = request.names[0] if request.names else "the dead-letter queues of the backlog"
    return MoveWording(command, source, routed=not request.form.destination)


def _run_move(
    screen: Screen, request: "RunRequest", terms: MoveTerms, mode: str, state: "Path", words: MoveWording
) -> int:
    """Move the messages that a request describes; print the receipt or the forecast. Returns the exit code."""
    if mode == "--dry-run":
        return _preview_move(screen, request, words)
    return run_move(
        screen, PairMove((request.owner or request.ends).name, lambda: (request, state)), terms, mode, words
    )


def _preview_move(screen: Screen, request: "RunRequest", wording: MoveWording) -> int:
    """Print the forecast of a move, and return the exit code."""
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.syphon.preview import make_forecast

    words = forecast.SYPHON if wording is SYPHON else forecast.MOVE
    with PeekProgress(screen) as progress:
        result = run(make_forecast(request, on_event=progress))
    notes = []
    if result.held:
        note = f"of each missing destination a run dead-letters {request.max_missing} messages and leaves the others"
        notes.append(f"{note}: create it, or pass --allow-missing")
    if result.where is not None and result.where.skipped > request.max_skipped:
        note = f"a run ends once {request.max_skipped} messages are skipped"
        notes.append(f"{note}: raise --max-skipped to {result.where.skipped}")
    if request.disorder:
        notes.append(f"{request.disorder}; a run would be refused without --order none")
    code = forecast.print_forecast(screen, result, words, notes, request.max_discard, request.ramp)
    warn_of_failures(screen, request.where)
    moves.warn_of_unused(screen, request.renames)
    return ExitCode.PARTIAL_OR_FINDINGS if request.disorder else code
