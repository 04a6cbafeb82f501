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
        LimitChanged,
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

__all__ = [
    "DeadLettered",
    "DestinationBackingOff",
    "DestinationProgress",
    "DestinationRecovered",
    "DuplicateCompleted",
    "EntityChanged",
    "Expected",
    "LimitChanged",
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.failover.events": (
            "EntityChanged, OutboxBegun, OutboxClosed, OutboxEmptied, OutboxExpired, OutboxRefused, OutboxStuck, "
            "QueueLeft, QueueReturned, SendInDoubt, SenderEvent, SizeUnknown, SyphonFaulted"
        ),
        "sbpair.model.queues": "Listed, QueueProvisioned, Retrying",
        "sbpair.move.events": (
            "DeadLettered, DestinationBackingOff, DestinationProgress, DestinationRecovered, LimitChanged, "
            "QueueBlocked, QueueDepths, QueueDone, QueueFailed, QueueOpened, QueueProgress, QueuesFound, SyphonEvent"
        ),
        "sbpair.move.peek.peeker": "Peeked",
        "sbpair.replay.progress": "Expected, PhaseProgress, ReplayPhase",
        "sbpair.replication.events": (
            "DuplicateCompleted, NoKey, OneSideOnly, Redelivered, ReplicationEvent, RolesSwapped, SideBack, "
            "SideLost, Unanswered"
        ),
    },
)
