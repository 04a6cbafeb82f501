"""`sbpair partition`: options into calls of `sbpair.management.partitioning`, and what they answer into output."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.help import Command, CommandGroup
from sbpair.cli.options.common import Display, PairSelection, options
from sbpair.cli.options.management import Management, group_of
from sbpair.cli.options.pairs import chosen
from sbpair.cli.render import partitions
from sbpair.cli.render.queues import progress
from sbpair.cli.render.screen import Screen
from sbpair.errors import UsageError

if TYPE_CHECKING:
    from sbpair.management.partitioned import QueueOrTopic
    from sbpair.model.pair import Endpoint

app = typer.Typer(cls=CommandGroup, add_completion=False, rich_markup_mode=None)


class SideOption(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"


Name = Annotated[str, typer.Argument(metavar="NAME", help="What it is to be called")]
SizeGb = Annotated[
    int,
    typer.Option(
        "--size-gb",
        metavar="N",
        help="Its size in GB: 1 to 5, and that 16 times over; on Premium also 10, 20, 40 or 80, and that once",
    ),
]
Window = Annotated[
    str | None,
    typer.Option(
        "--duplicate-detection", metavar="WINDOW", help="Detect duplicates for so long: from 20s to 7d, as 10m or PT10M"
    ),
]
OneSide = Annotated[
    SideOption | None,
    typer.Option("--side", metavar="primary|secondary", help="In which namespace of the pair (primary)"),
]
Both = Annotated[bool, typer.Option("--both", help="In both namespaces of the pair")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be created, and create nothing")]


@app.callback()
def partition() -> None:
    """Create partitioned queues and topics, and list them.

    A partitioned entity goes on while a part of it is away. In a Standard namespace it has 16 partitions of the chosen
    size each, so that 5 GB make 80. In Premium it is the namespace that is partitioned, with all that is in it, and an
    entity has the chosen size as a whole.
    """


@app.command("queue", cls=Command)
@options
def queue(
    *,
    name: Name,
    size_gb: SizeGb,
    sessions: Annotated[bool, typer.Option("--sessions", help="Require sessions")] = False,
    duplicate_detection: Window = None,
    forward_to: Annotated[
        str, typer.Option("--forward-to", metavar="NAME", help="Forward all messages to this queue or topic")
    ] = "",
    side: OneSide = None,
    both: Both = False,
    dry_run: DryRun = False,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """Create a partitioned queue.

    Partitioning can only be chosen at creation, so a queue that is there already is never changed: where it is just
    what is asked for, nothing is done and "created" is false; where it is not, that is refused. What the service would
    refuse is told before anything is made, with --both in either namespace. Needs the Manage claim.

    JSON; "partitions" is null where it is one of "partitions_possible", for a Premium namespace does not always tell
    it, but with --via arm. "namespaces" has an entry of the same form for each:

      {"schema": "sbpair/partition/1", "name": "", "partitions": 16, "max_size_mb": 5120,
       "effective_max_size_mb": 81920, "created": true, "outcome": "created", "namespace": "",
       "kind": "queue", "tier": "Standard", "dry_run": false, "namespaces": []}

    Exit codes: 0 it is there as asked; 2 no such size, name, window or feature; 3 it is there and differs, there is no
    more room for one in the namespace, or one of two namespaces failed.
    """
    from sbpair.management import partitioned

    wanted = partitioned.partitioned_queue(
        name, size_gb, sessions=sessions, duplicates=duplicate_detection, forward_to=forward_to
    )
    return _create(wanted, _Where(connection, side, both), management, display, dry_run=dry_run)


@app.command("topic", cls=Command)
@options
def topic(
    *,
    name: Name,
    size_gb: SizeGb,
    duplicate_detection: Window = None,
    side: OneSide = None,
    both: Both = False,
    dry_run: DryRun = False,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """Create a partitioned topic.

    As sbpair partition queue does it, with the same JSON and exit codes. Its subscriptions are as partitioned as it is.
    """
    from sbpair.management import partitioned

    wanted = partitioned.partitioned_topic(name, size_gb, duplicates=duplicate_detection)
    return _create(wanted, _Where(connection, side, both), management, display, dry_run=dry_run)


@app.command("list", cls=Command)
@options
def list_entities(
    *,
    side: Annotated[
        SideOption | None,
        typer.Option("--side", metavar="primary|secondary", help="Only this namespace of the pair (both)"),
    ] = None,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """List queues and topics with their partitions, their sizes, and how full they are.

    "max_size_mb" is the chosen size, "effective_max_size_mb" the size of all partitions together, and "fill_ratio" the
    part of it in use, from 0 to 1. Needs the Manage claim.

    JSON; "failed" names the namespaces that could not be read:

      {"schema": "sbpair/partition-list/1", "entities": [{"name": "", "namespace": "", "kind": "queue",
       "tier": "Standard", "partitions": 16, "max_size_mb": 5120, "effective_max_size_mb": 81920,
       "size_bytes": 0, "fill_ratio": 0.0}], "failed": []}

    Exit codes: 0 listed; 3 only one of two namespaces could be read.
    """
    screen = Screen(display)
    group = group_of(management)
    endpoints = _endpoints(_Where(connection, side, both=side is None), screen)
    from sbpair.management import partitioning

    report = run(
        lambda _stop: partitioning.list_partitions(
            endpoints, group=group, on_event=lambda event: progress(screen, event)
        )
    )
    partitions.warn(screen, report)
    if not report.items:
        screen.say("there is no queue, and no topic")
    screen.result(partitions.listed(report), partitions.listed_lines(report), partitions.list_table(report))
    return partitioning.partition_exit_code(report)


@dataclass(frozen=True, slots=True)
class _Where:
    """Which namespaces of which pair."""

    connection: PairSelection
    side: SideOption | None
    both: bool


def _create(wanted: "QueueOrTopic", where: _Where, management: Management, display: Display, *, dry_run: bool) -> int:
    screen = Screen(display)
    group = group_of(management)
    endpoints = _endpoints(where, screen)
    from sbpair.management import partitioning

    report = run(
        lambda _stop: partitioning.create_partitioned(
            endpoints, wanted, group=group, dry_run=dry_run, on_event=lambda event: progress(screen, event)
        )
    )
    partitions.warn(screen, report)
    partitions.tell_doubts(screen, report)
    screen.result(
        partitions.created(report, dry_run=dry_run), partitions.created_lines(report), partitions.table(report)
    )
    return partitioning.partition_exit_code(report)


def _endpoints(where: _Where, screen: Screen) -> "list[Endpoint]":
    if where.both and where.side is not None:
        raise UsageError("--side and --both exclude each other", hint="--both is the primary and the secondary")
    pair = chosen(where.connection, screen)
    if where.both:
        return [pair.primary, pair.secondary]
    return [pair.secondary if where.side is SideOption.SECONDARY else pair.primary]
