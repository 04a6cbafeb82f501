"""Events of replication: every missing copy, every swap of roles, every doubt. `str(event)` is one line for the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from sbpair.failover.events import Event, EventReporter
from sbpair.model.pair import Side


class _SideEvent(Event):
    """Something that happened on one side."""

    entity: str
    side: Side


class OneSideOnly(Event, text="{entity}: the {missing} has no copy of {message_ids[0]}: {reason}"):
    """Messages of an active sender are in one namespace only: `missing` has not accepted its copies."""

    entity: str
    message_ids: tuple[str, ...]
    accepted: Side
    missing: Side
    reason: str


class Unanswered(_SideEvent, text="{entity}: the {side} may have {message_ids[0]}, or have it twice: {reason}"):
    """An attempt was never answered: this side may have the messages, or have them twice."""

    message_ids: tuple[str, ...]
    reason: str


class RolesSwapped(Event, text="{entity}: the {active} is active now: {reason}"):
    """Later messages go to the other namespace."""

    entity: str
    active: Side
    backup: Side
    reason: str


class DuplicateCompleted(
    _SideEvent, text="{entity}: a copy of {key} was completed on the {side}: {sequence_number}", level=logging.INFO
):
    """A further copy of a completed message was completed without being given to the application."""

    key: str
    sequence_number: int


class Redelivered(_SideEvent, text="{entity}: a copy of {key} on the {side} is given again: {reason}"):
    """A copy is given although an earlier one may have been processed."""

    key: str
    sequence_number: int
    reason: str


class NoKey(_SideEvent, text="{entity}: message {sequence_number} on the {side} has no key: {reason}"):
    """A message without a key is given: its duplicates cannot be detected."""

    sequence_number: int
    reason: str


class SideLost(_SideEvent, text="{entity}: nothing can be received from the {side}: {reason}"):
    """One side cannot be received from at the moment. The other goes on."""

    reason: str


class SideBack(_SideEvent, text="{entity}: the {side} can be received from again", level=logging.INFO):
    """A lost side can be received from again."""


ReplicationEvent: TypeAlias = (
    OneSideOnly | Unanswered | RolesSwapped | DuplicateCompleted | Redelivered | NoKey | SideLost | SideBack
)
OnEvent: TypeAlias = Callable[[ReplicationEvent], None]
ReplicationReporter: TypeAlias = EventReporter[ReplicationEvent]
