"""The same names as `sbpair`'s own where what they stand for is awaited, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.failover.aio import AsyncPairedClient
    from sbpair.replication.aio import AsyncActiveSender, AsyncDedupReceiver, AsyncPassiveSender

__all__ = ["AsyncActiveSender", "AsyncDedupReceiver", "AsyncPairedClient", "AsyncPassiveSender"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "AsyncPairedClient":
        from sbpair.failover import aio
    else:
        from sbpair.replication import aio  # type: ignore[no-redef]
    return getattr(aio, name)


def __dir__() -> list[str]:
    return sorted(__all__)
