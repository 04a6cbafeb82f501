"""The listener and the client of `sbpair.relay` for asyncio programs, imported when they are first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbpair.public_names import lazy_names

if TYPE_CHECKING:
    from sbpair.relay.relay_client import AsyncRelayClient as RelayClient
    from sbpair.relay.relay_listener import AsyncRelayListener as RelayListener

__all__ = ["RelayClient", "RelayListener"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "sbpair.relay.relay_client": "AsyncRelayClient as RelayClient",
        "sbpair.relay.relay_listener": "AsyncRelayListener as RelayListener",
    },
)
