"""What this package asks of a namespace's management side: small, so that it can be answered by anything.

Types only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from sbpair.model.entities import Queue, Rule, Subscription, Topic

if TYPE_CHECKING:
    from sbpair.model.queues import Counts, QueueSpec, QueueState
    from sbpair.model.tiers import Capacity


Kind = TypeVar("Kind", Queue, Topic, Subscription, Rule)


class QueueControl(Protocol):
    """The queues of one namespace. Every method raises only errors of `sbpair.errors`.

    Its methods may be called by several coroutines at the same time.
    """

    async def list_under(self, prefix: str, *, counts: bool = False) -> list[QueueState]:
        """Every queue whose path begins with `prefix`, whatever its case; with its messages counted, or not."""
        ...

    async def get(self, path: str) -> QueueState:
        """One queue. Raises EntityMissing where there is none of that name."""
        ...

    async def counts(self, path: str) -> Counts:
        """How many messages one queue holds, locked ones included. Raises EntityMissing."""
        ...

    async def create(self, spec: QueueSpec) -> bool:
        """Make a queue. False means that the name was taken before, by whatever it may be."""
        ...


class QueueRemoval(QueueControl, Protocol):
    """What it takes to do away with queues."""

    async def exact_counts(self, path: str) -> Counts:
        """As `QueueControl.counts`; but raises ServiceRefused where the service leaves a figure out."""
        ...

    async def set_status(self, path: str, status: str) -> None:
        """`Active`, `SendDisabled` and the like; all else stays as it is. Raises EntityMissing."""
        ...

    async def delete(self, path: str) -> None:
        """Delete a queue with whatever it holds. Raises EntityMissing."""
        ...


class EntityControl(Protocol):
    """Entities of every kind in one namespace. Every method raises only errors of `sbpair.errors`.

    Its methods may be called by several coroutines at the same time. Whatever is read has its durations as ISO 8601
    text, its forwards as paths, and the size that was asked for, not 16 times that.
    """

    async def tier(self) -> str:
        """`Basic`, `Standard` or `Premium`."""
        ...

    async def capacity(self) -> Capacity:
        """The same, and what a Premium namespace is made of."""
        ...

    async def queue_bytes(self) -> dict[str, int]:
        """What each queue holds, by path."""
        ...

    async def topic_bytes(self) -> dict[str, int]:
        """What each topic holds, by path."""
        ...

    async def queues(self) -> list[Queue]:
        """Every queue."""
        ...

    async def topics(self) -> list[Topic]:
        """Every topic."""
        ...

    async def subscriptions(self, topic: str) -> list[Subscription]:
        """Every subscription of a topic; none where there is no such topic."""
        ...

    async def rules(self, topic: str, subscription: str) -> list[Rule]:
        """Every rule of a subscription; none where there is no such subscription."""
        ...

    async def read(self, like: Kind) -> Kind:
        """The entity of the kind and name of `like`. Raises EntityMissing, and NameTaken by another kind."""
        ...

    async def create(self, entity: QueueSpec | Topic | Subscription | Rule) -> bool:
        """Make an entity. False means that the name was taken before, by whatever it may be.

        In a namespace that is partitioned as a whole, so is what is made in it, whether it asks for it or not.
        """
        ...

    async def delete_rule(self, rule: Rule) -> None:
        """Take a rule away: for the one that the service gives to a new subscription. One that is gone is no error."""
        ...


class NamespaceControl(EntityControl, QueueControl, Protocol):
    """All of one namespace's management side, whichever client speaks to it."""


@dataclass(frozen=True, slots=True)
class DestinationEntity:
    """A queue or a topic that messages may be sent to.

    `filters` are those of all of a topic's subscriptions: each looks at every message. `message_bytes` is the most that
    a message may have. `detects_duplicates` is how a message that comes twice is taken once. None is what nobody said.
    """

    path: str
    is_topic: bool | None = False
    requires_session: bool = False
    filters: int | None = 0
    message_bytes: int | None = None
    detects_duplicates: bool | None = None


class DestinationControl(Protocol):
    """Where messages are to go in one namespace. Every method raises only errors of `sbpair.errors`.

    Each thing is asked for once, and remembered.
    """

    async def tier(self) -> str:
        """`Basic`, `Standard` or `Premium`."""
        ...

    async def get(self, path: str) -> DestinationEntity:
        """A queue or a topic. Raises EntityMissing where there is neither."""
        ...

    async def filters_of(self, path: str) -> int:
        """How many filters look at each message that is sent there: none for a queue. Raises EntityMissing."""
        ...
