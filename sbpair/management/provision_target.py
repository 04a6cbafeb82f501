"""One namespace of a provisioning run: how to reach it, its desired entities, and the items that report them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sbpair import backlog
from sbpair.management.comparison import Change, ChangeKind, describe_differences
from sbpair.model.queues import Difference, QueueSpec
from sbpair.model.report import Outcome, ReportItem

if TYPE_CHECKING:
    from sbpair.azure.interfaces import NamespaceControl
    from sbpair.management.calls import Calls
    from sbpair.management.entities_file import EntitiesDocument
    from sbpair.model.entities import Described


@dataclass(frozen=True, slots=True)
class EntityFinding:
    """The detail of a report's item. `index` is a backlog queue's, and None for all others."""

    namespace: str
    kind: str
    index: int | None = None
    differences: tuple[Difference, ...] = ()
    partitioned: bool = False


EntityItem = ReportItem[EntityFinding]

_OUTCOMES = {
    ChangeKind.CREATE: Outcome.WOULD_CREATE,
    ChangeKind.UNCHANGED: Outcome.EXISTING,
    ChangeKind.DRIFTED: Outcome.DRIFTED,
}


@dataclass(frozen=True, slots=True)
class NamespaceTarget:
    """`queues` are the backlog queues of `primary` that this namespace should have."""

    namespace: str
    control: NamespaceControl
    calls: Calls
    document: EntitiesDocument
    primary: str
    queues: Sequence[QueueSpec] = ()

    @property
    def desired(self) -> Iterator[Described]:
        yield from self.document.entities
        yield from self.queues

    def index(self, entity: Described) -> int | None:
        """Return a backlog queue's index, None for any other entity."""
        return backlog.index_of(self.primary, entity.path) if type(entity) is QueueSpec else None

    def change_item(self, change: Change) -> EntityItem:
        """Return the item of a planned change."""
        partitioned = change.state.partitioned if change.state else _asks_for_partitions(change.entity)
        detail = EntityFinding(self.namespace, change.entity.kind, change.index, change.differences, partitioned)
        return ReportItem(change.path, _OUTCOMES[change.kind], describe_differences(change.differences), detail)

    def item(self, entity: Described, outcome: Outcome, reason: str = "", code: int = 0) -> EntityItem:
        """Return the item of an entity without differences."""
        detail = EntityFinding(
            self.namespace, entity.kind, self.index(entity), partitioned=_asks_for_partitions(entity)
        )
        return ReportItem(entity.path, outcome, reason, detail, code)


def _asks_for_partitions(entity: Described) -> bool:
    return bool(getattr(entity, "enable_partitioning", False))
