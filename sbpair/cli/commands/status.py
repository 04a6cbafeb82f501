"""`sbpair status` and `ping`: run `sbpair.status` and `sbpair.failover.ping`, and print the answers."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.completion import status_findings
from sbpair.cli.options import values
from sbpair.cli.options.common import COUNT, INTERVAL, TIMEOUT, WATCH, PairSelection, argument, duration, option
from sbpair.cli.progress.reporting import watch_readings
from sbpair.cli.render import status as render
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns, wrapped
from sbpair.errors import ExitCode

if TYPE_CHECKING:
    from sbpair.failover.ping import PingResult
    from sbpair.status import Status

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
    screen.result(SCHEMA, render.document(found), render.table(found))
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
        return [*render.table(found), *skipped]

    def show_line(found: "Status") -> None:
        screen.write(render.line(found))
        for name, reason in set(found.unseen) - warned:
            screen.warn(f"skipped {name}: {reason}")
        warned.update(found.unseen)

    return watch_readings(screen, SCHEMA, every, read, table=table, show_line=show_line, document=render.document)


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
    from sbpair.failover.ping import ping_all, ping_exit_code

    def on_event(each: "PingResult") -> None:
        screen.detail(f"{each.entity} is {each.health} after {each.seconds:.2f} s")

    answers = run(ping_all(pair.primary, names, seconds=timeout, on_event=on_event))
    entries = [
        {"name": each.entity, "health": str(each.health), **render.answered(each.seconds, each.error)}
        for each in answers
    ]
    rows = [
        (each.entity, each.health, f"{each.seconds:.2f} s", each.error.message if each.error else "")
        for each in answers
    ]
    table = columns([("ENTITY", "HEALTH", "AFTER", "WHY"), *rows])
    screen.result("sbpair/ping/1", {"namespace": pair.primary.name, "entities": entries}, table, entries)
    screen.hints(each.error for each in answers if each.error)
    return ping_exit_code(answers)
