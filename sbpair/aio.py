"""The clients, senders and receivers of `sbpair` for asyncio programs, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair import lazy_names

if TYPE_CHECKING:
    from sbpair.failover.aio import AsyncPairedClient as PairedClient
    from sbpair.replication.aio import AsyncActiveSender as ActiveSender
    from sbpair.replication.aio import AsyncDedupReceiver as DedupReceiver
    from sbpair.replication.aio import AsyncPassiveSender as PassiveSender

__all__ = ["ActiveSender", "DedupReceiver", "PairedClient", "PassiveSender"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.failover.aio": "AsyncPairedClient as PairedClient",
        "sbpair.replication.aio": (
            "AsyncActiveSender as ActiveSender, AsyncDedupReceiver as DedupReceiver, "
            "AsyncPassiveSender as PassiveSender"
        ),
    },
)
