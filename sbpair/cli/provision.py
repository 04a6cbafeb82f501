"""`sbpair provision`: options into one call of `sbpair.provision`, and its report into output."""

from typing import Annotated

import typer

from sbpair.cli import queues
from sbpair.cli.options import Connection, Count, Display, options
from sbpair.cli.output import Screen
from sbpair.cli.pairs import chosen
from sbpair.cli.running import run
from sbpair.cli.via import Management, group_of
from sbpair.report import Outcome

SCHEMA = "sbpair/provision/1"
LISTS = (Outcome.CREATED, Outcome.EXISTING, Outcome.DRIFTED, Outcome.FAILED)


@options
def command(
    *,
    count: Count = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be created, and create nothing")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 where a queue has drifted")] = False,
    connection: Connection,
    management: Management,
    display: Display,
) -> int:
    """Create the backlog queues that the secondary namespace lacks.

    They are called <primary>/x-servicebus-transfer/<index>, and get the description that the original feature gave
    them. A queue that is there already is compared with it; where it differs, that is a warning, and it is never
    changed. Needs the Manage claim on the secondary namespace; --via arm needs a role there instead, such as Azure
    Service Bus Data Owner.

    JSON, each entry with at least a name; under --dry-run "created" is empty and "would_create" says what is missing:

      {"schema": "sbpair/provision/1", "dry_run": false, "created": [], "existing": [], "drifted": [],
       "failed": [], "would_create": []}

    Exit codes: 0 all are there; 3 some could not be created, or have drifted under --strict.
    """
    screen = Screen(display)
    group = group_of(management)
    pair = chosen(connection, screen, count=count)
    from sbpair import provision

    report = run(
        lambda _stop: provision.run(
            pair, group=group, dry_run=dry_run, on_event=lambda event: queues.progress(screen, event)
        )
    )
    document = queues.document(SCHEMA, report, (*LISTS, Outcome.WOULD_CREATE)) | {"dry_run": dry_run}
    screen.result(document, queues.lines(SCHEMA, report), queues.table(report, counted=False))
    for item in report.of(Outcome.DRIFTED):
        screen.warn(f"{item.name} has drifted: {item.reason}")
    return provision.exit_code_of(report, strict=strict)
