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
class _ReplicationSideEvent:
    """Something that happened on one side."""

    entity: str
    side: Side


@dataclass(frozen=True, slots=True)
class OneSideOnly:
    """Messages of an active sender are in one namespace only: `missing` has not accepted its copies."""

    entity: str
    message_ids: tuple[str, ...]
    accepted: Side
    missing: Side
    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered(_ReplicationSideEvent):
    """An attempt was never answered: this side may have the messages, or have them twice."""

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
class DuplicateCompleted(_ReplicationSideEvent):
    """A further copy of a completed message was completed without being given to the application."""

    key: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class Redelivered(_ReplicationSideEvent):
    """A copy is given although an earlier one may have been processed."""

    key: str
    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoKey(_ReplicationSideEvent):
    """A message without a key is given: its duplicates cannot be detected."""

    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SideLost(_ReplicationSideEvent):
    """One side cannot be received from at the moment. The other goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class SideBack(_ReplicationSideEvent):
    """A lost side can be received from again."""


ReplicationEvent: TypeAlias = (
    OneSideOnly | Unanswered | RolesSwapped | DuplicateCompleted | Redelivered | NoKey | SideLost | SideBack
)

OnEvent: TypeAlias = Callable[[ReplicationEvent], None]
ReplicationReporter: TypeAlias = EventReporter[ReplicationEvent]

_INFORMATIONAL = (DuplicateCompleted, SideBack)


def reporter(on_event: OnEvent | None) -> ReplicationReporter:
    return EventReporter(log, "replication", _INFORMATIONAL, on_event)
