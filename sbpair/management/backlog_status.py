"""The messages of each backlog queue, and of all of them together. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair.model.report import Outcome

if TYPE_CHECKING:
    from sbpair.management.audit_findings import QueueItem


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A backlog queue. `messages` wait to be moved, at least so many unless `exact`; None is unknown."""

    path: str
    messages: int | None = None
    dead_letters: int | None = None
    exact: bool = True
    oldest_seconds: float | None = None
    note: str = ""
    scheduled: int | None = None
    missing: bool = False


@dataclass(frozen=True, slots=True)
class BacklogTotal:
    """All backlog queues of a pair together. `messages` is a minimum unless `exact`; None is unknown."""

    messages: int | None
    exact: bool
    dead_letters: int | None
    oldest_seconds: float | None
    scheduled: int | None


def queue_status(item: QueueItem) -> QueueStatus:
    """Return the messages of an audited queue."""
    detail = item.detail
    counts, fill = (detail.counts, detail.fill) if detail else (None, None)
    missing = item.outcome is Outcome.MISSING
    return QueueStatus(
        item.name,
        counts.active if counts else None,
        counts.dead_letter if counts else None,
        oldest_seconds=fill.oldest_seconds if fill else None,
        note="" if item.outcome is Outcome.OK else item.reason if missing else f"{item.outcome}: {item.reason}",
        scheduled=counts.scheduled if counts else None,
        missing=missing,
    )


def total_of(queues: Collection[QueueStatus]) -> BacklogTotal:
    """Add up the queues that exist."""
    if not queues:
        return BacklogTotal(None, exact=False, dead_letters=None, oldest_seconds=None, scheduled=None)
    found = [each for each in queues if not each.missing]
    return BacklogTotal(
        _sum([each.messages for each in found]),
        all(each.exact and each.messages is not None for each in found),
        _sum([each.dead_letters for each in found]),
        max((each.oldest_seconds for each in found if each.oldest_seconds is not None), default=None),
        _sum([each.scheduled for each in found]),
    )


def _sum(figures: list[int | None]) -> int | None:
    """Return the sum of the known figures; None if there are figures, and none of them is known."""
    known = [each for each in figures if each is not None]
    return None if figures and not known else sum(known)
