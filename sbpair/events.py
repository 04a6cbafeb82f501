"""The events that `on_event` callbacks receive, imported when they are first used.

Paired clients report SenderEvent, replication ReplicationEvent, a syphon SyphonEvent. Management and previews report
Listed, QueueProvisioned, Retrying and Peeked; a replay reports ReplayPhase, Expected and PhaseProgress.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import lazy_names

if TYPE_CHECKING:
    from sbpair.failover.events import (
        EntityChanged,
        OutboxBegun,
        OutboxClosed,
        OutboxEmptied,
        OutboxExpired,
        OutboxRefused,
        OutboxStuck,
        QueueLeft,
        QueueReturned,
        SenderEvent,
        SendInDoubt,
        SizeUnknown,
        SyphonFaulted,
    )
    from sbpair.model.queues import Listed, QueueProvisioned, Retrying
    from sbpair.move.events import (
        DeadLettered,
        DestinationBackingOff,
        DestinationProgress,
        DestinationRecovered,
        QueueBlocked,
        QueueDepths,
        QueueDone,
        QueueFailed,
        QueueOpened,
        QueueProgress,
        QueuesFound,
        SyphonEvent,
    )
    from sbpair.move.peek.peeker import Peeked
    from sbpair.replay.progress import Expected, PhaseProgress, ReplayPhase
    from sbpair.replication.events import (
        DuplicateCompleted,
        NoKey,
        OneSideOnly,
        Redelivered,
        ReplicationEvent,
        RolesSwapped,
        SideBack,
        SideLost,
        Unanswered,
    )

_HOMES = {
    "DeadLettered": "sbpair.move.events:DeadLettered",
    "DestinationBackingOff": "sbpair.move.events:DestinationBackingOff",
    "DestinationProgress": "sbpair.move.events:DestinationProgress",
    "DestinationRecovered": "sbpair.move.events:DestinationRecovered",
    "DuplicateCompleted": "sbpair.replication.events:DuplicateCompleted",
    "EntityChanged": "sbpair.failover.events:EntityChanged",
    "Expected": "sbpair.replay.progress:Expected",
    "Listed": "sbpair.model.queues:Listed",
    "NoKey": "sbpair.replication.events:NoKey",
    "OneSideOnly": "sbpair.replication.events:OneSideOnly",
    "OutboxBegun": "sbpair.failover.events:OutboxBegun",
    "OutboxClosed": "sbpair.failover.events:OutboxClosed",
    "OutboxEmptied": "sbpair.failover.events:OutboxEmptied",
    "OutboxExpired": "sbpair.failover.events:OutboxExpired",
    "OutboxRefused": "sbpair.failover.events:OutboxRefused",
    "OutboxStuck": "sbpair.failover.events:OutboxStuck",
    "Peeked": "sbpair.move.peek.peeker:Peeked",
    "PhaseProgress": "sbpair.replay.progress:PhaseProgress",
    "QueueBlocked": "sbpair.move.events:QueueBlocked",
    "QueueDepths": "sbpair.move.events:QueueDepths",
    "QueueDone": "sbpair.move.events:QueueDone",
    "QueueFailed": "sbpair.move.events:QueueFailed",
    "QueueLeft": "sbpair.failover.events:QueueLeft",
    "QueueOpened": "sbpair.move.events:QueueOpened",
    "QueueProgress": "sbpair.move.events:QueueProgress",
    "QueueProvisioned": "sbpair.model.queues:QueueProvisioned",
    "QueueReturned": "sbpair.failover.events:QueueReturned",
    "QueuesFound": "sbpair.move.events:QueuesFound",
    "Redelivered": "sbpair.replication.events:Redelivered",
    "ReplayPhase": "sbpair.replay.progress:ReplayPhase",
    "ReplicationEvent": "sbpair.replication.events:ReplicationEvent",
    "Retrying": "sbpair.model.queues:Retrying",
    "RolesSwapped": "sbpair.replication.events:RolesSwapped",
    "SendInDoubt": "sbpair.failover.events:SendInDoubt",
    "SenderEvent": "sbpair.failover.events:SenderEvent",
    "SideBack": "sbpair.replication.events:SideBack",
    "SideLost": "sbpair.replication.events:SideLost",
    "SizeUnknown": "sbpair.failover.events:SizeUnknown",
    "SyphonEvent": "sbpair.move.events:SyphonEvent",
    "SyphonFaulted": "sbpair.failover.events:SyphonFaulted",
    "Unanswered": "sbpair.replication.events:Unanswered",
}

__all__ = [
    "DeadLettered",
    "DestinationBackingOff",
    "DestinationProgress",
    "DestinationRecovered",
    "DuplicateCompleted",
    "EntityChanged",
    "Expected",
    "Listed",
    "NoKey",
    "OneSideOnly",
    "OutboxBegun",
    "OutboxClosed",
    "OutboxEmptied",
    "OutboxExpired",
    "OutboxRefused",
    "OutboxStuck",
    "Peeked",
    "PhaseProgress",
    "QueueBlocked",
    "QueueDepths",
    "QueueDone",
    "QueueFailed",
    "QueueLeft",
    "QueueOpened",
    "QueueProgress",
    "QueueProvisioned",
    "QueueReturned",
    "QueuesFound",
    "Redelivered",
    "ReplayPhase",
    "ReplicationEvent",
    "Retrying",
    "RolesSwapped",
    "SendInDoubt",
    "SenderEvent",
    "SideBack",
    "SideLost",
    "SizeUnknown",
    "SyphonEvent",
    "SyphonFaulted",
    "Unanswered",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
