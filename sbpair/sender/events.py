"""What a paired client tells while it works: every change of where messages go, and every doubt. Facts, frozen."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from sbpair.sender.states import State


@dataclass(frozen=True, slots=True)
class EntityChanged:
    """One entity of the primary stands otherwise than before. `reason` is one line."""

    entity: str
    before: State
    after: State
    reason: str


@dataclass(frozen=True, slots=True)
class QueueLeft:
    """A backlog queue failed: no sender of the pair turns to it before a probe has succeeded."""

    queue: str
    reason: str


@dataclass(frozen=True, slots=True)
class QueueReturned:
    """A backlog queue is in the rotation again."""

    queue: str


@dataclass(frozen=True, slots=True)
class InDoubt:
    """Messages are sent again although an earlier attempt was never answered: they may arrive twice.

    `message_ids` are what a receiver, or the service's duplicate detection, can tell it by.
    """

    entity: str
    message_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class SizeUnknown:
    """A large message goes to the primary, and nobody could say whether the backlog would take it. In bytes."""

    entity: str
    size_with_aliases: int
    reason: str


SenderEvent: TypeAlias = EntityChanged | QueueLeft | QueueReturned | InDoubt | SizeUnknown
