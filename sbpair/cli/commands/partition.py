"""`sbpair partition`: runs `sbpair.management.partitioning` and prints the result."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from sbpair.cli.command_loop import run
from sbpair.cli.help import Command, CommandGroup
from sbpair.cli.options.common import Display, PairSelection, argument, option, options
from sbpair.cli.options.values import Management, group_of, selected_pair
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


Name = Annotated[str, argument("NAME", "Name of the entity")]
SizeGb = Annotated[
    int, option("--size-gb N", "Size of each of 16 partitions, 1 to 5; on Premium the whole size, also 10 to 80")
]
Window = Annotated[str | None, option("--duplicate-detection WINDOW", "Detect duplicates within 20s to 7d")]
OneSide = Annotated[SideOption | None, option("--side SIDE", "primary or secondary [default: primary]")]
Both = Annotated[bool, option("--both", "Create it in both namespaces")]
DryRun = Annotated[bool, option("--dry-run", "Only print what would be created")]


@app.callback()
def partition() -> None:
    """Create and list partitioned queues and topics.

    A partitioned entity stays available while one of its partitions is not. On Standard it has 16 partitions of the
    chosen size each. On Premium the whole namespace is partitioned, and the chosen size is the total.

    Examples:
      sbpair partition queue orders --size-gb 5 --both
      sbpair partition list

    See also: sbpair help management
    """


@dataclass(frozen=True, slots=True)
class Request:
    """Where an entity is created, and whether only a plan is printed."""

    side: OneSide = None
    both: Both = False
    dry_run: DryRun = False


@app.command("queue", cls=Command)
@options
def queue(
    *,
    name: Name,
    size_gb: SizeGb,
    sessions: Annotated[bool, option("--sessions", "Require sessions")] = False,
    duplicate_detection: Window = None,
    forward_to: Annotated[str, option("--forward-to NAME", "Forward all messages to this queue or topic")] = "",
    request: Request,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """Create a partitioned queue.

    An existing queue is never changed: it is accepted if it matches, and refused if not. Needs Manage.

    Examples:
      sbpair partition queue orders --size-gb 5
      sbpair partition queue orders --size-gb 1 --sessions --both

    Exit codes: 3 it exists and differs, the namespace is full, or one of two namespaces failed
    """
    from sbpair.management import partitioned

    wanted = partitioned.partitioned_queue(
        name, size_gb, sessions=sessions, duplicates=duplicate_detection, forward_to=forward_to
    )
    return _create(wanted, _Where(connection, request.side, request.both), management, display, dry_run=request.dry_run)


@app.command("topic", cls=Command)
@options
def topic(
    *,
    name: Name,
    size_gb: SizeGb,
    duplicate_detection: Window = None,
    request: Request,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """Create a partitioned topic; its subscriptions are partitioned, too.

    An existing topic is never changed: it is accepted if it matches, and refused if not. Needs Manage.

    Examples:
      sbpair partition topic events --size-gb 5
      sbpair partition topic events --size-gb 5 --duplicate-detection 10m

    Exit codes: 3 it exists and differs, the namespace is full, or one of two namespaces failed
    """
    from sbpair.management import partitioned

    wanted = partitioned.partitioned_topic(name, size_gb, duplicates=duplicate_detection)
    return _create(wanted, _Where(connection, request.side, request.both), management, display, dry_run=request.dry_run)


@app.command("list", cls=Command)
@options
def list_entities(
    *,
    side: Annotated[SideOption | None, option("--side SIDE", "primary or secondary [default: both]")] = None,
    management: Management,
    connection: PairSelection,
    display: Display,
) -> int:
    """List queues and topics with partitions, sizes and utilisation.

    SIZE is the chosen size, IN ALL that of all partitions, FULL the used share of it. Needs Manage.

    Examples:
      sbpair partition list
      sbpair partition list --side primary -o json

    Exit codes: 3 only one of two namespaces was read
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
        screen.say("no queues and no topics")
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
    partitions.print_doubts(screen, report)
    screen.result(
        partitions.created(report, dry_run=dry_run), partitions.created_lines(report), partitions.table(report)
    )
    return partitioning.partition_exit_code(report)


def _endpoints(where: _Where, screen: Screen) -> "list[Endpoint]":
    if where.both and where.side is not None:
        raise UsageError("--side and --both exclude each other", hint="--both is the primary and the secondary")
    pair = selected_pair(where.connection, screen)
    if where.both:
        return [pair.primary, pair.secondary]
    return [pair.secondary if where.side is SideOption.SECONDARY else pair.primary]
