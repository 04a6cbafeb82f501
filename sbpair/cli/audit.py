"""`sbpair audit`: options into one call of `sbpair.audit`, and its report into output."""

from sbpair.cli import queues
from sbpair.cli.options import Connection, Count, Display, options
from sbpair.cli.output import Screen
from sbpair.cli.pairs import chosen
from sbpair.cli.running import run
from sbpair.report import Outcome

SCHEMA = "sbpair/audit/1"
LISTS = (Outcome.MISSING, Outcome.EXTRA, Outcome.DRIFTED, Outcome.OK)


@options
def command(*, count: Count = None, connection: Connection, display: Display) -> int:
    """Compare the backlog queues with what they should be, and count their messages.

    Changes nothing. Needs the Manage claim on the secondary namespace. A partitioned queue is no finding: it works as
    well, and cannot be changed.

    JSON, each entry with at least a name:

      {"schema": "sbpair/audit/1", "missing": [], "extra": [], "drifted": [], "ok": []}

    Exit codes: 0 all is as it should be; 3 a queue is missing, extra or drifted.
    """
    screen = Screen(display)
    pair = chosen(connection, screen, count=count)
    from sbpair import audit

    report = run(lambda _stop: audit.run(pair, on_event=lambda event: queues.progress(screen, event)))
    screen.result(
        queues.document(SCHEMA, report, LISTS), queues.lines(SCHEMA, report), queues.table(report, counted=True)
    )
    return audit.exit_code_of(report)
