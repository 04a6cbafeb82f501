"""What a paired client tells while it works: every change of where messages go, and every doubt. Facts, frozen.

`str` of an event is what a log says, on one line; it never holds a body or a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sbpair.failover.states import State


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """One entity of the primary stands otherwise than before. `reason` is one line."""

    entity: str
    before: State
    after: State
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} is {self.after.value}, and was {self.before.value}: {self.reason}"


@dataclass(frozen=True, slots=True)
class QueueLeft:
    """A backlog queue failed: no sender of the pair turns to it before a probe has succeeded."""

    queue: str
    reason: str

    def __str__(self) -> str:
        return f"{self.queue} is out of the rotation: {self.reason}"


@dataclass(frozen=True, slots=True)
class QueueReturned:
    """A backlog queue is in the rotation again."""

    queue: str

    def __str__(self) -> str:
        return f"{self.queue} is in the rotation again"


@dataclass(frozen=True, slots=True)
class SendInDoubt:
    """Messages are sent again although an earlier attempt was never answered: they may arrive twice.

    `message_ids` are what a receiver, or the service's duplicate detection, can tell it by.
    """

    entity: str
    message_ids: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        named = f"{self.message_ids[0]}{f' and {len(self.message_ids) - 1} more' if self.message_ids[1:] else ''}"
        return f"{self.entity}: {named} may arrive twice, sent again without an answer: {self.reason}"


@dataclass(frozen=True, slots=True)
class SizeUnknown:
    """A large message goes to the primary, and nobody could say whether the backlog would take it. In bytes."""

    entity: str
    size_with_aliases: int
    reason: str

    def __str__(self) -> str:
        size = f"{self.size_with_aliases} bytes with what the backlog adds"
        return f"{self.entity}: a message of {size} may not fit the backlog: {self.reason}"


@dataclass(frozen=True, slots=True)
class SyphonFaulted:
    """The syphon beside a client has ended, or could not begin, and is tried again after so many seconds."""

    reason: str
    retry_seconds: float

    def __str__(self) -> str:
        return f"the syphon rests for {self.retry_seconds:g} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxBegun:
    """Neither side takes an entity's messages: they go to the outbox, until it has none of them any more."""

    entity: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} goes to the outbox: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxStuck:
    """An entity's messages cannot be taken out of the outbox yet. Told again where the reason is another one."""

    entity: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} stays in the outbox: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxRefused:
    """The entity does not take one message of the outbox: it stays there, and is tried again by the next client."""

    entity: str
    message_ids: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return f"{self.entity} refuses a message of the outbox, {', '.join(self.message_ids)}: {self.reason}"


@dataclass(frozen=True, slots=True)
class OutboxExpired:
    """Messages outlived their time in the outbox: they are delivered with 1 ms to live, for the entity to judge."""

    entity: str
    message_ids: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.entity}: {len(self.message_ids)} messages outlived their time in the outbox"


@dataclass(frozen=True, slots=True)
class OutboxEmptied:
    """All of an entity's messages have left the outbox: what is sent now goes to a side again."""

    entity: str

    def __str__(self) -> str:
        return f"{self.entity} has no messages in the outbox any more"


@dataclass(frozen=True, slots=True)
class OutboxClosed:
    """The client is closed. So many messages stay in the file, for the next client that opens it to deliver."""

    path: str
    messages: int

    def __str__(self) -> str:
        return f"{self.messages} messages stay in {self.path}, for the next client that is given it"


SenderEvent: TypeAlias = (
    EntityChanged
    | QueueLeft
    | QueueReturned
    | SendInDoubt
    | SizeUnknown
    | OutboxBegun
    | OutboxStuck
    | OutboxRefused
    | OutboxExpired
    | OutboxEmptied
    | OutboxClosed
    | SyphonFaulted
)
