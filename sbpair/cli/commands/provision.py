"""`sbpair provision`: runs `sbpair.management.provisioning` and prints its report."""

import asyncio
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run_gracefully
from sbpair.cli.next_command import next_command
from sbpair.cli.options.common import COUNT, PairSelection, flag, option
from sbpair.cli.options.values import Management, group_of, selected_pair
from sbpair.cli.render import queues
from sbpair.cli.render.screen import Screen
from sbpair.cli.render.table import columns
from sbpair.model.report import Outcome
from sbpair.operating_system.files import read_document

if TYPE_CHECKING:
    from sbpair.management.entities_file import EntitiesDocument
    from sbpair.management.provisioning import EntityItem, EntityReport

LISTS = (Outcome.CREATED, Outcome.EXISTING, Outcome.DRIFTED, Outcome.FAILED, Outcome.NOT_TRIED, Outcome.WOULD_CREATE)


def command(
    *,
    count: int | None = COUNT,
    entities: Path | None = option("--entities FILE", "Also create the entities of this TOML file in both namespaces"),
    dry_run: bool = flag("--dry-run", "Only print what would be created"),
    strict: bool = flag("--strict", "Exit 3 if an existing entity differs"),
    management: Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Create the missing backlog queues in the secondary namespace.

    Existing queues are compared and never changed. Needs Manage on the secondary namespace, with --entities on both.
    The TOML file describes queues, topics, subscriptions and rules.

    Examples:
      sbpair provision --dry-run
      sbpair provision --count 10 --entities entities.toml

    Exit codes: 3 some were not created, or differ with --strict; 5 access denied; 130 interrupted

    See also: sbpair help management
    """
    group = group_of(management)
    pair = selected_pair(connection, screen, count=count)
    from sbpair.management import provisioning

    requested = read_entities(entities)

    async def main(stop: asyncio.Event, _hurry: asyncio.Event) -> tuple[provisioning.EntityReport, bool]:
        report = await provisioning.provision(
            pair, group=group, entities=requested, dry_run=dry_run, stop=stop, on_event=partial(queues.progress, screen)
        )
        return report, stop.is_set()

    report, stopped = run_gracefully(main)
    document = queues.document(report, LISTS, queues.entry) | {"dry_run": dry_run}
    screen.result("sbpair/provision/1", document, _table(report), queues.lines(report, queues.entry))
    for item in report.of(Outcome.DRIFTED):
        screen.warn(f"{_title_of(item)} differs: {item.reason}")
    for item in report.of(Outcome.FAILED):
        screen.warn(f"{_title_of(item)} was not created: {item.reason}")
    if left := len(report.of(Outcome.NOT_TRIED)):
        screen.warn(f"{left} not tried: continue with {next_command('provision')}")
    if stopped and report.of(Outcome.NOT_TRIED, Outcome.FAILED):
        raise KeyboardInterrupt
    return provisioning.provision_exit_code(report, strict=strict)


def _table(report: "EntityReport") -> list[str]:
    """Return the report as text; namespace and kind are shown only beside other entities than backlog queues."""
    if not report.items:
        return []
    mixed = any(item.detail and item.detail.index is None for item in report)
    heading = [*(["NAMESPACE", "KIND", "NAME"] if mixed else ["QUEUE"]), "OUTCOME", "NOTE"]
    places = [[item.detail.namespace, item.detail.kind] if mixed and item.detail else [] for item in report]
    rows = ([*place, *queues.row(item, counted=False)] for place, item in zip(places, report, strict=True))
    return columns([heading, *rows])


def read_entities(path: Path | None) -> "EntitiesDocument":
    from sbpair.management import entities_file

    if path is None:
        return entities_file.NO_ENTITIES
    text = read_document(path, option="--entities", hint="name a TOML file")
    return entities_file.parse_entities(text, str(path))


def _title_of(item: "EntityItem") -> str:
    own = item.detail and item.detail.index is None
    return f"{item.detail.kind} {item.name} of {item.detail.namespace}" if own and item.detail else item.name
