"""`sbpair syphon`, `move` and `redrive`: the ends of a move, its options, ports, output and exit code."""

import asyncio
import math
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sbpair import __version__, backlog
from sbpair.cli.command_loop import run, run_gracefully
from sbpair.cli.completion import backlog_queues
from sbpair.cli.next_command import next_command
from sbpair.cli.options import moves
from sbpair.cli.options.common import COUNT, MAX_PEEK, NamespaceSelection, PairSelection, argument, flag, option
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import LOOPBACK, MoveTerms
from sbpair.cli.options.values import selected_profile
from sbpair.cli.render.receipt import SYPHON, MoveWording, receipt_document, receipt_table, warn_of_failures
from sbpair.cli.render.screen import Screen, plural, spoken
from sbpair.cli.render.table import columns
from sbpair.errors import ExitCode, UsageError
from sbpair.model.entities import subscription_of
from sbpair.model.pair import Ends
from sbpair.move.context import MAX_MISSING
from sbpair.runs.database import StateOwner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbpair.cli.options.entity_addresses import Reach
    from sbpair.metrics.run_metrics import RunMetrics
    from sbpair.move.events import SyphonEvent
    from sbpair.move.filter import MessageFilter
    from sbpair.service.run_health import Supervision
    from sbpair.syphon import runner
    from sbpair.syphon.move_spec import EntityAddress, MoveSpec
    from sbpair.syphon.run_plan import MoveOptions
    from sbpair.syphon.run_store import LiveRun

_ONE_MODE = "[--once | --watch | --dry-run] [OPTIONS]"
USAGE = {"syphon": "(--once | --watch | --dry-run) [OPTIONS]", "move": _ONE_MODE, "redrive": _ONE_MODE}


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
    return _run_move(screen, None, owner, terms, mode, options)


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
    return _run_move(screen, *ends, terms, mode, terms.move_options(where=where, max_missing=0), command, limit)


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
        return _run_move(screen, *_backlog_dead_letters(reach), terms, mode, options, ("redrive",), limit)
    source = reach.address(entity, dead_letters=True, what="ENTITY")
    if by_reason:
        return _print_reasons(screen, entity, source, limit or MAX_PEEK, where)
    target = _origin(reach, source, terms.where, reason or (), all_subscriptions=all_subscriptions)
    ends = _checked_ends(reach, screen, "redrive", source, target, allow_duplicate_detection, terms.allow_discard)
    return _run_move(screen, *ends, terms, mode, options, ("redrive", entity), limit)


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


def _run_move(
    screen: Screen,
    spec: "MoveSpec | None",
    owner: "StateOwner",
    terms: MoveTerms,
    mode: str,
    options: "MoveOptions",
    command: tuple[str, ...] = SYPHON.command,
    limit: int | None = None,
) -> int:
    """Move what a spec describes, or the backlog without one; print the receipt or the forecast.

    `command` has its arguments; `limit` is that of --max. Returns the exit code.
    """
    if mode == "--dry-run":
        return _preview_move(screen, owner.ends, options, spec)
    words = SYPHON
    if spec is not None:
        source = spec.names[0] if spec.names else "the dead-letter queues of the backlog"
        words = MoveWording("sbpair/move/1", command, source, routed=spec.form.destination is None)
        spec = replace(spec, max_messages=limit)
    from sbpair.cli.progress.move_progress import SAMPLE_SECONDS, move_progress
    from sbpair.syphon import runner
    from sbpair.syphon.run_store import LiveRun

    once, live = mode == "--once", LiveRun()

    async def move(stop: asyncio.Event, hurry: asyncio.Event) -> "runner.SyphonResult":
        with move_progress(screen, owner.ends, terms.progress_interval, spec) as shown:
            shown.is_stopping = stop.is_set
            takers = [each.take for each in (supervision, metrics) if each is not None]

            def on_event(event: "SyphonEvent") -> None:
                for take in takers:
                    take(event)
                shown(event)

            moving = runner.run(
                owner.ends,
                replace(options, sample_seconds=shown.sample_seconds or (SAMPLE_SECONDS if metrics else None)),
                once=once,
                spec=spec,
                state=owner.directory,
                lease=not terms.no_lease,
                lease_queue=terms.lease,
                stop=stop,
                hurry=hurry,
                on_event=on_event,
                live=live,
            )
            serving = metrics.port.serve_during(moving) if metrics else moving
            return await (supervision.serve_during(serving, stop) if supervision else serving)

    with (
        _supervision_of(screen, live, terms.health_port) as supervision,
        _metrics_of(screen, owner.ends, terms, live, f"{words.command[0]} {mode}") as metrics,
    ):
        result = run_gracefully(move)
        screen.result(words.schema, receipt_document(result, mode, words), receipt_table(result, mode, words))
    warn_of_failures(screen, options.where)
    _warn(screen, result, words)
    return _exit_code_of(result, once=once)


@contextmanager
def _metrics_of(
    screen: Screen, ends: "Ends", terms: MoveTerms, live: "LiveRun", command: str
) -> "Iterator[RunMetrics | None]":
    """Open the metrics that the options or OpenTelemetry's variables ask for, and print their address."""
    if terms.metrics_port is None and not _wants_telemetry():
        yield None
        return
    from sbpair.metrics.run_metrics import open_metrics

    address = None if terms.metrics_port is None else (terms.metrics_address or LOOPBACK, terms.metrics_port)
    with open_metrics(live, {"command": command, "pair": ends.name, "version": __version__}, address) as metrics:
        _print_served(screen, "metrics", metrics.port.url, terms.metrics_port)
        yield metrics


@contextmanager
def _supervision_of(screen: Screen, live: "LiveRun", health: tuple[str, int] | None) -> "Iterator[Supervision | None]":
    """Open the port for probes, and notify systemd, if options or environment ask for it."""
    if health is None and not os.environ.get("NOTIFY_SOCKET"):
        yield None
        return
    from sbpair.service.run_health import Supervision, systemd_notifier

    with closing(Supervision(live, health, systemd_notifier(os.environ, os.getpid()))) as supervision:
        _print_served(screen, "health", supervision.port.url, health and health[1])
        yield supervision


def _print_served(screen: Screen, title: str, url: str, port: int | None) -> None:
    """Print the address of a port: with --quiet only if it was chosen from the free ones."""
    if not url or (port and screen.quiet):
        return
    if screen.eventful:
        from sbpair.cli.progress import move_progress, reporting

        line = reporting.event_line(move_progress.SCHEMA, f"{title}-served", reporting.wall_clock_ms())
        reporting.write_lines(screen, [{**line, "url": url}])
    else:
        screen.say(f"{title} at {url}", always=True)


def _wants_telemetry() -> bool:
    if not any(name.startswith("OTEL_") for name in os.environ):
        return False
    from sbpair.metrics.run_metrics import wanted_exporters

    return bool(wanted_exporters(os.environ))


def _preview_move(screen: Screen, ends: "Ends", options: "MoveOptions", spec: "MoveSpec | None") -> int:
    """Print the forecast of a move, and return the exit code."""
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.cli.render import forecast
    from sbpair.move.message.dead_letters import NotSentReason
    from sbpair.syphon.preview import make_forecast

    words = forecast.SYPHON if spec is None else forecast.MOVE
    with PeekProgress(screen) as progress:
        result = run(make_forecast(ends, options.limits, spec=spec, where=options.where, on_event=progress))
    notes = []
    most = math.inf if spec is not None or options.allow_missing else options.max_missing
    if any(each.reason == NotSentReason.MISSING and each.messages > most for each in result.dead_letters):
        note = f"of each missing destination a run dead-letters {most} messages and leaves the others"
        notes.append(f"{note}: create it, or pass --allow-missing")
    if result.where is not None and result.where.skipped > options.max_skipped:
        note = f"a run ends once {options.max_skipped} messages are skipped"
        notes.append(f"{note}: raise --max-skipped to {result.where.skipped}")
    code = forecast.print_forecast(screen, result, words, notes, options.max_discard, options.ramp)
    warn_of_failures(screen, options.where)
    return code


def _warn(screen: Screen, result: "runner.SyphonResult", words: MoveWording) -> None:
    where = result.receipt.where
    if where is not None and where.skipped:
        stay = "does not match and stays" if where.skipped == 1 else "do not match and stay"
        screen.say(f"{plural(where.skipped, 'message')} {stay} in {words.source}")
    for each in result.missing:
        if each.held:
            dead = plural(each.dead_lettered, "message")
            text = (
                f"{each.destination} does not exist in the primary: {dead} dead-lettered, {each.held} left in the"
                " backlog; create it and run again, or add --allow-missing"
            )
            if words.source != SYPHON.source:
                text = f"{each.destination} does not exist: {each.held} left in {words.source}; create it, run again"
            screen.warn(text)
    failures: dict[str, tuple[list[str], str]] = {}
    for queue, error in result.failures:
        failures.setdefault(error.message, ([], error.hint))[0].append(queue)
    for reason, (queues, hint) in failures.items():
        screen.warn(f"{queues[0]}{f' and {len(queues) - 1} more' if len(queues) > 1 else ''}: {reason}; {hint}")


def _exit_code_of(result: "runner.SyphonResult", *, once: bool) -> int:
    """Return the exit code: a signal ends `--watch` normally, but interrupts `--once`.

    A watch with dead letters, or with messages left for a missing destination, ends with 3.
    """
    if result.hurried and result.receipt.balanced:
        return ExitCode.INTERRUPTED
    if not result.stopped or result.failures or not result.receipt.balanced:
        return result.exit_code
    if once:
        return ExitCode.INTERRUPTED
    receipt, held = result.receipt, any(each.held for each in result.missing)
    return ExitCode.PARTIAL_OR_FINDINGS if receipt.dead_lettered or receipt.expired or held else ExitCode.DONE
