"""`sbpair partition`: runs `sbpair.management.partitioning` and prints the result."""

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

from sbpair.cli.command_loop import run
from sbpair.cli.options.common import PairSelection, argument, flag, option, option_group
from sbpair.cli.options.values import Management, group_of, selected_pair
from sbpair.cli.render.queues import progress
from sbpair.cli.render.screen import Document, Screen, size
from sbpair.cli.render.table import columns
from sbpair.errors import UsageError
from sbpair.model.report import Outcome
from sbpair.model.tiers import MEGABYTES

if TYPE_CHECKING:
    from sbpair.management.partitioning import PartitionedEntityState, PartitionItem, PartitionReport, QueueOrTopic
    from sbpair.model.pair import Endpoint

SCHEMA, LIST_SCHEMA = "sbpair/partition/1", "sbpair/partition-list/1"


NAME = argument("NAME", "Name of the entity")
SIZE_GB = option(
    "--size-gb N", "Size of each of 16 partitions, 1 to 5; on Premium the whole size, also 10 to 80", default=...
)
WINDOW = option("--duplicate-detection WINDOW", "Detect duplicates within 20s to 7d")
Side = Literal["primary", "secondary"]


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

    side: Side | None = option("--side SIDE", "primary or secondary [default: primary]")
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
      sbpair partition queue orders --size-gb 1 --sessions --both

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
    from sbpair.management import partitioning

    report = run(partitioning.list_partitions(endpoints, group=group, on_event=partial(progress, screen)))
    _warn(screen, report)
    if not report.items:
        screen.say("no queues and no topics")
    found, unread = list(_found(report)), list(_failed(report))
    screen.result(LIST_SCHEMA, {"entities": found, "failed": unread}, _list_table(report), found + unread)
    return partitioning.partition_exit_code(report)


SUBCOMMANDS = {"queue": queue, "topic": topic, "list": list_entities}


def _create(
    wanted: "QueueOrTopic", request: Request, management: Management, connection: PairSelection, screen: Screen
) -> int:
    group = group_of(management)
    endpoints = _endpoints(connection, screen, request.side, both=request.both)
    from sbpair.management import partitioning

    create = partial(partitioning.create_partitioned, endpoints, wanted, group=group, dry_run=request.dry_run)
    report = run(create(on_event=partial(progress, screen)))
    _warn(screen, report)
    _print_doubts(screen, report)
    screen.result(SCHEMA, _created(report, dry_run=request.dry_run), _table(report), _made(report))
    return partitioning.partition_exit_code(report)


def _endpoints(connection: PairSelection, screen: Screen, side: Side | None, *, both: bool) -> "list[Endpoint]":
    if both and side is not None:
        raise UsageError("--side and --both exclude each other", hint="--both is the primary and the secondary")
    pair = selected_pair(connection, screen)
    if both:
        return [pair.primary, pair.secondary]
    return [pair.secondary if side == "secondary" else pair.primary]


def _created(report: "PartitionReport", *, dry_run: bool) -> Document:
    """Return a creation as JSON: the first namespace without a failure, and all namespaces."""
    entries = list(_made(report))
    first = next(entry for entry in entries if entry["outcome"] != Outcome.FAILED)
    anywhere = any(entry["created"] for entry in entries)
    return {**first, "created": anywhere, "dry_run": dry_run, "namespaces": entries}


def _table(report: "PartitionReport") -> list[str]:
    rows = [(item.name, *_room(placed), item.outcome.replace("_", " ")) for item, placed in _details(report)]
    return columns([("NAME", "KIND", "NAMESPACE", "PARTITIONS", "SIZE", "IN ALL", "OUTCOME"), *rows])


def _list_table(report: "PartitionReport") -> list[str]:
    rows = [(item.name, *_room(placed), *_taken(placed)) for item, placed in _details(report)]
    heading = ("NAME", "KIND", "NAMESPACE", "PARTITIONS", "SIZE", "IN ALL", "HOLDS", "FULL")
    return columns([heading, *rows]) if rows else []


def _warn(screen: Screen, report: "PartitionReport") -> None:
    for item in report.of(Outcome.FAILED):
        screen.warn(item.reason)


def _print_doubts(screen: Screen, report: "PartitionReport") -> None:
    """Name the namespaces whose partitioning is unknown before the creation."""
    for item, placed in _details(report):
        if item.outcome is Outcome.WOULD_CREATE and 1 in placed.partitions:
            screen.say(f"{placed.namespace} may not be partitioned; if so, it refuses this")


def _details(report: "PartitionReport") -> "Iterator[tuple[PartitionItem, PartitionedEntityState]]":
    return ((item, item.detail) for item in report if item.detail)


def _made(report: "PartitionReport") -> Iterator[dict[str, object]]:
    for item, placed in _details(report):
        outcome: dict[str, object] = {"outcome": item.outcome, "created": item.outcome is Outcome.CREATED}
        yield {"name": item.name} | _entry(placed) | outcome | ({"reason": item.reason} if item.reason else {})


def _found(report: "PartitionReport") -> Iterator[dict[str, object]]:
    for item, placed in _details(report):
        fill_ratio = None if placed.fill_ratio is None else round(placed.fill_ratio, 6)
        yield {"name": item.name} | _entry(placed) | {"size_bytes": placed.size_bytes, "fill_ratio": fill_ratio}


def _failed(report: "PartitionReport") -> Iterator[dict[str, object]]:
    return ({"namespace": item.name, "reason": item.reason} for item in report.of(Outcome.FAILED))


def _entry(placed: "PartitionedEntityState") -> dict[str, object]:
    possible = placed.partitions
    return {
        "namespace": placed.namespace,
        "kind": placed.kind,
        "tier": placed.tier,
        "partitions": possible[0] if len(possible) == 1 else None,
        **({} if len(possible) == 1 else {"partitions_possible": list(possible)}),
        "max_size_mb": placed.max_size_mb,
        "effective_max_size_mb": placed.effective_max_size_mb,
    }


def _room(placed: "PartitionedEntityState") -> tuple[object, ...]:
    possible = placed.partitions
    count = possible[0] if len(possible) == 1 else " or ".join(map(str, possible))
    sizes = (_gigabytes(placed.max_size_mb), _gigabytes(placed.effective_max_size_mb))
    return placed.kind, placed.namespace, count, *sizes


def _taken(placed: "PartitionedEntityState") -> tuple[str, str]:
    if placed.size_bytes is None or placed.fill_ratio is None:
        return "", ""
    return size(placed.size_bytes), f"{placed.fill_ratio:.1%}"


def _gigabytes(megabytes: int) -> str:
    return f"{megabytes // MEGABYTES} GB" if megabytes % MEGABYTES == 0 else f"{megabytes} MB"
