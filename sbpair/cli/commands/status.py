"""`sbpair status` and `ping`: run `sbpair.status` and `sbpair.failover.ping_on_request`, and print the answers."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import status_findings
from sbpair.cli.logs import utc
from sbpair.cli.options import values
from sbpair.cli.options.common import COUNT, INTERVAL, TIMEOUT, WATCH, PairSelection, argument, duration, option
from sbpair.cli.progress.reporting import watch_readings
from sbpair.cli.render.screen import Document, Screen, clean, grouped, rounded, spoken
from sbpair.cli.render.table import LEGEND, YELLOW, coloured, columns, sampled, wrapped
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.errors import SbpairError
    from sbpair.failover.ping_on_request import PingResult
    from sbpair.management.audit_findings import BacklogTotal, QueueStatus
    from sbpair.status import DestinationStatus, OutboxStatus, SideStatus, Status

SCHEMA = "sbpair/status/1"
KINDS = "messages, dead-letters, all, none"


def status_command(
    *,
    entities: list[str] | None = argument(
        "[QUEUE|TOPIC…]", "More queues and topics of the primary to check", default=None
    ),
    timeout: float = TIMEOUT,
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
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Show the health of both namespaces and the size of the backlog.

    Sends and locks nothing. Checks each destination of the backlog by opening a link. Counts with Manage on the
    secondary; with Listen only, it peeks. A number with a ~ is that of a sample, and at least so much. status cannot
    see whether an application has failed over; a growing backlog is the sign.

    --watch refreshes a terminal in place; elsewhere it prints one line for each reading, of JSON with -o json or jsonl.

    Examples:
      sbpair status
      sbpair status orders -o json
      sbpair status --watch --interval 30s
      sbpair status --fail-on dead-letters

    Exit codes: 0 all are up; 6 a namespace or entity is down; 3 one is broken and none down, or a finding of
    --fail-on; 5 access denied, also by a proxy; 2 a wrong setting. --watch exits 0 after Ctrl-C
    """
    pair = values.selected_pair(connection, screen, count=count)
    names = values.entity_names(entities or ())
    from sbpair import status

    kinds = values.findings_of(status.FINDINGS, fail_on or values.NONE)

    async def read() -> status.Status:
        return await status.read_status(pair, names, outbox=outbox, seconds=timeout)

    if watch:
        return _watch(screen, read, interval)
    found = run(read())
    screen.result(SCHEMA, _document(found), _table(found))
    screen.hints(found.errors)
    for name, reason in found.unseen:
        screen.warn(f"skipped {name}: {reason}")
    failed = values.failed_on(screen, found.found, kinds)
    if found.exit_code or failed:
        return found.exit_code or ExitCode.PARTIAL_OR_FINDINGS
    unknown = bool(kinds) and found.total.dead_letters is None
    if unknown:
        screen.warn("exit code 5 for --fail-on: dead letters are unknown without the Manage claim on the secondary")
    return ExitCode.ACCESS if unknown else ExitCode.DONE


def _watch(screen: Screen, read: "Callable[[], Awaitable[Status]]", every: float) -> int:
    """Show the status at intervals, until a signal."""
    warned: set[tuple[str, str]] = set()

    def table(found: "Status") -> list[str]:
        skipped = [part for name, reason in found.unseen for part in wrapped(f"skipped {name}: {reason}")]
        return [*_table(found), *skipped]

    def show_line(found: "Status") -> None:
        screen.write(_line(found))
        for name, reason in set(found.unseen) - warned:
            screen.warn(f"skipped {name}: {reason}")
        warned.update(found.unseen)

    return watch_readings(screen, SCHEMA, every, read, table=table, show_line=show_line, document=_document)


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
    from sbpair.failover.ping_on_request import ping_all, ping_exit_code

    def on_event(each: "PingResult") -> None:
        screen.detail(f"{each.entity} is {each.health} after {each.seconds:.2f} s")

    answers = run(ping_all(pair.primary, names, seconds=timeout, on_event=on_event))
    entries = [
        {"name": each.entity, "health": str(each.health), **answered(each.seconds, each.error)} for each in answers
    ]
    rows = [
        (each.entity, each.health, f"{each.seconds:.2f} s", each.error.message if each.error else "")
        for each in answers
    ]
    table = columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows])
    screen.result("sbpair/ping/1", {"namespace": pair.primary.name, "entities": entries}, table, entries)
    screen.hints(each.error for each in answers if each.error)
    return ping_exit_code(answers)


def _document(status: "Status") -> Document:
    return {
        "time": utc(None),
        "primary": _side(status.primary),
        "secondary": _side(status.secondary),
        "backlog": total_document(status.total),
        "queues": list(map(_queue, status.queues)),
        "entities": [_entity(each) for each in status.entities],
        "outbox": _outbox(status.outbox),
        "skipped": [{"name": name, "reason": reason} for name, reason in status.unseen],
    }


def _table(status: "Status") -> Iterator[str]:
    rows: list[tuple[object, ...]] = [("WHAT", "NAME", "STATE", "MESSAGES", "OLDEST", "NOTE")]
    for what, side in (("primary", status.primary), ("secondary", status.secondary)):
        rows.append((what, side.endpoint.name, _health(side), "", "", side.error.message if side.error else ""))
    rows += map(_queue_row, status.queues)
    rows += map(_entity_row, status.entities)
    if status.outbox is not None:
        path = str(status.outbox.path)
        kept = [("outbox", path, "waiting", count, spoken(age), name) for name, count, age in status.outbox.waiting]
        rows += kept or [("outbox", path, "empty", 0, "", "")]
    yield from columns(rows)
    total = status.total
    yield ""
    if any(each.waiting and not each.exact for each in status.entities) or not (total.exact or total.messages is None):
        yield LEGEND
    yield total_line(total)


def _line(status: "Status") -> str:
    """Return the status in one line, with what is not up."""
    sides = [f"{side.endpoint.name} {_health(side)}" for side in (status.primary, status.secondary)]
    poor = [f"{each.link.entity} {each.link.health}" for each in status.entities if each.link.error]
    return clean(f"{utc(None)} {', '.join((*sides, *poor))}: ") + total_line(status.total)


def _queue(queue: "QueueStatus") -> Document:
    known = {name: value for name, value in asdict(queue).items() if name not in ("path", "missing")}
    return {"name": queue.path, **known, "oldest_seconds": rounded(queue.oldest_seconds)}


def _queue_row(queue: "QueueStatus") -> tuple[object, ...]:
    unknown = "missing" if queue.missing else "?"
    state = unknown if queue.messages is None else "waiting" if queue.messages else "empty"
    if queue.dead_letters:
        state += f", {queue.dead_letters} dead-lettered"
    oldest = "" if queue.oldest_seconds is None else spoken(queue.oldest_seconds)
    note = "; ".join(filter(None, (f"{queue.scheduled} scheduled" if queue.scheduled else "", queue.note)))
    messages = "" if queue.messages is None else sampled(queue.messages, exact=queue.exact)
    return ("backlog", queue.path, state, messages, oldest, note)


def _entity_row(entity: "DestinationStatus") -> tuple[object, ...]:
    waiting = sampled(entity.waiting, exact=entity.exact) if entity.waiting else "" if entity.exact else "?"
    reason = entity.link.error.message if entity.link.error else entity.note
    return ("entity", entity.link.entity, str(entity.link.health), waiting, "", reason)


def _outbox(outbox: "OutboxStatus | None") -> Document | None:
    if outbox is None:
        return None
    entities = [
        {"name": name, "messages": messages, "oldest_seconds": rounded(age)} for name, messages, age in outbox.waiting
    ]
    return {"path": str(outbox.path), "messages": sum(count for _, count, _ in outbox.waiting), "entities": entities}


def _side(side: "SideStatus") -> Document:
    return {"namespace": side.endpoint.name, "health": _health(side), **answered(side.seconds, side.error)}


def _entity(entity: "DestinationStatus") -> Document:
    link = entity.link
    found = {"name": link.entity, "health": str(link.health), "waiting": entity.waiting, "exact": entity.exact}
    return {**found, **answered(link.seconds, link.error), "note": entity.note}


def _health(side: "SideStatus") -> str:
    if side.error is None:
        return "up"
    return "refused" if side.error.exit_code == ExitCode.ACCESS else "down"


def answered(seconds: float, error: "SbpairError | None") -> Document:
    """Return when an answer came, and why it is a failure, as JSON."""
    return {"seconds": round(seconds, 3), "reason": error.message if error else "", "hint": error.hint if error else ""}


def total_document(total: "BacklogTotal") -> Document:
    """Return the messages of a whole backlog as JSON."""
    return {**asdict(total), "oldest_seconds": rounded(total.oldest_seconds)}


def total_line(total: "BacklogTotal") -> str:
    """Return the messages of a whole backlog as `8 000 waiting, 1 058 dead-lettered, oldest 2h`."""
    if total.messages is None:
        return "the backlog is unknown"
    dead = "dead letters unknown" if total.dead_letters is None else f"{grouped(total.dead_letters)} dead-lettered"
    parts = [
        f"{'' if total.exact else '~'}{grouped(total.messages)} waiting",
        coloured(dead, YELLOW if total.dead_letters else None),
        f"{grouped(total.scheduled)} scheduled" if total.scheduled else "",
        f"oldest {spoken(total.oldest_seconds)}" if total.oldest_seconds is not None else "",
    ]
    return ", ".join(filter(None, parts))
