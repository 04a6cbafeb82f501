"""The protocol of a namespace's management side, and what is read of one. Types only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

from sbpair.model.entities import AnyEntity, Queue, Topic

if TYPE_CHECKING:
    from sbpair.model.entities import Described, Rule
    from sbpair.model.queues import QueueState
    from sbpair.model.tiers import Capacity
    from sbpair.rules.filters import TopicFilters


Kind = TypeVar("Kind", bound=AnyEntity)
Sized = TypeVar("Sized", bound=Queue | Topic)


class NamespaceControl(Protocol):
    """Entities of every kind in one namespace, over Atom or Resource Manager.

    Every method raises only errors of `sbpair.errors`, and may be called by several coroutines at the same time.
    Entities are read with durations as ISO 8601 text, forwards as paths, and the chosen size, not 16 times that.
    """

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        """List the queues whose path begins with `prefix`, in any case, with their counts and usage if `counts`."""

    async def get(self, path: str) -> QueueState:
        """Read one queue. Raises EntityMissing, and NameTaken by another kind."""

    async def capacity(self) -> Capacity:
        """Return the tier, and a Premium namespace's messaging units and partitions."""

    async def list_all(self, kind: type[Sized]) -> list[tuple[Sized, int]]:
        """List every queue or topic, each with the bytes that it holds."""

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        """List the rules of a subscription; none for a missing subscription."""

    async def read(self, like: Kind) -> Kind:
        """Read the entity of the kind and name of `like`. Raises EntityMissing, and NameTaken by another kind."""

    async def create(self, entity: Described) -> bool:
        """Create an entity. Returns False where an entity of any kind has the name already.

        In a namespace that is partitioned as a whole, the entity is partitioned, requested or not.
        """

    async def delete_rule(self, rule: Rule) -> None:
        """Delete a rule, such as the default rule of a new subscription. A missing one is not an error."""


@dataclass(frozen=True, slots=True)
class NamespaceProbe:
    """A namespace's tier, and a queue that links may be opened to without effect, "" where there is none."""

    tier: str
    queue: str


@dataclass(frozen=True, slots=True)
class DestinationEntity:
    """A queue or a topic that messages may be sent to. None is unknown.

    `filters` counts those of all of a topic's subscriptions, which `topic` has: each evaluates every message.
    `message_bytes` is the maximum size of a message.
    """

    path: str
    is_topic: bool | None = False
    requires_session: bool = False
    filters: int | None = 0
    message_bytes: int | None = None
    detects_duplicates: bool | None = None
    topic: TopicFilters | None = field(default=None, compare=False)
