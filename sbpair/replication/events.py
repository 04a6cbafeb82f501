"""What replication tells while it works: every copy that is missing, every swap, every doubt. Facts, frozen.

The law: what a listener raises is its own affair, and no message's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from sbpair.azure.data_errors import redacted

if TYPE_CHECKING:
    from sbpair.replication.roles import Side

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OneSideOnly:
    """Messages of an active sender are in one namespace alone: `missing` has not taken its copies."""

    entity: str
    message_ids: tuple[str, ...]
    took: Side
    missing: Side
    reason: str


@dataclass(frozen=True, slots=True)
class Unanswered:
    """An attempt was never answered: this side may hold the messages, or hold them twice."""

    entity: str
    side: Side
    message_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class RolesSwapped:
    """Messages go to another namespace from now on."""

    entity: str
    active: Side
    backup: Side
    reason: str


@dataclass(frozen=True, slots=True)
class DuplicateCompleted:
    """A further copy of what has been completed was completed too, and given to nobody."""

    entity: str
    side: Side
    key: str
    sequence_number: int


@dataclass(frozen=True, slots=True)
class Redelivered:
    """A copy is given of which nobody can say that an earlier one was not dealt with: it may be the second time."""

    entity: str
    side: Side
    key: str
    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class NoKey:
    """A message is given as it is: it has nothing that a duplicate could be told by."""

    entity: str
    side: Side
    sequence_number: int
    reason: str


@dataclass(frozen=True, slots=True)
class SideLost:
    """Nothing can be received from one side for the time being; the other goes on."""

    entity: str
    side: Side
    reason: str


@dataclass(frozen=True, slots=True)
class SideBack:
    """Messages are received from this side again."""

    entity: str
    side: Side


ReplicationEvent: TypeAlias = (
    OneSideOnly | Unanswered | RolesSwapped | DuplicateCompleted | Redelivered | NoKey | SideLost | SideBack
)

_QUIET = (DuplicateCompleted, SideBack)


class ReplicationReporter:
    """Logs events, and tells them to whoever listens."""

    def __init__(self, on_event: Callable[[ReplicationEvent], None] | None) -> None:
        self._on_event = on_event

    def __call__(self, event: ReplicationEvent) -> None:
        log.log(logging.INFO if isinstance(event, _QUIET) else logging.WARNING, "%s", event)
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            log.exception("a listener to the events of replication failed")


def line(error: Exception) -> str:
    """An error as a reason."""
    return f"{type(error).__name__}: {redacted(error)}"
