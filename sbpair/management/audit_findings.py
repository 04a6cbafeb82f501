"""What an audit has found, and which of it whoever asked wants to fail on. Pure: made of what others have read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from sbpair.errors import ExitCode
from sbpair.management import backlog_plan
from sbpair.model.entities import PROPERTY_NAMES
from sbpair.model.queues import Change, Difference, QueueFinding, QueueState, Unexpected, Usage, Utilisation
from sbpair.model.report import Outcome, Report, ReportItem

MEGABYTE = 1024 * 1024
FULL_SHARE = 0.8
FULL_SOON_SECONDS = 86_400.0
"""A queue counts as full from that share on, and when it will be within that time at the rate that was measured."""

ACTIVE = "Active"


class AuditFinding(StrEnum):
    """A kind of thing that an audit may fail on."""

    MISSING = "missing"
    EXTRA = "extra"
    DRIFT = "drift"
    IDLE = "idle"
    FOREIGN = "foreign"
    MESSAGES = "messages"
    DEAD_LETTERS = "dead-letters"
    FULL = "full"
    DESTINATIONS = "destinations"
    DUPLICATES = "duplicates"
    UNSEEN = "unseen"


FAIL_ON = frozenset({AuditFinding.MISSING, AuditFinding.EXTRA, AuditFinding.DRIFT})
"""What an audit fails on, if nobody says otherwise."""

QueueItem = ReportItem[QueueFinding]


@dataclass(frozen=True, slots=True)
class DestinationSummary:
    """Where messages of the backlog want to go; "" for those that name no entity.

    `messages` is how many of those that were looked at. `found` is whether it is there, `detects_duplicates` whether it
    takes a message that comes twice once; None is what nobody says. `reason` is why messages cannot go there.
    """

    name: str
    messages: int
    found: bool | None = None
    topic: bool | None = None
    detects_duplicates: bool | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """What could not be looked at: a queue or a namespace, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Audit(Report[QueueFinding]):
    """One Item a queue: those that should be there by index, then extra ones, then those of other primaries."""

    destinations: tuple[DestinationSummary, ...] = ()
    unseen: tuple[Unseen, ...] = ()

    @property
    def findings(self) -> frozenset[AuditFinding]:
        """Every kind of which there is at least one."""
        return frozenset(kind for kind, there in self._found().items() if there)

    def _found(self) -> Mapping[AuditFinding, Iterable[object]]:
        own = [item.detail for item in self if item.detail and item.outcome is not Outcome.FOREIGN]
        counts = [each.counts for each in own if each.counts]
        fills = [each.fill for each in own if each.fill]
        return {
            AuditFinding.MISSING: self.of(Outcome.MISSING),
            AuditFinding.EXTRA: self.of(Outcome.EXTRA),
            AuditFinding.DRIFT: [each for each in own if each.differences],
            AuditFinding.IDLE: [each for each in fills if each.idle],
            AuditFinding.FOREIGN: self.of(Outcome.FOREIGN),
            AuditFinding.MESSAGES: [each for each in counts if not each.empty],
            AuditFinding.DEAD_LETTERS: [each for each in counts if each.dead_letter or each.transfer_dead_letter],
            AuditFinding.FULL: [each for each in fills if is_full(each)],
            AuditFinding.DESTINATIONS: [each for each in self.destinations if each.reason],
            AuditFinding.DUPLICATES: [each for each in self.destinations if each.detects_duplicates is False],
            AuditFinding.UNSEEN: self.unseen,
        }


def audit_exit_code(audit: Audit, fail_on: Collection[AuditFinding] = FAIL_ON) -> int:
    """3 with any finding that is among `fail_on`, else 0."""
    return ExitCode.PARTIAL_OR_FINDINGS if audit.findings.intersection(fail_on) else ExitCode.DONE


def is_full(fill: Utilisation) -> bool:
    soon = fill.full_in_seconds is not None and fill.full_in_seconds < FULL_SOON_SECONDS
    return soon or (fill.share is not None and fill.share >= FULL_SHARE)


def own_items(plan: backlog_plan.BacklogPlan, count: int, fills: Mapping[str, Utilisation]) -> list[QueueItem]:
    """A plan as findings: what provisioning would create is missing here. `fills` by path."""
    missing = [_item(each, Outcome.MISSING, "not there: sbpair provision makes it") for each in plan.creates]
    drifted = [_item(each, Outcome.DRIFTED, backlog_plan.told(each.differences)) for each in plan.drifted]
    right = [_item(each, Outcome.OK) for each in plan.matches]
    items = [*sorted([*missing, *drifted, *right], key=_index), *(_extra(each, count) for each in plan.extra)]
    return [_filled(item, fills.get(item.name)) for item in items]


def foreign_item(primary: str, state: QueueState) -> QueueItem:
    """A backlog queue of another primary that has the same secondary: none of this pair's business."""
    detail = QueueFinding(None, counts=state.counts, partitioned=state.partitioned)
    return ReportItem(state.spec.path, Outcome.FOREIGN, f"a backlog queue of {primary}", detail)


def fill_of(state: QueueState, now: float, max_idle: float | None) -> Utilisation:
    """What the namespace's own figures say. `now` is seconds since 1970, `idle_most` seconds."""
    usage = state.usage or Usage()
    idle = None if usage.used_at is None else max(0.0, now - usage.used_at)
    return Utilisation(
        # What is read of a partitioned queue of Standard is the size of all of its partitions already.
        max_bytes=state.spec.max_size_in_megabytes * MEGABYTE,
        size_bytes=usage.size_bytes,
        idle_seconds=idle,
        idle=idle is not None and max_idle is not None and idle > max_idle,
    )


def grown(fill: Utilisation, size_bytes: int | None, seconds: float) -> Utilisation:
    """With what a second sample, so many seconds later, says of how fast it fills."""
    if fill.size_bytes is None or size_bytes is None or seconds <= 0:
        return fill
    return replace(fill, size_bytes=size_bytes, bytes_per_second=(size_bytes - fill.size_bytes) / seconds)


def _extra(extra: Unexpected, count: int) -> QueueItem:
    item = _item(extra, Outcome.EXTRA, backlog_plan.why_extra(extra, count))
    status = extra.state.spec.status
    if status == ACTIVE or item.detail is None:
        return item
    differences = (Difference(PROPERTY_NAMES["status"], ACTIVE, status),)
    reason = f"{item.reason}; {backlog_plan.told(differences)}: a prune may have been cut short"
    return replace(item, reason=reason, detail=replace(item.detail, differences=differences))


def _filled(item: QueueItem, fill: Utilisation | None) -> QueueItem:
    return replace(item, detail=replace(item.detail, fill=fill)) if item.detail and fill else item


def _item(change: Change, outcome: Outcome, reason: str = "") -> QueueItem:
    return ReportItem(change.path, outcome, reason, backlog_plan.finding(change))


def _index(item: QueueItem) -> int:
    return item.detail.index if item.detail and item.detail.index is not None else 0
