"""`sbpair audit`: runs `sbpair.management.auditing` and prints its findings."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from sbpair.cli.command_loop import run
from sbpair.cli.completion import findings
from sbpair.cli.next_command import next_command
from sbpair.cli.options import values
from sbpair.cli.options.common import COUNT, PairSelection, duration, option
from sbpair.cli.render import queues
from sbpair.cli.render.screen import Document, Screen, rounded, spoken
from sbpair.cli.render.status import LEGEND, sampled, total_document, total_line
from sbpair.cli.render.table import columns, limited
from sbpair.management.audit_findings import (
    FAIL_ON,
    MAX_PEEK,
    Audit,
    AuditFinding,
    DestinationSummary,
    audit_exit_code,
    is_full,
)
from sbpair.model.queues import Utilisation
from sbpair.model.report import Outcome

LISTS = (Outcome.MISSING, Outcome.EXTRA, Outcome.DRIFTED, Outcome.OK, Outcome.FOREIGN)
DESTINATIONS_SHOWN = 40
MIN_NOTED_IDLE_SECONDS = 86_400
DEFAULT = ",".join(kind for kind in AuditFinding if kind in FAIL_ON)
CHOICES = ", ".join((*AuditFinding, values.ALL, values.NONE))
PEEK_LIMIT = 1_000_000
MAX_SAMPLE_SECONDS = 3_600


def command(
    *,
    count: int | None = COUNT,
    fail_on: frozenset[AuditFinding] = option(
        "--fail-on KIND[,KIND]",
        f"Findings that exit 3: {CHOICES}",
        complete=findings,
        default=DEFAULT,
        parse=partial(values.findings_of, tuple(AuditFinding)),
    ),
    idle: float | None = duration("--idle DURATION", "Report queues unused for this long, as in 30d"),
    peek: int = option(
        "--peek N", "Messages to peek in each queue; 0 for none", at_least=0, at_most=PEEK_LIMIT, default=MAX_PEEK
    ),
    sample: float = duration(
        "--sample DURATION",
        "Time between two samples of a queue's growth; 0 for one sample",
        default="5s",
        at_least=0,
        at_most=MAX_SAMPLE_SECONDS,
    ),
    management: values.Management,
    connection: PairSelection,
    screen: Screen,
) -> int:
    """Compare backlog queues with the expected ones; count messages.

    Reports missing, extra and drifted queues, stranded messages, their age and destinations, and queue growth. Changes
    and locks nothing. Needs Manage on the secondary; with Listen, it also peeks messages.

    Examples:
      sbpair audit
      sbpair audit --fail-on missing,extra --sample 1m

    Exit codes: 0 no finding of --fail-on; 3 at least one

    See also: sbpair help management
    """
    group = values.group_of(management)
    pair = values.selected_pair(connection, screen, count=count)
    from sbpair.cli.progress.reporting import PeekProgress
    from sbpair.management import auditing

    with PeekProgress(screen) as progress:
        audit = auditing.audit(
            pair,
            group=group,
            idle_seconds=idle,
            max_peek=peek,
            sample_seconds=sample,
            on_event=progress,
        )
        found = run(audit)
    document = _document(found)
    screen.result("sbpair/audit/1", document, _table(found), _lines(found, document))
    for each in found.unseen:
        screen.warn(f"skipped {each.name}: {each.reason}")
    if found.of(Outcome.MISSING):
        screen.say(f"create the missing queues with {next_command('provision')}")
    values.failed_on(screen, found.found, fail_on)
    return audit_exit_code(found, fail_on)


def _document(audit: Audit) -> Document:
    return {
        **queues.document(audit, LISTS, _entry),
        "backlog": total_document(audit.total),
        "destinations": [{**asdict(each), "exact": audit.complete} for each in audit.destinations],
        "skipped": [asdict(each) for each in audit.unseen],
        "findings": sorted(audit.findings),
    }


def _lines(audit: Audit, document: Mapping[str, Any]) -> Iterator[Document]:
    yield from ({"kind": "queue", **line} for line in queues.lines(audit, _entry))
    for kind, entries in (("destination", document["destinations"]), ("skipped", document["skipped"])):
        yield from ({"kind": kind, "outcome": kind, **each} for each in entries)


def _table(audit: Audit) -> Iterator[str]:
    if audit.items:
        heading = ("QUEUE", "OUTCOME", "ACTIVE", "DEAD", "SCHEDULED", "TOTAL", "OLDEST", "FULL", "NOTE")
        yield from columns([heading, *map(_row, audit)])
    if audit.destinations:
        yield ""
        titles = ("DESTINATION", "MESSAGES", "FOUND", "DUPLICATES", "NOTE")
        rows = (_destination_row(each, exact=audit.complete) for each in audit.destinations)
        yield from limited([titles, *rows], DESTINATIONS_SHOWN)
    yield ""
    if audit.destinations and not audit.complete:
        yield f"{LEGEND}; --peek N peeks more"
    yield total_line(audit.total)


def _entry(item: queues.QueueItem) -> dict[str, object]:
    fill = item.detail.fill if item.detail else None
    return queues.entry(item) | ({"fill": _fill(fill)} if fill else {})


def _fill(fill: Utilisation) -> dict[str, object]:
    rates = ("idle_seconds", "oldest_seconds", "bytes_per_second", "full_in_seconds")
    return {
        **{name: getattr(fill, name) for name in ("size_bytes", "idle", "peeked", "complete")},
        **{name: rounded(getattr(fill, name)) for name in rates},
        "effective_max_size_mb": fill.max_bytes // 1024 // 1024,
        "fill_ratio": None if fill.fill_ratio is None else round(fill.fill_ratio, 6),
    }


def _row(item: queues.QueueItem) -> list[object]:
    *cells, note = queues.row(item, counted=True)
    fill = item.detail.fill if item.detail else None
    counts = item.detail.counts if item.detail else None
    if counts and (dead := counts.dead_letter + counts.transfer_dead_letter):
        note = "; ".join(filter(None, (f"{dead} dead-lettered", str(note))))
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


def _destination_row(each: DestinationSummary, *, exact: bool) -> tuple[object, ...]:
    found = {True: "topic" if each.topic else "yes", False: "no", None: "?"}[each.found]
    duplicates = {True: "detected", False: "not detected", None: "?" if each.found else ""}[each.detects_duplicates]
    name = {"": "(none)", "*": "(others)"}.get(each.name, each.name)
    return (name, sampled(each.messages, exact=exact), found, duplicates, each.reason)
