"""`sbpair status` and `ping`: run `sbpair.status` and `sbpair.failover.ping_on_request`, and print the answers."""

import time
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbpair.cli.command_loop import run, suggest_entities
from sbpair.cli.commands.pair_answers import PairAnswer, ask_all, pair_entries, pair_lines, print_answers
from sbpair.cli.completion import status_findings
from sbpair.cli.logs import utc
from sbpair.cli.next_command import created_first, next_command, way_back, with_options
from sbpair.cli.options import values
from sbpair.cli.options.common import (
    COUNT,
    INTERVAL,
    STATE,
    TIMEOUT,
    WATCH,
    PairSelection,
    argument,
    duration,
    option,
    peek_option,
)
from sbpair.cli.options.entity_addresses import reach_of
from sbpair.cli.options.moves import NewDestinations, warn_of_unused
from sbpair.cli.progress.reporting import watch_readings
from sbpair.cli.render.screen import Screen, clean, grouped, plural, some, spoken
from sbpair.cli.render.table import PARTIAL, YELLOW, coloured, columns, cut, sampled, wrapped
from sbpair.cli.render.waiting import (
    is_movable,
    left_dead,
    mover_step,
    report_waiting,
    stranded_line,
    waiting_line,
    waiting_table,
)
from sbpair.errors import EntityMissing, ExitCode

if TYPE_CHECKING:
    from sbpair.config import Profile
    from sbpair.failover.ping_on_request import PingResult
    from sbpair.management.audit_findings import BacklogTotal, QueueStatus, Unseen
    from sbpair.model.pair import Pair
    from sbpair.model.report import AuditFinding
    from sbpair.runs.active_mover import ActiveMover
    from sbpair.status import DestinationStatus, LostPrimary, Status

TOTALS = ("WAITING", "DEAD", "OLDEST")
"""The titles of a backlog's figures, where each pair has one row."""

REASONS_SHOWN, REASON_WIDTH = 3, 40
MAX_PEEK = 250
"""That of sbpair.status, whose module takes long to load."""

NAMES_SHOWN = 5
KINDS = "messages, dead-letters, no-mover, all, none"


def status_command(
    *,
    entities: list[str] | None = argument(
        "[QUEUE|TOPIC…]", "More queues and topics of the primary, or of --to, to check", default=None
    ),
    timeout: float = TIMEOUT,
    peek: int = peek_option(MAX_PEEK),
    outbox: Path | None = option("--outbox FILE", "Also count the messages of this outbox file"),
    fail_on: str | None = option(
        "--fail-on KIND[,KIND]",
        f"Findings that exit 3: {KINDS} [default: none]",
        complete=status_findings,
        excludes="--watch",
    ),
    watch: bool = WATCH,
    interval: float = INTERVAL,
    count: int | None = COUNT,
    delivery: NewDestinations,
    lease: str | None = values.MOVERS_LEASE,
    state: Path | None = STATE,
    all_pairs: bool = values.ALL_PAIRS,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show the health of both namespaces and the size of the backlog.

    Sends and locks nothing. Checks each destination of the backlog by opening a link. Counts with Manage on the
    secondary; with Listen only, it peeks. A number with a ~ is that of a sample, and at least so much: --peek all
    counts exactly. status cannot see whether an application has failed over; a growing backlog is the sign. Messages
    in archives of interrupted or running replays, as far as the state directory has them, count as waiting. Of dead
    letters, it peeks the first 5000 for their reasons. It lists this user's gateways on this machine, too.

    --watch refreshes a terminal in place; elsewhere it prints one line for each reading, of JSON with -o json or jsonl.
    It peeks no dead letters.

    With --to, it looks for the destinations in that namespace, and does not contact the primary.

    Examples:
      sbpair status
      sbpair status --to secondary
      sbpair status orders -o json
      sbpair status --watch --interval 30s
      sbpair status --fail-on dead-letters

    Exit codes: 0 all are up; 6 a namespace or entity is down; 3 one is broken and none down, or a finding of
    --fail-on; 5 access denied, also by a proxy; 2 a wrong setting. --watch exits 0 after Ctrl-C
    """
    from sbpair import status
    from sbpair.cli.results.status import StatusPairs, status_result
    from sbpair.management.audit_findings import MAX_PEEK_DEAD_LETTERS

    kinds = values.findings_of(status.FINDINGS, fail_on or values.NONE)
    names = values.entity_names(entities or ())

    async def read_profile(profile: "Profile", **routes: Any) -> status.Status:
        found = await status.read_status(
            profile.pair,
            names,
            **routes,
            outbox=outbox,
            state=profile.state_directory,
            lease=lease,
            seconds=timeout,
            max_peek=peek,
            max_peek_dead_letters=0 if watch else max(peek, MAX_PEEK_DEAD_LETTERS),
        )
        typed = [each.link.error for each in found.entities if each.link.name in names]
        await suggest_entities(typed, [routes.get("to") or profile.pair.primary])
        return found

    async def answer(name: str, profile: "Profile") -> PairAnswer:
        found = await read_profile(profile)
        shown = (_pair_cells(found), [status_result(found)])
        return PairAnswer(name, _exit_code(found, kinds), *shown, failures=found.errors)

    if all_pairs:
        read_all = partial(ask_all, values.all_profiles(connection, screen), answer)
        lines = partial(pair_lines, ("PRIMARY", "SECONDARY", *TOTALS, "NOTE"))
        if watch:
            show = lambda found: screen.write("\n".join([utc(None), *lines(found)]))  # noqa: E731  one line, used once
            return watch_readings(
                screen,
                interval,
                read_all,
                table=lines,
                show_line=show,
                result=lambda found: StatusPairs(pair_entries(found)),
            )
        answers = run(read_all())
        return print_answers(screen, StatusPairs, lines(answers), answers)
    reach = reach_of(connection, screen, count=count, state=state)
    routes = delivery.settings(reach)
    read = partial(read_profile, reach.profile, **routes)
    if watch:
        return _watch(screen, read, interval)
    found = run(read())
    screen.show(status_result(found), _table(found))
    screen.hints(found.errors)
    for each in found.unseen:
        screen.warn(f"skipped {each.name}: {each.reason}")
    for mend in found.mends:
        screen.say(with_options(mend))
    report_waiting(screen, found.waiting)
    say_lost(screen, found.lost_primary)
    missing = [each.link.name for each in found.entities if isinstance(each.link.error, EntityMissing)]
    say_ways_on(screen, found.total, reach.profile.pair, routes, missing)
    values.failed_on(screen, found.found, kinds)
    code = _exit_code(found, kinds)
    if code == ExitCode.ACCESS != found.exit_code:
        screen.warn("exit code 5 for --fail-on: dead letters are unknown without the Manage claim on the secondary")
    return code


def _exit_code(found: "Status", kinds: "Collection[AuditFinding]") -> int:
    if found.exit_code or any(found.found[kind] for kind in kinds):
        return found.exit_code or ExitCode.PARTIAL_OR_FINDINGS
    return ExitCode.ACCESS if kinds and found.total.dead_letters is None else ExitCode.DONE


def _pair_cells(status: "Status") -> tuple[object, ...]:
    """Return a pair as one row, with the first reason why it is not well."""
    notes = [
        status.lost,
        *(error.message for error in status.errors),
        *(f"{each.name}: {each.reason}" for each in status.unseen),
    ]
    return (
        *("" if side is None else side.health for side in (status.primary, status.secondary)),
        *total_cells(status.total),
        next(filter(None, notes), "no mover" if status.mover.is_missed(status.total.messages) else ""),
    )


def _watch(screen: Screen, read: "Callable[[], Awaitable[Status]]", every: float) -> int:
    """Show the status at intervals, until a signal."""
    from sbpair.cli.results.status import status_result

    warned = set["Unseen"]()

    def table(found: "Status") -> list[str]:
        skipped = [part for each in found.unseen for part in wrapped(f"skipped {each.name}: {each.reason}")]
        return [*_table(found), *skipped, *(part for each in found.waiting for part in wrapped(waiting_line(each)))]

    def show_line(found: "Status") -> None:
        screen.write(_line(found))
        for each in set(found.unseen) - warned:
            screen.warn(f"skipped {each.name}: {each.reason}")
        warned.update(found.unseen)

    return watch_readings(screen, every, read, table=table, show_line=show_line, result=status_result)


def ping_command(
    *,
    entities: list[str] = argument("QUEUE|TOPIC…", "Queues and topics of the primary to ping"),
    timeout: float = duration(
        "--timeout DURATION", "Time limit of each answer", default="30s", at_least=1, at_most=600
    ),
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Check whether queues and topics of the primary accept messages.

    Sends each a message with a time to live of one second, in a session of its own, as a paired client does. Needs Send
    on the primary; each ping is billed. up: accepted; down: a retry may help; broken: it cannot.

    Examples:
      sbpair ping orders
      sbpair ping orders events -o json

    Exit codes: 0 all are up; 6 one is down; 3 one is broken and none down; 5 access denied, also by a proxy; 2 a wrong
    setting
    """
    pair = values.selected_pair(connection, screen)
    names = values.entity_names(entities)
    from sbpair.cli.results.status import Pings
    from sbpair.failover.ping_on_request import ping_all, ping_exit_code

    def on_event(each: "PingResult") -> None:
        screen.detail(f"{each.name} is {each.health} after {each.seconds:.2f} s")

    async def ping() -> "tuple[PingResult, ...]":
        found = await ping_all(pair.primary, names, seconds=timeout, on_event=on_event)
        await suggest_entities([each.error for each in found], [pair.primary])
        return found

    answers = run(ping(), pair.primary)
    rows = [(each.name, each.health, f"{each.seconds:.2f} s", each.reason) for each in answers]
    screen.show(Pings(pair.primary.name, answers), columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows]))
    screen.hints(each.error for each in answers if each.error)
    return ping_exit_code(answers)


def _table(status: "Status") -> Iterator[str]:
    yield from wrapped(_lead(status))
    yield from wrapped(total_line(status.total))
    yield from mover_lines(status.mover, status.total)
    if status.lost:
        yield from wrapped(status.lost)
    yield ""
    rows: list[tuple[object, ...]] = [("WHAT", "NAME", "STATE", "MESSAGES", "OLDEST", "NOTE")]
    for what, side in status.sides.items():
        rows.append((what, side.namespace, side.health, "", "", side.reason))
    rows += map(_queue_row, status.queues)
    rows += map(_entity_row, status.entities)
    if status.outbox is not None:
        path = str(status.outbox.path)
        kept = [
            ("outbox", path, "waiting", each.messages, spoken(each.oldest_seconds), each.name)
            for each in status.outbox.entities
        ]
        rows += kept or [("outbox", path, "empty", 0, "", "")]
    for each in status.gateways:
        key = f"process {each.process}, key file {each.key_file}"
        since = spoken(max(0.0, time.time() - each.started_ms / 1000))
        rows.append(("gateway", f"{each.pair}, port {each.port}", f"for {since}", "", "", key))
    yield from columns(rows)
    yield from waiting_table(status.waiting)
    counts = [(each.waiting, each.exact) for each in status.entities]
    counts += [(each.messages or 0, each.exact) for each in status.queues]
    if not status.complete or any(count and not exact for count, exact in counts):
        yield from ("", *wrapped(PARTIAL))


def _lead(status: "Status") -> str:
    """Return the line that leads: messages, sides and the next step."""
    total, now = status.total, time.time()
    found = [each for each in status.entities if each.waiting]
    word = "destination" if any(each.topic for each in found) else "queue"
    to = f"{'' if status.complete else 'at least '}{plural(len(found), word)}" if found else ""
    sides = status.sides.items()
    health = [f"{what} {side.health}" for what, side in sides if what != "secondary" or side.error]
    destination = status.to or status.primary
    is_lost = bool(status.lost) and not status.to
    step = mover_step(status.mover, destination.health if destination else "up", status.waiting, lost=is_lost)
    oldest = f"oldest for {clean(status.oldest_for)}" if status.oldest_for else ""
    oldest_at = None if total.oldest_seconds is None else now - total.oldest_seconds
    more = [oldest, left_dead(total.dead_letters), *health, step if is_movable(total, status.waiting) else ""]
    return stranded_line(total.messages, oldest_at, now, more, exact=total.exact, to=to)


def _line(status: "Status") -> str:
    """Return the status in one line, with what is not up."""
    sides = [f"{side.namespace} {side.health}" for side in status.sides.values()]
    poor = [f"{each.link.name} {each.link.health}" for each in status.entities if each.link.error]
    return clean(f"{utc(None)} {', '.join((*sides, *poor))}: ") + total_line(status.total)


def _queue_row(queue: "QueueStatus") -> tuple[object, ...]:
    unknown = "missing" if queue.missing else "?"
    state = unknown if queue.messages is None else "waiting" if queue.messages else "empty"
    if queue.dead_letters:
        state += f", {queue.dead_letters} dead-lettered"
    oldest = "" if queue.oldest_seconds is None else spoken(queue.oldest_seconds)
    note = "; ".join(filter(None, (f"{queue.scheduled} scheduled" if queue.scheduled else "", queue.note)))
    messages = "" if queue.messages is None else sampled(queue.messages, exact=queue.exact)
    return ("backlog", queue.name, state, messages, oldest, note)


def _entity_row(entity: "DestinationStatus") -> tuple[object, ...]:
    waiting = sampled(entity.waiting, exact=entity.exact) if entity.waiting else "" if entity.exact else "?"
    reason = entity.link.reason or entity.note
    return ("entity", entity.link.name, str(entity.link.health), waiting, "", reason)


def say_lost(screen: Screen, lost: "LostPrimary | None") -> None:
    """Print whether a lost primary answers, its messages, and those that another namespace accepted, too."""
    if lost is None:
        return
    if not lost.answers:
        screen.say(f"the lost primary {lost.namespace} still does not answer")
    else:
        found = f"what is in it is unknown: {lost.reason}"
        if lost.messages is not None and lost.dead_letters is not None:
            found = f"in it: {plural(lost.messages, 'message')} and {plural(lost.dead_letters, 'dead letter')}"
        decide = "move them over, leave them or delete them: sbpair help runbook"
        screen.warn(f"the lost primary {lost.namespace} answers again; {found}; {decide}")
    twice = list(dict.fromkeys((each.queue, each.message_id, each.destination) for each in lost.accepted_twice))
    if twice:
        shown = "; ".join(f"{name} for {destination} from {queue}" for queue, name, destination in twice[:NAMES_SHOWN])
        more = f"; and {len(twice) - NAMES_SHOWN} more, with -o json" if len(twice) > NAMES_SHOWN else ""
        screen.warn(f"{lost.namespace} and another namespace accepted {plural(len(twice), 'message')}: {shown}{more}")


def say_ways_on(screen: Screen, total: "BacklogTotal", pair: "Pair", routes: Any, missing: list[str]) -> None:
    """Print how to create destinations that are `missing`, and how to see where the dead letters would go."""
    end = routes["to"] or pair.primary
    if total.exact:
        warn_of_unused(screen, routes["renames"])
    if missing:
        side = {pair.secondary.name: "secondary", pair.primary.name: "primary"}.get(end.name)
        provision = next_command("provision", "--entities", "FILE", "--side", side)
        create = f"next: {provision}; or create them in the Azure portal" if side else "create them there"
        screen.say(f"missing in {end.name}: {some(missing, NAMES_SHOWN)}; {create}, or rename them with --map OLD=NEW")
    if total.dead_letters:
        first = created_first(each.reason for each in total.dead_letter_reasons or ())
        screen.say(f"{first}next: {way_back(total.dead_letters, rehearsal=True)}")


def total_line(total: "BacklogTotal") -> str:
    """Return the messages of a whole backlog as `8 000 waiting, 2 dead-lettered (2 TTLExpiredException), oldest 2h`."""
    if total.messages is None:
        return "the backlog is unknown"
    dead = "dead letters unknown" if total.dead_letters is None else f"{grouped(total.dead_letters)} dead-lettered"
    parts = [
        f"{'' if total.exact else 'at least '}{grouped(total.messages)} waiting",
        f"{grouped(total.elsewhere)} of them in archives or the outbox" if total.elsewhere else "",
        coloured(dead, YELLOW if total.dead_letters else None) + _reasons(total),
        f"{grouped(total.scheduled)} scheduled" if total.scheduled else "",
        f"oldest {spoken(total.oldest_seconds)}" if total.oldest_seconds is not None else "",
    ]
    return ", ".join(filter(None, parts))


def mover_lines(mover: "ActiveMover", total: "BacklogTotal") -> Iterator[str]:
    """Yield which mover has the lease of the pair, if one has, or messages wait for one."""
    if mover.moving or total.messages:
        yield from wrapped(coloured(f"mover: {mover}", YELLOW if mover.is_missed(total.messages) else None))


def total_cells(total: "BacklogTotal") -> tuple[object, ...]:
    """Return the cells of TOTALS."""
    return (
        "?" if total.messages is None else sampled(total.messages, exact=total.exact),
        "?" if total.dead_letters is None else total.dead_letters,
        "" if total.oldest_seconds is None else spoken(total.oldest_seconds),
    )


def _reasons(total: "BacklogTotal") -> str:
    """Return ` (337 TTLExpiredException, 3 DestinationNotFound)`; "" if no reasons are known."""
    reasons = total.dead_letter_reasons or ()
    peeked = sum(each.messages for each in reasons)
    shown = [
        f"{grouped(each.messages)} {cut(clean(each.reason or 'without a reason'), REASON_WIDTH)}"
        for each in reasons[:REASONS_SHOWN]
    ]
    if others := sum(each.messages for each in reasons[REASONS_SHOWN:]):
        shown.append(f"{grouped(others)} of other reasons")
    sample = f"of the first {grouped(peeked)}: " if peeked < (total.dead_letters or 0) else ""
    return f" ({sample}{', '.join(shown)})" if shown else ""
