"""The findings of `sbpair audit` as JSON and text, and its progress on a terminal."""

from collections.abc import Iterator
from dataclasses import asdict

from sbpair.cli.render import queues
from sbpair.cli.render.forecast import ForecastProgress
from sbpair.cli.render.screen import Document, Screen, columns, spoken
from sbpair.management.audit_findings import Audit, DestinationSummary, QueueItem, Unseen, is_full
from sbpair.model.queues import ControlEvent, Utilisation
from sbpair.model.report import Outcome
from sbpair.move.peek.peeker import Peeked

SCHEMA = "sbpair/audit/1"
LISTS = (Outcome.MISSING, Outcome.EXTRA, Outcome.DRIFTED, Outcome.OK, Outcome.FOREIGN)
MEGABYTE = 1024 * 1024
DESTINATIONS_SHOWN = 40
MIN_NOTED_IDLE_SECONDS = 86_400


class AuditProgress:
    """Shows the number of peeked messages on a terminal while it is entered."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._peeking = ForecastProgress(screen)

    def __enter__(self) -> "AuditProgress":
        self._peeking.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._peeking.__exit__(*details)

    def __call__(self, event: ControlEvent | Peeked) -> None:
        if isinstance(event, Peeked):
            self._peeking(event)
        else:
            queues.progress(self._screen, event)


def document(audit: Audit) -> dict[str, object]:
    """Return the audit as JSON."""
    return {
        "schema": SCHEMA,
        **{str(each): [_entry(item) for item in audit.of(each)] for each in LISTS},
        "destinations": [asdict(each) for each in audit.destinations],
        "skipped": [asdict(each) for each in audit.unseen],
        "findings": sorted(audit.findings),
    }


def lines(audit: Audit) -> list[Document]:
    """Return one object for each queue, destination and skipped item."""
    whole: tuple[tuple[str, tuple[DestinationSummary | Unseen, ...]], ...] = (
        ("destination", audit.destinations),
        ("skipped", audit.unseen),
    )
    return [
        *({"schema": SCHEMA, "outcome": str(item.outcome), **_entry(item)} for item in audit),
        *({"schema": SCHEMA, "outcome": kind, **asdict(each)} for kind, found in whole for each in found),
    ]


def table(audit: Audit) -> Iterator[str]:
    """Yield the audit as text."""
    if audit.items:
        heading = ("QUEUE", "OUTCOME", "ACTIVE", "DEAD", "SCHEDULED", "TOTAL", "OLDEST", "FULL", "NOTE")
        yield from columns([heading, *map(_row, audit)])
    if audit.destinations:
        yield ""
        rows = [_destination_row(each) for each in audit.destinations[:DESTINATIONS_SHOWN]]
        yield from columns([("DESTINATION", "MESSAGES", "FOUND", "DUPLICATES", "NOTE"), *rows])
        if len(audit.destinations) > DESTINATIONS_SHOWN:
            yield f"… and {len(audit.destinations) - DESTINATIONS_SHOWN} more: --output json has all of them"


def _entry(item: QueueItem) -> dict[str, object]:
    fill = item.detail.fill if item.detail else None
    return queues.entry(item) | ({"fill": _fill(fill)} if fill else {})


def _fill(fill: Utilisation) -> dict[str, object]:
    return {
        "size_bytes": fill.size_bytes,
        "effective_max_size_mb": fill.max_bytes // MEGABYTE,
        "fill_ratio": None if fill.fill_ratio is None else round(fill.fill_ratio, 6),
        "idle_seconds": _rounded(fill.idle_seconds),
        "idle": fill.idle,
        "peeked": fill.peeked,
        "complete": fill.complete,
        "oldest_seconds": _rounded(fill.oldest_seconds),
        "bytes_per_second": _rounded(fill.bytes_per_second),
        "full_in_seconds": _rounded(fill.full_in_seconds),
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 3)


def _row(item: QueueItem) -> list[object]:
    *cells, note = queues.row(item, counted=True)
    fill = item.detail.fill if item.detail else None
    if fill is None:
        return [*cells, "", "", note]
    oldest = "" if fill.oldest_seconds is None else spoken(fill.oldest_seconds)
    return [*cells, oldest, _share(fill), "; ".join(filter(None, (str(note), *_notes(fill))))]


def _share(fill: Utilisation) -> str:
    if fill.fill_ratio is None:
        return ""
    return "<1%" if 0 < fill.fill_ratio < 0.01 else f"{fill.fill_ratio:.0%}"


def _notes(fill: Utilisation) -> Iterator[str]:
    if fill.idle or (fill.idle_seconds or 0) >= MIN_NOTED_IDLE_SECONDS:
        yield f"unused for {spoken(fill.idle_seconds or 0)}"
    if fill.full_in_seconds is not None:
        yield f"full in {spoken(fill.full_in_seconds)} at this rate{': move it now' if is_full(fill) else ''}"
    elif fill.bytes_per_second is not None:
        yield "not growing"
    if fill.peeked is not None and not fill.complete:
        yield f"peeked only the first {fill.peeked}"


def _destination_row(each: DestinationSummary) -> tuple[object, ...]:
    found = {True: "topic" if each.topic else "yes", False: "no", None: "?"}[each.found]
    duplicates = {True: "detected", False: "not detected", None: "?" if each.found else ""}[each.detects_duplicates]
    name = {"": "(none)", "*": "(others)"}.get(each.name, each.name)
    return (name, each.messages, found, duplicates, each.reason)
