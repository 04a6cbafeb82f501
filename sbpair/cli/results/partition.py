"""Results of `sbpair partition`."""

from typing import Annotated, NamedTuple

from sbpair.management.partitioning import PartitionedEntityState
from sbpair.model.document import OMITTED, SPREAD, document
from sbpair.model.report import Outcome


class CreatedEntity(NamedTuple):
    """The line of a namespace."""

    name: Annotated[str, "Name of the entity"]
    state: Annotated[PartitionedEntityState, SPREAD]
    outcome: Annotated[Outcome, "Outcome", {"enum": ["created", "existing", "would_create", "failed"]}]
    created: Annotated[bool, "Whether it was created now"]
    reason: Annotated[str, "Why the outcome is what it is", OMITTED]


@document("sbpair/partition/1", "namespaces")
class PartitionResult:
    """A created or existing partitioned entity. JSON Lines have one namespace each."""

    first: Annotated[CreatedEntity, SPREAD]
    dry_run: Annotated[bool, "Whether nothing was created"]
    namespaces: Annotated[tuple[CreatedEntity, ...], "One entry for each namespace"]


class PlacedEntity(NamedTuple):
    """A queue or topic."""

    name: Annotated[str, "Name of the entity"]
    state: Annotated[PartitionedEntityState, SPREAD]
    size_bytes: Annotated[int | None, "Bytes in use"]
    fill_ratio: Annotated[float | None, "Used share of the size, from 0 to 1"]


class UnreadNamespace(NamedTuple):
    """A namespace that could not be read."""

    namespace: Annotated[str, "Name of the namespace"]
    reason: Annotated[str, "Why"]


@document("sbpair/partition-list/1", "entities", "failed")
class PartitionList:
    """Queues and topics with their partitions. JSON Lines have one entity or unread namespace each."""

    entities: Annotated[tuple[PlacedEntity, ...], "Queues and topics"]
    failed: Annotated[tuple[UnreadNamespace, ...], "Namespaces that could not be read"]
