"""Results of `sbpair provision`, `audit` and `prune`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from sbpair.cli.render.waiting import WaitingEntry, waiting_entry
from sbpair.management.audit_findings import Audit, DestinationSummary, QueueItem, Unseen
from sbpair.management.provisioning import EntityFinding, EntityItem
from sbpair.management.pruning import RemovableQueue
from sbpair.model.document import OMITTED, SPREAD, document
from sbpair.model.queues import Difference
from sbpair.model.report import Outcome
from sbpair.status import LostPrimary

Item = TypeVar("Item")
Kind = TypeVar("Kind")
Listed = TypeVar("Listed")

PROVISION_LISTS = {
    Outcome.CREATED: "Created entities",
    Outcome.EXISTING: "Entities that exist as described",
    Outcome.DRIFTED: "Entities that exist and differ",
    Outcome.FAILED: "Entities that could not be created",
    Outcome.NOT_TRIED: "Entities not tried after a failure or an interruption",
    Outcome.WOULD_CREATE: "Entities that a run without --dry-run would create",
    Outcome.EXTRA: "Entities that the primary lacks, with --mirror",
}
AUDIT_LISTS = {
    Outcome.MISSING: "Expected queues that do not exist",
    Outcome.EXTRA: "Queues beyond the count",
    Outcome.DRIFTED: "Queues that differ from their description",
    Outcome.OK: "Queues as expected",
    Outcome.UNKNOWN: "Expected queues whose properties need Manage",
    Outcome.FOREIGN: "Backlog queues of another primary",
}
PRUNE_LISTS = {
    Outcome.WOULD_REMOVE: "Queues that a run with --yes would delete",
    Outcome.REMOVED: "Deleted queues",
    Outcome.KEPT: "Queues that hold messages",
    Outcome.GONE: "Queues that another process deleted meanwhile",
    Outcome.FAILED: "Queues that could not be deleted",
}
"""The lists of each report's document, and their content."""


class ProvisionLine(NamedTuple):
    """The line of an entity."""

    outcome: Annotated[Outcome, "Its list", {"enum": [*PROVISION_LISTS]}]
    item: Annotated[EntityItem, SPREAD]


@document("sbpair/provision/1", "lines")
class ProvisionResult:
    """The entities that provision created or found. JSON Lines have one entity each."""

    lines: tuple[ProvisionLine, ...]
    lists: Annotated[Mapping[Outcome, list[EntityItem]], SPREAD, PROVISION_LISTS]
    dry_run: Annotated[bool, "Whether nothing was created"]


class PruneLine(NamedTuple):
    """The line of a queue."""

    outcome: Annotated[Outcome, "Its list", {"enum": [*PRUNE_LISTS]}]
    item: Annotated[RemovableQueue, SPREAD]


@document("sbpair/prune/1", "lines")
class PruneResult:
    """Backlog queues beyond the count. JSON Lines have one queue each."""

    lines: tuple[PruneLine, ...]
    lists: Annotated[Mapping[Outcome, list[RemovableQueue]], SPREAD, PRUNE_LISTS]
    dry_run: Annotated[bool, "Whether nothing was deleted"]


@dataclass(frozen=True, slots=True)
class MirroredEntity:
    """An entity of the application, compared with that of the primary."""

    outcome: Annotated[Outcome, "Outcome", {"enum": ["missing", "failed", "drifted", "ok", "extra"]}]
    entity: Annotated[str, "Kind of entity"]
    name: Annotated[str, "Path of the entity"]
    reason: Annotated[str, "Why the outcome is what it is", OMITTED]
    namespace: Annotated[str, "Name of the namespace", OMITTED]
    index: Annotated[int | None, "Index of a backlog queue", OMITTED]
    partitioned: Annotated[bool, "Present if the entity is partitioned", OMITTED, {"const": True}]
    differences: Annotated[tuple[Difference, ...], "Properties that differ from the expected description", OMITTED]


class AuditLine(NamedTuple, Generic[Kind, Listed, Item]):
    """The line of an item."""

    kind: Annotated[Kind, "Kind of line"]
    outcome: Annotated[Listed, "The list of a queue; as kind, or the state of a run"]
    item: Annotated[Item, SPREAD]


class MirrorLine(NamedTuple):
    """The line of an entity, with --mirror."""

    kind: Annotated[Literal["mirror"], "Kind of line"]
    item: Annotated[MirroredEntity, SPREAD]


AuditedOutcome = Literal[Outcome.MISSING, Outcome.EXTRA, Outcome.DRIFTED, Outcome.OK, Outcome.UNKNOWN, Outcome.FOREIGN]
AuditLines = (
    AuditLine[Literal["queue"], AuditedOutcome, QueueItem]
    | AuditLine[Literal["destination"], Literal["destination"], DestinationSummary]
    | AuditLine[Literal["skipped"], Literal["skipped"], Unseen]
    | AuditLine[Literal["run"], Literal["waiting"], WaitingEntry]
    | MirrorLine
)


@document("sbpair/audit/1", "lines")
class AuditResult:
    """The audit of a pair's backlog queues. JSON Lines have one queue, destination, skipped item or run each."""

    audit: Annotated[Audit, SPREAD]
    lists: Annotated[Mapping[Outcome, list[QueueItem]], SPREAD, AUDIT_LISTS]
    to: Annotated[str | None, "Namespace of --to; null without it"]
    lost_primary: Annotated[LostPrimary | None, "The primary, if it is declared lost, or was"]
    waiting: Annotated[tuple[WaitingEntry, ...], "Runs with work left, of this state directory"]
    mirror: Annotated[
        tuple[MirroredEntity, ...], "The application's entities, with --mirror; what refuses or alters messages first"
    ]

    @property
    def lines(self) -> tuple[AuditLines, ...]:
        lines: list[Any] = [AuditLine("queue", each.outcome, each) for each in self.audit]
        lines += [AuditLine("destination", "destination", each) for each in self.audit.destinations]
        lines += [AuditLine("skipped", "skipped", each) for each in self.audit.unseen]
        lines += [AuditLine("run", "waiting", each) for each in self.waiting]
        return (*lines, *(MirrorLine("mirror", each) for each in self.mirror))


def audit_result(found: Audit, lost: LostPrimary | None, to: str | None = None) -> AuditResult:
    """Return what is printed of an audit."""
    more = (tuple(map(waiting_entry, found.waiting)), tuple(map(_mirrored, found.mirror)))
    return AuditResult(found, found.lists(AUDIT_LISTS), to, lost, *more)


def _mirrored(item: EntityItem) -> MirroredEntity:
    own = item.detail or EntityFinding("", "")
    more = (own.namespace, own.index, own.partitioned, own.differences)
    return MirroredEntity(item.outcome, own.kind, item.name, item.reason, *more)
