"""`sbpair audit`: runs `sbpair.management.auditing` and prints its findings."""

from dataclasses import dataclass
from typing import Annotated

from sbpair.cli.command_loop import run
from sbpair.cli.completion import findings
from sbpair.cli.options.common import Count, Display, PairSelection, option, options
from sbpair.cli.options.values import Management, group_of, positive_seconds_of, seconds_of, selected_pair
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError
from sbpair.management.audit_findings import FAIL_ON, AuditFinding, audit_exit_code
from sbpair.management.auditing import MAX_PEEK

DEFAULT = ",".join(kind for kind in AuditFinding if kind in FAIL_ON)
ALL, NONE = "all", "none"
CHOICES = ", ".join((*AuditFinding, ALL, NONE))
PEEK_LIMIT = 1_000_000
MAX_SAMPLE_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class Checks:
    """The checks of an audit."""

    fail_on: Annotated[str, option("--fail-on KIND[,KIND]", f"Findings that exit 3: {CHOICES}", complete=findings)] = (
        DEFAULT
    )
    idle: Annotated[str | None, option("--idle DURATION", "Report queues unused for this long, as in 30d")] = None
    peek: Annotated[int, option("--peek N", "Messages to peek in each queue; 0 for none", min=0, max=PEEK_LIMIT)] = (
        MAX_PEEK
    )
    sample: Annotated[
        str, option("--sample DURATION", "Time between two samples of a queue's growth; 0 for one sample")
    ] = "5s"


@options
def command(
    *, count: Count = None, checks: Checks, management: Management, connection: PairSelection, display: Display
) -> int:
    """Compare the backlog queues with the expected ones and count messages.

    Reports missing, extra and drifted queues, stranded messages, their age and destinations, and queue growth. Changes
    and locks nothing. Needs Manage on the secondary; with Listen, it also peeks messages.

    Examples:
      sbpair audit
      sbpair audit --fail-on missing,extra --sample 1m

    Exit codes: 0 no finding of --fail-on; 3 at least one

    See also: sbpair help management
    """
    kinds, idle_seconds, sample_seconds = _kinds(checks.fail_on), _idle(checks.idle), _sample(checks.sample)
    screen = Screen(display)
    group = group_of(management)
    pair = selected_pair(connection, screen, count=count)
    from sbpair.cli.render import audit as render
    from sbpair.management import auditing

    with render.AuditProgress(screen) as progress:
        found = run(
            lambda _stop: auditing.audit(
                pair,
                group=group,
                idle_seconds=idle_seconds,
                max_peek=checks.peek,
                sample_seconds=sample_seconds,
                on_event=progress,
            )
        )
    screen.result(render.document(found), render.lines(found), render.table(found))
    for each in found.unseen:
        screen.warn(f"skipped {each.name}: {each.reason}")
    return audit_exit_code(found, kinds)


def _kinds(text: str) -> frozenset[AuditFinding]:
    """Return the findings of a list such as `missing,extra`. Raises UsageError."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*AuditFinding, ALL, NONE)]
    if unknown or not names:
        what = f"--fail-on: {unknown[0]!r} is not a finding" if unknown else "--fail-on names no finding"
        raise UsageError(what, hint=f"expected one or more of {CHOICES}, separated by commas")
    if NONE in names and len(set(names)) > 1:
        raise UsageError(f"--fail-on {NONE} cannot be combined with others", hint="leave it out, or the others")
    return frozenset(AuditFinding) if ALL in names else frozenset(AuditFinding(name) for name in names if name != NONE)


def _idle(text: str | None) -> float | None:
    hint = "write how long a queue may be unused, as in 30d"
    return None if text is None else positive_seconds_of("--idle", text, hint=hint)


def _sample(text: str) -> float:
    return seconds_of("--sample", text, limit=MAX_SAMPLE_SECONDS, hint="a minute or two are enough")
