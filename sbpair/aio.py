"""The clients, senders and receivers of `sbpair` for asyncio programs, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.failover.clients import AsyncPairedClient as PairedClient
    from sbpair.replication.receivers import AsyncDedupReceiver as DedupReceiver
    from sbpair.replication.senders import AsyncActiveSender as ActiveSender
    from sbpair.replication.senders import AsyncPassiveSender as PassiveSender

__all__ = ["ActiveSender", "DedupReceiver", "PairedClient", "PassiveSender"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.failover.clients": "AsyncPairedClient as PairedClient",
        "sbpair.replication.receivers": "AsyncDedupReceiver as DedupReceiver",
        "sbpair.replication.senders": "AsyncActiveSender as ActiveSender, AsyncPassiveSender as PassiveSender",
    },
)
