"""`sbpair provision`: options into one call of `sbpair.management.provisioning`, and its report into output."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.options.common import Count, Display, PairSelection, options
from sbpair.cli.options.management import Management, group_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render import queues
from sbpair.cli.render.screen import Document, Screen, columns
from sbpair.errors import MachineLacks, UsageError
from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.management.provisioning import EntitiesDocument, EntityItem, EntityReport

SCHEMA = "sbpair/provision/1"
LISTS = (
    Outcome.CREATED,
    Outcome.EXISTING,
    Outcome.DRIFTED,
    Outcome.FAILED,
    Outcome.NOT_TRIED,
    Outcome.WOULD_CREATE,
)


@options
def command(
    *,
    count: Count = None,
    entities: Annotated[
        Path | None,
        typer.Option(
            "--entities",
            metavar="FILE",
            help="Create the queues, topics, subscriptions and rules of this TOML file too, in both namespaces",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be created, and create nothing")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 3 where an entity has drifted")] = False,
    connection: PairSelection,
    management: Management,
    display: Display,
) -> int:
    """Create the backlog queues that the secondary namespace lacks.

    They are called <primary>/x-servicebus-transfer/<index>, and get the description that the original feature gave
    them. What is there already is compared; where it differs, that is a warning, and it is never changed. Needs the
    Manage claim on the secondary namespace, and with --entities on both; with --via arm, a role such as Azure Service
    Bus Data Owner.

    --entities describes the application's own entities, with the names that azure-servicebus gives their properties:

      [queues."billing/invoices"]
      lock_duration = "30s"
      forward_dead_lettered_messages_to = "failures"
      [topics.events.subscriptions.audit.rules.europe]
      sql = "region = 'eu'"

    A subscription that rules are given for has no others: the service's own, which takes every message, is taken from
    it when it is created. Nothing is asked or created while anything in the file is wrong.

    JSON, each entry with a name, a namespace and a kind; under --dry-run "created" is empty and "would_create" says
    what is missing:

      {"schema": "sbpair/provision/1", "dry_run": false, "created": [], "existing": [], "drifted": [],
       "failed": [], "not_tried": [], "would_create": []}

    Exit codes: 0 all are there; 3 some could not be created, or have drifted under --strict; 5 the service does not let
    it in, now or half way; 130 broken off by Ctrl-C, which ends what is on its way and says what was created.
    """
    screen = Screen(display)
    group = group_of(management)
    pair = chosen(connection, screen, count=count)
    from sbpair.management import provisioning

    layout = _layout(entities)

    async def main(stop: asyncio.Event, _hurry: asyncio.Event) -> tuple[provisioning.EntityReport, bool]:
        report = await provisioning.provision(
            pair,
            group=group,
            entities=layout,
            dry_run=dry_run,
            stop=stop,
            on_event=lambda event: queues.progress(screen, event),
        )
        return report, stop.is_set()

    report, stopped = run_gracefully(main)
    screen.result(document(report) | {"dry_run": dry_run}, lines(report), table(report))
    for item in report.of(Outcome.DRIFTED):
        screen.warn(f"{_called(item)} has drifted: {item.reason}")
    for item in report.of(Outcome.FAILED):
        screen.warn(f"{_called(item)} could not be created: {item.reason}")
    if left := len(report.of(Outcome.NOT_TRIED)):
        screen.warn(f"{left} not tried: run it again, and it goes on where this run ended")
    if stopped and report.of(Outcome.NOT_TRIED, Outcome.FAILED):
        raise KeyboardInterrupt
    return provisioning.provision_exit_code(report, strict=strict)


def document(report: "EntityReport") -> dict[str, object]:
    """The JSON contract, with one list an outcome."""
    return {"schema": SCHEMA, **{str(each): [_entry(item) for item in report.of(each)] for each in LISTS}}


def lines(report: "EntityReport") -> list[Document]:
    """The same, one object an entity."""
    return [{"schema": SCHEMA, "outcome": str(item.outcome), **_entry(item)} for item in report]


def table(report: "EntityReport") -> list[str]:
    """The same, for people. Where all are backlog queues, nobody needs to be told so."""
    if not report.items:
        return []
    mixed = any(item.detail and item.detail.index is None for item in report)
    heading = [*(["NAMESPACE", "KIND", "NAME"] if mixed else ["QUEUE"]), "OUTCOME", "REMARK"]
    return columns([heading, *(_row(item, mixed=mixed) for item in report)])


def _layout(path: Path | None) -> "EntitiesDocument":
    from sbpair.management import entities_file

    if path is None:
        return entities_file.NO_ENTITIES
    try:
        return entities_file.parse_entities(path.read_text("utf-8"), str(path))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise UsageError(f"--entities: {path} cannot be read: {error.strerror}", hint="name a TOML file") from error
    except OSError as error:
        raise MachineLacks(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8, as TOML is", hint="save it as UTF-8") from error


def _entry(item: "EntityItem") -> dict[str, object]:
    found: dict[str, object] = {"name": item.name}
    if item.reason:
        found["reason"] = item.reason
    if (detail := item.detail) is None:
        return found
    found |= {"namespace": detail.namespace, "kind": detail.kind}
    if detail.index is not None:
        found["index"] = detail.index
    if detail.partitioned:
        found["partitioned"] = True
    if detail.differences:
        found["differences"] = [asdict(each) for each in detail.differences]
    return found


def _row(item: "EntityItem", *, mixed: bool) -> list[object]:
    detail = item.detail
    name = [detail.namespace, detail.kind, item.name] if mixed and detail else [item.name]
    remark = "; ".join(filter(None, (item.reason, "partitioned" if detail and detail.partitioned else "")))
    return [*name, item.outcome.replace("_", " "), remark]


def _called(item: "EntityItem") -> str:
    own = item.detail and item.detail.index is None
    return f"{item.detail.kind} {item.name} of {item.detail.namespace}" if own and item.detail else item.name
