"""Protocols of a namespace's management side, small so that a test can implement them. Types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from sbpair.model.entities import AnyEntity, Queue, Topic

if TYPE_CHECKING:
    from sbpair.model.entities import Described, Rule
    from sbpair.model.queues import Counts, QueueState
    from sbpair.model.tiers import Capacity


Kind = TypeVar("Kind", bound=AnyEntity)
Sized = TypeVar("Sized", bound=Queue | Topic)


class QueueListing(Protocol):
    """The queues of one namespace. Every method of these protocols raises only errors of `sbpair.errors`.

    Methods may be called by several coroutines at the same time.
    """

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        """List the queues whose path begins with `prefix`, in any case, with their counts and usage if `counts`."""

    async def get(self, path: str) -> QueueState:
        """Read one queue. Raises EntityMissing, and NameTaken by another kind."""


class QueueControl(QueueListing, Protocol):
    """The calls that count messages."""

    async def counts(self, path: str) -> Counts:
        """Count the messages of one queue, locked ones included. Raises EntityMissing."""


class QueueRemoval(QueueListing, Protocol):
    """The calls that remove queues."""

    async def exact_counts(self, path: str) -> Counts:
        """Count as `QueueControl.counts` does. Raises ServiceRefused where the service omits a figure."""

    async def set_status(self, path: str, status: str) -> None:
        """Set the status, such as `Active` or `SendDisabled`, and nothing else. Raises EntityMissing."""

    async def delete(self, path: str) -> None:
        """Delete a queue with its messages. Raises EntityMissing."""


class NamespaceControl(QueueListing, Protocol):
    """Entities of every kind in one namespace, over Atom or Resource Manager.

    Entities are read with durations as ISO 8601 text, forwards as paths, and the chosen size, not 16 times that.
    """

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

    `filters` counts those of all of a topic's subscriptions: each evaluates every message. `message_bytes` is the
    maximum size of a message.
    """

    path: str
    is_topic: bool | None = False
    requires_session: bool = False
    filters: int | None = 0
    message_bytes: int | None = None
    detects_duplicates: bool | None = None
