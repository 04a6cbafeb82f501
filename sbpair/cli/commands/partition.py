"""`sbpair partition`: runs `sbpair.management.partitioning` and prints the result."""

from functools import partial
from typing import TYPE_CHECKING

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import PairSelection, argument, flag, option, option_group
from sbpair.cli.options.values import Management, group_of, selected_pair
from sbpair.cli.progress.reporting import print_control_event
from sbpair.cli.render.screen import Screen, size
from sbpair.cli.render.table import columns
from sbpair.model.pair import Side
from sbpair.model.report import Outcome
from sbpair.model.tiers import MEGABYTES

if TYPE_CHECKING:
    from sbpair.management.partitioning import PartitionedEntityState, PartitionItem, PartitionReport, QueueOrTopic
    from sbpair.model.pair import Endpoint

ROOM = ("NAME", "KIND", "NAMESPACE", "PARTITIONS", "SIZE", "IN ALL")


NAME = argument("NAME", "Name of the entity")
SIZE_GB = option("--size-gb N", "Size of each of 16 partitions, 1 to 5; on Premium in all, also 10 to 80", default=1)
WINDOW = option("--duplicate-detection WINDOW", "Detect duplicates within 20s to 7d")


def group() -> None:
    """Create and list partitioned queues and topics.

    A partitioned entity stays available while one of its partitions is not. On Standard it has 16 partitions of the
    chosen size each. On Premium the whole namespace is partitioned, and the chosen size is the total.

    Examples:
      sbpair partition queue orders --size-gb 5 --both
      sbpair partition list

    See also: sbpair help management
    """


@option_group
class Request:
    """Where an entity is created, and whether only a plan is printed."""

    side: Side | None = option("--side SIDE", "primary or secondary [default: primary]", excludes="--both")
    both: bool = flag("--both", "Create it in both namespaces")
    dry_run: bool = flag("--dry-run", "Only print what would be created")


def queue(
    *,
    name: str = NAME,
    size_gb: int = SIZE_GB,
    sessions: bool = flag("--sessions", "Require sessions"),
    duplicate_detection: str | None = WINDOW,
    forward_to: str = option("--forward-to NAME", "Forward all messages to this queue or topic", default=""),
    request: Request,
    management: Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Create a partitioned queue.

    An existing queue is never changed: it is accepted if it matches, and refused if not. Needs Manage.

    Examples:
      sbpair partition queue orders --size-gb 5
      sbpair partition queue orders --sessions --both

    Exit codes: 3 it exists and differs, the namespace is full, or one of two namespaces failed
    """
    from sbpair.management import partitioning

    wanted = partitioning.partitioned_queue(
        name, size_gb, sessions=sessions, duplicates=duplicate_detection, forward_to=forward_to
    )
    return _create(wanted, request, management, connection, screen)


def topic(
    *,
    name: str = NAME,
    size_gb: int = SIZE_GB,
    duplicate_detection: str | None = WINDOW,
    request: Request,
    management: Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Create a partitioned topic; its subscriptions are partitioned, too.

    An existing topic is never changed: it is accepted if it matches, and refused if not. Needs Manage.

    Examples:
      sbpair partition topic events --size-gb 5
      sbpair partition topic events --size-gb 5 --duplicate-detection 10m

    Exit codes: 3 it exists and differs, the namespace is full, or one of two namespaces failed
    """
    from sbpair.management import partitioning

    wanted = partitioning.partitioned_topic(name, size_gb, duplicates=duplicate_detection)
    return _create(wanted, request, management, connection, screen)


def list_entities(
    *,
    side: Side | None = option("--side SIDE", "primary or secondary [default: both]"),
    management: Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """List queues and topics with partitions, sizes and utilisation.

    SIZE is the chosen size, IN ALL that of all partitions, FULL the used share of it. Needs Manage.

    Examples:
      sbpair partition list
      sbpair partition list --side primary -o json

    Exit codes: 3 only one of two namespaces was read
    """
    group = group_of(management)
    endpoints = _endpoints(connection, screen, side, both=side is None)
    from sbpair.cli.results.partition import PartitionList, PlacedEntity, UnreadNamespace
    from sbpair.management import partitioning

    report = run(partitioning.list_partitions(endpoints, group=group, on_event=partial(print_control_event, screen)))
    _warn(screen, report)
    if not report.items:
        screen.say("no queues and no topics")
    entities, rows = [], []
    for item, placed in _details(report):
        fill = placed.fill_ratio
        entities.append(PlacedEntity(item.name, placed, placed.size_bytes, fill))
        taken = ("", "") if placed.size_bytes is None or fill is None else (size(placed.size_bytes), f"{fill:.1%}")
        rows.append((item.name, *_room(placed), *taken))
    unread = tuple(UnreadNamespace(item.name, item.reason) for item in report.of(Outcome.FAILED))
    table = columns([(*ROOM, "HOLDS", "FULL"), *rows]) if rows else []
    screen.show(PartitionList(tuple(entities), unread), table)
    return partitioning.partition_exit_code(report)


SUBCOMMANDS = {"queue": queue, "topic": topic, "list": list_entities}


def _create(
    wanted: "QueueOrTopic", request: Request, management: Management, connection: PairSelection, screen: Screen
) -> int:
    group = group_of(management)
    endpoints = _endpoints(connection, screen, request.side, both=request.both)
    from sbpair.cli.results.partition import CreatedEntity, PartitionResult
    from sbpair.management import partitioning

    report = run(
        partitioning.create_partitioned(
            endpoints, wanted, group=group, dry_run=request.dry_run, on_event=partial(print_control_event, screen)
        )
    )
    _warn(screen, report)
    found = _details(report)
    for item, placed in found:
        if item.outcome is Outcome.WOULD_CREATE and 1 in placed.partitions:
            screen.say(f"{placed.namespace} may not be partitioned; if so, it refuses this")
    entries = tuple(
        CreatedEntity(item.name, placed, item.outcome, item.outcome is Outcome.CREATED, item.reason)
        for item, placed in found
    )
    first = next(each for each in entries if each.outcome != Outcome.FAILED)
    first = first._replace(created=any(each.created for each in entries))
    rows = [(item.name, *_room(placed), item.outcome.replace("_", " ")) for item, placed in found]
    screen.show(PartitionResult(first, request.dry_run, entries), columns([(*ROOM, "OUTCOME"), *rows]))
    return partitioning.partition_exit_code(report)


def _endpoints(connection: PairSelection, screen: Screen, side: Side | None, *, both: bool) -> "list[Endpoint]":
    pair = selected_pair(connection, screen)
    if both:
        return [pair.primary, pair.secondary]
    return [pair.secondary if side == "secondary" else pair.primary]


def _warn(screen: Screen, report: "PartitionReport") -> None:
    for item in report.of(Outcome.FAILED):
        screen.warn(item.reason)


def _details(report: "PartitionReport") -> "list[tuple[PartitionItem, PartitionedEntityState]]":
    return [(item, item.detail) for item in report if item.detail]


def _room(placed: "PartitionedEntityState") -> tuple[object, ...]:
    possible = placed.partitions
    count = possible[0] if len(possible) == 1 else " or ".join(map(str, possible))
    sizes = (_gigabytes(placed.max_size_mb), _gigabytes(placed.effective_max_size_mb))
    return placed.kind, placed.namespace, count, *sizes


def _gigabytes(megabytes: int) -> str:
    return f"{megabytes // MEGABYTES} GB" if megabytes % MEGABYTES == 0 else f"{megabytes} MB"
