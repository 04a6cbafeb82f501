"""Events of replication: every missing copy, every swap of roles, every doubt."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sbpair.failover.events import EventReporter

if TYPE_CHECKING:
    from sbpair.replication.sides import Side

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OneSideOnly:
    """Messages of an active sender are in one namespace only: `missing` has not accepted its copies."""

    entity: str
    message_ids: tuple[str, ...]
    accepted: Side
    missing: Side
    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An attempt was never answered: this side may have the messages, or have them twice."""

    entity: str
    side: Side
    message_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RolesSwapped:
    """Later messages go to the other namespace."""

    entity: str
    active: Side
    backup: Side
    reason: str


@dataclass(frozen=True, slots=True)
class DuplicateCompleted:
    """A further copy of a completed message was completed without being given to the application."""

    entity: str
    side: Side
    key: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class Redelivered:
    """A copy is given although an earlier one may have been processed."""

    entity: str
    side: Side
    key: str
    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoKey:
    """A message without a key is given: its duplicates cannot be detected."""

    entity: str
    side: Side
    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SideLost:
    """One side cannot be received from at the moment. The other goes on."""

    entity: str
    side: Side
    reason: str


@dataclass(frozen=True, slots=True)
class SideBack:
    """A lost side can be received from again."""

    entity: str
    side: Side


ReplicationEvent: TypeAlias = (
    OneSideOnly | Unanswered | RolesSwapped | DuplicateCompleted | Redelivered | NoKey | SideLost | SideBack
)

OnEvent: TypeAlias = Callable[[ReplicationEvent], None]
ReplicationReporter: TypeAlias = EventReporter[ReplicationEvent]

_INFORMATIONAL = (DuplicateCompleted, SideBack)


def reporter(on_event: OnEvent | None) -> ReplicationReporter:
    return EventReporter(log, "replication", _INFORMATIONAL, on_event)
