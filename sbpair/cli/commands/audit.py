"""`sbpair audit`: options into one call of `sbpair.management.auditing`, and what it found into output."""

from typing import Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.completion import findings
from sbpair.cli.options.common import Count, Display, PairSelection, options
from sbpair.cli.options.management import Management, group_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError
from sbpair.management.auditing import FAIL_ON, MAX_PEEK, AuditFinding
from sbpair.model.durations import TICKS_PER_SECOND, ticks

DEFAULT = ",".join(kind for kind in AuditFinding if kind in FAIL_ON)
ALL, NONE = "all", "none"
CHOICES = ", ".join((*AuditFinding, ALL, NONE))
PEEK_LIMIT = 1_000_000
SAMPLE_LONGEST_SECONDS = 3_600


@options
def command(
    *,
    count: Count = None,
    fail_on: Annotated[
        str,
        typer.Option(
            "--fail-on",
            metavar="KIND[,KIND]",
            help=f"Which findings to exit 3 for, of: {CHOICES} ({DEFAULT})",
            autocompletion=findings,
        ),
    ] = DEFAULT,
    idle: Annotated[
        str | None,
        typer.Option("--idle", metavar="DURATION", help="Find queues that nobody has used for so long, as in 30d"),
    ] = None,
    peek: Annotated[
        int,
        typer.Option(
            "--peek",
            metavar="N",
            min=0,
            max=PEEK_LIMIT,
            help=f"Look at so many messages of each queue; 0 for none ({MAX_PEEK})",
        ),
    ] = MAX_PEEK,
    sample: Annotated[
        str,
        typer.Option(
            "--sample",
            metavar="DURATION",
            help="Where a queue is not empty, measure again so much later how fast they fill; 0 for not (5s)",
        ),
    ] = "5s",
    connection: PairSelection,
    management: Management,
    display: Display,
) -> int:
    """Compare the backlog queues with what they should be, and count their messages.

    Changes nothing, locks nothing and raises no delivery count. Needs the Manage claim on the secondary namespace. With
    Listen there too, it looks at messages: how old the oldest is, and where they want to go; with Manage or Send on the
    primary, whether that is there and detects duplicates. What it could not look at, it says. With --via arm, a role
    such as Reader lists and counts; messages and destinations are always looked at in the namespaces themselves.

    A partitioned queue is no finding: it works as well, and cannot be changed. Its size is that of all partitions.
    Backlog queues of another primary (foreign) are no finding either, unless --fail-on says so. How fast a queue fills
    is the difference of two samples of the service's own figure, which may lag: give --sample 1m for more than a hint.
    A queue is full from 80 % on, or if it will be within a day.

    JSON, each entry with at least a name; null is what was not measured, and "full_in_seconds" is null for a queue that
    does not grow:

      {"schema": "sbpair/audit/1", "missing": [], "extra": [], "drifted": [],
       "ok": [{"name": "contoso/x-servicebus-transfer/0", "index": 0,
               "counts": {"active": 3, "dead_letter": 0, "scheduled": 0, "total": 3, "transfer": 0,
                          "transfer_dead_letter": 0},
               "fill": {"size_bytes": 900, "effective_max_size_mb": 5120, "share": 0.0, "idle_seconds": 61.5,
                        "idle": false, "looked_at": 3, "saw_all": true, "oldest_seconds": 3600.2,
                        "bytes_per_second": 0.0, "full_in_seconds": null}}],
       "foreign": [],
       "destinations": [{"name": "orders", "messages": 3, "found": true, "topic": false,
                         "detects_duplicates": false, "reason": ""}],
       "not_looked_at": [], "findings": ["duplicates", "messages"]}

    Exit codes: 0 nothing was found that --fail-on names; 3 something was.
    """
    kinds, idle_seconds, sample_seconds = _kinds(fail_on), _idle(idle), _sample(sample)
    screen = Screen(display)
    group = group_of(management)
    pair = chosen(connection, screen, count=count)
    from sbpair.cli.render import audit as shown
    from sbpair.management import auditing

    with shown.AuditProgress(screen) as told:
        found = run(
            lambda _stop: auditing.audit(
                pair,
                group=group,
                idle_seconds=idle_seconds,
                max_peek=peek,
                sample_seconds=sample_seconds,
                on_event=told,
            )
        )
    screen.result(shown.document(found), shown.lines(found), shown.table(found))
    for each in found.unseen:
        screen.warn(f"not looked at: {each.name}: {each.reason}")
    return auditing.audit_exit_code(found, kinds)


def _kinds(text: str) -> frozenset[AuditFinding]:
    """Which findings `missing,extra` means. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*AuditFinding, ALL, NONE)]
    if unknown or not names:
        what = f"--fail-on does not know {unknown[0]!r}" if unknown else "--fail-on names nothing to fail on"
        raise UsageError(what, hint=f"name one or more of {CHOICES}, with a comma between them")
    if NONE in names and len(set(names)) > 1:
        raise UsageError(f"--fail-on {NONE} cannot be combined with others", hint="leave it out, or the others")
    return frozenset(AuditFinding) if ALL in names else frozenset(AuditFinding(name) for name in names if name != NONE)


def _idle(text: str | None) -> float | None:
    seconds = None if text is None else _seconds("--idle", text)
    if seconds == 0:
        raise UsageError("--idle is no time at all", hint="write how long a queue may go unused, as in 30d")
    return seconds


def _sample(text: str) -> float:
    seconds = _seconds("--sample", text)
    if seconds > SAMPLE_LONGEST_SECONDS:
        raise UsageError(f"--sample {text} is more than an hour", hint="a minute or two are enough")
    return seconds


def _seconds(option: str, text: str) -> float:
    try:
        return ticks(text) / TICKS_PER_SECOND
    except UsageError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None
