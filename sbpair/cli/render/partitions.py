"""Partitioned entities as JSON and text."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sbpair.cli.render.screen import Document, Screen, columns, size
from sbpair.model.report import Outcome
from sbpair.model.tiers import MEGABYTES

if TYPE_CHECKING:
    from sbpair.management.partitioning import PartitionedEntityState, PartitionItem, PartitionReport

SCHEMA = "sbpair/partition/1"
LIST_SCHEMA = "sbpair/partition-list/1"


def created(report: "PartitionReport", *, dry_run: bool) -> Document:
    """Return a creation as JSON: the first namespace without a failure, and all namespaces."""
    entries = list(_made(report))
    first = next(entry for entry in entries if entry["outcome"] != Outcome.FAILED)
    anywhere = any(entry["created"] for entry in entries)
    return {"schema": SCHEMA, **first, "created": anywhere, "dry_run": dry_run, "namespaces": entries}


def created_lines(report: "PartitionReport") -> Iterator[Document]:
    """Return one object for each namespace."""
    return ({"schema": SCHEMA, **entry} for entry in _made(report))


def table(report: "PartitionReport") -> list[str]:
    """Return lines of text."""
    rows = [(item.name, *_room(placed), item.outcome.replace("_", " ")) for item, placed in _details(report)]
    return columns([("NAME", "KIND", "NAMESPACE", "PARTITIONS", "SIZE", "IN ALL", "OUTCOME"), *rows])


def listed(report: "PartitionReport") -> Document:
    """Return a list as JSON."""
    return {"schema": LIST_SCHEMA, "entities": list(_found(report)), "failed": list(_failed(report))}


def listed_lines(report: "PartitionReport") -> Iterator[Document]:
    """Return one object for each entity, and for each namespace that could not be read."""
    return ({"schema": LIST_SCHEMA, **each} for each in (*_found(report), *_failed(report)))


def list_table(report: "PartitionReport") -> list[str]:
    """Return lines of text."""
    rows = [(item.name, *_room(placed), *_taken(placed)) for item, placed in _details(report)]
    heading = ("NAME", "KIND", "NAMESPACE", "PARTITIONS", "SIZE", "IN ALL", "HOLDS", "FULL")
    return columns([heading, *rows]) if rows else []


def warn(screen: Screen, report: "PartitionReport") -> None:
    """Print the failures of one of several namespaces."""
    for item in report.of(Outcome.FAILED):
        screen.warn(item.reason)


def print_doubts(screen: Screen, report: "PartitionReport") -> None:
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
