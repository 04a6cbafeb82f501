"""The result of an audit, the findings that it fails on, and the messages of each backlog queue. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from sbpair import backlog
from sbpair.errors import ExitCode
from sbpair.management.comparison import Change, Plan, describe_differences, why_unexpected
from sbpair.management.provisioning import EntityItem
from sbpair.model.document import LATER
from sbpair.model.entity_properties import PROPERTIES
from sbpair.model.queues import AuditedQueue, Difference, QueueSpec, QueueState, Usage, Utilisation
from sbpair.model.report import FAIL_ON, AuditFinding, Outcome, Report, ReportItem
from sbpair.model.tiers import MEGABYTE_BYTES
from sbpair.runs.active_mover import UNKNOWN_MOVER, ActiveMover
from sbpair.runs.waiting import WaitingRun

MAX_PEEK = 1_000
"""So many messages of each queue are peeked, unless told otherwise."""

MAX_PEEK_DEAD_LETTERS = 5_000
"""So many dead letters of all queues together are peeked for their reasons."""

FULL_SHARE = 0.8
FULL_SOON_SECONDS = 86_400.0
"""A queue is full from that share on, and where it will be within that time at the measured rate."""

STATUS, ACTIVE = "Status", "Active"
FIXED = frozenset(row.title for row in PROPERTIES.values() if row.is_fixed)
"""Properties that are chosen at creation."""


NEED_MANAGE = frozenset(
    getattr(AuditFinding, name) for name in ("EXTRA", "DRIFT", "IDLE", "FOREIGN", "DEAD_LETTERS", "FULL", "LIMITED")
)

QueueItem = ReportItem[AuditedQueue]


@dataclass(frozen=True, slots=True)
class DestinationSummary:
    """A destination that peeked messages name; None is unknown."""

    name: Annotated[str, "Destination that peeked messages name; empty for none, * for others"]
    messages: Annotated[int, "Peeked messages for it"]
    found: Annotated[bool | None, "Whether it exists in the primary, or in the namespace of --to"] = None
    topic: Annotated[bool | None, "Whether it is a topic"] = None
    detects_duplicates: Annotated[bool | None, "Whether it detects duplicates"] = None
    reason: Annotated[str, "Why it is unknown or missing, or does not keep all of them"] = ""
    discarded: Annotated[int, "Peeked messages for a topic that match no subscription", LATER] = 0
    exact: Annotated[bool, "Whether messages is exact: false if not all messages were peeked"] = True


@dataclass(frozen=True, slots=True)
class Unseen:
    """A queue or namespace that could not be read, and why."""

    name: Annotated[str, "What was skipped"]
    reason: Annotated[str, "Why"]


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """A backlog queue. `messages` wait to be moved, at least so many unless `exact`; None is unknown."""

    name: Annotated[str, "Its path"]
    messages: Annotated[int | None, "Messages, at least so many if exact is false; null if unknown"] = None
    dead_letters: Annotated[int | None, "Dead-lettered messages; null if unknown"] = None
    exact: Annotated[bool, "Whether messages is exact"] = True
    oldest_seconds: Annotated[float | None, "Age of the oldest message; null if unknown or none"] = None
    note: Annotated[str, "Remark; may be empty"] = ""
    scheduled: Annotated[int | None, "Scheduled messages; null if unknown"] = None
    missing: bool = False


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """Peeked dead letters with the same reason."""

    reason: Annotated[str | None, "Reason; null for none"]
    messages: Annotated[int, "Peeked dead letters with it"]


@dataclass(frozen=True, slots=True)
class BacklogTotal:
    """All backlog queues of a pair together, and the messages that sbpair keeps elsewhere."""

    messages: Annotated[int | None, "Messages, at least so many if exact is false; null if unknown"]
    exact: Annotated[bool, "Whether messages is exact"]
    dead_letters: Annotated[int | None, "Dead-lettered messages; null if unknown"]
    oldest_seconds: Annotated[float | None, "Age of the oldest message; null if unknown or none"]
    scheduled: Annotated[int | None, "Scheduled messages; null if unknown"]
    elsewhere: Annotated[int, "Messages among these in archives of replays, or the outbox of --outbox"] = 0
    dead_letter_reasons: Annotated[
        tuple[ReasonCount, ...] | None, "Peeked dead letters by reason, most frequent first; null if none were peeked"
    ] = None


@dataclass(frozen=True, slots=True)
class Audit(Report[AuditedQueue]):
    """One item a queue: desired ones by index, then extra ones, then those of other primaries.

    Unless `complete`, not all messages were peeked, and the numbers of `destinations` are minimums. `waiting` are runs
    with work left. `reasons` are those of peeked dead letters; None if none were peeked. `mirror` are other entities,
    and `mover` is that of the pair. `denied` is whether the namespace of the destinations refused the credential.
    `oldest_for` is the destination of the oldest peeked message; "" if unknown. `exchanged` is how to mend a pair whose
    sides are mixed up; "" if they are not.
    """

    destinations: Annotated[tuple[DestinationSummary, ...], "Destinations of the peeked messages"] = ()
    unseen: Annotated[
        tuple[Unseen, ...], "What could not be read, and runs whose messages are unknown", {"name": "skipped"}
    ] = ()
    complete: bool = True
    waiting: tuple[WaitingRun, ...] = ()
    reasons: tuple[ReasonCount, ...] | None = None
    mirror: tuple[EntityItem, ...] = ()
    mover: Annotated[ActiveMover, "The mover of the backlog"] = UNKNOWN_MOVER
    denied: bool = False
    oldest_for: str = ""
    exchanged: str = ""

    @property
    def findings(
        self,
    ) -> Annotated[frozenset[AuditFinding], "Kinds of findings, as in --fail-on", {"items": {"type": "string"}}]:
        """The kinds that were found at least once."""
        return frozenset(kind for kind, found in self.found.items() if found)

    @property
    def total(self) -> Annotated[BacklogTotal, "All backlog queues together", {"name": "backlog"}]:
        """The messages of the pair's own queues, and those in archives."""
        own = [queue_status(item) for item in self if item.outcome is not Outcome.FOREIGN]
        return with_elsewhere(replace(total_of(own), dead_letter_reasons=self.reasons), self.waiting)

    @property
    def found(self) -> Mapping[AuditFinding, Collection[object]]:
        """The queues, destinations or unseen items of each kind."""
        own = [item.detail for item in self if item.detail and item.outcome is not Outcome.FOREIGN]
        counts = [each.counts for each in own if each.counts]
        fills = [each.fill for each in own if each.fill]
        return {
            AuditFinding.MISSING: self.of(Outcome.MISSING),
            AuditFinding.EXTRA: self.of(Outcome.EXTRA),
            AuditFinding.DRIFT: [each for each in own if each.differences],
            AuditFinding.MIRROR: [each for each in self.mirror if each.outcome not in (Outcome.OK, Outcome.EXTRA)],
            AuditFinding.IDLE: [each for each in fills if each.idle],
            AuditFinding.FOREIGN: self.of(Outcome.FOREIGN),
            AuditFinding.MESSAGES: [*(each for each in own if _holds_messages(each)), *held_by(self.waiting)],
            AuditFinding.DEAD_LETTERS: [each for each in counts if each.dead_letter or each.transfer_dead_letter],
            AuditFinding.FULL: [each for each in fills if is_full(each)],
            AuditFinding.LIMITED: [each for each in own if each.availability],
            AuditFinding.DESTINATIONS: [each for each in self.destinations if each.reason],
            AuditFinding.DUPLICATES: [each for each in self.destinations if each.detects_duplicates is False],
            AuditFinding.UNSEEN: self.unseen,
            AuditFinding.NO_MOVER: [self.mover] if self.mover.is_missed(self.total.messages) else [],
        }


def audit_exit_code(audit: Audit, fail_on: Collection[AuditFinding] = FAIL_ON) -> int:
    """Return 5 if a namespace refused the credential, 3 if any kind among `fail_on` was found or is unknown, else 0."""
    if audit.denied:
        return ExitCode.ACCESS
    findings = audit.findings | unknown_findings(audit)
    return ExitCode.PARTIAL_OR_FINDINGS if findings.intersection(fail_on) else ExitCode.DONE


def unknown_findings(audit: Audit) -> frozenset[AuditFinding]:
    """Return the kinds of findings that the credential did not let find."""
    return NEED_MANAGE if audit.of(Outcome.UNKNOWN) else frozenset()


def audit_mends(found: Audit, namespace: str) -> Iterator[str]:
    """Yield how to mend what was found, in order: by a command, or at a place in the Azure portal.

    `namespace` is that of the backlog.
    """
    kinds = found.found
    if found.exchanged:
        yield found.exchanged
    elif kinds[AuditFinding.MISSING]:
        yield "create the missing queues with sbpair provision"
    if extra := found.of(Outcome.EXTRA):
        are_empty = all(each.detail and each.detail.counts and each.detail.counts.empty for each in extra)
        emptied = "empty the extra queues with sbpair syphon --once; then delete them with sbpair prune"
        yield "delete the extra queues, which are empty, with sbpair prune" if are_empty else emptied
    yield from drift_mends(found.of(Outcome.DRIFTED), namespace)
    if kinds[AuditFinding.FULL]:
        place = f"in the Azure portal: {namespace}, Queues, the queue, Properties"
        yield f"empty the full queues with sbpair syphon --once; or raise MaxSizeInMegabytes {place}"
    if kinds[AuditFinding.LIMITED]:
        yield f"see why a queue is limited in the Azure portal: {namespace}, Resource health"
    if any(item.outcome is Outcome.MISSING for item in found.mirror):
        yield "create the missing entities with sbpair provision --mirror"
    yield from drift_mends([item for item in found.mirror if item.outcome is Outcome.DRIFTED], namespace)


def drift_mends(items: Iterable[QueueItem | EntityItem], namespace: str) -> Iterator[str]:
    """Yield how to mend entities of a namespace that differ from their description: backlog queues, then others."""
    by_kind: dict[bool, set[str]] = {True: set(), False: set()}
    for each in (item.detail for item in items if item.detail):
        by_kind[each.index is not None].update(difference.property for difference in each.differences)
    for is_backlog, drifted in by_kind.items():
        portal = f"in the Azure portal: {namespace}, {'Queues, the queue' if is_backlog else 'the entity'}"
        emptied = "empty the queue with sbpair syphon --once; bring dead letters back with sbpair redrive --backlog"
        if fixed := drifted & FIXED:
            steps = f"{emptied if is_backlog else 'let its receivers empty it'}; delete it {portal}, Delete"
            yield f"{', '.join(sorted(fixed))} cannot be changed: {steps}; then create it with sbpair provision"
        if STATUS in drifted:
            yield f"set the Status to {ACTIVE} {portal}, Overview"
        if changeable := drifted - FIXED - {STATUS}:
            yield f"change {', '.join(sorted(changeable))} {portal}, Properties"


def is_full(fill: Utilisation) -> bool:
    soon = fill.full_in_seconds is not None and fill.full_in_seconds < FULL_SOON_SECONDS
    return soon or (fill.fill_ratio is not None and fill.fill_ratio >= FULL_SHARE)


def own_items(plan: Plan, count: int, fills: Mapping[str, Utilisation]) -> list[QueueItem]:
    """Return the items of a pair's own queues: those to create are missing here. `fills` is by path."""
    return [_item(change, count, fills.get(change.path)) for change in plan.changes]


def foreign_items(primary: str, queues: Iterable[QueueState]) -> list[QueueItem]:
    """Return the items of the backlog queues of other primaries in the same secondary."""
    found = ((backlog.primary_of(state.spec.path), state) for state in queues)
    return [
        ReportItem(
            state.spec.path,
            Outcome.FOREIGN,
            f"a backlog queue of {name}",
            AuditedQueue(None, state.partitioned, state.counts),
        )
        for name, state in found
        if name and name.lower() != primary.lower()
    ]


def utilisation(state: QueueState, now: float, max_idle: float | None) -> Utilisation:
    """Compute a queue's utilisation from the namespace's figures. `now` is seconds since 1970, `max_idle` seconds."""
    usage = state.usage or Usage()
    idle = None if usage.used_at is None else max(0.0, now - usage.used_at)
    return Utilisation(
        # A partitioned queue of Standard reads back the size of all its partitions.
        max_bytes=state.spec.max_size_in_megabytes * MEGABYTE_BYTES,
        size_bytes=usage.size_bytes,
        idle_seconds=idle,
        idle=idle is not None and max_idle is not None and idle > max_idle,
    )


def with_growth(fill: Utilisation, size_bytes: int | None, seconds: float) -> Utilisation:
    """Add the growth rate from a second sample, taken so many seconds later."""
    if fill.size_bytes is None or size_bytes is None or seconds <= 0:
        return fill
    return replace(fill, size_bytes=size_bytes, bytes_per_second=(size_bytes - fill.size_bytes) / seconds)


def queue_status(item: QueueItem) -> QueueStatus:
    """Return the messages of an audited queue."""
    detail = item.detail
    counts, fill = (detail.counts, detail.fill) if detail else (None, None)
    missing = item.outcome is Outcome.MISSING
    return QueueStatus(
        item.name,
        counts.active if counts else fill.peeked if fill else None,
        counts.dead_letter if counts else None,
        exact=counts is not None or fill is None or fill.complete,
        oldest_seconds=fill.oldest_seconds if fill else None,
        note=item.reason
        if missing or item.outcome in (Outcome.OK, Outcome.UNKNOWN)
        else f"{item.outcome}: {item.reason}",
        scheduled=counts.scheduled if counts else None,
        missing=missing,
    )


def _holds_messages(queue: AuditedQueue) -> bool:
    """Return whether a queue has messages; without counts, whether some were peeked."""
    return not queue.counts.empty if queue.counts else bool(queue.fill and queue.fill.peeked)


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


def with_elsewhere(total: BacklogTotal, waiting: Iterable[WaitingRun], more: int = 0) -> BacklogTotal:
    """Add the messages in archives, and `more` of other places."""
    held = held_by(waiting)
    elsewhere = more + sum(each.messages or 0 for each in held)
    if not (held or elsewhere):
        return total
    exact = total.exact and all(each.exact and each.messages is not None for each in held)
    return replace(total, messages=(total.messages or 0) + elsewhere, exact=exact, elsewhere=elsewhere)


def held_by(waiting: Iterable[WaitingRun]) -> list[WaitingRun]:
    """Return the runs in whose archives messages wait, or may."""
    return [each for each in waiting if each.holds_messages]


def unknown_runs(waiting: Iterable[WaitingRun], problem: str) -> tuple[Unseen, ...]:
    """Return the runs whose messages are not known; `problem` is why no run is, "" if they are."""
    unread = (Unseen("the state directory", problem),) if problem else ()
    unknown = "how many messages its archive holds"
    return (*unread, *(Unseen(f"run {each.run}", each.note or unknown) for each in waiting if each.messages is None))


def _item(change: Change, count: int, fill: Utilisation | None) -> QueueItem:
    state, differences = change.state or QueueState(QueueSpec(change.path)), change.differences
    outcome, reason = change.kind, describe_differences(differences)
    if outcome is Outcome.MISSING:
        reason = "it does not exist"
    elif outcome is Outcome.EXISTING:
        outcome = Outcome.OK
    elif outcome is Outcome.EXTRA:
        reason = why_unexpected(change.index, count)
        if state.spec.status != ACTIVE:
            differences = (Difference("Status", ACTIVE, state.spec.status),)
            reason = f"{reason}; {describe_differences(differences)}: a prune may have been cut short"
    if state.availability:
        reason = "; ".join(filter(None, (reason, f"{state.availability}: a part of it does not answer")))
    detail = AuditedQueue(change.index, state.partitioned, state.counts, differences, state.availability, fill)
    return ReportItem(change.path, outcome, reason, detail)


def _sum(figures: list[int | None]) -> int | None:
    """Return the sum of the known figures; None if there are figures, and none of them is known."""
    known = [each for each in figures if each is not None]
    return None if figures and not known else sum(known)
