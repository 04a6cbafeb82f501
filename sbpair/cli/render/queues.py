"""Queues and entities of a report as JSON and rows, for provision, audit and prune."""

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, TypeVar

from sbpair.cli.render.screen import Document, Screen, spoken
from sbpair.cli.render.table import columns
from sbpair.management.calls import ControlEvent, Listed, QueueProvisioned, SecondSample
from sbpair.model.queues import QueueFinding
from sbpair.model.report import Outcome, Report, ReportItem
from sbpair.model.retries import Retrying

QueueItem = ReportItem[QueueFinding]
QueueReport = Report[QueueFinding]
Detail = TypeVar("Detail")


def entry(item: ReportItem[Any]) -> dict[str, object]:
    """Return one queue or entity as JSON: its name and all known facts."""
    found: dict[str, object] = {"name": item.name, **({"reason": item.reason} if item.reason else {})}
    if isinstance(item.detail, QueueFinding):
        found["index"] = item.detail.index
    known = {} if item.detail is None else asdict(item.detail)
    known.pop("fill", None)
    return found | {name: value for name, value in known.items() if value not in (None, ()) and value is not False}


def document(
    report: Report[Detail], outcomes: Iterable[Outcome], entry: Callable[[ReportItem[Detail]], Document]
) -> dict[str, object]:
    """Return a report as JSON, with one list of entries for each outcome."""
    return {str(each): [entry(item) for item in report.of(each)] for each in outcomes}


def lines(report: Report[Detail], entry: Callable[[ReportItem[Detail]], Document]) -> list[Document]:
    """Return one entry for each item, with its outcome."""
    return [{"outcome": str(item.outcome), **entry(item)} for item in report]


def table(report: QueueReport, *, counted: bool) -> list[str]:
    """Return the report as text."""
    if not report.items:
        return []
    heading = ["QUEUE", "OUTCOME", *(["ACTIVE", "DEAD", "SCHEDULED", "TOTAL"] if counted else []), "NOTE"]
    return columns([heading, *(row(item, counted=counted) for item in report)])


def progress(screen: Screen, event: ControlEvent) -> None:
    """Print an event of a command that reads or changes queues."""
    match event:
        case Listed(namespace, queues):
            screen.detail(f"{namespace} has {queues} queues under the prefix")
        case Retrying(_what, attempt, wait_seconds, reason):
            screen.say(f"{reason}; attempt {attempt} of 3, retrying in {wait_seconds:.1f} s")
        case SecondSample(seconds):
            screen.detail(f"waiting {spoken(seconds)} for a second sample of the queues")
        case QueueProvisioned(path, outcome, done, total):
            screen.detail(f"{path}: {outcome} ({done} of {total})")


def row(item: ReportItem[Any], *, counted: bool) -> list[object]:
    """Return one row of a table, the note last."""
    counts = item.detail.counts if counted and item.detail else None
    numbers = [counts.active, counts.dead_letter, counts.scheduled, counts.total] if counts else ["", "", "", ""]
    partitioned = "partitioned" if item.detail and item.detail.partitioned else ""
    note = "; ".join(filter(None, (item.reason, partitioned)))
    return [item.name, item.outcome.replace("_", " "), *(numbers if counted else []), note]
