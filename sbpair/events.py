"""The events that `on_event` callbacks receive, imported when they are first used.

Paired clients report SenderEvent, replication ReplicationEvent, a syphon SyphonEvent, relays RelayEvent. Management and
previews report Listed, QueueProvisioned, Retrying and Peeked; a replay reports ReplayPhase, Expected and PhaseProgress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

# ruff: noqa: PLC0414  the alias makes a name public for type checkers
if TYPE_CHECKING:
    from sbpair.failover.events import EntityChanged as EntityChanged
    from sbpair.failover.events import OutboxBegun as OutboxBegun
    from sbpair.failover.events import OutboxClosed as OutboxClosed
    from sbpair.failover.events import OutboxEmptied as OutboxEmptied
    from sbpair.failover.events import OutboxExpired as OutboxExpired
    from sbpair.failover.events import OutboxRefused as OutboxRefused
    from sbpair.failover.events import OutboxStuck as OutboxStuck
    from sbpair.failover.events import QueueLeft as QueueLeft
    from sbpair.failover.events import QueueReturned as QueueReturned
    from sbpair.failover.events import SenderEvent as SenderEvent
    from sbpair.failover.events import SendInDoubt as SendInDoubt
    from sbpair.failover.events import SettledLost as SettledLost
    from sbpair.failover.events import SizeUnknown as SizeUnknown
    from sbpair.failover.events import SyphonFaulted as SyphonFaulted
    from sbpair.failover.events import UnpairedSize as UnpairedSize
    from sbpair.management.calls import Listed as Listed
    from sbpair.management.calls import QueueProvisioned as QueueProvisioned
    from sbpair.model.retries import Retrying as Retrying
    from sbpair.move.events import DeadLettered as DeadLettered
    from sbpair.move.events import DestinationBackingOff as DestinationBackingOff
    from sbpair.move.events import DestinationProgress as DestinationProgress
    from sbpair.move.events import DestinationRecovered as DestinationRecovered
    from sbpair.move.events import LimitChanged as LimitChanged
    from sbpair.move.events import MessagesLocked as MessagesLocked
    from sbpair.move.events import QueueBlocked as QueueBlocked
    from sbpair.move.events import QueueDepths as QueueDepths
    from sbpair.move.events import QueueDone as QueueDone
    from sbpair.move.events import QueueFailed as QueueFailed
    from sbpair.move.events import QueueOpened as QueueOpened
    from sbpair.move.events import QueueProgress as QueueProgress
    from sbpair.move.events import QueuesFound as QueuesFound
    from sbpair.move.events import RampProgress as RampProgress
    from sbpair.move.events import RunCancelled as RunCancelled
    from sbpair.move.events import RunPaused as RunPaused
    from sbpair.move.events import RunPausing as RunPausing
    from sbpair.move.events import RunResumed as RunResumed
    from sbpair.move.events import SyphonEvent as SyphonEvent
    from sbpair.move.events import TopicsUnchecked as TopicsUnchecked
    from sbpair.move.peek.peeker import Peeked as Peeked
    from sbpair.relay.events import RelayAnswerLost as RelayAnswerLost
    from sbpair.relay.events import RelayBothFailed as RelayBothFailed
    from sbpair.relay.events import RelayEvent as RelayEvent
    from sbpair.relay.events import RelayRequestFailed as RelayRequestFailed
    from sbpair.relay.events import RelayRolesSwapped as RelayRolesSwapped
    from sbpair.relay.events import RelaySideChosen as RelaySideChosen
    from sbpair.relay.events import RelaySideDown as RelaySideDown
    from sbpair.relay.events import RelaySideFailed as RelaySideFailed
    from sbpair.relay.events import RelaySideUp as RelaySideUp
    from sbpair.relay.events import RelayTokenNotRenewed as RelayTokenNotRenewed
    from sbpair.replay.progress import Expected as Expected
    from sbpair.replay.progress import PhaseProgress as PhaseProgress
    from sbpair.replay.progress import ReplayPhase as ReplayPhase
    from sbpair.replication.events import DuplicateCompleted as DuplicateCompleted
    from sbpair.replication.events import NoKey as NoKey
    from sbpair.replication.events import OneSideOnly as OneSideOnly
    from sbpair.replication.events import Redelivered as Redelivered
    from sbpair.replication.events import ReplicationEvent as ReplicationEvent
    from sbpair.replication.events import RolesSwapped as RolesSwapped
    from sbpair.replication.events import SideBack as SideBack
    from sbpair.replication.events import SideLost as SideLost
    from sbpair.replication.events import Unanswered as Unanswered

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.failover.events": (
            "EntityChanged, OutboxBegun, OutboxClosed, OutboxEmptied, OutboxExpired, OutboxRefused, OutboxStuck, "
            "QueueLeft, QueueReturned, SendInDoubt, SenderEvent, SettledLost, SizeUnknown, SyphonFaulted, UnpairedSize"
        ),
        "sbpair.management.calls": "Listed, QueueProvisioned",
        "sbpair.model.retries": "Retrying",
        "sbpair.move.events": (
            "DeadLettered, DestinationBackingOff, DestinationProgress, DestinationRecovered, LimitChanged, "
            "MessagesLocked, QueueBlocked, QueueDepths, QueueDone, QueueFailed, QueueOpened, QueueProgress, "
            "QueuesFound, RampProgress, RunCancelled, RunPaused, RunPausing, RunResumed, SyphonEvent, TopicsUnchecked"
        ),
        "sbpair.move.peek.peeker": "Peeked",
        "sbpair.relay.events": (
            "RelayAnswerLost, RelayBothFailed, RelayEvent, RelayRequestFailed, RelayRolesSwapped, RelaySideChosen, "
            "RelaySideDown, RelaySideFailed, RelaySideUp, RelayTokenNotRenewed"
        ),
        "sbpair.replay.progress": "Expected, PhaseProgress, ReplayPhase",
        "sbpair.replication.events": (
            "DuplicateCompleted, NoKey, OneSideOnly, Redelivered, ReplicationEvent, RolesSwapped, SideBack, "
            "SideLost, Unanswered"
        ),
    },
)
__all__ = list(__dir__())
