"""The same names as `sbpair`'s own where what they stand for is awaited, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbpair.paired.aio import PairedClient
    from sbpair.sender.replication.aio import ActiveSender, DedupReceiver, PassiveSender

__all__ = ["ActiveSender", "DedupReceiver", "PairedClient", "PassiveSender"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "PairedClient":
        from sbpair.paired import aio
    else:
        from sbpair.sender.replication import aio  # type: ignore[no-redef]
    return getattr(aio, name)


def __dir__() -> list[str]:
    return sorted(__all__)
